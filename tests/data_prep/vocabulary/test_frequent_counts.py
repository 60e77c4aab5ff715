"""Counts in bounded memory, against counts of everything."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from data_prep.vocabulary.word_counts import FrequentCounts

WORDS = st.text("ab", min_size=1, max_size=4)
BATCHES = st.lists(st.lists(WORDS, max_size=12).map(Counter), max_size=30)


def length(counts: Counter[str]) -> int:
    """Of all occurrences."""
    return sum(len(word) * count for word, count in counts.items())


def counted(batches: list[Counter[str]], size: int) -> FrequentCounts:
    found = FrequentCounts(size)
    for batch in batches:
        found.update(batch)
        assert sum(map(len, found.counts)) <= size
    return found


@given(BATCHES, st.integers(5, 60))
def test_a_word_loses_no_more_than_is_said(batches, size):
    truth = sum(batches, Counter())
    found = counted(batches, size)
    assert found.most_lost <= 2 * length(truth) / size
    for word, count in truth.items():
        assert 0 <= count - found.counts[word] <= found.most_lost


@given(BATCHES)
def test_all_counts_are_exact_while_there_is_room(batches):
    truth = sum(batches, Counter())
    found = counted(batches, sum(map(len, truth)))
    assert found.counts == truth and found.most_lost == 0


def test_a_word_that_is_frequent_from_the_beginning_is_exact_among_words_without_end():
    found = counted([Counter(["often"] * 3 + [f"id{10 * n + i}" for i in range(10)]) for n in range(500)], size=300)
    assert found.counts["often"] == 1500 and 0 < found.most_lost < 500


def test_a_word_that_becomes_frequent_late_is_found():
    early = [Counter(f"id{10 * n + i}" for i in range(10)) for n in range(500)]
    found = counted([*early, *[Counter({"late": 3, f"id{n}": 1}) for n in range(500)]], size=300)
    assert 1500 - found.most_lost <= found.counts["late"] <= 1500
