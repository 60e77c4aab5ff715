"""Cosines of pairs and the places at which texts are found, against loops over all texts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from finetune.vectors import cosines
from finetune.vectors.cosines import COSINE, LOSS, OTHERS, RANK, TEMPERATURE, of_pairs, ranks_and_losses


def unit(values):
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def vectors_of_texts(seed, pairs, alike=0):
    """Unit vectors of the first and the second texts of pairs of numbers, equal ones of equal texts; those of the first
    `alike` numbers are all one."""
    found = unit(np.random.default_rng(seed).normal(size=(1 + np.max(pairs, initial=0), 6)))
    found[:alike] = found[0]
    texts = np.array(pairs, np.int64)
    return found[texts[:, 0]].astype(np.float32), found[texts[:, 1]].astype(np.float32), texts


def by_loops(first, second, texts):
    """(rank, loss) of each pair."""
    found = []
    for i, (asking, right) in enumerate(texts.tolist()):
        also_right = {b for a, b in texts.tolist() if a == asking}
        candidates = {b: float(first[i] @ second[j]) for j, (_, b) in enumerate(texts.tolist())
                      if b == right or (b not in also_right and b != asking)}  # fmt: skip
        own = candidates[right]
        rank = sum(value >= own - 1e-6 for value in candidates.values())
        total = sum(math.exp((value - own) / TEMPERATURE) for value in candidates.values())
        found.append((rank, math.log(total)))
    return np.array(found).T


PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=20)


@given(PAIRS, st.integers(0, 2**31), st.integers(0, 6), st.sampled_from([1, 30, 10**6]), st.booleans())
@settings(max_examples=80)
def test_places_are_those_of_a_loop_over_all_texts(pairs, seed, alike, at_once, is_sparse):
    first, second, texts = vectors_of_texts(seed, pairs, alike)
    expected = by_loops(first.astype(np.float64), second.astype(np.float64), texts)
    sides = (csr_matrix(first), csr_matrix(second)) if is_sparse else (first, second)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cosines, "_AT_ONCE", at_once)
        ranks, losses = ranks_and_losses(*sides, texts)
    assert ranks.tolist() == expected[0].tolist()
    np.testing.assert_allclose(losses, expected[1], atol=1e-4)


def test_a_model_of_one_vector_for_all_finds_nothing():
    count = 40
    same = np.full((count, 4), 0.5, np.float32)
    texts = np.arange(2 * count).reshape(-1, 2)
    ranks, losses = ranks_and_losses(same, same, texts)
    assert set(ranks) == {count} and np.allclose(losses, math.log(count))


def test_a_right_text_is_no_wrong_one_and_copies_count_once():
    # Text 0 belongs to 10 and to 11, which is as near; 12 stands twice, and is nearer to text 1 than its own 13.
    places = {0: 0.0, 10: 0.0, 11: 0.0, 1: 1.0, 12: 1.1, 13: 1.3, 2: 2.0, 3: 2.1}
    pairs = [(0, 10), (0, 11), (1, 13), (2, 12), (3, 12)]
    vectors = {text: np.array([math.cos(angle), math.sin(angle)]) for text, angle in places.items()}
    first, second = (np.array([vectors[pair[side]] for pair in pairs], np.float32) for side in (0, 1))
    ranks, _ = ranks_and_losses(first, second, np.array(pairs))
    assert ranks.tolist() == [1, 1, 2, 2, 2]


@given(PAIRS, st.integers(0, 2**31))
@settings(max_examples=40)
def test_the_cosine_of_a_pair_and_of_others(pairs, seed):
    first, second, texts = vectors_of_texts(seed, pairs)
    found = of_pairs(first, second, texts, is_ranked=False)
    every = first.astype(np.float64) @ second.T.astype(np.float64)
    np.testing.assert_allclose(found[:, COSINE], every.diagonal(), atol=1e-5)
    assert np.isnan(found[:, [RANK, LOSS]]).all()
    count = len(pairs)
    if count == 1:
        assert np.isnan(found[0, OTHERS])
    else:
        others = [np.delete(every[row], row).mean() for row in range(count)]
        np.testing.assert_allclose(found[:, OTHERS], others, atol=1e-5)
    np.testing.assert_allclose(of_pairs(csr_matrix(first), csr_matrix(second), texts, False), found, atol=1e-5)
