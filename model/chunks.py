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
    """Divide the attention of N sequences, padded to `longest` keys, into chunks.

    A chunk holds as many sequences as fit (1, 2, 4, ...). Where not even one fits, it holds as many of its heads as
    fit and divide their number.

    Args:
        lengths: keys of each sequence.
        columns: the keys of a chunk are rounded up to a multiple of this, so that shapes recur (see `rounded`).
        most_queries: queries of each head; None: as many as keys.
        most_weights: attention weights of a chunk at most; one head of one sequence may have more.
    """

    def keys_of(first: int, count: int) -> int:
        most = max(1, *lengths[first : first + count])
        return min(longest, -(-most // columns) * columns)

    def weights_of(first: int, count: int, heads: int) -> int:
        keys = keys_of(first, count)
        return count * heads * keys * (most_queries or keys)

    found, first = [], 0
    while first < len(lengths):
        count, heads = 1, num_heads
        while first + 2 * count <= len(lengths) and weights_of(first, 2 * count, heads) <= most_weights:
            count *= 2
        while heads > 1 and (num_heads % heads or weights_of(first, count, heads) > most_weights):
            heads -= 1
        keys = slice(keys_of(first, count))
        queries = keys if most_queries is None else slice(most_queries)
        rows = range(first * num_heads, (first + count) * num_heads, count * heads)
        found += [Chunk(slice(row, row + count * heads), queries, keys) for row in rows]
        first += count
    return tuple(found)


def rows_of_heads(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[N, A, Q, D], [N, A, L, D] twice and [N, 1, 1, L] bool -> [N * A, Q, D], [N * A, L, D] twice, and what is added
    to the scores, [N * A, 1, L]: 0 at tokens, else -inf."""
    shape = query.shape[:2]
    mask = query.new_zeros(shape[0], 1, 1, key.shape[2])  # [N, 1, 1, L]
    if key_mask is not None:
        mask = mask.masked_fill(~key_mask, -torch.inf)
    mask = mask.expand(*shape, 1, -1)  # [N, A, 1, L]
    return query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), mask.flatten(0, 1)


def chunked_attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dropout: float, chunks: Sequence[Chunk]
) -> Tensor:
    """query [N, A, Q, D], key and value [N, A, L, D] -> [N, A, Q, D]; rows of padding mean nothing.

    Args:
        key_mask: [N, 1, 1, L] bool, True at tokens; None without padding.
        dropout: probability of dropping a weight, for which `level_of` has a level.
    """
    shape = query.shape[:2]
    query, key, value, mask = rows_of_heads(query, key, value, key_mask)
    keeps = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
    context: Tensor = _ChunkedAttention.apply(query, key, value, mask, dropout, chunks, keeps)
    return context.unflatten(0, shape)


class _ChunkedAttention(torch.autograd.Function):
    """Keeps one number a weight for the backward pass: its value, with a minus sign if it was dropped."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        dropout: float,
        chunks: Sequence[Chunk],
        keeps: bool,
    ) -> Tensor:
        context, scale = query.new_zeros(*query.shape[:2], value.shape[-1]), query.shape[-1] ** -0.5
        level = level_of(dropout) if dropout else None
        of_chunks = []
        for rows, queries, keys in chunks:
            transposed = key[rows, keys].transpose(1, 2)
            scores = torch.baddbmm(mask[rows, :, keys], query[rows, queries], transposed, alpha=scale)
            weights = torch.softmax(scores, -1, out=scores)
            kept = weights if level is None else _drop(weights, level)
            torch.bmm(kept, value[rows, keys], out=context[rows, queries])
            if keeps:
                of_chunks.append(weights)
        ctx.save_for_backward(query, key, value, *of_chunks)
        ctx.dropout, ctx.chunks = dropout, chunks
        return context.mul_(1 / (1 - dropout)) if dropout else context

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # decorated
        query, key, value, *of_chunks = ctx.saved_tensors
        for_query, for_key, for_value = (torch.zeros_like(part) for part in (query, key, value))
        scale, dropout = query.shape[-1] ** -0.5, ctx.dropout
        if dropout:
            grad = grad * (1 / (1 - dropout))
        for (rows, queries, keys), weights in zip(ctx.chunks, of_chunks, strict=True):
            of_context = grad[rows, queries]
            of_weights = torch.bmm(of_context, value[rows, keys].transpose(1, 2))
            kept = weights
            if dropout:
                kept, weights = _drop_again(weights, of_weights), weights.abs()
            torch.bmm(kept.transpose(1, 2), of_context, out=for_value[rows, keys])
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            _scaled_bmm(of_scores, key[rows, keys], scale, out=for_query[rows, queries])
            _scaled_bmm(of_scores.transpose(1, 2), query[rows, queries], scale, out=for_key[rows, keys])
        return for_query, for_key, for_value, None, None, None, None


def _drop(weights: Tensor, level: int) -> Tensor:
    """Mark weights at random with a minus sign: those that are kept, and zeros in the place of the marked ones."""
    bits = _as_bits(weights)
    marked = torch.lt(drawn_levels(weights.shape), level, out=torch.empty_like(bits))  # 1, else 0
    bits.add_(marked, alpha=torch.iinfo(bits.dtype).min)
    kept = marked.sub_(1)  # no bit where marked, else all
    return kept.bitwise_and_(bits).view(weights.dtype)


def _drop_again(weights: Tensor, grad: Tensor) -> Tensor:
    """The weights with zeros where they are marked; so is their gradient, in place."""
    bits = _as_bits(weights)
    kept = bits.bitwise_right_shift(8 * bits.element_size() - 1).bitwise_not_()  # no bit where marked, else all
    _as_bits(grad).bitwise_and_(kept)
    return kept.bitwise_and_(bits).view(weights.dtype)


def _as_bits(values: Tensor) -> Tensor:
    return values.view(_BITS[values.element_size()])


def _scaled_bmm(left: Tensor, right: Tensor, scale: float, out: Tensor) -> None:
    """left [B, I, J], right [B, J, K]: scale * left @ right into out [B, I, K]."""
    torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)
