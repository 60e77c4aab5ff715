"""Windows: compared with every way to cut a document, and how much of large shards they let be labelled."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.examples.pairs import pairs
from data_prep.examples.windows import cut_long_sentences, wanted_lengths, windows
from data_prep.prepared import Shard

ALL_START = np.ones(1, dtype=bool)


def ways_to_cut(lengths: tuple[int, ...], capacity: int) -> list[list[int]]:
    """Every way to cut pieces into consecutive windows within the capacity, as their numbers of pieces."""
    if not lengths:
        return [[]]
    sizes = [size for size in range(1, len(lengths) + 1) if sum(lengths[:size]) <= capacity]
    return [[size, *rest] for size in sizes for rest in ways_to_cut(lengths[size:], capacity)]


def tokens_alone(lengths: tuple[int, ...], sizes: list[int]) -> int:
    """Tokens in windows of one piece."""
    begins = np.cumsum([0, *sizes[:-1]])
    return sum(lengths[begin] for begin, size in zip(begins, sizes, strict=True) if size == 1)


def cut(documents: list[list[int]], capacity: int, target: np.ndarray | None = None) -> list[list[int]]:
    """Numbers of pieces of the windows of each document."""
    starts = np.cumsum([0, *(length for document in documents for length in document)])
    ends = np.cumsum([0, *map(len, documents)])
    if target is None:
        target = np.full(ends[-1], capacity)
    first = windows(starts, ends, capacity, target)
    sizes = np.diff(first, append=ends[-1])
    assert set(ends[:-1].tolist()) <= set(first.tolist())
    return [sizes[(first >= begin) & (first < end)].tolist() for begin, end in zip(ends, ends[1:], strict=False)]


documents_of_pieces = st.lists(
    st.lists(st.one_of(st.integers(1, 20), st.integers(7, 11)), min_size=1, max_size=9), min_size=1, max_size=4
)


@given(documents_of_pieces)
def test_no_way_to_cut_leaves_fewer_tokens_alone_in_fewer_windows(documents):
    for lengths, sizes in zip(map(tuple, documents), cut(documents, 20), strict=True):
        ways = ways_to_cut(lengths, 20)
        assert sizes in ways
        assert tokens_alone(lengths, sizes) == min(tokens_alone(lengths, way) for way in ways)
        assert len(sizes) == min(map(len, ways))


@given(documents_of_pieces, st.integers(0, 10**6))
def test_short_targets_leave_no_more_tokens_alone(documents, seed):
    wanted = np.random.default_rng(seed).integers(2, 21, sum(map(len, documents)))
    for lengths, sizes in zip(map(tuple, documents), cut(documents, 20, wanted), strict=True):
        ways = ways_to_cut(lengths, 20)
        assert sizes in ways
        assert tokens_alone(lengths, sizes) == min(tokens_alone(lengths, way) for way in ways)


@given(documents_of_pieces, st.integers(0, 10**6))
def test_a_window_of_four_pieces_or_more_is_within_its_target(documents, seed):
    wanted = np.random.default_rng(seed).integers(2, 21, sum(map(len, documents)))
    begin = 0
    for lengths, sizes in zip(documents, cut(documents, 20, wanted), strict=True):
        ends = np.cumsum(sizes)
        for end, size in zip(ends, sizes, strict=True):
            if size > 3:
                assert sum(lengths[end - size : end]) <= wanted[begin + end - size]
        begin += len(lengths)


def test_a_sentence_is_not_left_alone_for_a_fuller_window_before_it():
    assert cut([[30, 30, 30, 70, 70]], 100) == [[2, 2, 1]]


def test_short_windows_have_two_sentences_where_two_fit():
    """A target of 2 tokens: pairs, a last three where one would be left, and alone what fits beside no neighbour."""
    assert cut([[5] * 6, [5] * 7, [5], [5, 98, 5]], 100, np.full(17, 2)) == [[2, 2, 2], [2, 2, 3], [1], [1, 1, 1]]


def best_shares(shard: Shard, sequence_length: int) -> tuple[float, float]:
    """What whole sentences allow: the largest share of tokens, and of examples, in windows of several pieces.

    Of tokens: over all ways to cut the documents. Of examples: over those with the fewest windows; otherwise cutting
    everything into windows of two short sentences would count as the best. Both by going through the pieces of a
    document from its end, with every window that fits.
    """
    starts, documents, _ = cut_long_sentences(shard, sequence_length - 3, ALL_START)
    length = np.diff(starts).tolist()
    alone_tokens = num_windows = num_alone = 0
    for begin, end in zip(documents[:-1].tolist(), documents[1:].tolist(), strict=True):
        best: dict[int, tuple[int, tuple[int, int]]] = {end: (0, (0, 0))}
        for piece in range(end - 1, begin - 1, -1):
            choices = []
            tokens = 0
            for after in range(piece + 1, end + 1):
                tokens += length[after - 1]
                if tokens > sequence_length - 3:
                    break
                fewest, (count, alone) = best[after]
                is_alone = after == piece + 1
                choices.append((fewest + tokens * is_alone, (count + 1, alone + is_alone)))
            best[piece] = (min(c[0] for c in choices), min(c[1] for c in choices))
        alone_tokens += best[begin][0]
        num_windows += best[begin][1][0]
        num_alone += best[begin][1][1]
    return 1 - alone_tokens / sum(length), 1 - num_alone / num_windows


@lru_cache
def documents_of(median: float, spread: float) -> list[list[int]]:
    """Sentence lengths of 150 documents of 1 to 120 sentences."""
    draw = np.random.default_rng(5)
    return [
        np.clip(draw.lognormal(np.log(median), spread, size), 1, 400).astype(int).tolist()
        for size in draw.integers(1, 120, 150)
    ]


@pytest.mark.parametrize("length", [64, 128, 512])
@pytest.mark.parametrize(("median", "spread"), [(12, 0.6), (28, 0.6), (45, 0.3)])
def test_nearly_everything_is_labelled_that_whole_sentences_allow(shard_of, length, median, spread):
    """Share of tokens, and of examples, in labelled examples, of the best possible one."""
    shard = shard_of(documents_of(median, spread))
    of_tokens, of_examples = best_shares(shard, length)
    rows = pairs(shard, length, 1, 0, ALL_START)
    is_labelled = rows.label >= 0
    tokens = rows.a_length + rows.b_length
    assert tokens[is_labelled].sum() / tokens.sum() >= 0.97 * of_tokens
    assert is_labelled.mean() >= 0.97 * of_examples


def test_target_lengths(shard_of):
    """A tenth is short, and the lengths 2..capacity are equally likely among them."""
    drawn = wanted_lengths(200_000, 50, 0, 1, 0)
    short = drawn[drawn < 50]
    share = 0.1 * 48 / 49
    assert abs(len(short) / len(drawn) - share) < 4 * (share * (1 - share) / len(drawn)) ** 0.5
    counts = np.bincount(short, minlength=50)[2:]
    assert counts.min() > 0 and len(counts) == 48
    # Chi-square, 47 degrees of freedom, p = 1e-4.
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 90


def test_short_windows_are_of_2_tokens_up_to_the_capacity():
    """Short windows are of 2 tokens up to the capacity."""
    assert set(wanted_lengths(1000, 5, 0, 1, 0).tolist()) == {2, 3, 4, 5}
    assert (wanted_lengths(1000, 2, 0, 1, 0) == 2).all()
