"""AUROC, average precision and calibration error, against scikit-learn and a count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from finetune.ranking import BINS, Ranking, calibration_error

# Few different numbers, so that many are equal.
rows = st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 3)), min_size=1, max_size=40)


@given(rows)
@settings(max_examples=200)
def test_both_are_those_of_scikit_learn(rows):
    numbers, positive, weights = (np.array(column) for column in zip(*rows, strict=True))
    numbers = numbers / 6
    ranking, counted = Ranking(numbers), weights > 0
    kinds = set(positive[counted])
    found = ranking.both(weights, positive)
    if kinds == {True, False}:
        assert found[0] == pytest.approx(reference.roc_auc_score(positive, numbers, sample_weight=weights))
    else:
        assert found[0] is None
    if True in kinds:
        expected = reference.average_precision_score(positive, numbers, sample_weight=weights)
        assert found[1] == pytest.approx(expected)
    else:
        assert found[1] is None


@given(rows, st.integers(0, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_draws_are_ranked_together_as_each_by_itself(rows, num_draws, seed):
    numbers, positive, _ = (np.array(column) for column in zip(*rows, strict=True))
    counts = np.random.default_rng(seed).integers(0, 3, (len(rows), num_draws)).astype(float)
    ranking = Ranking(numbers)
    areas, precisions = ranking.of_draws(counts, positive)
    expected = np.array([ranking.both(weights, positive) for weights in counts.T], float).reshape(-1, 2)
    assert areas == pytest.approx(expected[:, 0], nan_ok=True)
    assert precisions == pytest.approx(expected[:, 1], nan_ok=True)


@given(rows)
@settings(max_examples=300)
def test_a_text_that_counts_twice_is_two_texts(rows):
    numbers, positive, weights = (np.array(column) for column in zip(*rows, strict=True))
    numbers = numbers / 6
    times = np.repeat(np.arange(len(numbers)), weights)
    if len(times):
        one, many = np.ones(len(times)), Ranking(numbers[times])
        assert Ranking(numbers).both(weights, positive) == pytest.approx(many.both(one, positive[times]))
        assert calibration_error(numbers, positive, weights) == pytest.approx(
            calibration_error(numbers[times], positive[times])
        )


def test_the_calibration_error_is_the_mean_gap_of_the_bins():
    rng = np.random.default_rng(1)
    confidence = rng.random(2000)
    right = rng.random(2000) < confidence**2
    expected = 0.0
    for low in np.arange(BINS) / BINS:
        mine = (confidence > low) & (confidence <= low + 1 / BINS)
        if mine.any():
            expected += mine.mean() * abs(confidence[mine].mean() - right[mine].mean())
    assert calibration_error(confidence, right) == pytest.approx(expected)
    assert calibration_error(np.ones(10), np.ones(10, bool)) == 0
    # A fifth, where the third bin ends, is in one bin with 0.15 and not with 0.25.
    found = calibration_error(np.array([0.15, 0.2, 0.25]), np.array([False, True, False]))
    assert found == pytest.approx((abs(0.15 + 0.2 - 1) + 0.25) / 3)
