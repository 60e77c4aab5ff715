"""Where tokens sit: end to end, in a padded rectangle, and in a rectangle of each attention head."""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class PaddingLayout:
    """Where the tokens of a packed batch sit in a rectangle [N, L]; without padding the tensors are None."""

    num_sequences: int
    """N, rows of the rectangle."""
    length: int
    """L, columns of the rectangle."""
    slots: Tensor | None = None
    """[T] int64: row * L + column of every token."""
    tokens: Tensor | None = None
    """[N * L] int64: the token in every slot, 0 in padding."""
    padding: Tensor | None = None
    """[N * L] bool: True where no token is."""

    @classmethod
    def of_slots(cls, slots: Tensor, num_sequences: int, length: int) -> Self:
        """The layout that puts token t into slot slots[t] of N * L."""
        if len(slots) == num_sequences * length:
            return cls(num_sequences, length)
        order = torch.arange(len(slots), device=slots.device)  # [T]
        tokens = slots.new_zeros(num_sequences * length).scatter(0, slots, order)  # [N * L]
        padding = torch.ones_like(tokens, dtype=torch.bool).scatter(0, slots, False)
        return cls(num_sequences, length, slots, tokens, padding)

    @classmethod
    def of_sequences(cls, starts: Tensor, num_tokens: int, length: int) -> Self:
        """Sequences that begin at `starts` [N + 1] as rows, from column 0; costs nothing when all are `length` long."""
        num_sequences = len(starts) - 1
        if num_tokens == num_sequences * length:
            return cls(num_sequences, length)
        order = torch.arange(num_tokens, device=starts.device, dtype=starts.dtype)  # [T]
        sequence = torch.bucketize(order, starts[1:], right=True)  # [T]
        return cls.of_slots(sequence * length + (order - starts[sequence]), num_sequences, length)

    @property
    def key_mask(self) -> Tensor | None:
        """[N, 1, 1, L] bool for attention, True at tokens; None where there is no padding.

        A row without any token is True everywhere: its result is never read, but it must stay finite.
        """
        if self.padding is None:
            return None
        padding = self.padding.view(self.num_sequences, self.length)
        return (~padding | padding.all(1, keepdim=True))[:, None, None, :]

    def pad(self, values: Tensor) -> Tensor:
        """[T, ...] -> [N, L, ...], zero in padding; without padding a view."""
        shape = (self.num_sequences, self.length, *values.shape[1:])
        if self.tokens is None or self.slots is None:
            return values.view(shape)
        return gathered(values, self.tokens, self.slots, empty=self.padding).view(shape)


class HeadLayout:
    """Where the rows of D numbers of tokens, [T, P, A, D], sit in a rectangle of each head, [P, N, A, L, D], and back.

    The index tensors are worked out once for all layers, and before them: a layer that is compiled must find the same
    kind of plan each time.

    Args:
        layout: where the tokens sit.
        parts: the P that will come; `join` needs 1.
        num_rows: T, or more than the tokens of the layout; the rows after them get zero gradients.
        in_place: leave the rows of a full rectangle where they are, which not every kernel reads as fast.
    """

    def __init__(
        self,
        layout: PaddingLayout,
        num_heads: int,
        parts: tuple[int, ...],
        num_rows: int,
        device: torch.device,
        in_place: bool = False,
    ) -> None:
        self.num_sequences, self.length, self.num_heads = layout.num_sequences, layout.length, num_heads
        self.in_place = in_place and layout.slots is None
        self.key_mask = layout.key_mask
        """[N, 1, 1, L] bool, True at tokens; None without padding."""
        every = torch.arange(self.num_sequences * self.length, device=device)
        self._tokens = every if layout.tokens is None else layout.tokens
        slots = every if layout.slots is None else layout.slots
        self._num_tokens = len(slots)
        self._slots = F.pad(slots, (0, num_rows - len(slots)))
        self._padding = None if layout.padding is None else self._of_all_heads(layout.padding).flatten()
        self._rows = {} if self.in_place else {count: self._rows_of(count) for count in parts}

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """[T, P, A, D] -> P tensors [N, A, L, D]; padding holds numbers that mean nothing."""
        parts, size = values.shape[1], values.shape[-1]
        if self.in_place:
            rows = values.view(self.num_sequences, self.length, parts, self.num_heads, size)  # [N, L, P, A, D]
            return rows.permute(2, 0, 3, 1, 4).unbind(0)  # P x [N, A, L, D]
        into, back = self._rows[parts]
        back = back[: self._num_tokens * parts * self.num_heads]
        rows = gathered(values.flatten(0, 2), into, back)  # [P * N * A * L, D]
        return rows.view(parts, self.num_sequences, self.num_heads, self.length, size).unbind(0)  # P x [N, A, L, D]

    def join(self, values: Tensor) -> Tensor:
        """[N, A, L, D] -> [T, A, D]."""
        if self.in_place:
            return values.transpose(1, 2).flatten(0, 1)  # [T, A, D]
        into, back = self._rows[1]
        rows = gathered(values.flatten(0, 2), back, into, unread=self._padding)  # [T * A, D]
        return rows.view(-1, *values.shape[1::2])  # [T, A, D]

    def _rows_of(self, parts: int) -> tuple[Tensor, Tensor]:
        """For every row of [P, N, A, L, D] its row in [T, P, A, D], and the reverse; any where there is none."""
        heads, part = (torch.arange(count, device=self._slots.device) for count in (self.num_heads, parts))  # [A], [P]
        token = self._of_all_heads(self._tokens)  # [N, A, L]
        into = (token * parts + part[:, None, None, None]) * self.num_heads + heads[:, None]  # [P, N, A, L]
        sequence, column = self._slots // self.length, self._slots % self.length  # [T]
        back = (sequence[:, None] * self.num_heads + heads) * self.length + column[:, None]  # [T, A]
        back = part[:, None] * (self.num_sequences * self.num_heads * self.length) + back[:, None]  # [T, P, A]
        return into.flatten(), back.flatten()

    def _of_all_heads(self, values: Tensor) -> Tensor:
        """[N * L] -> [N, A, L]."""
        return values.view(self.num_sequences, 1, self.length).expand(-1, self.num_heads, -1)


def gathered(
    rows: Tensor, index: Tensor, inverse: Tensor, empty: Tensor | None = None, unread: Tensor | None = None
) -> Tensor:
    """rows[index], whose gradient is grad[inverse]: the default, an indexed add, is several times slower.

    Args:
        rows: [rows, ...].
        index: int64, the row that each row of the result is.
        inverse: int64, where in the result each row went; rows past its end get zero gradients.
        empty: bool like `index`: True where the result is zero.
        unread: bool like `inverse`: True where the gradient is zero.
    """
    result: Tensor = _Gather.apply(rows, index, inverse, empty, unread)
    return result


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor, empty: Tensor | None, unread: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inverse, unread)
        ctx.num_rows = len(rows)
        return _cleared(rows.index_select(0, index), empty)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        inverse, unread = ctx.saved_tensors
        rows = grad.new_empty(ctx.num_rows, *grad.shape[1:])
        torch.index_select(grad, 0, inverse, out=rows[: len(inverse)])
        rows[len(inverse) :] = 0
        return _cleared(rows, unread), None, None, None, None


def _cleared(rows: Tensor, where: Tensor | None) -> Tensor:
    return rows if where is None else rows.masked_fill_(where.view(-1, *[1] * (rows.dim() - 1)), 0)
