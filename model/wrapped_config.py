"""The config of an encoder that transformers computes, read under the names of BERT's."""

import copy
import importlib
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, Self

from .config import BertConfig, ModelError

WRAPPED_TYPES = (
    "albert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta",
)  # fmt: skip
"""The model_type of folders whose encoder transformers may compute."""
INSTALL = "pip install 'domain-bert[transformers]'"
# Position 0 of a sequence is the one behind that of padding, as in fairseq: RoBERTa's 514 positions are for 512 tokens.
_COUNTED_FROM_PADDING = ("camembert", "roberta", "xlm-roberta")
# What code in a folder, or weights that are no plain numbers, would be asked for by.
_NOT_READ = ("auto_map", "_attn_implementation", "attn_implementation", "experts_implementation")


def transformers_for(model_type: str) -> ModuleType:
    """The library; raises ModelError, with what installs it, where it is not there."""
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise ModelError(f"transformers computes a model of the type {model_type!r}, and it is not installed: "
                         f"{INSTALL}") from None  # fmt: skip


@dataclass
class WrappedConfig(BertConfig):
    """What is asked of a config here, out of that of a RoBERTa, a DistilBERT, ...; changes reach that one too.

    max_position_embeddings is the longest sequence in tokens, type_vocab_size 1 where there are no segments.
    """

    values: dict[str, Any] = field(default_factory=dict)
    """The content of the config.json."""
    model_type: ClassVar[str] = ""

    @property
    def num_stored_layers(self) -> int:
        """Layers with weights of their own: those of an ALBERT share theirs."""
        return int(getattr(self.theirs(), "num_hidden_groups", self.num_hidden_layers))

    @property
    def family_name(self) -> str:
        """For indexes of models."""
        return str(self.values["model_type"])

    def theirs(self) -> Any:
        """The config object of transformers."""
        return _theirs(self.values)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read the content of a config.json.

        Raises ModelError where transformers is not installed or cannot read it, and for models that are no encoders.
        """
        values = {name: value for name, value in values.items() if name not in _NOT_READ}
        for name in ("is_decoder", "add_cross_attention", "quantization_config"):
            if values.get(name):
                raise ModelError(f"{name} is set, and only encoders of plain numbers are read; use a model without it")
        theirs = _theirs(values)
        first = 0
        if theirs.model_type in _COUNTED_FROM_PADDING:
            if not isinstance(theirs.pad_token_id, int):
                raise ModelError("pad_token_id is no number, and positions are counted from it; copy the file again")
            first = theirs.pad_token_id + 1
        return cls(
            values=values,
            vocab_size=theirs.vocab_size,
            hidden_size=theirs.hidden_size,
            num_hidden_layers=theirs.num_hidden_layers,
            num_attention_heads=theirs.num_attention_heads,
            max_position_embeddings=theirs.max_position_embeddings - first,
            type_vocab_size=max(1, getattr(theirs, "type_vocab_size", 1)),
            pad_token_id=theirs.pad_token_id,
            num_labels=theirs.num_labels,
            id2label=dict(theirs.id2label) if "id2label" in values else None,
            problem_type=theirs.problem_type,
        )

    def changed(self, **changes: Any) -> Self:
        """See `BertConfig.changed`. Both dropouts act on all of a model that has more of them, the head included."""
        found = super().changed(**changes)
        if found.classifier_hidden_layers:
            raise ModelError("classifier_hidden_layers is of a head of BERT; leave it out (--hidden-layers)")
        values = dict(self.values)
        if changes.keys() & {"id2label", "label2id", "num_labels"}:
            names = found.id2label or {place: f"LABEL_{place}" for place in range(found.num_labels)}
            values["id2label"], values["label2id"] = names, {name: place for place, name in names.items()}
            values.pop("num_labels", None)
        if "problem_type" in changes:
            values["problem_type"] = found.problem_type
        for name in _dropouts(self.theirs()):
            ours = "attention_probs_dropout_prob" if "attention" in name else "hidden_dropout_prob"
            if ours in changes:
                values[name] = getattr(found, ours)
        return replace(found, values=values)

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """The content of their config.json."""
        return self.values | ({} if architecture is None else {"architectures": [architecture]})


def _theirs(values: dict[str, Any]) -> Any:
    model_type = str(values.get("model_type"))
    kinds = transformers_for(model_type).CONFIG_MAPPING
    if model_type not in WRAPPED_TYPES or model_type not in kinds:
        raise ModelError(f"model_type is {model_type!r}, and {', '.join(WRAPPED_TYPES)} can be read; give one of them")
    try:
        return kinds[model_type].from_dict(copy.deepcopy(values))
    except Exception as error:  # Whatever a damaged value makes of it; the cause stays in the message.
        reason = str(error).strip().split("\n")[0][:200]
        raise ModelError(
            f"transformers cannot read it as {model_type} ({type(error).__name__}: {reason}); copy it again"
        ) from None


def _dropouts(theirs: Any) -> list[str]:
    """The names of the probabilities of dropout in a config of transformers."""
    return [
        name
        for name, value in theirs.to_dict().items()
        if name.endswith(("dropout", "dropout_prob")) and isinstance(value, int | float) and not isinstance(value, bool)
    ]
