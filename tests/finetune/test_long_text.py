"""Spans against the truncation of `tokenizers`, and against what they must cover."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from data_prep.vocabulary.wordpiece import WordPieceTokenizer, build_tokenizer
from finetune.batches import fitted, head_tail, overlapping

LENGTHS = st.integers(0, 400)
CAPACITIES = st.integers(4, 70)


@pytest.fixture(scope="module")
def truncating(small_tokenizer: WordPieceTokenizer) -> Tokenizer:
    return build_tokenizer(small_tokenizer.vocabulary, lowercase=True, strip_accents=False)


@pytest.mark.parametrize("capacity", [1, 2, 5, 8, 9, 13])
def test_two_texts_are_fitted_as_tokenizers_does(truncating, capacity):
    truncating.enable_truncation(capacity, strategy="longest_first")
    for first in range(20):
        for second in range(20):
            words = ["a"] * first, ["a"] * second
            expected = truncating.encode(*words, is_pretokenized=True, add_special_tokens=False).sequence_ids
            assert fitted(first, second, capacity) == (expected.count(0), expected.count(1)), (first, second)


@given(LENGTHS, CAPACITIES)
def test_a_single_text_is_cut_at_the_capacity(length, capacity):
    assert fitted(length, 0, capacity) == (min(length, capacity), 0)


@given(LENGTHS, CAPACITIES)
def test_windows_cover_every_token_and_overlap(length, capacity):
    spans = overlapping(length, capacity)
    assert set().union(*(range(start, start + size) for start, size in spans)) == set(range(length))
    assert spans[0].start == 0 and spans[-1].start + spans[-1].length == length
    assert all(size == min(length, capacity) for _, size in spans)
    for (start, size), (following, _) in zip(spans, spans[1:], strict=False):
        assert start < following <= start + size - capacity // 4


@given(LENGTHS, CAPACITIES)
def test_no_window_is_superfluous(length, capacity):
    ends = [start + size for start, size in overlapping(length, capacity)]
    assert ends.count(length) == 1
    stride = capacity - capacity // 4
    assert len(ends) == 1 + max(0, -(-(length - capacity) // stride))


@given(LENGTHS, st.integers(0, 70))
def test_head_tail_fills_the_capacity_from_both_ends(length, capacity):
    kept = [place for start, size in head_tail(length, capacity) for place in range(start, start + size)]
    head = capacity // 4
    expected = range(length)
    if length > capacity:
        expected = [*range(head), *range(length - (capacity - head), length)]
    assert kept == list(expected)
