"""Self-attention inside the sequences of a packed batch, by three functions that give the same numbers (scaled
dot-product attention, Vaswani et al. 2017, section 3.2.1)."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .batch import PackedBatch, PaddingLayout, rounded
from .chosen import Chosen
from .config import ModelError
from .dropout import dropped

IMPLEMENTATIONS = ("auto", "varlen", "sdpa", "dense")

_LONGEST_DENSE = 512
"""Rows up to here go through plain matrix products in bfloat16 on the CPU: there the backward pass of torch's
fused kernel takes two to four times as long."""

_COLUMNS = 16
"""Lengths of rectangles are rounded up to multiples of this on the CPU (see `rounded`)."""


class HeadLayout:
    """Where the rows of D numbers of tokens, [T, P, A, D], sit in a rectangle of each head, [P, N, A, L, D], and back.

    P is 3 for query, key and value together. The index tensors are worked out once for all layers, and before them: a
    layer that is compiled must find the same kind of plan each time.

    Args:
        layout: where the tokens sit.
        parts: the P that will come, that of `join`, 1, included.
        num_rows: T, where it is more than the tokens of the layout; the rows after them get zero gradients.
        in_place: leave the rows of a full rectangle where they are, which not every kernel reads as fast.
    """

    def __init__(
        self,
        layout: PaddingLayout,
        num_heads: int,
        device: torch.device,
        parts: tuple[int, ...],
        num_rows: int | None = None,
        in_place: bool = False,
    ) -> None:
        self.num_sequences, self.length, self.num_heads = layout.num_sequences, layout.length, num_heads
        self.in_place = in_place and layout.slots is None
        self.key_mask = layout.key_mask
        """[N, 1, 1, L] bool, True at tokens; None without padding."""
        every = torch.arange(self.num_sequences * self.length, device=device)
        slots, self._tokens = (every, every) if layout.slots is None else (layout.slots, layout.tokens)
        self._num_tokens = len(slots)
        self._slots = F.pad(slots, (0, (num_rows or len(slots)) - len(slots)))
        self._padding = None if layout.padding is None else self._of_all_heads(layout.padding).reshape(-1, 1)
        self._rows = {} if self.in_place else {count: self._rows_of(count) for count in parts}

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """[T, P, A, D] -> P tensors [N, A, L, D]; padding holds numbers that mean nothing."""
        parts, shape = values.shape[1], (self.num_sequences, self.length)
        if self.in_place:
            return values.view(*shape, *values.shape[1:]).permute(2, 0, 3, 1, 4).unbind(0)
        into, back = self._rows[parts]
        real = self._num_tokens * parts * self.num_heads
        rows = _Rearrange.apply(values.flatten(0, 2), into, back, None, real)
        return rows.view(parts, self.num_sequences, self.num_heads, self.length, values.shape[-1]).unbind(0)

    def join(self, values: Tensor) -> Tensor:
        """[N, A, L, D] -> [T, A, D]."""
        if self.in_place:
            return values.transpose(1, 2).flatten(0, 1)
        into, back = self._rows[1]
        rows = _Rearrange.apply(values.flatten(0, 2), back, into, self._padding, None)
        return rows.view(-1, *values.shape[1::2])

    def _rows_of(self, parts: int) -> tuple[Tensor, Tensor]:
        """For every row of [P, N, A, L, D] its row in [T, P, A, D], and the reverse; any where there is none."""
        heads, part = (torch.arange(count, device=self._slots.device) for count in (self.num_heads, parts))
        token = self._of_all_heads(self._tokens)
        into = (token * parts + part[:, None, None, None]) * self.num_heads + heads[:, None]
        sequence, column = self._slots // self.length, self._slots % self.length
        back = (sequence[:, None] * self.num_heads + heads) * self.length + column[:, None]
        back = part[:, None] * (self.num_sequences * self.num_heads * self.length) + back[:, None]
        return into.flatten(), back.flatten()

    def _of_all_heads(self, values: Tensor) -> Tensor:
        """[N * L] -> [N, A, L]."""
        return values.view(self.num_sequences, 1, self.length).expand(-1, self.num_heads, -1)


@dataclass(frozen=True)
class Sequences:
    """How R tokens, those of all sequences or some of them, are divided among the N sequences."""

    starts: Tensor
    """[N + 1] int32."""
    longest: int
    """At least the most tokens of a sequence."""
    layout: HeadLayout | None
    """The rectangle of "sdpa" and "dense"; None for "varlen"."""


@dataclass(frozen=True)
class AttentionPlan:
    """What every layer of one forward needs to know, worked out once."""

    implementation: str
    """"varlen", "sdpa" or "dense"."""
    dropout: float
    """Probability of dropping an attention weight; 0 outside training."""
    num_rows: int
    """T, and as many rows more as make the shapes come again; what is in those goes nowhere."""
    tokens: Sequences
    """All tokens."""
    chosen: Chosen | None = None
    """Those that the last layer is computed for; None if for all."""
    queries: Sequences | None = None
    """The same as attention sees them."""


def plan_attention(
    batch: PackedBatch,
    implementation: str,
    at: Tensor | None = None,
    most_at: int | None = None,
    *,
    dropout: float,
    num_heads: int,
    head_size: int,
    dtype: torch.dtype,
    output_attentions: bool = False,
) -> AttentionPlan:
    """Choose the function for one forward and lay out its padding.

    `dtype` is that of the weights; autocast is looked up here. "auto" takes varlen where it can run, on the
    CPU dense where that is faster, else sdpa; asking for the attention weights takes dense. Raises ModelError
    where "varlen" is asked for and cannot run.

    Args:
        at: int64 [M], if the last layer is computed for these and the first tokens alone.
        most_at: at least the most of these in one sequence; max_sequence_length if None.
    """
    device = batch.input_ids.device
    starts, longest = batch.sequence_starts, batch.max_sequence_length
    if output_attentions:
        implementation = "dense"
    elif implementation in ("auto", "varlen"):
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        obstacle = _varlen_obstacle(device, dtype, dropout, head_size)
        if obstacle and implementation == "varlen":
            raise ModelError(f'attention_implementation "varlen" {obstacle}; use "auto".')
        short = device.type == "cpu" and dtype == torch.bfloat16 and longest <= _LONGEST_DENSE
        implementation = ("dense" if short else "sdpa") if obstacle else "varlen"
    rounds = at is not None and implementation == "dense" and device.type == "cpu"
    num_rows = rounded(batch.num_tokens) if rounds else batch.num_tokens
    columns = _COLUMNS if rounds else 1
    chosen = None if at is None else Chosen.of(batch, at, most_at, columns, rounds)
    heads = None
    if implementation != "varlen":
        layout = batch.padded_layout() if output_attentions else batch.layout(-(-longest // columns) * columns)
        parts = (1, 3) if at is None else (1, 2, 3)
        heads = HeadLayout(layout, num_heads, device, parts, num_rows, in_place=implementation == "sdpa")
    plan = partial(AttentionPlan, implementation, dropout, num_rows, Sequences(starts, longest, heads))
    if chosen is None:
        return plan()
    if heads is not None:
        heads = HeadLayout(chosen.layout(), num_heads, device, (1,), len(chosen.tokens))
    return plan(chosen, Sequences(chosen.sequence_starts, chosen.longest, heads))


def _varlen_obstacle(device: torch.device, dtype: torch.dtype, dropout: float, head_size: int) -> str | None:
    if device.type != "cuda":
        return "needs a CUDA device"
    if dtype not in (torch.bfloat16, torch.float16):
        return "needs bfloat16 or float16 (autocast)"
    if dropout > 0:
        return "cannot drop attention weights (set attention_probs_dropout_prob to 0)"
    if head_size % 8 or head_size > 256:
        return "needs a head size that is a multiple of 8 up to 256"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or newer"
    return None


def attend(qkv: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor | None]:
    """One layer: qkv [T, 3, A, D] -> context [T, A, D], and the weights [N, A, L, L] if dense."""
    if plan.implementation == "varlen":
        return varlen_attention(*qkv.unbind(1), plan.tokens, plan.tokens), None
    context, weights = _in_rectangles(*plan.tokens.layout.split(qkv), plan)
    return plan.tokens.layout.join(context), weights


def attend_from_chosen(query: Tensor, key_value: Tensor, plan: AttentionPlan) -> Tensor:
    """The last layer: query [R, A, D] of the chosen tokens, key and value [T, 2, A, D] of all -> context [R, A, D]."""
    if plan.implementation == "varlen":
        return varlen_attention(query, *key_value.unbind(1), plan.queries, plan.tokens)
    (query,) = plan.queries.layout.split(query[:, None])
    context, _ = _in_rectangles(query, *plan.tokens.layout.split(key_value), plan)
    return plan.queries.layout.join(context)


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, queries: Sequences, keys: Sequences) -> Tensor:
    """query [R, A, D], key and value [T, A, D] -> [R, A, D] by the flash kernel for packed sequences.

    For CUDA, 16 bits, without dropout.
    """
    # Imported here because builds of torch without CUDA need not have it.
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(query, key, value, queries.starts, keys.starts, queries.longest, keys.longest)


def _in_rectangles(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor | None]:
    """query [N, A, Q, D], key and value [N, A, L, D] -> [N, A, Q, D], and the weights [N, A, Q, L] if dense."""
    key_mask = plan.tokens.layout.key_mask
    if plan.implementation == "dense":
        return dense_attention(query, key, value, key_mask, plan.dropout)
    # By torch's kernel; on the CPU fused only without dropout.
    return F.scaled_dot_product_attention(query, key, value, attn_mask=key_mask, dropout_p=plan.dropout), None


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """query [N, A, Q, D], key and value [N, A, L, D] -> [N, A, Q, D] and the weights [N, A, Q, L].

    Written out: the reference for the other two. In the rows of padding neither means anything.
    """
    shape = query.shape[:2]
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    mask = query.new_zeros(shape[0], 1, 1, key.shape[1])
    if key_mask is not None:
        mask = mask.masked_fill(~key_mask, -torch.inf)
    mask = mask.expand(*shape, 1, -1).flatten(0, 1)
    scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=query.shape[-1] ** -0.5)
    # Its sums are taken in at least float32; autocast on a GPU gives float32 back.
    weights = dropped(scores.softmax(-1), dropout)
    context = torch.bmm(weights.to(value.dtype), value)
    return context.unflatten(0, shape), weights.unflatten(0, shape)


class _Rearrange(torch.autograd.Function):
    """A gather of rows whose gradient is the inverse gather, zero where `padding` is true and from row `real` on."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor, padding: Tensor | None, real: int | None
    ) -> Tensor:
        ctx.save_for_backward(inverse, padding)
        ctx.real = real
        return rows.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        inverse, padding = ctx.saved_tensors
        rows = grad.index_select(0, inverse)
        if padding is not None:
            rows.masked_fill_(padding, 0)
        if ctx.real is not None:
            rows[ctx.real :] = 0
        return rows, None, None, None, None
