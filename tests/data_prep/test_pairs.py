"""Sentence pairs: what holds for every shard (hypothesis), and statistics of large shards."""

import gzip
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.pairs import (
    cut_long_sentences,
    example_keys,
    example_order,
    find_partners,
    pairs,
    shard_order,
    windows,
)
from data_prep.prepared import Shard

VOCABULARY = 40
ALL_START = np.ones(VOCABULARY, dtype=bool)
sentence_lengths = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 6), st.integers(100, 400)), min_size=1, max_size=25)


@st.composite
def cases(draw, make, documents=st.lists(sentence_lengths, min_size=1, max_size=30)):
    """A shard, its document and sentence numbers by token, a sequence length, a seed, an epoch, starts_word."""
    shape = draw(documents)
    tokens = sum(map(sum, shape))
    ids = np.random.default_rng(draw(st.integers(0, 1000))).integers(0, VOCABULARY, tokens)
    starts_word = np.arange(VOCABULARY) < draw(st.sampled_from([0, 2, 25, VOCABULARY]))
    shard = make(shape, ids.astype(np.uint16), draw(st.integers(0, 3)))
    return shard, draw(st.integers(8, 128)), draw(st.integers(0, 99)), draw(st.integers(0, 5)), starts_word


@pytest.fixture(scope="module")
def each_case(shard_of):
    """Calls a check with many random cases."""

    def run(check, documents=None, examples=120):
        strategy = cases(shard_of) if documents is None else cases(shard_of, documents)
        settings(max_examples=examples)(given(strategy)(check))()

    return run


