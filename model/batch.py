"""Batches of sequences laid end to end, the way to a padded rectangle and back, and tokens whose last state is read."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .config import ModelError


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


def _cleared(rows: Tensor, where: Tensor | None) -> Tensor:
    return rows if where is None else rows.masked_fill_(where.view(-1, *[1] * (rows.dim() - 1)), 0)


@dataclass
class PackedBatch:
    """The input of a model: N sequences with T tokens in all, end to end without padding. Subclasses add targets.

    Lengths are Python numbers, so that no step waits for the device. `sequence_starts` may contain empty sequences;
    their pooled output is meaningless.
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
    """Upper bound on the length of a sequence, in tokens."""
    padded: PaddingLayout | None = None
    """The rectangle that it came from, if any."""

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

        Raises:
            ModelError: token types or mask have another shape than the ids.
        """
        if input_ids.dim() != 2:
            raise ModelError(f"input_ids have the shape {[*input_ids.shape]}; give [N, L], a row for each text")
        num_sequences, length = input_ids.shape
        for name, values in (("token_type_ids", token_type_ids), ("attention_mask", attention_mask)):
            if values is not None and values.shape not in ((num_sequences, length), (1, length)):
                raise ModelError(
                    f"{name} have the shape {[*values.shape]}; give that of input_ids, {[*input_ids.shape]}"
                )
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        token_type_ids = token_type_ids.expand_as(input_ids)
        columns = torch.arange(length, device=input_ids.device).expand(num_sequences, length)  # [N, L]
        given = (input_ids, token_type_ids, columns)
        if attention_mask is None:
            starts = torch.arange(num_sequences + 1, dtype=torch.int32, device=input_ids.device) * length  # [N + 1]
            ids, types, positions = (values.flatten() for values in given)  # [T], T = N * L
            return cls(ids, types, positions, starts, length, PaddingLayout(num_sequences, length))
        keep = attention_mask != 0  # [N, L]
        keep = keep | ((columns == 0) & ~keep.any(1, keepdim=True))
        lengths = keep.sum(1)  # [N]
        starts = F.pad(lengths.cumsum(0), (1, 0)).int()  # [N + 1]
        slots = keep.flatten().nonzero().squeeze(1)  # [T]
        ids, types, positions = (values.flatten()[slots] for values in given)  # [T]
        longest = int(lengths.max()) if num_sequences else 0
        return cls(ids, types, positions, starts, longest, PaddingLayout.of_slots(slots, num_sequences, length))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch on another device."""
        return _with_tensors(self, lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in memory that a GPU copies from while the host goes on."""
        return _with_tensors(self, Tensor.pin_memory)

    def first_tokens(self) -> Tensor:
        """[N] int64, the place of every sequence's first token; any token for a sequence without one."""
        # An empty sequence at the end starts at T, one past the last token.
        return self.sequence_starts[:-1].long().clamp(max=self.num_tokens - 1)

    def layout(self, length: int | None = None) -> PaddingLayout:
        """Sequences as rows from column 0, `length` columns (max_sequence_length if None)."""
        length = self.max_sequence_length if length is None else length
        return PaddingLayout.of_sequences(self.sequence_starts, self.num_tokens, length)

    def padded_layout(self) -> PaddingLayout:
        """The rectangle that the batch came from; `layout()` for a batch that was made packed."""
        return self.padded or self.layout()

    def pad(self, values: Tensor) -> Tensor:
        """[T, ...] -> [N, L, ...]: back into the columns that the tokens came from, zero in padding."""
        return self.padded_layout().pad(values)


Fields = TypeVar("Fields", bound=PackedBatch | PaddingLayout)


def _with_tensors(value: Fields, function: Callable[[Tensor], Tensor]) -> Fields:
    """The same dataclass with `function` applied to its tensors, and to those of dataclasses in it."""
    changes: dict[str, Any] = {}
    for field in fields(value):
        content = getattr(value, field.name)
        if isinstance(content, Tensor):
            changes[field.name] = function(content)
        elif is_dataclass(content):
            changes[field.name] = _with_tensors(content, function)  # type: ignore[type-var]  # an instance
    return replace(value, **changes)


def rounded(count: int) -> int:
    """Round a number of rows up so that shapes recur: to a multiple of 128, or, for small numbers, by less than an
    eighth.

    On a CPU torch compiles each product of bfloat16 matrices for its shape, which takes about as long as a small
    product itself.
    """
    multiple = min(128, max(1, 1 << count.bit_length() >> 4))
    return -(-count // multiple) * multiple


def in_recurring_rows(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """What a function makes of each row: [M, H] -> [M, ...].

    Where torch compiles products for their shapes it gets rows of zeros as well, to a number that comes again (see
    `rounded`).
    """
    count, compiles = len(rows), rows.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    more = rounded(count) - count if compiles else 0
    return function(F.pad(rows, (0, 0, 0, more)))[:count] if more else function(rows)


@dataclass(frozen=True)
class Chosen:
    """The N + M tokens whose output is read: each sequence's first token, for the pooler, and M others.

    The last layer is computed for these only. They are sorted by sequence.
    """

    tokens: Tensor
    """[R] int64, indices in [0, T). R is N + M, or rounded up; entries after N + M are arbitrary."""
    sequence_starts: Tensor
    """[N + 1] int32, where each sequence begins in `tokens`, then N + M."""
    longest: int
    """Upper bound on the number of chosen tokens in one sequence."""
    first: Tensor
    """[N] int64, index of each sequence's first token in `tokens`."""
    others: Tensor
    """[M] int64, indices of the others in `tokens`, in the order in which they were asked for."""

    @classmethod
    def of(
        cls, batch: PackedBatch, positions: Tensor, most: int | None = None, columns: int = 1, rounds: bool = False
    ) -> Self:
        """The first token of each sequence, and the tokens at `positions`.

        Args:
            positions: int64 [M], token indices in [0, T), each once, in any order; may be empty.
            most: upper bound on their number in one sequence; max_sequence_length if None.
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


def gathered(
    rows: Tensor, index: Tensor, inverse: Tensor, empty: Tensor | None = None, unread: Tensor | None = None
) -> Tensor:
    """rows[index] with grad[inverse] as its gradient: torch's own, an index_add, is several times slower.

    Args:
        rows: [rows, ...].
        index: int64, the source row of each row of the result.
        inverse: int64, for each source row, its row in the result; source rows past its end get zero gradients.
        empty: bool, shaped like `index`: True where the result is set to zero.
        unread: bool, shaped like `inverse`: True where the gradient is set to zero.
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
