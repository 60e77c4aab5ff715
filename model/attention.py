"""Self-attention inside the sequences of a packed batch, by four kernels that give the same numbers (scaled dot-product
attention, Vaswani et al. 2017, section 3.2.1)."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import Chosen, PackedBatch, PaddingLayout, gathered, rounded
from .blocks import dropped, has_level
from .chunks import Chunk, chunked_attention, chunks_of, rows_of_heads
from .config import ModelError

IMPLEMENTATIONS = ("auto", "varlen", "chunked", "sdpa", "dense")
Kernel = Literal["varlen", "chunked", "sdpa", "dense"]

_LONGEST_WRITTEN_OUT = 512
"""Sequences up to here go through plain matrix products in bfloat16 on the CPU: there the backward pass of torch's
fused kernel takes several times as long."""

_COLUMNS = 16
"""Lengths of rectangles are rounded up to multiples of this on the CPU (see `rounded`)."""


class HeadLayout:
    """Rearranges packed vectors, [T, P, A, D], into padded rectangles per head, [P, N, A, L, D], and back.

    The index tensors are computed once, before the layers run: a compiled layer must see the same kind of plan each
    time.

    Args:
        layout: where the tokens sit in the rectangle.
        parts: every P that will be used; `join` needs 1.
        num_rows: T, or more rows than the layout has tokens; the extra rows get zero gradients.
        in_place: where there is no padding, use views instead of copies, which not every kernel reads as fast.
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


@dataclass(frozen=True)
class AttentionPlan:
    """What every layer of one forward needs to know, worked out once."""

    kernel: Kernel
    dropout: float
    """Probability of dropping an attention weight; 0 outside training."""
    batch: PackedBatch
    num_rows: int
    """T, or T rounded up so that shapes recur: nothing reads the rows after the tokens."""
    heads: HeadLayout | None
    """The padded layout; None for "varlen", which needs none."""
    chosen: Chosen | None = None
    """The tokens that the last layer is computed for; None: all."""
    queries: HeadLayout | None = None
    """The padded layout of the chosen tokens; set where both `heads` and `chosen` are."""
    chunks: tuple[Chunk, ...] = ()
    """The chunks of "chunked"; empty for other kernels."""
    query_chunks: tuple[Chunk, ...] = ()
    """The same for the last layer, where only the chosen tokens are queries."""


def choose_kernel(asked: str, batch: PackedBatch, dtype: torch.dtype, dropout: float, head_size: int) -> Kernel:
    """The kernel to run for one of IMPLEMENTATIONS.

    "auto" takes varlen where it can run. On the CPU, with dropout or for short sequences in bfloat16, it takes chunked,
    or dense where chunked cannot run. Everywhere else it takes sdpa.

    Args:
        dtype: of the weights; under autocast its dtype counts instead.

    Raises:
        ModelError: "varlen" or "chunked" is asked for and cannot run.
    """
    if asked in ("sdpa", "dense"):
        return "sdpa" if asked == "sdpa" else "dense"
    device = batch.input_ids.device
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    obstacles: dict[Kernel, str | None] = {
        "varlen": _varlen_obstacle(device, dtype, dropout, head_size),
        "chunked": _chunked_obstacle(device, dropout),
    }
    for kernel, obstacle in obstacles.items():
        if asked == kernel:
            if obstacle:
                raise ModelError(f'attention_implementation "{kernel}" {obstacle}; use "auto"')
            return kernel
    if obstacles["varlen"] is None:
        return "varlen"
    # On the CPU torch's kernel is fused only without dropout, and its backward pass is slow in bfloat16.
    written_out = dropout > 0 or (dtype == torch.bfloat16 and batch.max_sequence_length <= _LONGEST_WRITTEN_OUT)
    if device.type == "cpu" and written_out:
        return "dense" if obstacles["chunked"] else "chunked"
    return "sdpa"


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


def _chunked_obstacle(device: torch.device, dropout: float) -> str | None:
    if device.type != "cpu":
        return "needs a CPU"
    if torch.compiler.is_compiling():
        return "cannot be compiled"
    if dropout > 0 and not has_level(dropout):
        return "cannot drop nearly all attention weights (give a lower attention_probs_dropout_prob)"
    return None


def plan_attention(
    batch: PackedBatch, kernel: Kernel, num_heads: int, dropout: float = 0.0, layout: PaddingLayout | None = None
) -> AttentionPlan:
    """A plan in which every layer is computed for all tokens.

    Args:
        layout: the padded layout for all kernels but varlen, which the returned weights have too. Only "dense" accepts
            sequences that do not start at column 0. None: as long as the longest sequence.
    """
    heads, device, num_rows = None, batch.input_ids.device, batch.num_tokens
    if layout is None:
        num_rows, length = _recurring(batch, kernel)
    if kernel != "varlen":
        layout = layout or batch.layout(length)
        heads = HeadLayout(layout, num_heads, (1, 3), num_rows, device, in_place=kernel == "sdpa")
    return AttentionPlan(kernel, dropout, batch, num_rows, heads, chunks=_chunks(batch, kernel, heads))


