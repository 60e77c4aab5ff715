"""Texts as ids against the tokenizer of transformers, and the order of an epoch against counts."""

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from data_prep.text.cells import lines_of
from finetune import batches as data
from finetune.batches import BatchMaker, Encoded, TextStream, encode_texts
from pretrain.engine.batches import Batches, Position
from pretrain.engine.distributed import World

MODES = ("head", "head-tail", "windows")
WORDS = ("heart", "rates", "patient", "was", "42", "[x]", "Masked", "schön", "of.", "zzz", "\N{SNOWMAN}")


def mixed_texts(count: int) -> list[tuple[str, str | None]]:
    """Texts of 1 to 40 words; two of three are pairs."""
    rng = np.random.default_rng(3)

    def words() -> str:
        return " ".join(rng.choice(WORDS, rng.integers(1, 41)))

    return [(words(), words() if number % 3 else None) for number in range(count)]


TEXTS = mixed_texts(48)
LABELS = np.arange(len(TEXTS)) % 5


@pytest.fixture(scope="module")
def token_ids(small_tokenizer):
    """The ids of the two segments of each of TEXTS."""
    return [[small_tokenizer.encode([text])[0] if text else [] for text in pair] for pair in TEXTS]


def capacity_of(pair, length):
    return length - (2 if pair[1] is None else 3)


def numbered(tokenizer, lengths) -> Encoded:
    """Texts of these lengths, whose class is their number."""
    texts = [("a " * length, None) for length in lengths]
    return encode_texts(texts, np.arange(len(texts)), tokenizer, 50, "head")


def drawn(batches: Batches, count: int) -> list[list[list[int]]]:
    """The text numbers of the first global batches, by micro-batch."""
    found = []
    for _ in range(count):
        batches.draw()
        found.append([batch.labels.tolist() for batch in batches.micro_batches()])
    return found


def flat(micro_batches: list[list[int]]) -> list[int]:
    return [number for part in micro_batches for number in part]


# --- encoding


@pytest.mark.parametrize("length", [8, 17, 48])
def test_the_beginning_is_what_transformers_reads(encoder, small_tokenizer, length):
    theirs = AutoTokenizer.from_pretrained(encoder)
    maker = BatchMaker(encode_texts(TEXTS, LABELS, small_tokenizer, length, "head"), small_tokenizer, 10**9)
    for number, (first, second) in enumerate(TEXTS):
        expected = theirs(first, second, truncation=True, max_length=length)
        batch = maker.packed(np.array([number]))
        assert batch.input_ids.tolist() == expected["input_ids"]
        assert batch.token_type_ids.tolist() == expected["token_type_ids"]
        assert batch.position_ids.tolist() == list(range(len(expected["input_ids"])))


