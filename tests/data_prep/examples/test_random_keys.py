"""Keys: frozen values, and statistics that a weak mixer would fail. Nothing here depends on chance."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.examples.random_keys import below, keys, uniform

MANY = np.arange(50_000)
BASE = {"seed": 1, "purpose": "mask", "epoch": 2, "example": MANY, "position": 3}
OTHER = {"seed": 2, "purpose": "masks", "epoch": 3, "example": MANY + 50_000, "position": 4}


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def largest_chi_square(cells: int) -> float:
    """Five standard deviations above what uniform counts give."""
    return cells - 1 + 5 * (2 * (cells - 1)) ** 0.5


def test_keys_are_frozen():
    mask = [0xAF5524C41C09A0B6, 0xA3D4BCC7128F682C, 0xB47253C79854B2BE]
    split = [0x3F88854BF607D146, 0x52129F914496B4B5, 0xED5BBA0FFAF15B38]
    assert keys(0, "mask", 0, np.arange(3)).tolist() == mask
    assert keys(1, "split", 7, 5, np.arange(3)).tolist() == split
    assert int(keys((1 << 63) - 1, "swap", 123456, 2**40, 511)) == 0x8107A04F8440D16E


def test_numbers_from_keys_are_frozen():
    key = keys(3, "replace", 1, np.arange(6))
    assert uniform(key[:3]).tolist() == [0.17793971633911476, 0.5633684155451304, 0.7367029492690869]
    assert below(key, 1000).tolist() == [177, 563, 736, 893, 164, 119]


@pytest.mark.parametrize("field", BASE)
def test_another_seed_purpose_epoch_example_or_position_gives_unrelated_keys(field):
    changed = keys(**BASE) ^ keys(**BASE | {field: OTHER[field]})
    bits = np.unpackbits(changed.view(np.uint8).reshape(-1, 8), axis=1)
    # Every one of the 64 bits flips in half of the keys: 5 standard deviations of a coin.
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / len(MANY) ** 0.5
    assert np.count_nonzero(changed == 0) == 0


@pytest.mark.parametrize("varied", ["seed", "epoch", "example", "position"])
@pytest.mark.parametrize("shift", [0, 11, 32, 56])
def test_keys_of_consecutive_numbers_are_uniform(varied, shift):
    small = np.arange(3_000) if varied in ("seed", "epoch") else MANY
    fields = {"seed": 5, "purpose": "x", "epoch": 6, "example": 7, "position": 8}
    if varied in ("seed", "epoch"):
        key = np.array([int(keys(**fields | {varied: int(i)})) for i in small], dtype=np.uint64)
    else:
        key = keys(**fields | {varied: small})
    cells = ((key >> np.uint64(shift)) & np.uint64(255)).astype(np.int64)
    assert chi_square(np.bincount(cells, minlength=256)) < largest_chi_square(256)
    assert len(np.unique(key)) == len(key)


@given(st.integers(1, 1 << 32), st.integers(0, 1 << 62))
def test_below_stays_below(bound, seed):
    drawn = below(np.append(keys(seed, "x", 0, np.arange(20)), np.array([0, (1 << 64) - 1], dtype=np.uint64)), bound)
    assert drawn.dtype == np.int64
    assert drawn.min() == 0
    assert drawn.max() == bound - 1


@pytest.mark.parametrize("bound", [2, 3, 10, 127])
def test_below_is_uniform(bound):
    counts = np.bincount(below(keys(1, "x", 0, MANY), bound), minlength=bound)
    assert chi_square(counts) < largest_chi_square(bound)


def test_below_takes_a_bound_for_each_key():
    key = keys(1, "x", 0, np.arange(1000))
    bounds = np.arange(1, 1001)
    assert below(key, bounds).tolist() == [(int(k) >> 32) * b >> 32 for k, b in zip(key, bounds.tolist(), strict=True)]


def test_uniform_is_in_the_unit_interval():
    ends = uniform(np.array([0, (1 << 64) - 1], dtype=np.uint64))
    assert ends[0] == 0.0
    assert 1 - 2.0**-52 < ends[1] < 1.0


def test_keys_broadcast_like_single_keys():
    example, position = np.array([[0], [9], [2**33]]), np.array([0, 1, 511, 2**20])
    table = keys(4, "x", 5, example, position)
    singles = [[int(keys(4, "x", 5, int(e), int(p))) for p in position] for e in example[:, 0]]
    assert table.shape == (3, 4)
    assert table.tolist() == singles


def test_keys_leave_their_arguments_alone_and_do_not_warn():
    example = np.arange(5, dtype=np.uint64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = keys((1 << 63) - 1, "x", 2**40, example, example)
        int(keys(1, "x", 0, 2**40, 511))
    assert example.tolist() == [0, 1, 2, 3, 4]
    assert first.tolist() == keys((1 << 63) - 1, "x", 2**40, example, example).tolist()
