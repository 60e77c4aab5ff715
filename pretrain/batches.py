"""The order of the training data as arithmetic, and packed batches out of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from data_prep.examples.masking import MaskingRules, mask
from data_prep.examples.packing import Examples, pack
from data_prep.examples.pairs import example_keys, example_order, pairs, shard_order
from data_prep.prepared import Shard
from data_prep.settings import ExampleSettings
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import PackedBatch

from .engine.distributed import World

# Examples are mixed within this many shards at a time; more shards, better mixed, more pair rows in memory.
SHARDS_MIXED = 4


@dataclass(frozen=True)
class Position:
    """Where training stands in its data: the next example is number `example` of a buffer of shards of an epoch, all
    from 0.

    `content_tokens` counts the tokens of the corpus used so far, in all epochs, without special tokens.
    """

    epoch: int = 0
    buffer: int = 0
    example: int = 0
    content_tokens: int = 0


class ExampleStream:
    """The examples of epoch after epoch, in an order that depends on the seed alone.

    Args:
        shards: the training part of a prepared corpus.
        next_sentence: whether pairs are built (see `data_prep.examples.pairs.pairs`).
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
        epoch, first, begin, used = start.epoch, start.buffer, start.example, start.content_tokens
        left_over: list[Examples] = []
        while True:
            for buffer, examples in self._buffers(epoch, first):
                while begin < len(examples):
                    have = sum(map(len, left_over))
                    end = min(len(examples), begin + batch_size - have)
                    left_over.append(examples[begin:end])
                    begin = end
                    if have + len(left_over[-1]) == batch_size:
                        batch, left_over = Examples.concatenate(left_over), []
                        used += int((batch.a_length + batch.b_length).sum())
                        yield batch, Position(epoch, buffer, end, used)
                begin = 0
            epoch, first = epoch + 1, 0

    def _buffers(self, epoch: int, first: int) -> Iterator[tuple[int, Examples]]:
        """The buffers of an epoch from number `first` on, each with its examples mixed."""
        order = shard_order(len(self.shards), self.settings.seed, epoch).tolist()
        for number in range(first, -(-len(order) // SHARDS_MIXED)):
            indices = order[number * SHARDS_MIXED : (number + 1) * SHARDS_MIXED]
            examples = Examples.concatenate([self.shard_examples(index, epoch) for index in indices])
            yield number, examples[example_order(examples.key)]

    def epochs(self, position: Position) -> float:
        """How many times the corpus has been used, as a fraction."""
        return position.content_tokens / self.num_tokens


class BatchMaker:
    """Examples to packed, masked micro-batches of at most `micro_batch_tokens` tokens."""

    def __init__(self, shards: list[Shard], tokenizer: WordPieceTokenizer, masking: str, micro_batch_tokens: int):
        self.shards, self.tokenizer = shards, tokenizer
        self.rules = MaskingRules.of(tokenizer, masking)
        self.micro_batch_tokens = micro_batch_tokens

    def lengths(self, examples: Examples) -> np.ndarray:
        """Tokens of each example, special tokens included."""
        return examples.lengths()

    def longest(self, examples: Examples) -> int:
        """Tokens of the longest example."""
        return int(examples.lengths().max(initial=0))

    def micro_batches(self, examples: Examples) -> Iterator[PackedBatch]:
        """The batches of the divided examples."""
        return map(self.packed, self.divided(examples))

    def divided(self, examples: Examples) -> Iterator[Examples]:
        """Divide examples, similar lengths together; an example longer than the limit is a batch of its own."""
        lengths = examples.lengths()
        order = np.argsort(lengths, kind="stable")
        for chosen in divided(lengths[order], self.micro_batch_tokens):
            yield examples[order[chosen]]

    def packed(self, examples: Examples) -> PackedBatch:
        """One masked packed batch (see `model.PackedBatch`) of these examples."""
        packed = pack(self.shards, examples, self.tokenizer.cls_id, self.tokenizer.sep_id)
        starts, types = packed.sequence_starts, packed.token_type_ids
        ids, positions, labels = mask(packed.input_ids, types, starts, examples.key, self.rules)
        masked = np.diff(np.searchsorted(positions, starts))
        return PackedBatch(
            input_ids=torch.from_numpy(ids),
            token_type_ids=torch.from_numpy(types),
            position_ids=torch.from_numpy(packed.position_ids),
            sequence_starts=torch.from_numpy(starts.astype(np.int32)),
            max_sequence_length=int(np.diff(starts).max()),
            most_masked=int(masked.max()),
            masked_positions=torch.from_numpy(positions),
            masked_labels=torch.from_numpy(labels),
            next_sentence_labels=torch.from_numpy(examples.label),
        )

    def nothing(self) -> PackedBatch:
        """A batch without a target, for a process that has no example but takes part in a step."""
        return PackedBatch(**empty_sequence(self.tokenizer), next_sentence_labels=torch.tensor([-100]))

    def identify(self, examples: Examples) -> list[list[int]]:
        """Where the examples are in the prepared corpus: of each its shard and its first token there."""
        return np.stack([examples.shard, examples.a_start], axis=1).tolist()


def divided(lengths: np.ndarray, limit: int) -> Iterator[slice]:
    """Consecutive parts of sorted sequences with at most `limit` tokens each, or with a single sequence."""
    first, tokens = 0, 0
    for place, length in enumerate(lengths.tolist()):
        if place > first and tokens + length > limit:
            yield slice(first, place)
            first, tokens = place, 0
        tokens += length
    if len(lengths):
        yield slice(first, len(lengths))


def empty_sequence(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    """The fields of a packed batch that is [CLS] [SEP]; no masked position."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return {
        "input_ids": torch.tensor([tokenizer.cls_id, tokenizer.sep_id]),
        "token_type_ids": torch.zeros(2, dtype=torch.int64),
        "position_ids": torch.arange(2),
        "sequence_starts": torch.tensor([0, 2], dtype=torch.int32),
        "max_sequence_length": 2,
        "masked_positions": nothing,
        "masked_labels": nothing,
    }


def share(lengths: np.ndarray, world: World) -> np.ndarray:
    """Which sequences of a global batch are this process's: int64; every process gets short and long ones."""
    return np.argsort(lengths, kind="stable")[world.rank :: world.size]


class Stream(Protocol):
    """Global batches (anything that an array of numbers indexes) in the order of training."""

    def batches(self, batch_size: int, start: Position) -> Iterator[tuple[Any, Position]]: ...

    def epochs(self, position: Position) -> float: ...


class Batches:
    """What the loop draws from: this process's share of one global batch after the other, as micro-batches.

    Args:
        stream: gives the global batches.
        maker: divides a share into micro-batches.
    """

    def __init__(self, stream: Stream, maker: Any, batch_size: int, start: Position, world: World):
        self.stream, self.maker, self.world = stream, maker, world
        self.position = start
        self._global_batches = stream.batches(batch_size, start)

    def draw(self) -> None:
        """Go on to the next global batch."""
        self._drawn, self.position = next(self._global_batches)
        self._mine = self._drawn[share(self.maker.lengths(self._drawn), self.world)]

    def micro_batches(self) -> list[PackedBatch]:
        """This process's share of the global batch; at least one micro-batch, which may be without a target."""
        return list(self.maker.micro_batches(self._mine)) or [self.maker.nothing()]

    @property
    def num_tokens(self) -> int:
        """Tokens of this process's share."""
        return int(self.maker.lengths(self._mine).sum())

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of this process's share."""
        return self.maker.longest(self._mine)

    def identification(self) -> Callable[[], list]:
        """Tells, also after later draws, where the examples of the global batch are (see the maker's `identify`)."""
        return partial(self.maker.identify, self._drawn)

    @property
    def epochs(self) -> float:
        """How many times the corpus has been used, as a fraction."""
        return self.stream.epochs(self.position)
