"""Some tokens of a packed batch: those whose last hidden state is read."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import PackedBatch, rounded
from .layout import PaddingLayout


@dataclass(frozen=True)
class Chosen:
    """N + M tokens, sequence by sequence: the first token of each, for the pooler, and M others.

    Nothing reads what the last layer makes of any other token, so it is computed for these alone.
    """

    tokens: Tensor
    """[R] int64, places in [0, T); R is N + M, or rounded up: those after N + M are any."""
    sequence_starts: Tensor
    """[N + 1] int32, where each sequence's begin among them, then N + M."""
    longest: int
    """At least the most of one sequence."""
    first: Tensor
    """[N] int64, where each sequence's first token is among them."""
    others: Tensor
    """[M] int64, where the others are among them, in the order in which they were asked for."""

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
        sequences = torch.arange(batch.num_sequences + 1, device=positions.device)  # [N + 1]
        owner = torch.bucketize(positions, batch.sequence_starts[1:].long(), right=True)  # [M]
        tokens = torch.cat([batch.first_tokens(), positions])  # [N + M]
        owner, order = torch.cat([sequences[:-1], owner]).sort(stable=True)  # [N + M]
        every = torch.arange(len(order), device=order.device)
        place = torch.empty_like(order).scatter(0, order, every)
        starts = torch.searchsorted(owner, sequences, out_int32=True)  # [N + 1]
        most = batch.max_sequence_length if most is None else most
        longest = -(-(1 + most) // columns) * columns if len(positions) else 1
        num_rows = rounded(len(tokens)) if rounds else len(tokens)
        return cls(
            F.pad(tokens.index_select(0, order), (0, num_rows - len(tokens))),  # [R]
            starts,
            longest,
            place[: batch.num_sequences],
            place[batch.num_sequences :],
        )

    def layout(self) -> PaddingLayout:
        """Where they sit in a rectangle [N, longest]."""
        return PaddingLayout.of_sequences(self.sequence_starts, len(self.first) + len(self.others), self.longest)