def owners(shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """The document and the sentence of every token."""
    sentence = np.repeat(np.arange(len(shard.sentence_starts) - 1), np.diff(shard.sentence_starts))
    document = np.repeat(np.arange(shard.num_documents), np.diff(shard.document_starts))
    return document[sentence], sentence


def segments(rows) -> list[tuple[int, int]]:
    """(start, end) of every A and B."""
    a = zip(rows.a_start.tolist(), (rows.a_start + rows.a_length).tolist(), strict=True)
    b = zip(rows.b_start.tolist(), (rows.b_start + rows.b_length).tolist(), strict=True)
    return [(start, end) for start, end in [*a, *b] if end > start]


def greedy_cuts(is_start: list[bool], start: int, end: int, capacity: int) -> list[int]:
    """Where a sentence has to be cut: at the last word start that leaves a piece within the capacity."""
    found = []
    while end - start > capacity:
        ends = [place for place in range(start + 1, start + capacity + 1) if is_start[place]]
        start = ends[-1] if ends else start + capacity
        found.append(start)
    return found


def test_every_token_is_used_exactly_once(each_case):
    def check(case):
        shard, length, seed, epoch, starts_word = case
        used = np.zeros(len(shard.ids), dtype=int)
        for start, end in segments(pairs(shard, length, seed, epoch, starts_word)):
            used[start:end] += 1
        assert (used == 1).all()

    each_case(check)


def test_segments_are_whole_sentences_or_pieces_cut_at_word_starts(each_case):
    def check(case):
        shard, length, seed, epoch, starts_word = case
        is_start = starts_word[shard.ids].tolist()
        bounds = shard.sentence_starts.tolist()
        sentences = list(zip(bounds[:-1], bounds[1:], strict=True))
        cuts = [cut for start, end in sentences for cut in greedy_cuts(is_start, start, end, length - 3)]
        rows = pairs(shard, length, seed, epoch, starts_word)
        pieces, _, _ = cut_long_sentences(shard, length - 3, starts_word)
        assert pieces.tolist() == sorted(bounds + cuts)
        assert {place for segment in segments(rows) for place in segment} <= {*bounds, *cuts}
        assert rows.sentences_cut == sum(end - start > length - 3 for start, end in sentences)

    each_case(check)


def test_no_example_is_longer_than_the_sequence_length(each_case):
    def check(case):
        shard, length, seed, epoch, starts_word = case
        rows = pairs(shard, length, seed, epoch, starts_word)
        specials = np.where(rows.b_length > 0, 3, 2)
        assert (rows.a_length + rows.b_length + specials <= length).all()
        assert rows.lengths().tolist() == (rows.a_length + rows.b_length + specials).tolist()
        assert (rows.a_length > 0).all()

    each_case(check)


def test_labels_mean_what_they_say_and_are_balanced(each_case):
    """0: B follows A in one document; 1: B is of another document; -100: no B, or a surplus pair that follows."""

    def check(case):
        shard, length, seed, epoch, starts_word = case
        rows = pairs(shard, length, seed, epoch, starts_word)
        document, _ = owners(shard)
        for start, end in segments(rows):
            assert len(set(document[start:end].tolist())) == 1
        paired = rows.b_length > 0
        follows = rows.b_start == rows.a_start + rows.a_length
        same = document[rows.a_start] == document[np.minimum(rows.b_start, len(document) - 1)]
        assert set(rows.label.tolist()) <= {0, 1, -100}
        assert (paired | (rows.label == -100)).all()
        assert (follows & same)[paired & (rows.label != 1)].all()
        assert not same[rows.label == 1].any()
        assert np.count_nonzero(rows.label == 0) == np.count_nonzero(rows.label == 1)

    each_case(check)


def test_pairs_are_a_function_of_seed_and_epoch(each_case):
    def check(case):
        shard, length, seed, epoch, starts_word = case
        first, again = (pairs(shard, length, seed, epoch, starts_word) for _ in range(2))
        for name, column in first.columns().items():
            assert column.tolist() == getattr(again, name).tolist()

    each_case(check, examples=30)


def test_without_the_next_sentence_objective_windows_are_one_segment(each_case):
    def check(case):
        shard, length, seed, epoch, starts_word = case
        rows = pairs(shard, length, seed, epoch, starts_word, next_sentence=False)
        assert not rows.b_length.any()
        assert (rows.label == -100).all()
        # In text order, end to end: the same windows, only not divided.
        assert rows.a_start.tolist() == pairs(shard, length, seed, epoch, starts_word).a_start.tolist()
        assert np.append(0, np.cumsum(rows.a_length)).tolist() == [*rows.a_start.tolist(), len(shard.ids)]

    each_case(check, examples=40)


def test_one_document_gives_pairs_without_labels(each_case):
    def check(case):
        rows = pairs(*case)
        assert (rows.label == -100).all()
        paired = rows.b_length > 0
        assert (rows.b_start == rows.a_start + rows.a_length)[paired].all()

    each_case(check, st.lists(sentence_lengths, min_size=1, max_size=1), examples=40)


def test_one_sentence_documents_give_single_segments(shard_of):
    rows = pairs(shard_of([[5], [9], [1], [5], [20]] * 10), 32, 1, 0, ALL_START)
    assert len(rows) == 50
    assert not rows.b_length.any()
    assert (rows.label == -100).all()


@pytest.fixture(scope="module")
def large(shard_of) -> Shard:
    """400 documents of 10 to 120 sentences of about 20 tokens, some over 128."""
    draw = np.random.default_rng(7)
    sizes = draw.integers(10, 120, 400)
    return shard_of([np.clip(draw.lognormal(2.9, 0.6, size), 1, 300).astype(int).tolist() for size in sizes])


def test_another_epoch_seed_or_shard_gives_other_pairs(large):
    def rows(seed, epoch, index=0):
        shard = Shard(index, large.ids, large.sentence_starts, large.document_starts)
        found = pairs(shard, 128, seed, epoch, ALL_START)
        return set(zip(*(c.tolist() for c in found.columns().values()), strict=True))

    base = rows(1, 0)
    for other in (rows(1, 1), rows(2, 0), rows(1, 0, index=1)):
        # A third of the windows may begin alike; a pair with the same split, partner and label is an accident.
        assert len(base & other) < 0.05 * len(base)


def test_nearly_all_pairs_of_many_documents_are_labelled(large):
    rows = pairs(large, 128, 1, 0, ALL_START)
    assert np.count_nonzero(rows.label >= 0) > 0.99 * np.count_nonzero(rows.b_length)


def test_a_tenth_of_the_windows_is_short_and_drawn_for_each_window(shard_of):
    """Sentences of one token: a window is as long as its target. One document: a draw for each would be all or none."""
    capacity, tokens = 125, 600_000
    lengths = pairs(shard_of([[1] * tokens]), capacity + 3, 3, 0, ALL_START, next_sentence=False).a_length[:-1]
    short = lengths[lengths < capacity]
    # The lengths 2..125 are equally likely, and the longest of them does not show.
    share = 0.1 * 123 / 124
    deviation = (share * (1 - share) / len(lengths)) ** 0.5
    assert len(lengths) > 5_000
    assert abs(len(short) / len(lengths) - share) < 3 * deviation
    assert short.min() == 2
    assert abs(short.mean() - (2 + 124) / 2) < 3 * (123**2 / 12 / len(short)) ** 0.5


def test_the_place_of_the_split_is_uniform_over_sentence_boundaries(shard_of):
    """Windows of five one-token sentences are divided after 1, 2, 3 or 4 of them."""
    a_length = pairs(shard_of([[1] * 20_000, [1] * 20_000]), 8, 1, 0, ALL_START)
    full = a_length.a_length[a_length.a_length + a_length.b_length == 5]
    counts = np.bincount(full, minlength=6)
    assert counts[[0, 5]].tolist() == [0, 0]
    # Partners of equal B only: windows that stay whole are a fair sample. Chi-square, 3 degrees of freedom, p = 1e-4.
    expected = len(full) / 4
    assert ((counts[1:5] - expected) ** 2 / expected).sum() < 21.1


def test_windows_take_as_many_sentences_as_fit(large):
    """A window ends at its document's end, or would overflow with the next sentence, or is one of the short tenth."""
    capacity = 125
    pieces, documents, _ = cut_long_sentences(large, capacity, ALL_START)
    first = windows(pieces, documents, capacity, 0, 1, 0)
    following = np.append(first[1:], len(pieces) - 1)
    at_end = np.isin(following, documents)
    overflows = pieces[np.minimum(following + 1, len(pieces) - 1)] - pieces[first] > capacity
    assert 0.85 < np.mean(at_end | overflows) < 0.95


def test_where_one_document_dominates_the_surplus_has_no_label(shard_of):
    shard = shard_of([[10] * 6_000] + [[10] * 12 for _ in range(8)])
    rows = pairs(shard, 64, 1, 0, ALL_START)
    document, _ = owners(shard)
    in_small = np.count_nonzero((document[rows.a_start] > 0) & (rows.b_length > 0))
    labelled = np.count_nonzero(rows.label >= 0)
    # Every couple has a window of a small document at least on one side.
    assert 0 < labelled <= 2 * in_small
    surplus = (rows.label == -100) & (rows.b_length > 0)
    assert np.count_nonzero(surplus) > 500
    assert (rows.b_start == rows.a_start + rows.a_length)[surplus].all()


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 5), st.integers(0, 3)), max_size=60),
    st.integers(10, 40),
    st.integers(0, 1000),
)
def test_partners_keep_their_promises(rows, capacity, salt):
    rows = [row for row in rows if row[0] + row[1] <= capacity]
    a, b, pieces, document = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    order = np.random.default_rng(salt).integers(0, 1 << 62, len(rows)).astype(np.uint64)
    left, right = find_partners(a, b, pieces, document, order, capacity)

    def fit(i: int, j: int) -> bool:
        within = a[i] + b[j] <= capacity and a[j] + b[i] <= capacity
        return bool(within and document[i] != document[j])

    coupled = [*left.tolist(), *right.tolist()]
    assert len(set(coupled)) == len(coupled)
    assert all(fit(i, j) for i, j in zip(left, right, strict=True))
    # With so few windows every one that still waits has been tried: two that are left over never fit each other.
    alone = sorted(set(range(len(rows))) - set(coupled))
    assert not any(fit(i, j) for i in alone for j in alone if i < j)


