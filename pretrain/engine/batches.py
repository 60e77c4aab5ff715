"""Global batches in the order of training, and the share of a process as micro-batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from data_prep.examples.packing import Packed
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model import PackedBatch

from .distributed import World


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

    def next_buffer(self) -> "Position":
        """The start of the next buffer, where a phase of another length continues; the rest of this one is skipped."""
        return replace(self, buffer=self.buffer + 1, example=0)


class Stream(Protocol):
    """Global batches (anything that an array of numbers indexes) in the order of training."""

    def batches(self, batch_size: int, start: Position) -> Iterator[tuple[Any, Position]]:
        """The global batches from `start` on, each with the position after it."""

    def epochs(self, position: Position) -> float:
        """How many times the corpus has been used, as a fraction."""


class Maker(Protocol):
    """Makes micro-batches of some of the examples of a global batch."""

    micro_batch_tokens: int
    """Most tokens of a micro-batch."""
    remedy: str = "shorter sequences"
    """What a user can do, in messages, where an example that cannot be divided is too large."""

    def begin(self, step: int, progress: float) -> None:
        """Prepare for a step at this progress, in [0, 1] (see `Schedule.progress`). By default all steps are alike."""
        return None

    def lengths(self, examples: Any) -> npt.NDArray[np.int64]:
        """Tokens of each example."""

    def longest(self, examples: Any) -> int:
        """Tokens of the longest sequence."""

    def micro_batches(self, examples: Any) -> Iterator[PackedBatch]:
        """All of them."""

    def empty_batch(self) -> PackedBatch:
        """A batch without a target."""

    def identify(self, examples: Any) -> list[Any]:
        """Where each example is in its corpus."""


class Batches:
    """What the loop draws from: this process's share of one global batch after the other, as micro-batches.

    Args:
        stream: gives the global batches.
        maker: divides a share into micro-batches.
    """

    def __init__(self, stream: Stream, maker: Maker, batch_size: int, start: Position, world: World):
        self.stream, self.maker, self.world = stream, maker, world
        self.position = start
        self._global_batches = stream.batches(batch_size, start)

    def draw(self, step: int = 0, progress: float = 0.0) -> None:
        """Advance to the next global batch, for this step and progress in [0, 1] (see `Schedule.progress`)."""
        self.maker.begin(step, progress)
        self._drawn, self.position = next(self._global_batches)
        self._mine = self._drawn[share(self.maker.lengths(self._drawn), self.world)]

    def micro_batches(self) -> list[PackedBatch]:
        """This process's share of the global batch; at least one micro-batch, which may be without a target."""
        return list(self.maker.micro_batches(self._mine)) or [self.maker.empty_batch()]

    @property
    def num_tokens(self) -> int:
        """Tokens of this process's share."""
        return int(self.maker.lengths(self._mine).sum())

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of this process's share."""
        return self.maker.longest(self._mine)

    def identification(self) -> Callable[[], list[Any]]:
        """Tells, also after later draws, where the examples of the global batch are (see `Maker.identify`)."""
        return partial(self.maker.identify, self._drawn)

    @property
    def epochs(self) -> float:
        """How many times the corpus has been used, as a fraction."""
        return self.stream.epochs(self.position)


def share(lengths: npt.NDArray[np.int64], world: World) -> npt.NDArray[np.int64]:
    """Which sequences of a global batch are this process's: int64; every process gets short and long ones."""
    return np.argsort(lengths, kind="stable")[world.rank :: world.size]


def divided(lengths: npt.NDArray[np.int64], limit: int) -> Iterator[slice]:
    """Consecutive parts of sorted sequences with at most `limit` tokens each, or with a single sequence."""
    first, tokens = 0, 0
    for place, length in enumerate(lengths.tolist()):
        if place > first and tokens + length > limit:
            yield slice(first, place)
            first, tokens = place, 0
        tokens += length
    if len(lengths):
        yield slice(first, len(lengths))


def inputs(packed: Packed) -> dict[str, Any]:
    """The fields of a `PackedBatch`, which share the memory of the arrays."""
    return {
        "input_ids": torch.from_numpy(packed.input_ids),
        "token_type_ids": torch.from_numpy(packed.token_type_ids),
        "position_ids": torch.from_numpy(packed.position_ids),
        "sequence_starts": torch.from_numpy(packed.sequence_starts.astype(np.int32)),
        "max_sequence_length": int(np.diff(packed.sequence_starts).max()),
    }


def empty_sequence(tokenizer: TextTokenizer) -> dict[str, Any]:
    """The fields of a `PackedBatch` that is [CLS] [SEP]."""
    ids = np.array([tokenizer.cls_id, tokenizer.sep_id])
    return inputs(Packed(ids, np.zeros(2, np.int64), np.arange(2), np.array([0, 2])))


def moved(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """The batch on the device. The host goes on at once: what is copied to a GPU lies in pinned memory."""
    if device.type == "cuda":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=device.type == "cuda")
