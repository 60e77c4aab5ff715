"""What an ELECTRA has in the place of the pooler and the heads of a BERT (Clark et al. 2020)."""

from typing import cast

from torch import Tensor, nn

from .blocks import ACTIVATIONS
from .config import BertConfig
from .heads import MaskedLanguageHead, classifier_dropout


class FirstState(nn.Module):
    """The state of the first token of every sequence as it is: [N, H] -> [N, H]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()

    def forward(self, first: Tensor) -> Tensor:
        return first


class ReplacedTokenHead(nn.Module):
    """Whether tokens were replaced: hidden [T, H] -> scores [T], the log odds that they were (section 2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.output(self.activation(self.dense(hidden))).squeeze(-1))  # [T]


class GeneratorHead(MaskedLanguageHead):
    """The MLM head of a generator, whose activation is the erf form of GELU whatever the layers have."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.activation = ACTIVATIONS["gelu"]


class ElectraClassificationHead(nn.Module):
    """Dropout, linear layer, GELU, dropout, output: [..., H] -> [..., C]."""

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__()
        self.dropout = classifier_dropout(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS["gelu"]
        self.out_proj = nn.Linear(config.hidden_size, num_labels)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.activation(self.dense(self.dropout(values)))
        return cast(Tensor, self.out_proj(self.dropout(hidden)))  # [..., C]


class SummaryHead(nn.Module):
    """Linear layer, GELU, dropout, output: [N, H] -> [N, C]. Multiple choice has it."""

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__()
        self.summary = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS["gelu"]
        self.dropout = classifier_dropout(config)
        self.linear = nn.Linear(config.hidden_size, num_labels)

    def forward(self, values: Tensor) -> Tensor:
        return cast(Tensor, self.linear(self.dropout(self.activation(self.summary(values)))))  # [N, C]