def test_partners_have_the_nearest_length_of_b(large):
    rows = pairs(large, 128, 1, 0, ALL_START)
    follows = rows.label == 0
    b_next, b_random = (np.sort(rows.b_length[rows.label == label]) for label in (0, 1))
    assert np.count_nonzero(follows) > 1_000
    # Equal lengths on both sides but for what sampling does: the largest gap between the two distributions.
    grid = np.arange(126)
    gap = np.searchsorted(b_next, grid, "right") - np.searchsorted(b_random, grid, "right")
    assert np.abs(gap).max() / len(b_next) < 1.95 * (2 / len(b_next)) ** 0.5


def test_orders_are_permutations_that_change_with_the_epoch():
    assert sorted(shard_order(50, 1, 0).tolist()) == list(range(50))
    assert shard_order(50, 1, 0).tolist() == shard_order(50, 1, 0).tolist()
    orders = {tuple(shard_order(50, seed, epoch).tolist()) for seed, epoch in [(1, 0), (1, 1), (2, 0)]}
    assert len(orders) == 3
    key = np.concatenate([example_keys(shard, np.arange(500), 1, 0) for shard in (3, 1)])
    assert len(np.unique(key)) == 1_000
    assert not np.isin(key, example_keys(3, np.arange(500), 1, 1)).any()
    order = example_order(key)
    assert sorted(order.tolist()) == list(range(1_000))
    # The order belongs to the examples, not to where they stand in the buffer.
    shuffled = np.random.default_rng(0).permutation(1_000)
    assert key[shuffled][example_order(key[shuffled])].tolist() == key[order].tolist()
    # Mixed: as many examples of the second shard in the first half as chance gives, within 5 deviations.
    assert abs(np.count_nonzero(order[:500] >= 500) - 250) < 5 * (1000 / 16) ** 0.5


