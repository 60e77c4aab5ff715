from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.assembly import Totals, assemble_shards
from data_prep.examples.full_sentences import FullShardExamples
from data_prep.examples.packing import Examples, ShardExamples
from pretrain.batches import BatchMaker, ExampleStream
from pretrain.engine.batches import Batches, Position
from pretrain.engine.distributed import World

SHARED_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)


@pytest.fixture(scope="module", params=[ShardExamples, FullShardExamples])
def stream(prepared, request):
    """A stream over more shards than are mixed at a time."""
    shards = split_into_shards(prepared.train[0], 6)
    return ExampleStream(request.param(shards, prepared.tokenizer.starts_word, 48, seed=3))


def split_into_shards(shard, count):
    from data_prep.encode import Block

    starts, documents = shard.sentence_starts.astype(np.int64), shard.document_starts
    blocks = []
    for first in range(shard.num_documents):
        begin, end = documents[first], documents[first + 1]
        lengths = np.diff(starts[begin : end + 1]).astype(np.int32)
        blocks.append(Block(shard.ids[starts[begin] : starts[end]], lengths, np.array([end - begin], np.int32), 0, 1))
    shards = list(assemble_shards(blocks, Totals.of(blocks), shard_bytes=len(blocks) // count))
    assert len(shards) >= count
    return shards


def identities(examples):
    return list(zip(examples.shard.tolist(), examples.a_start.tolist(), examples.key.tolist(), strict=True))


def epoch_identities(stream, epoch):
    shards = range(len(stream.shard_examples))
    return [identity for index in shards for identity in identities(stream.shard_examples(index, epoch))]


def first_examples(stream, batch_size, count):
    batches = islice(stream.batches(batch_size, Position()), -(-count // batch_size))
    return [i for examples, _ in batches for i in identities(examples)][:count]


def test_every_example_comes_once_an_epoch_and_epochs_differ(stream):
    first, second = epoch_identities(stream, 0), epoch_identities(stream, 1)
    seen = first_examples(stream, 7, len(first) + len(second))
    assert sorted(seen[: len(first)]) == sorted(first)
    assert sorted(seen[len(first) :]) == sorted(second)
    assert seen[: len(first)] != first
    # Shards are mixed, not only visited in another order.
    assert len({shard for shard, _, _ in seen[:20]}) > 1


@SHARED_FIXTURE
@given(st.integers(1, 50), st.integers(1, 50))
def test_the_order_does_not_depend_on_the_batch_size(stream, one, other):
    assert first_examples(stream, one, 200) == first_examples(stream, other, 200)


@SHARED_FIXTURE
@given(st.integers(1, 40), st.integers(0, 30))
def test_any_position_is_taken_up_exactly(stream, batch_size, done):
    batches = list(islice(stream.batches(batch_size, Position()), done + 3))
    start = batches[done - 1][1] if done else Position()
    again = list(islice(stream.batches(batch_size, start), 3))
    for (expected, expected_position), (found, position) in zip(batches[done:], again, strict=True):
        assert identities(found) == identities(expected)
        assert position == expected_position


def test_the_seed_decides_the_order(stream):
    other = ExampleStream(replace(stream.shard_examples, seed=4))
    assert first_examples(stream, 8, 40) != first_examples(other, 8, 40)


def test_an_epoch_uses_every_token_of_the_corpus(stream, prepared):
    maker = BatchMaker(stream.shard_examples.shards, prepared.tokenizer, "token", 4096)
    batches = Batches(stream, maker, len(epoch_identities(stream, 0)), Position(), World())
    batches.draw()
    assert batches.position.content_tokens == stream.num_tokens
    assert batches.epochs == 1.0


def test_each_epoch_has_masks_of_its_own(stream, prepared):
    """Those of the same tokens; the paper of RoBERTa calls masks that stay the same static (section 4.1)."""
    maker = BatchMaker(stream.shard_examples.shards, prepared.tokenizer, "token", 4096)

    def masks(epoch):
        found, every = {}, stream.shard_examples
        examples = Examples.concatenate([every(index, epoch) for index in range(len(every))])
        for ids, positions, targets, _ in rows(maker.packed(examples)):
            for position, target in zip(positions, targets, strict=True):
                ids[position] = target
            found[tuple(ids)] = positions
        return found

    first, second = masks(0), masks(1)
    assert first == masks(0)
    same = first.keys() & second.keys()
    assert len(same) > 10
    assert sum(first[text] == second[text] for text in same) < len(same) / 4


@SHARED_FIXTURE
@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 5), st.integers(1, 400))
def test_processes_and_micro_batches_only_divide_a_global_batch(stream, prepared, done, one, other, tokens):
    """Any number of processes, another one after a resume: every step has the same examples with the same masks."""

    def of_all_processes(size, start, count):
        maker = BatchMaker(stream.shard_examples.shards, prepared.tokenizer, "token", tokens)
        worlds = [Batches(stream, maker, 5, start, World(rank, size)) for rank in range(size)]
        steps = []
        for _ in range(count):
            for batches in worlds:
                batches.draw()
            parts = [batch for batches in worlds for batch in batches.micro_batches() if len(batch.masked_targets)]
            steps.append(sorted(row for part in parts for row in rows(part)))
            assert len({batches.position for batches in worlds}) == 1
            assert sum(batches.num_tokens for batches in worlds) == sum(part.num_tokens for part in parts)
        return steps, worlds[0].position

    first, position = of_all_processes(one, Position(), done % 7)
    then, _ = of_all_processes(other, position, 3)
    assert first + then == of_all_processes(1, Position(), done % 7 + 3)[0]


@pytest.mark.parametrize("tokens", [1, 100, 500, 10**6])
def test_micro_batches_divide_a_batch_and_change_nothing(stream, prepared, tokens):
    examples, _ = next(stream.batches(24, Position()))
    whole = BatchMaker(stream.shard_examples.shards, prepared.tokenizer, "token", 10**9).packed(examples)
    parts = list(BatchMaker(stream.shard_examples.shards, prepared.tokenizer, "token", tokens).micro_batches(examples))
    assert all(part.num_tokens <= tokens or part.num_sequences == 1 for part in parts)
    assert rows(whole) == sorted(row for part in parts for row in rows(part))


def rows(batch):
    """Each example as plain numbers: its ids after masking, its targets, its label."""
    found = []
    starts = batch.sequence_starts.tolist()
    for number, (start, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        mine = (batch.masked_positions >= start) & (batch.masked_positions < end)
        targets = (batch.masked_positions[mine] - start).tolist(), batch.masked_targets[mine].tolist()
        found.append((batch.input_ids[start:end].tolist(), *targets, int(batch.pair_targets[number])))
    return sorted(found)


def test_a_packed_batch_is_what_the_model_takes(stream, prepared):
    examples, _ = next(stream.batches(9, Position()))
    batch = BatchMaker(stream.shard_examples.shards, prepared.tokenizer, "whole-word", 4096).packed(examples)
    lengths = torch.diff(batch.sequence_starts)
    assert batch.max_sequence_length == int(lengths.max()) <= 48
    assert batch.position_ids[batch.sequence_starts[:-1].long()].tolist() == [0] * 9
    assert (batch.input_ids[batch.sequence_starts[:-1].long()] == prepared.tokenizer.cls_id).all()
    assert (batch.input_ids[batch.sequence_starts[1:].long() - 1] == prepared.tokenizer.sep_id).all()