@pytest.mark.parametrize("length", [8, 17, 48])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_cut_is_counted(small_tokenizer, token_ids, mode, length):
    encoded = encode_texts(TEXTS, LABELS, small_tokenizer, length, mode)
    long, cut = 0, 0
    for pair, (first, second) in zip(TEXTS, token_ids, strict=True):
        capacity, total = capacity_of(pair, length), len(first) + len(second)
        long += total > capacity
        if mode != "windows":
            cut += max(0, total - capacity)
        elif total > capacity:
            cut += max(0, min(len(first), len(second)) - capacity // 2)
    assert (encoded.num_long, encoded.num_cut) == (long, cut)
    assert encoded.num_tokens == sum(len(ids) for segments in token_ids for ids in segments)
    assert encoded.num_texts == len(TEXTS) and (encoded.targets == LABELS).all()
    assert set(encoded.sequences.lengths().tolist()) <= set(range(length + 1))
    rows, seen = encoded.sequences, set()
    for starts, lengths in ((rows.a_start, rows.a_length), (rows.b_start, rows.b_length)):
        for start, size in zip(starts.tolist(), lengths.tolist(), strict=True):
            seen.update(range(start, start + size))
    assert seen == set(range(len(encoded.ids))) and len(seen) == encoded.num_tokens - cut


@pytest.mark.parametrize("length", [17, 48])
def test_head_tail_keeps_a_quarter_of_each_text_from_its_beginning(small_tokenizer, token_ids, length):
    encoded = encode_texts(TEXTS, LABELS, small_tokenizer, length, "head-tail")
    for number, (pair, segments) in enumerate(zip(TEXTS, token_ids, strict=True)):
        kept = _segments(encoded, number)
        for ids, original in zip(kept, segments, strict=True):
            head = len(ids) // 4
            cut = [*original[:head], *original[len(original) - (len(ids) - head) :]]
            assert ids == (cut if len(ids) < len(original) else original)
        assert sum(map(len, kept)) == min(sum(map(len, segments)), capacity_of(pair, length))


def _segments(encoded: Encoded, sequence: int) -> list[list[int]]:
    row = encoded.sequences[sequence : sequence + 1]
    spans = (row.a_start, row.a_length), (row.b_start, row.b_length)
    return [encoded.ids[int(start[0]) : int(start[0] + size[0])].tolist() for start, size in spans]


@pytest.mark.parametrize("length", [8, 17, 48])
def test_windows_move_the_longer_text_along_the_shorter(small_tokenizer, token_ids, length):
    encoded = encode_texts(TEXTS, LABELS, small_tokenizer, length, "windows")
    rows = encoded.sequences
    for number, segments in enumerate(token_ids):
        capacity = capacity_of(TEXTS[number], length)
        mine = np.flatnonzero(encoded.text == number)
        longer, shorter = (0, 1) if len(segments[0]) > len(segments[1]) else (1, 0)
        fixed = segments[shorter] if len(mine) == 1 else segments[shorter][: capacity // 2]
        shown = [_segments(encoded, sequence) for sequence in mine]
        assert all(pair[shorter] == fixed and sum(map(len, pair)) <= capacity for pair in shown)
        starts = (rows.a_start, rows.b_start)[longer][mine]
        lengths = (rows.a_length, rows.b_length)[longer][mine]
        places = sorted(set().union(*(range(s, s + n) for s, n in zip(starts, lengths, strict=True))))
        assert encoded.ids[places].tolist() == segments[longer]
    assert len(rows) > len(TEXTS)


@pytest.mark.parametrize("mode", MODES)
def test_the_windows_of_a_text_weigh_one(small_tokenizer, mode):
    encoded = encode_texts(TEXTS, LABELS, small_tokenizer, 12, mode)
    totals, tokens = np.zeros(len(TEXTS)), np.zeros(len(TEXTS))
    for texts, batch in BatchMaker(encoded, small_tokenizer, 100).items_and_batches(np.arange(len(TEXTS))):
        assert (batch.places == batch.sequence_starts[:-1]).all()
        np.add.at(totals, texts, batch.weights.numpy())
        np.add.at(tokens, texts, batch.sequence_starts.diff().numpy())
        assert (batch.labels.numpy() == LABELS[texts]).all()
    assert totals == pytest.approx(np.ones(len(TEXTS)), abs=1e-6)
    assert (encoded.lengths() == tokens).all()


def test_texts_are_tokenized_part_by_part(small_tokenizer, monkeypatch):
    whole = encode_texts(TEXTS, LABELS, small_tokenizer, 20, "windows")
    monkeypatch.setattr(data, "_TEXTS_AT_ONCE", 7)
    assert encode_texts(TEXTS, LABELS, small_tokenizer, 20, "windows").digest() == whole.digest()


def test_words_that_a_mark_of_no_width_parts_are_words_as_in_pretraining(small_tokenizer):
    """Such a mark divides words in Khmer; the tokenizer alone drops it and would see one word."""
    marked, spaced = ("ខ្ញុំ\u200bទៅ", "ទៅ 2024\u200bផ្សារ"), ("ខ្ញុំ ទៅ", "ទៅ 2024 ផ្សារ")
    lines = [line for text in marked for line in lines_of(text)]
    found = encode_texts([marked], np.zeros(1), small_tokenizer, 48, "head")
    assert found.digest() == encode_texts([spaced], np.zeros(1), small_tokenizer, 48, "head").digest()
    assert found.ids.tolist() == sum(small_tokenizer.encode(lines), [])


def test_the_digest_sees_words_labels_and_windows(small_tokenizer):
    seven, eight = ([*TEXTS, (f"x {number}", None)] for number in (7, 8))
    labels = np.append(LABELS, 0)
    other_labels = np.append(LABELS, 1)
    cases = [(seven, labels, 48, "head"), (eight, labels, 48, "head"), (seven, other_labels, 48, "head"),
             (seven, labels, 47, "head"), (seven, labels, 48, "windows"), (seven[:-1], LABELS, 48, "head")]  # fmt: skip
    digests = [encode_texts(texts, labels, small_tokenizer, *rest).digest() for texts, labels, *rest in cases]
    assert len(set(digests)) == len(cases)


# --- batches


def texts_of(maker, size, seed, start):
    return Batches(TextStream(maker.encoded, seed), maker, size, start, World())


some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60)
sizes = st.integers(1, 16)


@given(some_lengths, sizes, st.integers(0, 9))
@settings(max_examples=60)
def test_an_epoch_takes_every_text_once(small_tokenizer, lengths, size, seed):
    count = len(lengths)
    batches = texts_of(BatchMaker(numbered(small_tokenizer, lengths), small_tokenizer, 10**9), size, seed, Position())
    for epoch in range(2):
        seen = []
        for _ in range(math.ceil(count / size)):
            assert batches.epochs == pytest.approx(epoch + len(seen) / count, abs=1e-12)
            found = flat(drawn(batches, 1)[0])
            # As few batches as can be, of sizes that differ by one at most.
            assert count // math.ceil(count / size) <= len(found) <= math.ceil(count / math.ceil(count / size))
            seen += found
        assert sorted(seen) == list(range(count))
        assert batches.epochs == epoch + 1 and batches.position == Position(epoch + 1, 0)


def test_the_batches_of_a_few_texts_more_are_no_smaller(small_tokenizer):
    """A batch of the rest alone would count as much as a whole one, and where it comes last it is of the longest."""
    encoded = numbered(small_tokenizer, range(1, 34))
    assert {len(batch) for batch, _ in islice(TextStream(encoded, 1).batches(32, Position()), 40)} == {16, 17}


@given(some_lengths, sizes, st.integers(1, 120))
@settings(max_examples=40)
def test_any_position_goes_on_with_the_same_rest(small_tokenizer, lengths, size, tokens):
    maker = BatchMaker(numbered(small_tokenizer, lengths), small_tokenizer, tokens)
    undisturbed = texts_of(maker, size, 5, Position())
    total = 2 * math.ceil(len(lengths) / size) + 1
    positions, found = [], []
    for _ in range(total):
        positions.append(undisturbed.position)
        found += drawn(undisturbed, 1)
    for number in {0, 1, total // 2, total - 2, total - 1} & set(range(total)):
        resumed = texts_of(maker, size, 5, positions[number])
        assert drawn(resumed, total - number) == found[number:]
        assert resumed.position == undisturbed.position


def test_the_order_comes_from_seed_and_epoch(small_tokenizer):
    maker = BatchMaker(numbered(small_tokenizer, range(1, 41)), small_tokenizer, 10**9)

    def epochs(seed):
        batches = texts_of(maker, 8, seed, Position())
        return [drawn(batches, 5) for _ in range(3)]

    first = epochs(1)
    assert first == epochs(1)
    # A set of this size is in other company in every epoch and under every seed, not only in another order.
    companies = [{frozenset(flat(batch)) for batch in epoch} for epoch in [*first, *epochs(2)]]
    assert all(a.isdisjoint(b) for i, a in enumerate(companies) for b in companies[:i])


@given(some_lengths, st.integers(1, 130))
@settings(max_examples=60)
def test_micro_batches_divide_a_batch_within_the_limit(small_tokenizer, lengths, limit):
    maker = BatchMaker(numbered(small_tokenizer, lengths), small_tokenizer, limit)
    texts = np.arange(len(lengths))[::2]
    found = list(maker.items_and_batches(texts))
    assert sorted(np.concatenate([sequences for sequences, _ in found])) == list(texts)
    for sequences, batch in found:
        assert batch.labels.tolist() == sequences.tolist()
        assert batch.num_tokens <= limit or len(sequences) == 1
        assert batch.num_tokens == sum(lengths[i] + 2 for i in sequences)
        assert batch.max_sequence_length == max(lengths[i] + 2 for i in sequences)
    for (_, batch), (_, following) in zip(found, found[1:], strict=False):
        shortest = following.num_tokens if following.num_sequences == 1 else int(following.sequence_starts[1])
        assert batch.num_tokens + shortest > limit, "these two had room for one more"


def test_texts_of_a_batch_are_of_similar_length(small_tokenizer):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 41, 640)
    batches = texts_of(BatchMaker(numbered(small_tokenizer, lengths), small_tokenizer, 10**9), 8, 1, Position())

    def padding(groups):
        return sum(int(lengths[group].max() * len(group) - lengths[group].sum()) for group in groups)

    at_random = padding(rng.permutation(640).reshape(80, 8))
    assert padding([flat(batch) for batch in drawn(batches, 80)]) < at_random / 4


def test_the_lengths_do_not_come_in_order(small_tokenizer):
    lengths = np.arange(640) % 40 + 1
    batches = texts_of(BatchMaker(numbered(small_tokenizer, lengths), small_tokenizer, 10**9), 8, 1, Position())
    means = [lengths[flat(batch)].mean() for batch in drawn(batches, 80)]
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.4
