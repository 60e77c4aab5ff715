"""Embeddings and post-LayerNorm layers over a packed batch (Devlin et al. 2019, section 3)."""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import AttentionPlan, attend, attend_from_chosen
from .batch import Chosen, PackedBatch
from .blocks import ACTIVATIONS, Dropout, layer_norm
from .config import BertConfig


class Embeddings(nn.Module):
    """Word + position + token type, LayerNorm, dropout, and where the config has it a linear layer from E to H: a
    batch of T tokens -> [T, H].

    Rows beyond T, where more are asked for, are of no token in particular.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        # No padding_idx: padding never gets here, so id 0 is a word like any other.
        self.word = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = layer_norm(config, config.embedding_size)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.projection = nn.Linear(config.embedding_size, config.hidden_size) if config.has_projection else None

    def forward(self, batch: PackedBatch, num_rows: int) -> Tensor:
        ids = (batch.input_ids, batch.token_type_ids, batch.position_ids)
        words, types, positions = (F.pad(values, (0, num_rows - batch.num_tokens)) for values in ids)  # [T] each
        total = self.word(words) + self.token_type(types)  # [T, E]
        embedded: Tensor = self.dropout(self.norm(total + self.position(positions)))
        return embedded if self.projection is None else self.projection(embedded)

    def share(self, other: "Embeddings") -> None:
        """Take the words, positions, types and LayerNorm of `other` for its own; the projection stays."""
        self.word, self.position, self.token_type, self.norm = other.word, other.position, other.token_type, other.norm


class QueryKeyValue(nn.Linear):
    """The three projections of attention as one matrix: hidden [T, H] -> [T, 3 * H].

    Given also the hidden states of some tokens, `some` [R, H]: their queries [R, H], keys and values of all [T, 2 * H].
    """

    # A linear layer by its parameters, but not by its call.
    def forward(  # type: ignore[override]
        self, hidden: Tensor, some: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        if some is None:
            return super().forward(hidden)
        sizes = [self.in_features, self.out_features - self.in_features]
        (query, key_value), (query_bias, key_value_bias) = self.weight.split(sizes), self.bias.split(sizes)
        return F.linear(some, query, query_bias), F.linear(hidden, key_value, key_value_bias)  # [R, H], [T, 2 * H]


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each followed by dropout, residual and LayerNorm: [T, H] -> [T, H]."""

    compiled: Callable[..., tuple[Tensor, Tensor | None]] | None = None
    """`compute` through torch.compile, or None; used only in passes with gradients."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.qkv = QueryKeyValue(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = layer_norm(config)
        self.intermediate = nn.Linear(hidden, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, hidden)
        self.output_norm = layer_norm(config)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Tensor, plan: AttentionPlan, chosen: Chosen | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """hidden [T, H] -> hidden [T, H], and the attention weights [N, A, L, L] if the plan is dense.

        With `chosen`, hidden [R, H] of those tokens alone, and no weights.
        """
        if self.compiled is not None and torch.is_grad_enabled():
            return self.compiled(self, hidden, plan, chosen)
        return self.compute(hidden, plan, chosen)

    def compute(self, hidden: Tensor, plan: AttentionPlan, chosen: Chosen | None) -> tuple[Tensor, Tensor | None]:
        """What `forward` gives."""
        weights = None
        if chosen is None:
            # [T, 3, A, D] -> [T, A, D], [N, A, L, L]
            context, weights = attend(self.qkv(hidden).unflatten(1, (3, self.num_heads, -1)), plan)
        else:
            some = hidden.index_select(0, chosen.tokens)  # [R, H]
            query, key_value = self._query_of_some(hidden, some, chosen.tokens)  # [R, H], [T, 2 * H]
            query = query.unflatten(1, (self.num_heads, -1))  # [R, A, D]
            key_value = key_value.unflatten(1, (2, self.num_heads, -1))  # [T, 2, A, D]
            context = attend_from_chosen(query, key_value, plan, chosen)  # [R, A, D]
            hidden = some
        hidden = self.attention_norm(hidden + self.dropout(self.attention_output(context.flatten(1))))  # [T, H], [R, H]
        inner = self.activation(self.intermediate(hidden))  # [T, intermediate_size], [R, ...]
        return self.output_norm(hidden + self.dropout(self.output(inner))), weights  # [T, H], [R, H]

    def _query_of_some(self, hidden: Tensor, some: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The queries [R, H] of `some`, the tokens [R] of hidden [T, H]; keys and values of all, [T, 2 * H]."""
        if isinstance(self.qkv, QueryKeyValue):
            return self.qkv(hidden, some)
        # A module put in its place, such as an adapter around it, is asked for all three.
        query, key_value = self.qkv(hidden).tensor_split([hidden.shape[1]], dim=1)
        return query.index_select(0, tokens), key_value


class Layers(nn.ModuleList):
    """The layers of an encoder, one after the other, each with weights of its own."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(EncoderLayer(config) for _ in range(config.num_hidden_layers))

    def __getitem__(self, idx: int | slice) -> Any:
        """A layer, or the layers of a slice in a list of modules."""
        return nn.ModuleList(list(self)[idx]) if isinstance(idx, slice) else super().__getitem__(idx)

    def in_order(self) -> list[EncoderLayer]:
        """The layers in the order in which they are applied."""
        return [cast(EncoderLayer, layer) for layer in self]

    def matrices(self) -> list[nn.Parameter]:
        """The weights of the linear modules, each once."""
        return [cast(nn.Parameter, part.weight) for part in self.modules() if isinstance(part, nn.Linear)]
