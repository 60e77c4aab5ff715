"""Sentence pairs: what holds for every shard (hypothesis), and statistics of large shards."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.examples.pairs import VERSION, Reason, example_keys, example_order, find_partners, pairs, shard_order
from data_prep.examples.windows import cut_long_sentences
from data_prep.prepared import Shard

VOCABULARY = 40
ALL_START = np.ones(VOCABULARY, dtype=bool)
sentence_lengths = st.lists(
    st.one_of(st.integers(1, 40), st.integers(1, 6), st.integers(100, 400)), min_size=1, max_size=25
)


document_lists = st.lists(sentence_lengths, min_size=1, max_size=30)


@st.composite
def cases(draw, make, documents):
    """What `pairs` takes: a shard, a sequence length, a seed, an epoch, starts_word."""
    shape = draw(documents)
    tokens = sum(map(sum, shape))
    ids = np.random.default_rng(draw(st.integers(0, 1000))).integers(0, VOCABULARY, tokens)
    starts_word = np.arange(VOCABULARY) < draw(st.sampled_from([0, 2, 25, VOCABULARY]))
    shard = make(shape, ids.astype(np.uint16), draw(st.integers(0, 3)))
    return shard, draw(st.integers(8, 128)), draw(st.integers(0, 99)), draw(st.integers(0, 5)), starts_word


@pytest.fixture(scope="module")
def each_case(shard_of):
    """Calls a check with many random cases."""

    def run(check, documents=document_lists, examples=120):
        settings(max_examples=examples)(given(cases(shard_of, documents))(check))()

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
    """0: B follows A in one document; 1: B is of another document; -100: no B, or a surplus that follows."""

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


def expected_reasons(shard: Shard, rows, capacity: int, starts_word: np.ndarray) -> list[Reason]:
    """Why each row has no label, from its tokens alone; ODD_COUPLE counts as NO_PARTNER."""
    pieces, _, _ = cut_long_sentences(shard, capacity, starts_word)
    begins, ends = pieces[:-1].tolist(), pieces[1:].tolist()
    document, _ = owners(shard)
    found = []
    for start, length, b_length, label in zip(rows.a_start, rows.a_length, rows.b_length, rows.label, strict=True):
        end, beside = start + length, []
        if start in ends and document[start - 1] == document[start]:
            beside.append(end - begins[ends.index(start)])
        if end in begins and document[end] == document[start]:
            beside.append(ends[begins.index(end)] - start)
        if label >= 0:
            found.append(Reason.LABELLED)
        elif b_length:
            found.append(Reason.NO_PARTNER)
        elif not beside:
            found.append(Reason.ONLY_SENTENCE)
        else:
            found.append(Reason.LEFT_OVER if min(beside) <= capacity else Reason.NO_ROOM)
    return found


def test_every_example_without_a_label_has_its_reason(each_case):
    def check(case):
        shard, length, seed, epoch, starts_word = case
        rows = pairs(shard, length, seed, epoch, starts_word)
        is_odd = rows.reason == Reason.ODD_COUPLE
        assert np.where(is_odd, Reason.NO_PARTNER, rows.reason).tolist() == expected_reasons(
            shard, rows, length - 3, starts_word
        )
        # An odd couple could have been swapped.
        assert is_odd.sum() in (0, 2)
        if is_odd.any():
            document, _ = owners(shard)
            (i, j), a, b = np.flatnonzero(is_odd), rows.a_length, rows.b_length
            assert max(a[i] + b[j], a[j] + b[i]) <= length - 3
            assert document[rows.a_start[i]] != document[rows.a_start[j]]

    each_case(check)


def test_each_reason_where_it_belongs(shard_of):
    """At most 100 tokens: 5 is its document, 90 fills a window, of 50, 50, 50 the first or last is left over; of the
    three windows of two sentences two make a couple, the only one, and one has no partner."""
    rows = pairs(shard_of([[5], [90, 90], *[[50, 50, 50]] * 3]), 103, 1, 0, ALL_START)
    assert np.bincount(rows.reason, minlength=len(Reason)).tolist() == [0, 1, 2, 3, 1, 2]


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


@pytest.mark.parametrize(("epoch", "digest"), [(0, "79a51549509fa71d"), (3, "81c807d25f14214d")])
def test_pairs_are_frozen(shard_of, epoch, digest):
    """The same pairs with every version of numpy and of this code: a resumed run sees its old data.

    Other digests need another VERSION: a run that was begun with these pairs is then refused.
    """
    assert VERSION == 2
    shard = shard_of([[1 + (k * k * i * 7919) % 61 for k in range(1, 20)] for i in range(1, 100)])
    columns = [c.astype("<i8").tobytes() for c in pairs(shard, 64, 7, epoch, ALL_START).columns().values()]
    assert hashlib.blake2b(b"".join(columns), digest_size=8).hexdigest() == digest


def test_another_epoch_seed_or_shard_gives_other_pairs(large):
    def rows(seed, epoch, index=0):
        shard = Shard(index, large.ids, large.sentence_starts, large.document_starts)
        found = pairs(shard, 128, seed, epoch, ALL_START)
        return set(zip(*(c.tolist() for c in found.columns().values()), strict=True))

    base = rows(1, 0)
    for other in (rows(1, 1), rows(2, 0), rows(1, 0, index=1)):
        # Many windows begin alike; the same split, partner and label at once are rare.
        assert len(base & other) < 0.15 * len(base)


def test_another_epoch_cuts_other_windows(large):
    def begins(epoch):
        return set(pairs(large, 128, 1, epoch, ALL_START, next_sentence=False).a_start.tolist())

    shared = len(begins(0) & begins(1)) / len(begins(0))
    # Every document begins a window in both; after the first short window in one of them chance decides.
    assert 0.1 < shared < 0.7


def test_nearly_all_pairs_of_many_documents_are_labelled(large):
    rows = pairs(large, 128, 1, 0, ALL_START)
    assert np.count_nonzero(rows.label >= 0) > 0.99 * np.count_nonzero(rows.b_length)


def test_a_tenth_of_the_windows_is_short_and_drawn_for_each_window(shard_of):
    """With one-token sentences a window is as long as its target; a draw a document would be all or none."""
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
    # Partners have equal B's, so full windows are a fair sample. Chi-square, 3 degrees of freedom, p = 1e-4.
    expected = len(full) / 4
    assert ((counts[1:5] - expected) ** 2 / expected).sum() < 21.1


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
    # With so few windows every one that waits has been tried: two that are left over never fit each other.
    alone = sorted(set(range(len(rows))) - set(coupled))
    assert not any(fit(i, j) for i in alone for j in alone if i < j)


def test_partners_wait_for_one_another():
    """Thirty windows of one document, then thirty of another with longer B's: all of them find a partner."""
    ones, document = np.ones(60, dtype=np.int64), np.repeat([0, 1], 30)
    left, right = find_partners(ones * 5, 3 + document, ones, document, np.arange(60, dtype=np.uint64), 20)
    assert sorted([*left.tolist(), *right.tolist()]) == list(range(60))
    assert document[left].tolist() == [0] * 30


def test_couples_are_taken_apart_for_windows_of_one_document():
    """Windows of documents 1 and 2 find each other first; two of document 0 are left and take one of them each."""
    ones, document = np.ones(4, dtype=np.int64), np.array([1, 2, 0, 0])
    left, right = find_partners(ones * 5, ones * 3, ones, document, np.arange(4, dtype=np.uint64), 20)
    assert sorted([*left.tolist(), *right.tolist()]) == [0, 1, 2, 3]
    assert {frozenset(couple) for couple in zip(document[left].tolist(), document[right].tolist(), strict=True)} == {
        frozenset([0, 1]),
        frozenset([0, 2]),
    }


def test_a_couple_stays_where_neither_of_it_suits_the_windows_left_over():
    """Windows of capacity 20: the couple has B's of 3 and A's of 17, so a B of 4 fits beside neither A."""
    a, b, document = np.array([17, 17, 5, 5]), np.array([3, 3, 4, 4]), np.array([1, 2, 0, 0])
    left, right = find_partners(a, b, b, document, np.arange(4, dtype=np.uint64), 20)
    assert sorted([*left.tolist(), *right.tolist()]) == [0, 1]


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
