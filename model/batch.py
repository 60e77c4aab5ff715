"""Sequences laid end to end, and the way between that form and a padded rectangle."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
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
    def from_slots(cls, slots: Tensor, num_sequences: int, length: int) -> Self:
        """The layout that puts token t into slot slots[t] of N * L."""
        order = torch.arange(slots.numel(), device=slots.device)
        tokens = slots.new_zeros(num_sequences * length).scatter(0, slots, order)
        padding = torch.ones_like(tokens, dtype=torch.bool).scatter(0, slots, False)
        return cls(num_sequences, length, slots, tokens, padding)

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
        if self.slots is None:
            return values.view(shape)
        return _Pad.apply(values, self.slots, self.tokens, self.padding).view(shape)


class _Pad(torch.autograd.Function):
    """A gather whose gradient is the inverse gather: the default, an indexed add, is several times slower."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, slots: Tensor, tokens: Tensor, padding: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        mask = padding.view(-1, *[1] * (values.dim() - 1))
        return values.index_select(0, tokens).masked_fill_(mask, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (slots,) = ctx.saved_tensors
        return grad.index_select(0, slots), None, None, None


@dataclass
class PackedBatch:
    """What a model reads: N sequences, T tokens in all, end to end without padding. Targets belong to subclasses.

    Lengths are Python numbers, so that no step waits for the device. A sequence of no token is allowed in
    sequence_starts; its pooled output means nothing.
    """

    input_ids: Tensor
    """[T] int64."""
    token_type_ids: Tensor
    """[T] int64, 0 in the first segment, 1 in the second."""
    position_ids: Tensor
    """[T] int64, restarting in every sequence."""
    sequence_starts: Tensor
    """[N + 1] int32, first token of every sequence, then T."""
    max_sequence_length: int
    """At least the longest sequence, in tokens."""
    padded_slots: Tensor | None = None
    """[T] int64, each token's row * padded_length + column in the rectangle it came from; None if that was
    full."""
    padded_length: int | None = None
    """L of the rectangle it came from."""

    @property
    def num_sequences(self) -> int:
        """N."""
        return self.sequence_starts.numel() - 1

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.input_ids.numel()

    @classmethod
    def from_padded(
        cls, input_ids: Tensor, token_type_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Self:
        """Pack a rectangle: input_ids [N, L], attention_mask [N, L] with 0 at padding, wherever that is.

        Position ids are column numbers, as in transformers. A row that is all padding keeps its first column,
        so that every sequence has a token. With a mask this waits for the device once, to learn the lengths.
        """
        rows, length = input_ids.shape
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        columns = torch.arange(length, device=input_ids.device).expand(rows, length)
        keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask != 0
        slots, longest = None, length
        lengths = torch.full((rows,), length, device=input_ids.device)
        if attention_mask is not None:
            keep = keep | ((columns == 0) & ~keep.any(1, keepdim=True))
            lengths = keep.sum(1)
            slots = keep.flatten().nonzero().squeeze(1)
            longest = int(lengths.max()) if rows else 0
        if slots is not None and slots.numel() == rows * length:
            slots = None
        starts = torch.zeros(rows + 1, dtype=torch.int32, device=input_ids.device)
        starts[1:] = lengths.cumsum(0)
        flat = [values.flatten() for values in (input_ids, token_type_ids, columns)]
        if slots is not None:
            flat = [values[slots] for values in flat]
        return cls(*flat, starts, longest, padded_slots=slots, padded_length=length)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch on another device."""
        return self._with_tensors(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in memory that a GPU copies from while the host goes on."""
        return self._with_tensors(Tensor.pin_memory)

    def _with_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, **{k: function(v) for k, v in vars(self).items() if isinstance(v, Tensor)})

    def first_tokens(self) -> Tensor:
        """[N] int64, the place of every sequence's first token; any token for a sequence without one."""
        # An empty sequence at the end starts at T, one past the last token.
        return self.sequence_starts[:-1].long().clamp(max=self.num_tokens - 1)

    def layout(self, length: int | None = None) -> PaddingLayout:
        """Sequences as rows from column 0, `length` columns (max_sequence_length if None); costs nothing when all
        are that long."""
        length = self.max_sequence_length if length is None else length
        if self.num_tokens == self.num_sequences * length:
            return PaddingLayout(self.num_sequences, length)
        starts = self.sequence_starts
        order = torch.arange(self.num_tokens, device=starts.device, dtype=starts.dtype)
        sequence = torch.bucketize(order, starts[1:], right=True)
        slots = sequence * length + (order - starts[sequence])
        return PaddingLayout.from_slots(slots, self.num_sequences, length)

    def padded_layout(self) -> PaddingLayout:
        """The rectangle that the batch came from; `layout()` for a batch that was made packed."""
        if self.padded_length is None:
            return self.layout()
        if self.padded_slots is None:
            return PaddingLayout(self.num_sequences, self.padded_length)
        return PaddingLayout.from_slots(self.padded_slots, self.num_sequences, self.padded_length)

    def pad(self, values: Tensor) -> Tensor:
        """[T, ...] -> [N, L, ...]: back into the columns that the tokens came from, zero in padding."""
        return self.padded_layout().pad(values)


def rounded(count: int) -> int:
    """A number of rows rounded up to a multiple of 128, small ones to about an eighth or less of themselves.

    On a CPU torch compiles each product of bfloat16 matrices for its shape, which takes about as long as a small
    product itself: shapes are to come again.
    """
    multiple = min(128, max(1, 1 << count.bit_length() >> 4))
    return -(-count // multiple) * multiple
