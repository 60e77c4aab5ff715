"""Self-attention inside the sequences of a packed batch, by three functions that give the same numbers.

Each takes the fused projection qkv [T, 3, A, D], so that no copy is needed to take it apart, and returns [T,
A, D] (scaled dot-product attention, Vaswani et al. 2017, section 3.2.1).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .batch import PackedBatch, PaddingLayout
from .config import ModelError

IMPLEMENTATIONS = ("auto", "varlen", "sdpa", "dense")

_LONGEST_DENSE = 256
"""Rows up to here go through plain matrix products in bfloat16 on the CPU: there the backward pass of torch's
fused kernel takes two to four times as long."""


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
    layout: PaddingLayout | None
    """The rectangle of "sdpa" and "dense"; None for "varlen"."""
    key_mask: Tensor | None
    """[N, 1, 1, L] bool; None without padding."""


def plan_attention(
    batch: PackedBatch,
    implementation: str,
    *,
    dropout: float,
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
        return AttentionPlan(implementation, dropout, starts, longest, None, None)
    layout = batch.padded_layout() if output_attentions else batch.layout()
    return AttentionPlan(implementation, dropout, starts, longest, layout, layout.key_mask)


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
        return sdpa_attention(qkv, plan.layout, plan.key_mask, plan.dropout), None
    return dense_attention(qkv, plan.layout, plan.key_mask, plan.dropout)


def varlen_attention(qkv: Tensor, sequence_starts: Tensor, max_sequence_length: int) -> Tensor:
    """qkv [T, 3, A, D] -> [T, A, D] by the flash kernel for packed sequences: CUDA, 16 bits, no dropout."""
    # Imported here because builds of torch without CUDA need not have it.
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = qkv.unbind(1)
    starts, longest = sequence_starts, max_sequence_length
    return varlen_attn(query, key, value, starts, starts, longest, longest)


def sdpa_attention(
    qkv: Tensor, layout: PaddingLayout, key_mask: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """qkv [T, 3, A, D] -> [T, A, D] by torch's kernel on the rectangle; on the CPU fused only without
    dropout."""
    query, key, value = split_heads(qkv, layout)
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=key_mask, dropout_p=dropout)
    return layout.unpad(context.transpose(1, 2))


def dense_attention(
    qkv: Tensor, layout: PaddingLayout, key_mask: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """qkv [T, 3, A, D] -> [T, A, D] and the weights [N, A, L, L], which mean nothing in the rows of padding.

    Written out, softmax in at least float32: the reference for the other two.
    """
    query, key, value = split_heads(qkv, layout)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    precise = torch.promote_types(scores.dtype, torch.float32)
    if key_mask is not None:
        scores = scores + torch.zeros_like(key_mask, dtype=precise).masked_fill(~key_mask, -torch.inf)
    weights = F.dropout(scores.softmax(-1, dtype=precise), dropout)
    context = weights.to(value.dtype) @ value
    return layout.unpad(context.transpose(1, 2)), weights


def split_heads(qkv: Tensor, layout: PaddingLayout) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [T, 3, A, D] -> query, key, value [N, A, L, D]; padding holds numbers that mean nothing."""
    if layout.slots is None:
        rows = qkv.view(layout.num_sequences, layout.length, *qkv.shape[1:])
        return rows.permute(2, 0, 3, 1, 4).unbind(0)
    return _SplitHeads.apply(qkv, layout.slots, layout.tokens, layout.num_sequences)


class _SplitHeads(torch.autograd.Function):
    """Pads and splits in one gather; the three gradients are gathered straight into one tensor."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, slots: Tensor, tokens: Tensor, num_sequences: int
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(slots)
        rows = qkv.index_select(0, tokens).unflatten(0, (num_sequences, -1))
        return rows.permute(2, 0, 3, 1, 4).unbind(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slots,) = ctx.saved_tensors
        rows = [grad.transpose(1, 2).flatten(0, 1).index_select(0, slots) for grad in grads]
        return torch.stack(rows, 1), None, None, None
