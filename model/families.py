"""The families of models: by the `model_type` of a folder, the classes that open it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .albert import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertForVectors,
)
from .bert import BertForMaskedLM, BertForPreTraining, BertWithHead
from .config import BertConfig, ModelError
from .electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForMultipleChoice,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraForVectors,
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
from .weights import StoredWeights, open_safetensors, open_weights, read_json
from .wrapped import (
    NotWrapped,
    WrappedEncoder,
    WrappedForMultipleChoice,
    WrappedForQuestionAnswering,
    WrappedForSequenceClassification,
    WrappedForTokenClassification,
    refusal,
)
from .wrapped_config import WRAPPED_TYPES, WrappedConfig


@dataclass(frozen=True)
class Family:
    """The classes of a kind of model.

    They say what else is to be known of it: `names` the tensors of its folders, `layer_matrices` and `head_matrices`
    what Muon optimizes, `look_at_neighbours` how a fresh one starts, `vocabulary_parameters` what grows with the
    vocabulary.
    """

    config: type[BertConfig]
    pretraining: type[BertWithHead]
    masked_lm: type[BertForMaskedLM]
    sequence_classification: type[BertForSequenceClassification]
    token_classification: type[BertForTokenClassification]
    multiple_choice: type[BertForMultipleChoice]
    question_answering: type[BertForQuestionAnswering]
    vectors: type[BertForVectors]
    masked_lm_folder: str = ""
    """Where in a model's folder that with the MLM head may be, if it is a model of its own."""
    bare_encoder: Any = None
    """The class of the encoder without a head; None for that of `pretraining`."""
    weights: Callable[[Path], StoredWeights] = open_weights
    """How the weights of a folder are opened."""
    is_wrapped: bool = False
    """Whether transformers computes it, with tokenizers and heads of its own: then it is not pretrained here."""

    @property
    def encoder(self) -> Any:
        """The class of the encoder without a head."""
        return self.bare_encoder or self.pretraining.encoder_class


BERT = Family(
    BertConfig, BertForPreTraining, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification,
    BertForMultipleChoice, BertForQuestionAnswering, BertForVectors,
)  # fmt: skip
ALBERT = Family(
    AlbertConfig, AlbertForPreTraining, AlbertForMaskedLM, AlbertForSequenceClassification,
    AlbertForTokenClassification, AlbertForMultipleChoice, AlbertForQuestionAnswering, AlbertForVectors,
)  # fmt: skip
ELECTRA = Family(
    ElectraConfig, ElectraForPreTraining, ElectraForMaskedLM, ElectraForSequenceClassification,
    ElectraForTokenClassification, ElectraForMultipleChoice, ElectraForQuestionAnswering, ElectraForVectors,
    masked_lm_folder=GENERATOR,
)  # fmt: skip
# They take packed batches alone, and have no attribute `bert`.
WRAPPED: Family = cast(Any, Family)(
    WrappedConfig, NotWrapped, NotWrapped, WrappedForSequenceClassification, WrappedForTokenClassification,
    WrappedForMultipleChoice, WrappedForQuestionAnswering, NotWrapped, bare_encoder=WrappedEncoder,
    weights=open_safetensors, is_wrapped=True,
)  # fmt: skip
FAMILIES = {
    model_type: family
    for family in (BERT, ALBERT, ELECTRA)
    for model_type in (family.config.model_type, family.config.own_model_type)
}
"""`model_type` -> family, of those that are computed here."""


def family_of(folder: str | Path) -> Family:
    """The family of a model folder; raises ModelError if it holds no config.json.

    What is computed here goes first, unless its tokenizer is not WordPiece (an ALBERT with SentencePiece); then what
    transformers computes. A folder of an unknown family counts as a BERT, whose config refuses it with a sentence.
    """
    kind = str(read_config_values(Path(folder)).get("model_type"))
    if kind in WRAPPED_TYPES and not (kind in FAMILIES and _has_wordpiece(Path(folder))):
        return WRAPPED
    return FAMILIES.get(kind, BERT)


def _has_wordpiece(folder: Path) -> bool:
    """Whether the tokenizer of a folder, if it has one, is WordPiece."""
    path = folder / "tokenizer.json"
    if (folder / "vocab.txt").is_file() or not path.is_file():
        return not (folder / "spiece.model").is_file()
    stated = read_json(path).get("model")
    return isinstance(stated, dict) and stated.get("type") == "WordPiece"


def read_config(folder: str | Path) -> BertConfig:
    """The config of a model folder; raises ModelError, naming the file, if it cannot be honoured."""
    return read_config_of(Path(folder), family_of(folder).config)


def masked_lm_folder(folder: str | Path) -> Path:
    """Where the model with the MLM head of a model folder is: there, or in it where its family has another model for
    that. Raises ModelError if it holds no config.json."""
    inside = Path(folder) / family_of(folder).masked_lm_folder
    return inside if (inside / CONFIG_FILE).is_file() else Path(folder)


def has_mlm_head(folder: str | Path) -> bool:
    """Whether a model folder has values for an MLM head, by their names; in a family with another model for that,
    whether that model is there. Raises ModelError if the weights cannot be opened."""
    family = family_of(folder)
    if family.masked_lm_folder:
        return masked_lm_folder(folder) != Path(folder)
    names = family.masked_lm.names
    return names.of("mlm_head.dense.weight")[0] in open_weights(Path(folder), names.prefix).shapes


def read_pretrainable(folder: str | Path) -> BertConfig:
    """`read_config` of a model that can be pretrained further; raises ModelError for another one too: one that
    transformers computes, and the generator of an ELECTRA, which is pretrained with its discriminator."""
    family = family_of(folder)
    if family.is_wrapped:
        raise ModelError(refusal(Path(folder)))
    made_of = read_config_values(Path(folder)).get("architectures")
    if family.masked_lm_folder and made_of == [family.masked_lm.architecture()]:
        raise ModelError(
            f"{folder} is the {family.masked_lm_folder} of a model, which is trained with the model alone; give the "
            f"folder of the model: it holds the {family.masked_lm_folder}"
        )
    return read_config(folder)