def plan_for_chosen(
    batch: PackedBatch, kernel: Kernel, num_heads: int, dropout: float, at: Tensor, most_at: int | None
) -> AttentionPlan:
    """A plan in which the last layer is computed for the first tokens and those at `at` alone (see `Chosen.of`)."""
    heads, queries, device = None, None, batch.input_ids.device
    rounds, (num_rows, length) = _compiles_shapes(kernel, device), _recurring(batch, kernel)
    chosen = Chosen.of(batch, at, most_at, _COLUMNS if rounds else 1, rounds)
    if kernel != "varlen":
        layout = batch.layout(length)
        heads = HeadLayout(layout, num_heads, (1, 2, 3), num_rows, device, in_place=kernel == "sdpa")
        queries = HeadLayout(chosen.layout(), num_heads, (1,), len(chosen.tokens), device)
    chunks, query_chunks = _chunks(batch, kernel, heads), _chunks(batch, kernel, heads, queries)
    return AttentionPlan(kernel, dropout, batch, num_rows, heads, chosen, queries, chunks, query_chunks)


def _chunks(
    batch: PackedBatch, kernel: Kernel, heads: HeadLayout | None, queries: HeadLayout | None = None
) -> tuple[Chunk, ...]:
    """The chunks of keys in `heads`, and of queries in `queries`; each key is one where that is None."""
    if kernel != "chunked" or heads is None:
        return ()
    lengths = batch.sequence_starts.diff().tolist()
    return chunks_of(lengths, heads.num_heads, heads.length, _COLUMNS, queries.length if queries else None)


def _recurring(batch: PackedBatch, kernel: Kernel) -> tuple[int, int]:
    """The number of tokens and the longest sequence; rounded up where a new shape would have to be compiled."""
    if not _compiles_shapes(kernel, batch.input_ids.device):
        return batch.num_tokens, batch.max_sequence_length
    return rounded(batch.num_tokens), -(-batch.max_sequence_length // _COLUMNS) * _COLUMNS


def _compiles_shapes(kernel: Kernel, device: torch.device) -> bool:
    """Whether each shape costs time when it is new (see `rounded`)."""
    return kernel in ("chunked", "dense") and device.type == "cpu"


def attend(qkv: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor | None]:
    """One layer: qkv [T, 3, A, D] -> context [T, A, D], and the weights [N, A, L, L] if dense."""
    if plan.heads is None:
        query, key, value = qkv.unbind(1)  # [T, A, D] each
        starts, longest = plan.batch.sequence_starts, plan.batch.max_sequence_length
        return varlen_attention(query, key, value, starts, longest, plan.batch), None
    query, key, value = plan.heads.split(qkv)  # [N, A, L, D] each
    context, weights = _in_rectangles(query, key, value, plan, plan.chunks)
    return plan.heads.join(context), weights  # [T, A, D]


def attend_from_chosen(query: Tensor, key_value: Tensor, plan: AttentionPlan, chosen: Chosen) -> Tensor:
    """The last layer: query [R, A, D] of the chosen tokens, key and value [T, 2, A, D] of all -> context [R, A, D]."""
    if plan.heads is None:
        key, value = key_value.unbind(1)  # [T, A, D] each
        return varlen_attention(query, key, value, chosen.sequence_starts, chosen.longest, plan.batch)
    assert plan.queries is not None
    (query,) = plan.queries.split(query[:, None])  # [N, A, Q, D]
    key, value = plan.heads.split(key_value)  # [N, A, L, D] each
    context, _ = _in_rectangles(query, key, value, plan, plan.query_chunks)
    return plan.queries.join(context)  # [R, A, D]


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, batch: PackedBatch
) -> Tensor:
    """query [R, A, D] of sequences that begin at `starts` [N + 1], key and value [T, A, D] of the batch -> [R, A, D].

    Runs torch's flash kernel for packed sequences: CUDA only, bfloat16 or float16, no dropout.
    """
    # Imported here because builds of torch without CUDA need not have it.
    from torch.nn.attention.varlen import varlen_attn

    bounds = starts, batch.sequence_starts, longest, batch.max_sequence_length
    return cast(Tensor, varlen_attn(query, key, value, *bounds))


def _in_rectangles(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, chunks: tuple[Chunk, ...]
) -> tuple[Tensor, Tensor | None]:
    """query [N, A, Q, D], key and value [N, A, L, D] -> [N, A, Q, D], and the weights [N, A, Q, L] if dense."""
    assert plan.heads is not None
    mask = plan.heads.key_mask
    # A compiler would make a kernel for each number of chunks.
    if plan.kernel == "dense" or (plan.kernel == "chunked" and torch.compiler.is_compiling()):
        return dense_attention(query, key, value, mask, plan.dropout)
    if plan.kernel == "chunked":
        return chunked_attention(query, key, value, mask, plan.dropout, chunks), None
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=plan.dropout), None


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """query [N, A, Q, D], key and value [N, A, L, D] -> [N, A, Q, D] and the weights [N, A, Q, L].

    Plain matrix products: the reference for the other kernels. Both results are meaningless in rows of padding.
    """
    shape = query.shape[:2]
    query, key, value, mask = rows_of_heads(query, key, value, key_mask)
    scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=query.shape[-1] ** -0.5)  # [N * A, Q, L]
    # Its sums are taken in at least float32; autocast on a GPU gives float32 back.
    weights = dropped(scores.softmax(-1), dropout)
    context = torch.bmm(weights.to(value.dtype), value)  # [N * A, Q, D]
    return context.unflatten(0, shape), weights.unflatten(0, shape)  # [N, A, Q, D], [N, A, Q, L]
