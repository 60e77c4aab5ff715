"""ALBERT: layers that share their weights, and embeddings narrower than the layers (Lan et al. 2020, section 3.1)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from .albert_names import ALBERT_NAMES
from .batch import PackedBatch
from .bert import BertForMaskedLM, BertForPreTraining, BertModel
from .config import BertConfig, ModelError
from .encoder import EncoderLayer, Layers
from .names import TensorNames
from .outputs import Output
from .tasks import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertForVectors,
)


@dataclass
class AlbertConfig(BertConfig):
    """Settings of an ALBERT and its heads, under the names and defaults of transformers' AlbertConfig, but that
    `classifier_dropout` is `classifier_dropout_prob` there.

    Raises ModelError where a value cannot be honoured; the message names the field.
    """

    model_type: ClassVar[str] = "albert"
    own_model_type: ClassVar[str] = "domain-albert"
    called: ClassVar[str] = "ALBERT"

    vocab_size: int = 30000
    hidden_size: int = 4096
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout: float | None = 0.1
    embedding_size: int = 128
    """E, width of the embeddings and of the MLM head's output matrix."""
    num_hidden_groups: int = 1
    """Sets of weights that the layers share; only 1 is supported."""
    inner_group_num: int = 1
    """Layers in each set of weights; only 1 is supported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_hidden_groups", "inner_group_num"):
            if getattr(self, name) != 1:
                raise ModelError(
                    f"{name} is {getattr(self, name)!r:.40}, and here all layers share the weights of one; "
                    f"use an ALBERT whose {name} is 1"
                )

    @property
    def num_stored_layers(self) -> int:
        """One, which is applied num_hidden_layers times."""
        return 1

    @property
    def has_projection(self) -> bool:
        """It has one whatever the sizes."""
        return True

    @property
    def shape(self) -> str:
        """For people: "ALBERT of 12 layers x 768 with shared weights, embeddings of 128"."""
        return f"ALBERT of {super().shape} with shared weights, embeddings of {self.embedding_size}"

    @classmethod
    def sizes_beside(cls, hidden_size: int) -> dict[str, int]:
        """What follows the hidden size in a preset: embeddings of 128, as published, or of half a smaller model's size,
        as there would be little left to factorise."""
        return super().sizes_beside(hidden_size) | {"embedding_size": min(128, max(1, hidden_size // 2))}

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """See BertConfig. A dropout of None is written as the number that it stands for, which transformers wants."""
        values = super().to_dict(architecture)
        dropout = values.pop("classifier_dropout")
        return values | {"classifier_dropout_prob": self.hidden_dropout_prob if dropout is None else dropout}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """See BertConfig."""
        if "classifier_dropout_prob" in values:
            values = values | {"classifier_dropout": values["classifier_dropout_prob"]}
        return super().from_dict(values)


class SharedLayers(Layers):
    """One layer that is applied several times; its gradient is the sum over the times."""

    def __init__(self, config: BertConfig) -> None:
        nn.ModuleList.__init__(self, [EncoderLayer(config)])
        self.times = config.num_hidden_layers

    def in_order(self) -> list[EncoderLayer]:
        """The layer, as often as it is applied."""
        return super().in_order() * self.times


class _Albert:
    """What all classes of the family have in common."""

    config_class: ClassVar[type[BertConfig]] = AlbertConfig
    names: ClassVar[TensorNames] = ALBERT_NAMES


class AlbertModel(_Albert, BertModel):
    """The encoder and, unless `add_pooling_layer` is false, the pooler.

    Dropout is where the original has it: on the embeddings, behind attention and behind the feed-forward; transformers
    has none behind the feed-forward. Muon optimizes the matrices of the layer, not the projection, which is one of the
    embeddings.
    """

    layers_class: ClassVar[type[Layers]] = SharedLayers


class _AlbertWithHead(_Albert):
    encoder_class: ClassVar[type[BertModel]] = AlbertModel


@dataclass
class AlbertForPreTrainingOutput(Output):
    """Of AlbertForPreTraining on padded tensors."""

    loss: Tensor | None
    """MLM + SOP, each a mean, when both kinds of labels were given."""
    prediction_logits: Tensor
    """[N, L, V]."""
    sop_logits: Tensor
    """[N, 2]: 0 = A and B in order, 1 = exchanged."""
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class AlbertForPreTraining(_AlbertWithHead, BertForPreTraining):
    """MLM and SOP heads; `nsp_head` is the latter, without the dropout that transformers has in front of it."""

    def __init__(self, config: BertConfig) -> None:
        # The SOP head of transformers has as many outputs as there are labels.
        super().__init__(config.changed(num_labels=2))

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> AlbertForPreTrainingOutput:
        """See BertForPreTraining; sentence_order_label [N], -100 to ignore."""
        asked = (output_attentions, output_hidden_states)
        found = super().forward(input_ids, attention_mask, token_type_ids, labels, sentence_order_label, *asked)
        return AlbertForPreTrainingOutput(
            found.loss, found.prediction_logits, found.seq_relationship_logits, found.hidden_states, found.attentions
        )


class AlbertForMaskedLM(_AlbertWithHead, BertForMaskedLM):
    """MLM head, no pooler."""


class AlbertForSequenceClassification(_AlbertWithHead, BertForSequenceClassification):
    """One label, several labels or numbers for each sequence."""


class AlbertForTokenClassification(_AlbertWithHead, BertForTokenClassification):
    """A label for each token; no pooler."""


class AlbertForMultipleChoice(_AlbertWithHead, BertForMultipleChoice):
    """Which of C continuations fits."""


class AlbertForQuestionAnswering(_AlbertWithHead, BertForQuestionAnswering):
    """Start and end of an answer in the text; no pooler."""


class AlbertForVectors(_AlbertWithHead, BertForVectors):
    """A vector for each sequence; no head, no pooler."""
