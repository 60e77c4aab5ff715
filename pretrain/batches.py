"""The order of the examples of pretraining as arithmetic, and masked packed batches out of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data_prep.examples.masking import MaskingRules, mask
from data_prep.examples.packing import Examples, ShardExamples, pack
from data_prep.examples.pairs import example_order, shard_order
from data_prep.examples.random_keys import below, keys, uniform
from data_prep.prepared import Shard
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import PackedBatch

from .engine.batches import Maker, Position, divided, empty_sequence, inputs
from .sampled_softmax import Entries, EntrySampler, entries

# Examples are mixed within this many shards at a time; more shards, better mixed, more pair rows in memory.
SHARDS_MIXED = 4


@dataclass(kw_only=True)
class PretrainingBatch(PackedBatch):
    """A packed batch of N examples, and what is to be predicted of it."""

    masked_positions: Tensor
    """[M] int64, indices in [0, T) of the tokens to predict, each once."""
    masked_targets: Tensor
    """[M] int64, their true ids in [0, V)."""
    most_masked: int
    """Upper bound on the masked positions of one example."""
    entries: Entries | None = None
    """The vocabulary entries to score; None: all of them."""
    pair_targets: Tensor
    """[N] int64, 0 = B follows A, 1 = B is random, -100 = no label."""
    fresh: Tensor | None = None
    """[M] float32, 0 where a target lies in text that stands in the training part too, else 1; None if not known."""

    @property
    def num_tokens_learned(self) -> int:
        """Targets of a part that learns from all tokens: T, or 0 for an empty batch, which is the only one without a
        masked token."""
        return self.num_tokens if len(self.masked_positions) else 0


class ExampleStream:
    """The examples of epoch after epoch, in an order that depends on the seed alone.

    Args:
        shard_examples: the examples of the training part.
    """

    def __init__(self, shard_examples: ShardExamples):
        self.shard_examples = shard_examples
        self.num_tokens = sum(len(shard.ids) for shard in shard_examples.shards)

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
        order = shard_order(len(self.shard_examples), self.shard_examples.seed, epoch).tolist()
        for number in range(first, -(-len(order) // SHARDS_MIXED)):
            indices = order[number * SHARDS_MIXED : (number + 1) * SHARDS_MIXED]
            examples = Examples.concatenate([self.shard_examples(index, epoch) for index in indices])
            yield number, examples[example_order(examples.key)]

    def epochs(self, position: Position) -> float:
        """How many times the corpus has been used, as a fraction."""
        return position.content_tokens / self.num_tokens


@dataclass(frozen=True)
class PositionShift:
    """Starts short examples at a random position, so that positions which only longer examples reach are trained too
    (SHAPE, Kiyono et al. 2021, which shifts all examples).

    Args:
        positions: how many positions the run trains; no example extends beyond them.
        share: share of the examples that are shifted; the others begin at 0.
    """

    positions: int
    share: float

    def offsets(self, examples: Examples) -> np.ndarray:
        """The position of each example's first token: int64 [N]. It depends on the example alone."""
        shifted, offset = (keys(0, purpose, 0, examples.key) for purpose in ("shifted", "offset"))
        last = np.maximum(0, self.positions - examples.lengths())
        return np.where(uniform(shifted) < self.share, below(offset, last + 1), 0)


@dataclass(frozen=True)
class TrainingPlan:
    """What changes over training: the share of tokens to predict, the entries to score, the positions of examples.

    Args:
        mask_share: share of the tokens to predict, at the start and at the end of the budget. It changes linearly
            (Ankner et al. 2023); where the schedule has a plateau, only after that.
        sampler: draws the vocabulary entries to score; None: all entries.
        shift: of the examples' positions; None: all begin at 0.
    """

    mask_share: tuple[float, float]
    sampler: EntrySampler | None = None
    shift: PositionShift | None = None

    def share(self, progress: float) -> float:
        """Of the tokens that are targets, so far in the budget, in [0, 1]."""
        first, last = self.mask_share
        return last + (first - last) * (1 - progress)


