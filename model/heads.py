"""What sits on top of the encoder: pooler, the MLM head, the classification heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import ACTIVATIONS, Dropout, layer_norm
from .config import BertConfig


class Pooler(nn.Module):
    """The first token of every sequence through a tanh layer: its hidden state [N, H] -> [N, H]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(self.dense(first))


class MaskedLanguageHead(nn.Module):
    """Scores over the vocabulary: hidden [M, H] -> [M, V] (Devlin et al. 2019, section 3.1, task 1).

    The output matrix is tied to the word embedding [V, E], which is passed in at each call; the bias is the head's own.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = layer_norm(config, config.embedding_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, word_embedding: Tensor, entries: Tensor | None = None) -> Tensor:
        """Scores for these entries alone, int64 [S], if they are given: [M, S]."""
        hidden = self.norm(self.activation(self.dense(hidden)))  # [M, E]
        return vocabulary_scores(hidden, word_embedding, self.bias, entries)


def vocabulary_scores(hidden: Tensor, word_embedding: Tensor, bias: Tensor, entries: Tensor | None = None) -> Tensor:
    """hidden [M, E] -> [M, V] by the word embedding [V, E] and a bias [V]; [M, S] for these entries alone, int64
    [S]."""
    if entries is not None:
        return F.linear(hidden, word_embedding[entries], bias[entries])
    return F.linear(hidden, word_embedding, bias)


class ClassificationHead(nn.Module):
    """Dropout and one linear layer: [..., H] -> [..., C]."""

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__()
        self.dropout = classifier_dropout(config)
        self.linear = nn.Linear(config.hidden_size, num_labels)

    def forward(self, values: Tensor) -> Tensor:
        return self.linear(self.dropout(values))  # [..., C]


class DeepClassificationHead(nn.Module):
    """Hidden layers (dropout, linear, activation), then dropout and the output: [..., H] -> [..., C].

    The BERT of transformers has no such head.
    """

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.dropout = classifier_dropout(config)
        self.hidden = nn.ModuleList(nn.Linear(size, size) for _ in range(config.classifier_hidden_layers))
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = nn.Linear(size, num_labels)

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.hidden:
            values = self.activation(layer(self.dropout(values)))
        return self.output(self.dropout(values))  # [..., C]


def classifier_dropout(config: BertConfig) -> Dropout:
    """The dropout in a head of fine-tuning."""
    dropout = config.classifier_dropout
    return Dropout(config.hidden_dropout_prob if dropout is None else dropout)
