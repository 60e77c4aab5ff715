"""Self-attention inside the sequences of a packed batch, by three functions that give the same numbers.

Each takes the fused projection qkv [T, 3, A, D] and returns [T, A, D] (scaled dot-product attention, Vaswani et al.
2017, section 3.2.1).
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .batch import PackedBatch, PaddingLayout
from .config import ModelError

IMPLEMENTATIONS = ("auto", "varlen", "sdpa", "dense")

_LONGEST_DENSE = 512
"""Rows up to here go through plain matrix products in bfloat16 on the CPU: there the backward pass of torch's
fused kernel takes two to four times as long."""


@dataclass(frozen=True)
class HeadLayout:
    """Where the rows of D numbers in qkv [T, 3, A, D] sit in query, key and value [3, N, A, L, D], and back.

    Worked out once for all layers; without `split`, which a full rectangle can do without, nothing is copied.
    """

    num_sequences: int
    """N."""
    length: int
    """L."""
    key_mask: Tensor | None
    """[N, 1, 1, L] bool, True at tokens; None without padding."""
    split: Tensor | None = None
    """[3 * N * A * L] int64: row of qkv for every row of query, key and value; any row in padding."""
    unsplit: Tensor | None = None
    """[T * 3 * A] int64: the reverse."""
    pack: Tensor | None = None
    """[T * A] int64: row of [N, A, L] for every row of the context [T, A]."""
    unpack: Tensor | None = None
    """[N * A * L] int64: the reverse; any row in padding."""
    padding: Tensor | None = None
    """[N * A * L, 1] bool: True in padding; None without padding."""

    @classmethod
    def of(cls, layout: PaddingLayout, num_heads: int, device: torch.device) -> Self:
        """The rows of all heads of a rectangle."""
        n, length = layout.num_sequences, layout.length
        every = torch.arange(n * length, device=device)
        slots, tokens = (every, every) if layout.slots is None else (layout.slots, layout.tokens)
        head, part = torch.arange(num_heads, device=device), torch.arange(3, device=device)
        # Places of the tokens among the rows of one of the three parts: [T, A]
        pack = (slots // length)[:, None] * num_heads * length + head * length + (slots % length)[:, None]
        # Tokens at these rows: [N, A, L]
        token = tokens.view(n, 1, length).expand(n, num_heads, length)
        padding = None
        if layout.padding is not None:
            padding = layout.padding.view(n, 1, length).expand(n, num_heads, length).reshape(-1, 1)
        return cls(
            n,
            length,
            layout.key_mask,
            split=((token * 3 + part[:, None, None, None]) * num_heads + head[:, None]).flatten(),
            unsplit=(part[:, None] * (n * num_heads * length) + pack[:, None]).flatten(),
            pack=pack.flatten(),
            unpack=(token * num_heads + head[:, None]).flatten(),
            padding=padding,
        )


@dataclass(frozen=True)
class AttentionPlan:
    """What every layer of one forward needs to know, worked out once."""

    implementation: str
    """"varlen", "sdpa" or "dense"."""
    dropout: float
    """Probability of dropping an attention weight; 0 outside training."""
    sequence_starts: Tensor
    """[N + 1] int32."""
    max_sequence_length: int
    """At least the longest sequence."""
    layout: HeadLayout | None
    """The rectangle of "sdpa" and "dense"; None for "varlen"."""


def plan_attention(
    batch: PackedBatch,
    implementation: str,
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
    if implementation == "varlen":
        return AttentionPlan(implementation, dropout, starts, longest, None)
    layout = batch.padded_layout() if output_attentions else batch.layout()
    if implementation == "sdpa" and layout.slots is None:
        heads = HeadLayout(layout.num_sequences, layout.length, None)
    else:
        heads = HeadLayout.of(layout, num_heads, device)
    return AttentionPlan(implementation, dropout, starts, longest, heads)


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
        return varlen_attention(qkv, plan.sequence_starts, plan.max_sequence_length), None
    if plan.implementation == "sdpa":
        return sdpa_attention(qkv, plan.layout, plan.dropout), None
    return dense_attention(qkv, plan.layout, plan.dropout)


def varlen_attention(qkv: Tensor, sequence_starts: Tensor, max_sequence_length: int) -> Tensor:
    """qkv [T, 3, A, D] -> [T, A, D] by the flash kernel for packed sequences: CUDA, 16 bits, no dropout."""
    # Imported here because builds of torch without CUDA need not have it.
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = qkv.unbind(1)
    starts, longest = sequence_starts, max_sequence_length
    return varlen_attn(query, key, value, starts, starts, longest, longest)


def sdpa_attention(qkv: Tensor, layout: HeadLayout, dropout: float = 0.0) -> Tensor:
    """qkv [T, 3, A, D] -> [T, A, D] by torch's kernel on the rectangle; on the CPU fused only without
    dropout."""
    query, key, value = split_heads(qkv, layout)
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=layout.key_mask, dropout_p=dropout)
    return join_heads(context, layout)


def dense_attention(qkv: Tensor, layout: HeadLayout, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """qkv [T, 3, A, D] -> [T, A, D] and the weights [N, A, L, L], which mean nothing in the rows of padding.

    Written out: the reference for the other two.
    """
    query, key, value = split_heads(qkv, layout)
    shape = query.shape[:2]
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    mask = query.new_zeros(layout.num_sequences, 1, 1, layout.length)
    if layout.key_mask is not None:
        mask = mask.masked_fill(~layout.key_mask, -torch.inf)
    mask = mask.expand(*shape, 1, -1).flatten(0, 1)
    scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=query.shape[-1] ** -0.5)
    # Its sums are taken in at least float32; autocast on a GPU gives float32 back.
    weights = F.dropout(scores.softmax(-1), dropout)
    context = torch.bmm(weights.to(value.dtype), value)
    return join_heads(context.unflatten(0, shape), layout), weights.unflatten(0, shape)


def split_heads(qkv: Tensor, layout: HeadLayout) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [T, 3, A, D] -> query, key, value [N, A, L, D]; padding holds numbers that mean nothing."""
    if layout.split is None:
        rows = qkv.view(layout.num_sequences, layout.length, *qkv.shape[1:])
        return rows.permute(2, 0, 3, 1, 4).unbind(0)
    rows = _Rearrange.apply(qkv.flatten(0, 2), layout.split, layout.unsplit, None)
    return rows.view(3, layout.num_sequences, -1, layout.length, qkv.shape[-1]).unbind(0)


def join_heads(context: Tensor, layout: HeadLayout) -> Tensor:
    """context [N, A, L, D] -> [T, A, D]."""
    if layout.split is None:
        return context.transpose(1, 2).flatten(0, 1)
    rows = _Rearrange.apply(context.flatten(0, 2), layout.pack, layout.unpack, layout.padding)
    return rows.view(-1, *context.shape[1::2])


class _Rearrange(torch.autograd.Function):
    """A gather of rows whose gradient is the inverse gather, zero where `padding` is true."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor, padding: Tensor | None) -> Tensor:
        ctx.save_for_backward(inverse, padding)
        return rows.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        inverse, padding = ctx.saved_tensors
        rows = grad.index_select(0, inverse)
        return (rows if padding is None else rows.masked_fill_(padding, 0)), None, None, None