class BatchMaker(Maker):
    """Examples to packed, masked micro-batches of at most `micro_batch_tokens` tokens.

    Args:
        copied: for each shard bool [tokens], True where its text also occurs in the training part; None if not known.
        plan: what to predict in each training step; None: 15 % of the tokens, scored against the whole vocabulary.
    """

    def __init__(self, shards: list[Shard], tokenizer: WordPieceTokenizer, masking: str, micro_batch_tokens: int,
                 copied: list[np.ndarray] | None = None, plan: TrainingPlan | None = None):  # fmt: skip
        self.shards, self.tokenizer = shards, tokenizer
        self.rules = MaskingRules.of(tokenizer, masking)
        self.micro_batch_tokens = micro_batch_tokens
        self._plan, self._weights = plan, None
        self._copied = None
        if copied is not None:
            # Shards with 1 in the place of copied tokens, and 0 elsewhere: they are packed as the tokens are.
            self._copied = [replace(s, ids=marks.view(np.uint8)) for s, marks in zip(shards, copied, strict=True)]

    def begin(self, step: int, progress: float) -> None:
        """Do as the plan has it for a step."""
        if self._plan:
            self.rules = replace(self.rules, probability=self._plan.share(progress))
            self._weights = self._plan.sampler.draw(step) if self._plan.sampler else None

    def lengths(self, examples: Examples) -> np.ndarray:
        """Tokens of each example, special tokens included."""
        return examples.lengths()

    def longest(self, examples: Examples) -> int:
        """Tokens of the longest example."""
        return int(examples.lengths().max(initial=0))

    def micro_batches(self, examples: Examples) -> Iterator[PretrainingBatch]:
        """The batches of the divided examples."""
        return map(self.packed, self.divided(examples))

    def divided(self, examples: Examples) -> Iterator[Examples]:
        """Divide examples, similar lengths together; an example longer than the limit is a batch of its own."""
        lengths = examples.lengths()
        order = np.argsort(lengths, kind="stable")
        for chosen in divided(lengths[order], self.micro_batch_tokens):
            yield examples[order[chosen]]

    def packed(self, examples: Examples) -> PretrainingBatch:
        """One masked packed batch of these examples."""
        packed = pack(self.shards, examples, self.tokenizer.cls_id, self.tokenizer.sep_id)
        starts = packed.sequence_starts
        if self._plan and self._plan.shift:
            offsets = np.repeat(self._plan.shift.offsets(examples), np.diff(starts))
            packed = replace(packed, position_ids=packed.position_ids + offsets)
        ids, positions, targets = mask(packed.input_ids, packed.token_type_ids, starts, examples.key, self.rules)
        return PretrainingBatch(
            **inputs(replace(packed, input_ids=ids)),
            masked_positions=torch.from_numpy(positions),
            masked_targets=torch.from_numpy(targets),
            most_masked=int(np.diff(np.searchsorted(positions, starts)).max()),
            entries=None if self._weights is None else entries(self._weights, targets),
            pair_targets=torch.from_numpy(examples.label),
            fresh=self._fresh(examples, positions),
        )

    def _fresh(self, examples: Examples, positions: np.ndarray) -> Tensor | None:
        """Float32 [M]: 1 for the targets that are no copies."""
        if self._copied is None:
            return None
        marks = pack(self._copied, examples, cls_id=0, sep_id=0).input_ids
        return torch.from_numpy((marks[positions] == 0).astype(np.float32))

    def empty_batch(self) -> PretrainingBatch:
        """A batch without a target, for a process that has no example but takes part in a step."""
        none = torch.zeros(0, dtype=torch.int64)
        return PretrainingBatch(
            **empty_sequence(self.tokenizer),
            masked_positions=none,
            masked_targets=none,
            most_masked=0,
            entries=None if self._weights is None else entries(self._weights, none.numpy()),
            pair_targets=torch.tensor([-100]),
            fresh=None if self._copied is None else torch.zeros(0),
        )

    def identify(self, examples: Examples) -> list[list[int]]:
        """Where the examples are in the prepared corpus: of each its shard and its first token there."""
        return np.stack([examples.shard, examples.a_start], axis=1).tolist()
