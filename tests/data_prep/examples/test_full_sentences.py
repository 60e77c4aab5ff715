"""Full examples: beside a packer that goes sentence by sentence, and back to the text that they were cut from."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.examples.full_sentences import FullSentences, FullShardExamples, full_sentences
from data_prep.examples.packing import Examples, ShardExamples, pack
from data_prep.examples.pairs import UNLABELLED
from data_prep.prepared import Shard

CLS, SEP, FIRST = 2, 3, 5
documents_of_sentences = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=9), min_size=1, max_size=9)


def numbered(shard_of, documents: list[list[int]], index: int = 0, first: int = FIRST) -> Shard:
    """A shard whose ids say where they stand: `first`, `first` + 1, and so on."""
    tokens = sum(map(sum, documents))
    return shard_of(documents, (first + np.arange(tokens)).astype(np.int64), index)


def every_word(shards: list[Shard]) -> np.ndarray:
    """Each id begins a word."""
    return np.ones(1 + max(int(shard.ids.max()) for shard in shards), dtype=bool)


def examples_of(shards: list[Shard], length: int, epoch: int = 0) -> list[Examples]:
    shown = FullShardExamples(shards, every_word(shards), length, seed=1, next_sentence=False)
    return [shown(index, epoch) for index in range(len(shown))]


def unpacked(shards: list[Shard], examples: Examples) -> list[list[int]]:
    packed = pack(shards, examples, CLS, SEP)
    starts = packed.sequence_starts.tolist()
    return [packed.input_ids[a:b].tolist() for a, b in zip(starts, starts[1:], strict=False)]


def packed_by_hand(documents: list[list[int]], length: int) -> list[list[int]]:
    """Sentence by sentence: one that fits behind the last is added, else it begins an example."""
    found, token, before = [[CLS]], FIRST, None
    for number, document in enumerate(documents):
        for sentence in document:
            for size in [length - 2] * (sentence // (length - 2)) + [sentence % (length - 2)]:
                if not size:
                    continue
                between = [SEP] if before not in (None, number) and len(found[-1]) > 1 else []
                if len(found[-1]) + len(between) + size + 1 > length:
                    found, between = [*found, [CLS]], []
                found[-1] += [*between, *range(token, token + size)]
                token, before = token + size, number
    return [[*example, SEP] for example in found]


@given(documents_of_sentences, st.integers(8, 40))
def test_they_are_those_of_a_packer_that_goes_sentence_by_sentence(shard_of, documents, length):
    shard = numbered(shard_of, documents)
    (examples,) = examples_of([shard], length)
    assert unpacked([shard], examples) == packed_by_hand(documents, length)
    assert examples.lengths().tolist() == [len(example) for example in packed_by_hand(documents, length)]


@given(documents_of_sentences, st.integers(8, 40))
def test_every_token_comes_once_in_its_order_and_no_example_is_too_long(shard_of, documents, length):
    shard = numbered(shard_of, documents)
    (examples,) = examples_of([shard], length)
    found = unpacked([shard], examples)
    assert max(map(len, found)) <= length
    assert [token for example in found for token in example if token >= FIRST] == shard.ids.tolist()


@given(documents_of_sentences, st.integers(8, 40))
def test_sentences_are_whole_unless_they_are_longer_than_an_example(shard_of, documents, length):
    shard = numbered(shard_of, documents)
    start, _, _ = full_sentences(shard, length, every_word([shard]))
    for place in set(start.tolist()) - set(shard.sentence_starts.tolist()):
        sentence = np.searchsorted(shard.sentence_starts, place, side="right") - 1
        assert shard.sentence_starts[sentence + 1] - shard.sentence_starts[sentence] > length - 2


@given(documents_of_sentences, st.integers(8, 40))
def test_no_example_has_room_for_the_sentence_behind_it(shard_of, documents, length):
    shard = numbered(shard_of, documents)
    start, tokens, separators = full_sentences(shard, length, every_word([shard]))
    borders = sorted({*shard.sentence_starts.tolist(), *start.tolist()})
    ends = shard.sentence_starts[shard.document_starts].tolist()
    for number, after in enumerate(start[1:].tolist()):
        following = borders[borders.index(after) + 1] - after
        assert tokens[number] + separators[number] + 2 + following + (after in ends) > length


def test_a_long_sentence_is_cut_at_words(shard_of):
    shard = numbered(shard_of, [[4, 20, 4]])
    starts_word = every_word([shard])
    starts_word[shard.ids[9:13]] = False
    examples = FullShardExamples([shard], starts_word, 10, seed=1)(0)
    assert examples.a_start.tolist() == [0, 8, 16, 24] and examples.a_length.tolist() == [8, 8, 8, 4]


def test_decoded_they_are_the_text_with_a_separator_at_the_end_of_each_document(small_tokenizer):
    texts = [["the heart was stable", "mask of rate"], ["patient"], ["rate was the heart rate", "the mask", "of the"]]
    encoded = [small_tokenizer.encode(sentences) for sentences in texts]
    lengths = [[len(ids) for ids in document] for document in encoded]
    ids = np.array([i for document in encoded for sentence in document for i in sentence], dtype=np.uint16)
    ends = np.cumsum([0, *(length for document in lengths for length in document)]).astype(np.int32)
    shard = Shard(0, ids, ends, np.cumsum([0, *map(len, lengths)]).astype(np.int32))
    source = " [SEP] ".join(" ".join(sentences) for sentences in texts)
    for length in range(8, 40):
        examples = FullShardExamples([shard], small_tokenizer.starts_word, length, seed=1)(0)
        packed = pack([shard], examples, small_tokenizer.cls_id, small_tokenizer.sep_id)
        starts = packed.sequence_starts.tolist()
        pieces = [small_tokenizer.vocabulary[i] for i in packed.input_ids]
        shown = [pieces[a:b] for a, b in zip(starts, starts[1:], strict=False)]
        assert all(example[0] == "[CLS]" and example[-1] == "[SEP]" for example in shown)
        # What is between two examples is the end of a document, or a space.
        found, rest = [" ".join(example[1:-1]) for example in shown], source
        for example in found:
            assert rest.startswith(example), (example, rest)
            rest = rest.removeprefix(example).removeprefix(" [SEP]").removeprefix(" ")
        assert not rest
    assert "stable mask of rate [SEP] patient [SEP] rate was" in found[0]


def test_all_is_one_segment_that_begins_at_position_0(shard_of):
    shard = numbered(shard_of, [[5, 6], [3], [7, 2], [9]])
    (examples,) = examples_of([shard], 20)
    packed = pack([shard], examples, CLS, SEP)
    assert not packed.token_type_ids.any() and (examples.label == UNLABELLED).all()
    assert examples.separators.sum() > 0
    for start, length in zip(packed.sequence_starts[:-1], examples.lengths(), strict=True):
        assert packed.position_ids[start : start + length].tolist() == list(range(length))
    assert all(array.dtype == np.int64 for array in vars(packed).values())


def test_examples_of_several_shards_are_mixed_and_packed_in_any_order(shard_of):
    draw = np.random.default_rng(3)
    shapes = [[draw.integers(1, 20, draw.integers(1, 6)).tolist() for _ in range(9)] for _ in range(3)]
    shards, first = [], FIRST
    for index, shape in enumerate(shapes):
        shards.append(numbered(shard_of, shape, index, first))
        first += len(shards[-1].ids)
    examples = Examples.concatenate(examples_of(shards, 24))
    assert isinstance(examples, FullSentences)
    order = draw.permutation(len(examples))
    found, expected = unpacked(shards, examples[order]), unpacked(shards, examples)
    assert found == [expected[place] for place in order]
    assert sorted(token for example in found for token in example if token >= FIRST) == list(range(FIRST, first))


def test_epochs_have_the_same_examples_with_other_keys_and_so_have_shards(shard_of):
    shards = [numbered(shard_of, [[5, 6], [3], [7, 2]] * 4, index) for index in range(2)]
    keys = [examples.key.tolist() for epoch in (0, 1) for examples in examples_of(shards, 16, epoch)]
    assert len({key for some in keys for key in some}) == sum(map(len, keys))
    one, other = (examples_of(shards, 16, epoch)[0] for epoch in (0, 1))
    assert one.a_start.tolist() == other.a_start.tolist()


@pytest.mark.parametrize(("length", "median"), product([64, 128, 512], [12, 28]))
def test_they_are_fuller_than_windows(shard_of, length, median):
    draw = np.random.default_rng(5)
    documents = [
        np.clip(draw.lognormal(np.log(median), 0.6, size), 1, 400).astype(int).tolist()
        for size in draw.integers(1, 60, 150)
    ]
    shard, starts_word = shard_of(documents), np.ones(1, dtype=bool)
    full, windows = (kind([shard], starts_word, length, 1, False)(0) for kind in (FullShardExamples, ShardExamples))
    assert full.a_length.sum() == windows.a_length.sum() == len(shard.ids)
    assert full.lengths().mean() > windows.lengths().mean()
    # All but half of a sentence, on average; the last of a shard may be short.
    mean = sum(map(sum, documents)) / sum(map(len, documents))
    assert full.lengths()[:-1].mean() > length - 1.5 * mean
