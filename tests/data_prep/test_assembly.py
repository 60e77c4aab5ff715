"""Blocks joined to logical shards."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.assembly import Totals, assemble_shards
from data_prep.encode import Block


def block_of(documents: list[list[int]], number: int) -> Block:
    """A block whose ids are its number, of one byte a token; documents are lists of lengths of sentences."""
    sentences = np.array([length for document in documents for length in document], dtype=np.int32)
    ids = np.full(sentences.sum(), number, dtype=np.uint16)
    counts = np.array([len(document) for document in documents], dtype=np.int32)
    return Block(ids, sentences, counts, 0, len(ids))


document_shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@settings(max_examples=300)
@given(st.lists(st.lists(document_shapes, max_size=3), max_size=12), st.integers(1, 40))
def test_shards_are_the_blocks_in_order_and_none_is_small(shapes, shard_bytes):
    blocks = [block_of(documents, number) for number, documents in enumerate(shapes)]
    shards = list(assemble_shards(blocks, total := Totals.of(blocks), shard_bytes))
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert [i for shard in shards for i in shard.ids.tolist()] == [i for b in blocks for i in b.ids.tolist()]
    at = iter(document for documents in shapes for document in documents)
    for shard in shards:
        assert shard.ids.dtype == np.uint16
        bounds, documents = shard.sentence_starts.tolist(), shard.document_starts.tolist()
        assert (bounds[0], bounds[-1], documents[0], documents[-1]) == (0, len(shard.ids), 0, len(bounds) - 1)
        lengths = [end - start for start, end in pairwise(bounds)]
        assert [lengths[start:end] for start, end in pairwise(documents)] == [
            next(at) for _ in range(shard.num_documents)
        ]
    assert next(at, None) is None
    if len(shards) > 1:
        most = total.bytes // shard_bytes
        assert len(shards) <= most
        assert all(shard.num_documents >= 2 for shard in shards)
        assert min(len(shard.ids) for shard in shards) >= total.bytes / most / 2


@settings(max_examples=50)
@given(st.lists(st.integers(10, 30), min_size=60, max_size=300), st.integers(100, 600))
def test_shards_of_small_blocks_are_about_equally_large(sizes, shard_bytes):
    """So the memory that a shard takes does not grow with the corpus."""
    blocks = [block_of([[size - 5], [5]], number) for number, size in enumerate(sizes)]
    shards = list(assemble_shards(blocks, Totals.of(blocks), shard_bytes))
    size = sum(sizes) / max(1, sum(sizes) // shard_bytes)
    assert all(size / 2 <= len(shard.ids) <= 1.5 * size + max(sizes) for shard in shards)


def test_what_a_huge_document_leaves_over_is_no_shard_of_its_own():
    shapes = [[[9], [9]], [[5], [400]], [[2], [1]]]
    blocks = [block_of(documents, number) for number, documents in enumerate(shapes)]
    shards = list(assemble_shards(blocks, Totals.of(blocks), 10))
    assert [np.unique(shard.ids).tolist() for shard in shards] == [[0], [1, 2]]
