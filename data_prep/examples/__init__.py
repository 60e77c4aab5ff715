"""Token ids to examples: pairs of sentences, masks, packed batches; pure functions of keys.

Shapes are written with the alphabet of the package `model`.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
"""Uniform random numbers of 64 bits (see `random_keys`)."""


def runs(begin: Ints, size: Ints) -> Ints:
    """The indices of R runs, concatenated; `begin` [R] is the first index of each, `size` [R] its length."""
    ends = np.cumsum(size)
    return np.repeat(begin - (ends - size), size) + np.arange(int(size.sum()))
