"""The encoder: embeddings and post-LayerNorm layers over a packed batch (Devlin et al. 2019, section 3)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import AttentionPlan, attend, attend_from_chosen
from .batch import PackedBatch
from .chosen import Chosen
from .config import BertConfig
from .dropout import Dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
"""BertConfig.hidden_act -> function."""


class Embeddings(nn.Module):
    """Word + position + token type, LayerNorm, dropout: a batch of T tokens -> [T, H].

    Rows beyond T, where more are asked for, are of no token in particular.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        # No padding_idx: padding never gets here, so id 0 is a word like any other.
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = layer_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, batch: PackedBatch, num_rows: int) -> Tensor:
        ids = (batch.input_ids, batch.token_type_ids, batch.position_ids)
        words, types, positions = (F.pad(values, (0, num_rows - batch.num_tokens)) for values in ids)  # [T] each
        total = self.word(words) + self.token_type(types)  # [T, H]
        return self.dropout(self.norm(total + self.position(positions)))


class QueryKeyValue(nn.Linear):
    """The three projections of attention as one matrix: hidden [T, H] -> [T, 3 * H].

    With the hidden state of some tokens, `some` [R, H]: their query [R, H], key and value of all [T, 2 * H].
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
        weights = None
        if chosen is None:
            qkv = self.qkv(hidden).unflatten(1, (3, self.num_heads, -1))  # [T, 3, A, D]
            context, weights = attend(qkv, plan)  # [T, A, D], [N, A, L, L]
        else:
            some = hidden.index_select(0, chosen.tokens)  # [R, H]
            query, key_value = self.qkv(hidden, some)  # [R, H], [T, 2 * H]
            query = query.unflatten(1, (self.num_heads, -1))  # [R, A, D]
            key_value = key_value.unflatten(1, (2, self.num_heads, -1))  # [T, 2, A, D]
            context = attend_from_chosen(query, key_value, plan, chosen)  # [R, A, D]
            hidden = some
        hidden = self.attention_norm(hidden + self.dropout(self.attention_output(context.flatten(1))))  # [T, H], [R, H]
        inner = self.activation(self.intermediate(hidden))  # [T, intermediate_size], [R, ...]
        return self.output_norm(hidden + self.dropout(self.output(inner))), weights  # [T, H], [R, H]


def layer_norm(config: BertConfig) -> nn.LayerNorm:
    """LayerNorm over H. Torch takes mean and variance in float32 whatever the input, and the residual stream
    stays float32 under autocast."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


@torch.no_grad()
def initialise(module: nn.Module, std: float) -> None:
    """Fresh values for all parameters under `module`, as in the original release."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            initialise_parameter(part, name, parameter, std)


@torch.no_grad()
def initialise_parameter(owner: nn.Module, name: str, parameter: Tensor, std: float) -> None:
    """A normal truncated at two standard deviations for weights, 0 for biases, 1 for LayerNorm weights."""
    if name == "bias":
        nn.init.zeros_(parameter)
    elif isinstance(owner, nn.LayerNorm):
        nn.init.ones_(parameter)
    else:
        # The bounds of torch are absolute; its defaults, -2 and 2, would cut nothing.
        nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
