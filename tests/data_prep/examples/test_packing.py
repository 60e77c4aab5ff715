"""Packing: taking a packed batch apart gives back the segments that went in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.examples.packing import Examples, TwiceSeparated, pack
from data_prep.examples.pairs import example_keys, pairs

CLS, SEP = 2, 3


@st.composite
def batches(draw):
    """Ids of up to three shards, and (shard, A, B) of some examples; B may be absent."""
    sizes = draw(st.lists(st.integers(30, 60), min_size=1, max_size=3))
    shards = [np.random.default_rng(i).integers(5, 65_000, size).astype(np.uint16) for i, size in enumerate(sizes)]
    segment = st.tuples(st.integers(0, 20), st.integers(1, 10))
    row = st.tuples(st.integers(0, len(sizes) - 1), segment, st.one_of(st.just((0, 0)), segment))
    return shards, draw(st.lists(row, max_size=8))


def examples_of(rows, kind=Examples) -> Examples:
    table = np.array([(shard, *a, *b) for shard, a, b in rows], dtype=np.int64).reshape(-1, 5).T
    return kind(*table, label=np.zeros(len(rows), dtype=np.int64), key=np.arange(len(rows), dtype=np.uint64))


@given(batches(), st.sampled_from([(Examples, [SEP]), (TwiceSeparated, [SEP, SEP])]))
def test_unpacking_gives_back_what_was_packed(shard_of, batch, separated):
    (ids, rows), (kind, between) = batch, separated
    shards = [shard_of([[len(i)]], i, index) for index, i in enumerate(ids)]
    examples = examples_of(rows, kind)[:]
    packed = pack(shards, examples, CLS, SEP)
    assert packed.sequence_starts[0] == 0 and np.diff(packed.sequence_starts).tolist() == examples.lengths().tolist()
    assert packed.sequence_starts[-1] == len(packed.input_ids)
    assert len(packed.sequence_starts) == len(rows) + 1
    for number, (shard, (a_start, a_length), (b_start, b_length)) in enumerate(rows):
        a = ids[shard][a_start : a_start + a_length].tolist()
        b = ids[shard][b_start : b_start + b_length].tolist()
        place = slice(*packed.sequence_starts[number : number + 2])
        expected = [CLS, *a, *between, *b, SEP] if b else [CLS, *a, SEP]
        of_a = len(expected) - (len(b) + 1 if b else 0)
        assert packed.input_ids[place].tolist() == expected
        assert packed.token_type_ids[place].tolist() == [0] * of_a + [1] * (len(expected) - of_a)
        assert packed.position_ids[place].tolist() == list(range(len(expected)))


def unpacked(ids, starts, types) -> list[tuple[list[int], list[int]]]:
    """A and B of each example, from what is in the batch alone; the special tokens are checked and dropped."""
    found = []
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        a, b = (ids[start:end][types[start:end] == segment].tolist() for segment in (0, 1))
        assert (a[0], a[-1], b[-1:]) == (CLS, SEP, [SEP] if b else [])
        found.append((a[1:-1], b[:-1]))
    return found


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=12),
    st.integers(8, 64),
    st.randoms(use_true_random=False),
)
def test_ids_starts_and_types_give_back_a_and_b_of_every_pair(shard_of, documents, length, chance):
    tokens = sum(map(sum, documents))
    shard = shard_of(documents, (5 + np.arange(tokens)).astype(np.uint16))
    rows = pairs(shard, length, 1, 0, np.ones(5 + tokens, dtype=bool))
    order = np.array(chance.sample(range(len(rows)), len(rows)))
    examples = Examples.of(0, rows, example_keys(0, np.arange(len(rows)), 1, 0))[order]
    packed = pack([shard], examples, CLS, SEP)
    expected = [
        (list(range(5 + a, 5 + a + a_length)), list(range(5 + b, 5 + b + b_length)))
        for a, a_length, b, b_length in zip(
            *(column[order].tolist() for column in (rows.a_start, rows.a_length, rows.b_start, rows.b_length)),
            strict=True,
        )
    ]
    assert unpacked(packed.input_ids, packed.sequence_starts, packed.token_type_ids) == expected


def test_arrays_are_int64_even_from_small_ids(shard_of):
    packed = pack(
        [shard_of([[4]], np.array([65_535, 9, 8, 7], dtype=np.uint16))],
        examples_of([(0, (0, 2), (2, 2))]),
        CLS,
        SEP,
    )
    assert packed.input_ids.tolist() == [CLS, 65_535, 9, SEP, 8, 7, SEP]
    for array in vars(packed).values():
        assert array.dtype == np.int64


def test_pairs_of_several_shards_pack_in_the_order_chosen(shard_of):
    """Every token of both shards comes back exactly once, whatever the order of the examples."""
    draw = np.random.default_rng(3)
    shapes = [[draw.integers(1, 20, 8).tolist() for _ in range(6)] for _ in range(2)]
    totals = [sum(map(sum, shape)) for shape in shapes]
    # Ids that occur once in both shards together, so that a token names its place.
    ids = [np.arange(5, 5 + totals[0]), np.arange(5 + totals[0], 5 + sum(totals))]
    shards = [shard_of(shape, i.astype(np.uint16), n) for n, (shape, i) in enumerate(zip(shapes, ids, strict=True))]
    parts = []
    for shard in shards:
        rows = pairs(shard, 40, 1, 0, np.ones(5 + sum(totals), dtype=bool))
        parts.append(Examples.of(shard.index, rows, example_keys(shard.index, np.arange(len(rows)), 1, 0)))
    examples = Examples.concatenate(parts)
    order = draw.permutation(len(examples))
    packed = pack(shards, examples[order], CLS, SEP)
    content = packed.input_ids[packed.input_ids > 4]
    assert sorted(content.tolist()) == list(range(5, 5 + sum(totals)))
    assert np.diff(packed.sequence_starts).tolist() == examples.lengths()[order].tolist()
    assert examples[order].key.tolist() == examples.key[order].tolist()
    first = packed.input_ids[packed.sequence_starts[:-1] + 1]
    assert first.tolist() == [
        ids[shard][start] for shard, start in zip(examples.shard[order], examples.a_start[order], strict=True)
    ]


@pytest.mark.parametrize("rows", [slice(2, 2), np.array([], dtype=np.int64)])
def test_no_examples_give_an_empty_batch(shard_of, rows):
    examples = examples_of([(0, (0, 2), (2, 2))] * 3)[rows]
    packed = pack([shard_of([[4]])], examples, CLS, SEP)
    assert len(examples) == 0
    assert packed.input_ids.tolist() == []
    assert packed.sequence_starts.tolist() == [0]
