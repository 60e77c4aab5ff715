"""Randomness as arithmetic: a counter-based 64-bit hash instead of generators.

Every random decision of the data path is a pure function of (seed, purpose, epoch, example, position). So any part of
any epoch can be computed alone, in any order, on any number of machines, and comes out the same: numpy promises no
such thing for the streams of its generators across versions.

The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014, section 4), applied once for each field of the key.
"""

import hashlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from . import Ints, Keys

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * _M1) & _MASK64
    z = ((z ^ (z >> 27)) * _M2) & _MASK64
    return z ^ (z >> 31)


def _mix_array(z: Keys) -> Keys:
    """SplitMix64's finaliser, in place on a uint64 array (unsigned overflow wraps, as it must)."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(_M1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_M2)
    z ^= z >> np.uint64(31)
    return z


@lru_cache(maxsize=256)
def _base(seed: int, purpose: str, epoch: int) -> int:
    code = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    h = _mix_int((seed + _GOLDEN) & _MASK64)
    h = _mix_int((h ^ code) + _GOLDEN & _MASK64)
    return _mix_int((h + epoch * _GOLDEN) & _MASK64)


def keys(seed: int, purpose: str, epoch: int, example: Ints | Keys | int, position: Ints | int = 0) -> Keys:
    """Uniform 64-bit keys, one for each entry of `example` and `position` broadcast together.

    Args:
        seed, epoch: integers of any size that fits 64 bits.
        purpose: what the draw is for; different purposes are independent.
        example, position: non-negative integers or integer arrays.

    Returns:
        uint64 array of the broadcast shape.
    """
    example, position = np.broadcast_arrays(np.asarray(example), np.asarray(position))
    h = example.astype(np.uint64)
    h *= np.uint64(_GOLDEN)
    h += np.uint64(_base(seed, purpose, epoch))
    h = _mix_array(h)
    h += position.astype(np.uint64) * np.uint64(_GOLDEN)
    return _mix_array(h)


def uniform(key: Keys) -> npt.NDArray[np.float64]:
    """Keys as float64 in [0, 1): the upper 53 bits."""
    return (key >> np.uint64(11)) * np.float64(2.0**-53)


def below(key: Keys, bound: Ints | int) -> Ints:
    """Keys as int64 in [0, bound): upper 32 bits times the bound (bias under bound / 2**32)."""
    return (((key >> np.uint64(32)) * np.asarray(bound, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)
