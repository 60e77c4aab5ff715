"""The order of the training data as arithmetic, and packed batches out of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from data_prep.masking import MaskingRules, mask
from data_prep.packing import Examples, pack
from data_prep.pairs import example_keys, example_order, pairs, shard_order
from data_prep.prepared import Shard
from data_prep.settings import ExampleSettings
from data_prep.wordpiece import WordPieceTokenizer
from model import PackedBatch

# Examples are mixed within this many shards at a time; more shards, better mixed, more pair rows in memory.
SHARDS_MIXED = 4


@dataclass(frozen=True)
class Position:
    """Where training stands in its data: the next example is number `example` of `epoch`, both from 0.

    `content_tokens` counts the tokens of the corpus used so far, in all epochs, without special tokens.
    """

    epoch: int = 0
    example: int = 0
    content_tokens: int = 0


class ExampleStream:
    """The examples of epoch after epoch, in an order that depends on the seed alone.

    Args:
        shards: the training part of a prepared corpus.
        next_sentence: whether pairs are built (see `data_prep.pairs.pairs`).
    """

    def __init__(
        self, shards: list[Shard], tokenizer: WordPieceTokenizer, settings: ExampleSettings, next_sentence: bool
    ):
        self.shards, self.tokenizer, self.settings, self.next_sentence = shards, tokenizer, settings, next_sentence
        self.num_tokens = sum(len(shard.ids) for shard in shards)

    def shard_examples(self, index: int, epoch: int) -> Examples:
        """All examples of one shard in an epoch, in text order."""
        length, seed = self.settings.sequence_length, self.settings.seed
        rows = pairs(self.shards[index], length, seed, epoch, self.tokenizer.starts_word, self.next_sentence)
        return Examples.of(index, rows, example_keys(index, np.arange(len(rows)), seed, epoch))

    def batches(self, batch_size: int, start: Position) -> Iterator[tuple[Examples, Position]]:
        """Global batches of exactly `batch_size` examples, for ever, each with the position after it."""
        epoch, skip, used = start.epoch, start.example, start.content_tokens
        left_over: list[Examples] = []
        while True:
            done = 0
            for examples in self._mixed(epoch):
                begin = min(len(examples), max(0, skip - done))
                while begin < len(examples):
                    have = sum(map(len, left_over))
                    end = min(len(examples), begin + batch_size - have)
                    left_over.append(examples[begin:end])
                    begin = end
                    if have + len(left_over[-1]) == batch_size:
                        batch, left_over = Examples.concatenate(left_over), []
                        used += int((batch.a_length + batch.b_length).sum())
                        yield batch, Position(epoch, done + end, used)
                done += len(examples)
            epoch, skip = epoch + 1, 0

    def _mixed(self, epoch: int) -> Iterator[Examples]:
        order = shard_order(len(self.shards), self.settings.seed, epoch).tolist()
        for first in range(0, len(order), SHARDS_MIXED):
            parts = [self.shard_examples(index, epoch) for index in order[first : first + SHARDS_MIXED]]
            examples = Examples.concatenate(parts)
            yield examples[example_order(examples.key)]


class BatchMaker:
    """Examples to packed, masked micro-batches of at most `micro_batch_tokens` tokens."""

    def __init__(self, shards: list[Shard], tokenizer: WordPieceTokenizer, masking: str, micro_batch_tokens: int):
        self.shards, self.tokenizer = shards, tokenizer
        self.rules = MaskingRules.of(tokenizer, masking)
        self.micro_batch_tokens = micro_batch_tokens

    def micro_batches(self, examples: Examples) -> Iterator[PackedBatch]:
        """Divide a global batch, similar lengths together; an example longer than the limit is a batch of its own."""
        lengths = examples.lengths()
        order = np.argsort(lengths, kind="stable")
        first, tokens = 0, 0
        for place, length in enumerate(lengths[order].tolist()):
            if place > first and tokens + length > self.micro_batch_tokens:
                yield self.packed(examples[order[first:place]])
                first, tokens = place, 0
            tokens += length
        yield self.packed(examples[order[first:]])

    def packed(self, examples: Examples) -> PackedBatch:
        """One masked packed batch (see `model.PackedBatch`) of these examples."""
        packed = pack(self.shards, examples, self.tokenizer.cls_id, self.tokenizer.sep_id)
        starts, types = packed.sequence_starts, packed.token_type_ids
        ids, positions, labels = mask(packed.input_ids, types, starts, examples.key, self.rules)
        return PackedBatch(
            input_ids=torch.from_numpy(ids),
            token_type_ids=torch.from_numpy(types),
            position_ids=torch.from_numpy(packed.position_ids),
            sequence_starts=torch.from_numpy(starts.astype(np.int32)),
            max_sequence_length=int(np.diff(starts).max()),
            masked_positions=torch.from_numpy(positions),
            masked_labels=torch.from_numpy(labels),
            next_sentence_labels=torch.from_numpy(examples.label),
        )


class Batches:
    """What the loop draws from: global batches as lists of micro-batches, and the position after the last one."""

    def __init__(self, stream: ExampleStream, maker: BatchMaker, batch_size: int, start: Position):
        self.maker = maker
        self.position = start
        self._num_tokens = stream.num_tokens
        self._stream = stream.batches(batch_size, start)

    def __next__(self) -> list[PackedBatch]:
        examples, self.position = next(self._stream)
        return list(self.maker.micro_batches(examples))

    @property
    def epochs(self) -> float:
        """How many times the corpus has been used, as a fraction."""
        return self.position.content_tokens / self._num_tokens