# What lengths betray of the label


def length_features(shard: Shard, length: int, epochs: range) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of A and B and their numbers of sentences [pairs, 4], and the labels, of the labelled pairs."""
    _, sentence = owners(shard)
    features, labels = [], []
    for epoch in epochs:
        rows = pairs(shard, length, 1, epoch, ALL_START)
        some = rows.label >= 0
        columns = [rows.a_length[some], rows.b_length[some]]
        for start, size in ((rows.a_start[some], rows.a_length[some]), (rows.b_start[some], rows.b_length[some])):
            columns.append(sentence[start + size - 1] - sentence[start] + 1)
        features.append(np.stack(columns, axis=1))
        labels.append(rows.label[some])
    return np.concatenate(features), np.concatenate(labels)


def table_accuracy(train, train_labels, test, test_labels, widths) -> float:
    """A decision table: in each cell of binned features the more frequent label."""
    cells = [np.minimum(x // np.array(widths), 99) @ np.array([1, 100, 10_000, 1_000_000]) for x in (train, test)]
    known, cell = np.unique(cells[0], return_inverse=True)
    votes = np.bincount(cell, weights=2 * train_labels - 1)
    place = np.minimum(np.searchsorted(known, cells[1]), len(known) - 1)
    guess = (votes[place] > 0) & (known[place] == cells[1])
    return float((guess == test_labels).mean())


def regression_accuracy(train, train_labels, test, test_labels) -> float:
    """Least squares on all products of up to three features and the total length: a linear classifier."""

    def expand(x):
        x = np.column_stack([x, x[:, 0] + x[:, 1]]) / train.max(axis=0).max()
        x = np.column_stack([np.ones(len(x)), x])
        i, j, k = np.array([(i, j, k) for i in range(6) for j in range(i, 6) for k in range(j, 6)]).T
        return x[:, i] * x[:, j] * x[:, k]

    weights = np.linalg.lstsq(expand(train), 2.0 * train_labels - 1, rcond=None)[0]
    return float(((expand(test) @ weights > 0) == test_labels).mean())


def best_accuracy(learn: Shard, held_out: Shard, length: int) -> float:
    """The best of several classifiers that see lengths only, learned and scored on different documents."""
    data = (*length_features(learn, length, range(10)), *length_features(held_out, length, range(10)))
    scores = [regression_accuracy(*data)]
    for widths in [(4, 4, 1, 1), (16, 16, 1, 1), (8, 8, 99, 99), (1, 999, 99, 99), (999, 1, 99, 1), (32, 32, 2, 2)]:
        scores.append(table_accuracy(*data, [w * length / 128 if w > 2 else w for w in widths]))
    return max(scores)


@pytest.mark.parametrize("length", [64, 128, 512])
def test_lengths_do_not_give_the_label_away(shard_of, length):
    draw = np.random.default_rng(11)
    sizes = draw.lognormal(4, 0.8, 800).astype(int) + 2
    documents = [np.clip(draw.lognormal(2.9, 0.7, size), 1, 300).astype(int).tolist() for size in sizes]
    assert best_accuracy(shard_of(documents[:400]), shard_of(documents[400:]), length) <= 0.52


@pytest.mark.parametrize("length", [64, 128, 512])
def test_lengths_of_clinical_articles_do_not_give_the_label_away(shard_of, example_data, length):
    documents: list[list[int]] = [[]]
    with gzip.open(example_data / "pmc-rct-text" / "validation.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            words = len(re.findall(r"\w{1,7}|[^\w\s]", line))
            if words:
                documents[-1].append(words)
            elif documents[-1]:
                documents.append([])
    documents = [document for document in documents if document]
    half = len(documents) // 2
    assert best_accuracy(shard_of(documents[:half]), shard_of(documents[half:]), length) <= 0.52
