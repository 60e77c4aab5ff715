"""Attention on a CPU in chunks that stay in its cache, with a backward pass of its own (Vaswani et al. 2017, section
3.2.1).

Forward and backward go over the attention weights more than a dozen times. Those of a batch are many times what a cache
holds, those of a chunk are not; and the keys of a chunk end where its sequences end.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .blocks import drawn_levels, level_of

_WEIGHTS = 1 << 20
"""2 MiB of bfloat16."""

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a weight -> integers of as many."""


class Chunk(NamedTuple):
    """Where the queries [rows, queries, D], keys and values [rows, keys, D] of a chunk are."""

    rows: slice
    """Of the N * A heads of all sequences: those of whole sequences, or some of one."""
    queries: slice
    keys: slice


def chunks_of(
    lengths: Sequence[int],
    num_heads: int,
    longest: int,
    columns: int,
    most_queries: int | None = None,
    most_weights: int = _WEIGHTS,
) -> tuple[Chunk, ...]:
    """The chunks of N sequences, which come in rectangles of `longest` keys.

    Args:
        lengths: of each sequence, in keys.
        columns: chunks have a multiple of so many keys: their products are compiled for each shape (see `rounded`).
        most_queries: of each head; where it is None, each key is a query.
        most_weights: of a chunk, unless one head of one sequence has more.
    """
    heads = max(1, most_weights // max(1, longest * (longest if most_queries is None else most_queries)))
    if heads < num_heads:
        at_once = max(count for count in range(1, heads + 1) if num_heads % count == 0)
    else:
        at_once = num_heads << (heads // num_heads).bit_length() - 1
    found = []
    for first in range(0, len(lengths) * num_heads, at_once):
        end = first + at_once
        most = max(1, *lengths[first // num_heads : -(-end // num_heads)])
        keys = slice(min(longest, -(-most // columns) * columns))
        found.append(Chunk(slice(first, end), keys if most_queries is None else slice(most_queries), keys))
    return tuple(found)


def chunked_attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dropout: float, chunks: Sequence[Chunk]
) -> Tensor:
    """query [N, A, Q, D], key and value [N, A, L, D] -> [N, A, Q, D]; rows of padding hold anything.

    Args:
        key_mask: [N, 1, 1, L] bool, True at tokens; None without padding.
        dropout: probability of dropping a weight, for which `level_of` has a level.
    """
    shape = query.shape[:2]
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))  # [N * A, Q, D], [N * A, L, D] twice
    mask = query.new_zeros(shape[0], 1, 1, key.shape[1])  # [N, 1, 1, L]
    if key_mask is not None:
        mask = mask.masked_fill(~key_mask, -torch.inf)
    mask = mask.expand(*shape, 1, -1).flatten(0, 1)  # [N * A, 1, L]
    context: Tensor = _ChunkedAttention.apply(query, key, value, mask, dropout, chunks)
    return context.unflatten(0, shape)


class _ChunkedAttention(torch.autograd.Function):
    """Keeps one number a weight for the backward pass: its value, with the sign of the dropped ones turned."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: float, chunks: Sequence[Chunk]
    ) -> Tensor:
        context, scale = query.new_empty(*query.shape[:2], value.shape[-1]), query.shape[-1] ** -0.5
        level = level_of(dropout) if dropout else None
        of_chunks = []
        for rows, queries, keys in chunks:
            transposed = key[rows, keys].transpose(1, 2)
            scores = torch.baddbmm(mask[rows, :, keys], query[rows, queries], transposed, alpha=scale)
            weights = torch.softmax(scores, -1, out=scores)
            kept = weights if level is None else _dropped(weights, level)
            torch.bmm(kept, value[rows, keys], out=context[rows, queries])
            if any(ctx.needs_input_grad):
                of_chunks.append(weights)
        ctx.save_for_backward(query, key, value, *of_chunks)
        ctx.dropout, ctx.chunks = dropout, chunks
        return context.mul_(1 / (1 - dropout)) if dropout else context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *of_chunks = ctx.saved_tensors
        for_query, for_key, for_value = (torch.empty_like(part) for part in (query, key, value))
        scale, dropout = query.shape[-1] ** -0.5, ctx.dropout
        if dropout:
            grad = grad * (1 / (1 - dropout))
        for (rows, queries, keys), weights in zip(ctx.chunks, of_chunks, strict=True):
            of_context = grad[rows, queries]
            of_weights = torch.bmm(of_context, value[rows, keys].transpose(1, 2))
            kept = weights
            if dropout:
                kept, weights = _undropped(weights, of_weights)
            torch.bmm(kept.transpose(1, 2), of_context, out=for_value[rows, keys])
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            _scaled_bmm(of_scores, key[rows, keys], scale, out=for_query[rows, queries])
            _scaled_bmm(of_scores.transpose(1, 2), query[rows, queries], scale, out=for_key[rows, keys])
        return for_query, for_key, for_value, None, None, None


def _dropped(weights: Tensor, level: int) -> Tensor:
    """The weights with zeros where they are dropped; there the weights themselves get a minus sign."""
    bits = _as_bits(weights)
    dropped = torch.lt(drawn_levels(weights.shape), level, out=torch.empty_like(bits))  # 1, else 0
    bits.add_(dropped, alpha=torch.iinfo(bits.dtype).min)
    kept = dropped.sub_(1)  # no bit, else all
    return kept.bitwise_and_(bits).view(weights.dtype)


def _undropped(weights: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """From weights with minus signs, those with zeros there and those without signs; zeros there in a gradient."""
    bits = _as_bits(weights)
    kept = bits.bitwise_right_shift(8 * bits.element_size() - 1).bitwise_not_()  # all bits, or none
    _as_bits(grad).bitwise_and_(kept)
    return kept.bitwise_and_(bits).view(weights.dtype), weights.abs()


def _as_bits(values: Tensor) -> Tensor:
    return values.view(_BITS[values.element_size()])


def _scaled_bmm(left: Tensor, right: Tensor, scale: float, out: Tensor) -> None:
    """left [B, I, J], right [B, J, K]: scale * left @ right into out [B, I, K]."""
    torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)
