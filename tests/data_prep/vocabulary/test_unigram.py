"""The unigram baseline against its formula in plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.vocabulary.word_counts import log_unigram
from pretrain.masked_words import most_frequent_accuracy, unigram_cross_entropy

count_lists = st.lists(st.integers(0, 10_000), min_size=1, max_size=20)


@given(count_lists, st.lists(st.integers(0, 19), min_size=1))
def test_the_baseline_is_add_one(counts, targets):
    targets = [target % len(counts) for target in targets]
    total = sum(counts) + len(counts)
    expected = [math.log((count + 1) / total) for count in counts]
    logs = log_unigram(np.array(counts))
    assert logs.tolist() == pytest.approx(expected)
    assert math.fsum(math.exp(value) for value in logs) == pytest.approx(1)
    entropy = -sum(expected[target] for target in targets) / len(targets)
    assert unigram_cross_entropy(np.array(counts), np.array(targets)) == pytest.approx(entropy)
    share = sum(target == counts.index(max(counts)) for target in targets) / len(targets)
    assert most_frequent_accuracy(np.array(counts), np.array(targets)) == pytest.approx(share)


def test_without_targets_the_baseline_is_zero():
    nothing = np.empty(0, dtype=np.int64)
    assert (unigram_cross_entropy(np.array([1, 2]), nothing), most_frequent_accuracy(np.array([1, 2]), nothing)) == (
        0.0,
        0.0,
    )
