"""The families of models: by the `model_type` of a folder, the classes that open it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from .albert import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from .bert import BertForMaskedLM, BertForPreTraining, BertWithHead
from .config import BertConfig
from .electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForMultipleChoice,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
)
from .electra_pair import GENERATOR
from .huggingface import CONFIG_FILE, read_config_values
from .huggingface import read_config as read_config_of
from .tasks import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertForVectors,
)


@dataclass(frozen=True)
class Family:
    """The classes of a kind of model.

    They say what else is to be known of it: `names` the tensors of its folders, `layer_matrices` what Muon optimizes,
    `look_at_neighbours` how a fresh one starts, `vocabulary_parameters` what grows with the vocabulary.
    """

    config: type[BertConfig]
    pretraining: type[BertWithHead]
    masked_lm: type[BertForMaskedLM]
    sequence_classification: type[BertForSequenceClassification]
    token_classification: type[BertForTokenClassification]
    multiple_choice: type[BertForMultipleChoice]
    question_answering: type[BertForQuestionAnswering]
    masked_lm_folder: str = ""
    """Where in a model's folder that with the MLM head may be, if it is a model of its own."""

    @cached_property
    def vectors(self) -> type[BertForVectors]:
        """The encoder of `pretraining` without a head, which gives a vector for each sequence."""
        if self.pretraining is BertForPreTraining:
            return BertForVectors
        shared = {name: getattr(self.pretraining, name) for name in ("config_class", "encoder_class", "names")}
        name = self.pretraining.__name__.replace("ForPreTraining", "ForVectors")
        return cast(type[BertForVectors], type(name, (BertForVectors,), shared))


BERT = Family(
    BertConfig, BertForPreTraining, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification,
    BertForMultipleChoice, BertForQuestionAnswering,
)  # fmt: skip
ALBERT = Family(
    AlbertConfig, AlbertForPreTraining, AlbertForMaskedLM, AlbertForSequenceClassification,
    AlbertForTokenClassification, AlbertForMultipleChoice, AlbertForQuestionAnswering,
)  # fmt: skip
ELECTRA = Family(
    ElectraConfig, ElectraForPreTraining, ElectraForMaskedLM, ElectraForSequenceClassification,
    ElectraForTokenClassification, ElectraForMultipleChoice, ElectraForQuestionAnswering, masked_lm_folder=GENERATOR,
)  # fmt: skip
FAMILIES = {
    model_type: family
    for family in (BERT, ALBERT, ELECTRA)
    for model_type in (family.config.model_type, family.config.own_model_type)
}
"""`model_type` -> family."""


def family_of(folder: str | Path) -> Family:
    """The family of a model folder; raises ModelError if it holds no config.json.

    A folder of an unknown family counts as a BERT, whose config refuses it with a sentence.
    """
    return FAMILIES.get(str(read_config_values(Path(folder)).get("model_type")), BERT)


def read_config(folder: str | Path) -> BertConfig:
    """The config of a model folder; raises ModelError, naming the file, if it cannot be honoured."""
    return read_config_of(Path(folder), family_of(folder).config)


def masked_lm_folder(folder: str | Path) -> Path:
    """Where the model with the MLM head of a model folder is: there, or in it where its family has another model for
    that. Raises ModelError if it holds no config.json."""
    inside = Path(folder) / family_of(folder).masked_lm_folder
    return inside if (inside / CONFIG_FILE).is_file() else Path(folder)
