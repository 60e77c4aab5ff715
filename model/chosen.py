"""Some tokens of a packed batch: those whose last hidden state is read."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import PackedBatch, PaddingLayout, rounded


@dataclass(frozen=True)
class Chosen:
    """R = N + M tokens, sequence by sequence: the first token of each, for the pooler, and M others.

    Nothing reads what the last layer makes of any other token, so it is computed for these alone.
    """

    tokens: Tensor
    """[R] int64, places in [0, T); any token from N + M on, where R is rounded up."""
    sequence_starts: Tensor
    """[N + 1] int32, where each sequence's begin among them, then R."""
    longest: int
    """At least the most of one sequence."""
    first: Tensor
    """[N] int64, where each sequence's first token is among them."""
    others: Tensor
    """[M] int64, where the others are among them, in the order in which they were asked for."""
    slots: Tensor
    """[N + M] int64: row * longest + column of each in a rectangle [N, longest]."""

    @classmethod
    def of(
        cls, batch: PackedBatch, positions: Tensor, most: int | None = None, columns: int = 1, rounds: bool = False
    ) -> Self:
        """The first tokens of a batch and those at `positions`, int64 [M], each once and in any order.

        Args:
            positions: places in [0, T), or none.
            most: at least the most of them in one sequence; max_sequence_length if None.
            columns: where there are positions, `longest` is rounded up to a multiple of this.
            rounds: round R up (see `rounded`).
        """
        starts, sequences = batch.sequence_starts, torch.arange(batch.num_sequences, device=positions.device)
        owner = torch.bucketize(positions, starts[1:].long(), right=True)
        tokens = torch.cat([batch.first_tokens(), positions])
        owner, order = torch.cat([sequences, owner]).sort(stable=True)
        every = torch.arange(len(order), device=order.device)
        place = torch.empty_like(order).scatter(0, order, every)
        begins = torch.searchsorted(owner, torch.arange(batch.num_sequences + 1, device=order.device))
        most = batch.max_sequence_length if most is None else most
        longest = -(-(1 + most) // columns) * columns if len(positions) else 1
        num_rows = rounded(len(tokens)) if rounds else len(tokens)
        return cls(
            F.pad(tokens.index_select(0, order), (0, num_rows - len(tokens))),
            begins.int(),
            longest,
            place[: batch.num_sequences],
            place[batch.num_sequences :],
            owner * longest + every - begins.index_select(0, owner),
        )

    def layout(self) -> PaddingLayout:
        """Where they sit in a rectangle [N, longest]."""
        return PaddingLayout.from_slots(self.slots, self.sequence_starts.numel() - 1, self.longest)
