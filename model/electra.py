"""ELECTRA: a discriminator that finds replaced tokens, and a generator that replaces them (Clark et al. 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from .batch import PackedBatch
from .bert import BertForMaskedLM, BertModel, BertWithHead, place_all, unpadded
from .config import BertConfig, ModelError
from .electra_heads import (
    ElectraClassificationHead,
    FirstState,
    GeneratorHead,
    ReplacedTokenHead,
    SummaryHead,
)
from .electra_names import ELECTRA_NAMES
from .heads import MaskedLanguageHead
from .names import TensorNames
from .outputs import LogitsOutput
from .tasks import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertForVectors,
)


@dataclass
class ElectraConfig(BertConfig):
    """Settings of an ELECTRA and its heads, under the names and defaults of transformers' ElectraConfig.

    Raises ModelError where a value cannot be honoured; the message names the field.
    """

    model_type: ClassVar[str] = "electra"
    own_model_type: ClassVar[str] = "domain-electra"
    called: ClassVar[str] = "ELECTRA"

    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    embedding_size: int = 128
    """E, width of the embeddings; where it is not H, a linear layer leads from them to the layers."""
    summary_type: str = "first"
    """What multiple choice reads of a sequence: only "first", the state of [CLS]."""
    summary_use_proj: bool = True
    """Whether multiple choice has a linear layer before its classifier: only true."""
    summary_activation: str | None = "gelu"
    """Behind that layer: only "gelu"."""
    summary_last_dropout: float = 0.1
    """Behind that: kept for transformers, and not read here, where it is the dropout of every classifier."""

    @property
    def has_projection(self) -> bool:
        """Where the sizes differ."""
        return self.embedding_size != self.hidden_size

    @property
    def num_head_parameters(self) -> int:
        """Of the discriminator's head."""
        return self.hidden_size * self.hidden_size + 2 * self.hidden_size + 1

    @classmethod
    def sizes_beside(cls, hidden_size: int) -> dict[str, int]:
        """What follows the hidden size in a preset: embeddings as wide, so that the encoder is that of a BERT."""
        return super().sizes_beside(hidden_size) | {"embedding_size": hidden_size}


class _Electra:
    """What all classes of the family have in common."""

    config_class: ClassVar[type[BertConfig]] = ElectraConfig
    names: ClassVar[TensorNames] = ELECTRA_NAMES


class ElectraModel(_Electra, BertModel):
    """The encoder. With `add_pooling_layer` its pooled output is the last state of the first token as it is."""

    pooler_class: ClassVar[type[nn.Module]] = FirstState

    def __init__(self, config: BertConfig, add_pooling_layer: bool = False) -> None:
        super().__init__(config, add_pooling_layer)

    def as_bert(self) -> BertModel:
        """The BERT without a pooler that has the same weights, and computes the same.

        Raises ModelError where embeddings and layers differ in width, for a BERT has no layer between them.
        """
        config = self.config
        if config.has_projection:
            raise ModelError(
                f"embedding_size is {config.embedding_size} and hidden_size {config.hidden_size}, which are equal in a "
                "BERT; only an ELECTRA with equal sizes can become one"
            )
        values = config.to_dict() | {"model_type": BertConfig.model_type}
        bert = BertModel(BertConfig.from_dict(values), add_pooling_layer=False).to(self.embeddings.word.weight)
        bert.load_state_dict(self.state_dict())
        return bert.train(self.training)


class _ElectraWithHead(_Electra):
    encoder_class: ClassVar[type[BertModel]] = ElectraModel


class ElectraForPreTraining(_ElectraWithHead, BertWithHead):
    """The discriminator: whether each token was replaced."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.rtd_head = ReplacedTokenHead(config)
        self.initialise_heads()

    def forward(
        self,
        input_ids: Tensor | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> LogitsOutput:
        """logits [N, L], log odds that a token was replaced; labels [N, L], 1 = replaced, 0 = original, not read at
        padding. A PackedBatch: [T] each."""
        batch, place = unpadded(input_ids, attention_mask, token_type_ids)
        encoded = self.bert.encode(batch, output_attentions, output_hidden_states)
        logits = self.rtd_head(encoded.last_hidden_state)  # [T]
        loss = None
        if labels is not None:
            targets = labels.flatten()
            if batch.padded is not None and batch.padded.slots is not None:
                targets = targets.index_select(0, batch.padded.slots)  # [T]
            loss = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))
        return LogitsOutput(loss, place(logits), place_all(encoded.hidden_states, place), encoded.attentions)


class ElectraForMaskedLM(_ElectraWithHead, BertForMaskedLM):
    """The generator: MLM head, no pooler."""

    mlm_head_class: ClassVar[type[MaskedLanguageHead]] = GeneratorHead


class ElectraForSequenceClassification(_ElectraWithHead, BertForSequenceClassification):
    """One label, several labels or numbers for each sequence."""

    classifier_class: ClassVar[type[nn.Module]] = ElectraClassificationHead


class ElectraForTokenClassification(_ElectraWithHead, BertForTokenClassification):
    """A label for each token."""


class ElectraForMultipleChoice(_ElectraWithHead, BertForMultipleChoice):
    """Which of C continuations fits. Raises ModelError where the config summarises a sequence in another way."""

    classifier_class: ClassVar[type[nn.Module]] = SummaryHead

    def __init__(self, config: BertConfig) -> None:
        for name, only in (("summary_type", "first"), ("summary_use_proj", True), ("summary_activation", "gelu")):
            if getattr(config, name) != only:
                raise ModelError(f"{name} is {getattr(config, name)!r:.40}, and multiple choice needs {only!r}")
        super().__init__(config)


class ElectraForQuestionAnswering(_ElectraWithHead, BertForQuestionAnswering):
    """Start and end of an answer in the text."""


class ElectraForVectors(_ElectraWithHead, BertForVectors):
    """A vector for each sequence; no head."""
