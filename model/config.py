"""The shape of a BERT: its settings, the named sizes, and what a size costs."""

import sys
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self

HIDDEN_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
OWN_MODEL_TYPE = "domain-bert"
"""The model_type of a folder whose head transformers does not have: it refuses the unknown name, where it would
silently leave layers out of a "bert"."""

PRESETS = {
    "tiny": (2, 128),
    "micro": (4, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
"""Name -> (layers, hidden size); heads are hidden / 64, the feed-forward 4 * hidden (Turc et al. 2019)."""


# No BERT is near these; what a damaged or hostile file asks for is refused before it takes memory or time.
_LARGEST_SIZE = 100_000_000
_LARGEST = {"num_hidden_layers": 1_000, "classifier_hidden_layers": 100, "num_labels": 1_000_000}


class ModelError(ValueError):
    """A model that cannot be built, read or run as asked; says what is wrong, where, and what to do."""


@dataclass
class BertConfig:
    """Settings of a BERT encoder and its heads, under the names and defaults of transformers' BertConfig.

    Raises ModelError where a value cannot be honoured; the message names the field.
    """

    model_type: ClassVar[str] = "bert"
    """In config.json."""
    own_model_type: ClassVar[str] = OWN_MODEL_TYPE
    """There too, where transformers does not have the head."""
    called: ClassVar[str] = "BERT"
    """What a model of the family is called in sentences."""

    vocab_size: int = 30522
    """V, rows of the word embedding."""
    hidden_size: int = 768
    """H, width of every layer; a multiple of num_attention_heads."""
    num_hidden_layers: int = 12
    """Transformer layers."""
    num_attention_heads: int = 12
    """A, heads of every attention; the head size D is hidden_size / num_attention_heads."""
    intermediate_size: int = 3072
    """Width of the feed-forward inside every layer."""
    hidden_act: str = "gelu"
    """"gelu" (erf), "gelu_new" or "gelu_pytorch_tanh" (tanh form of the original release), or "relu"."""
    hidden_dropout_prob: float = 0.1
    """Dropout on the embeddings and on the two outputs of every layer."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout on the attention weights; the fused kernels need 0."""
    max_position_embeddings: int = 512
    """Longest sequence, in tokens."""
    type_vocab_size: int = 2
    """Kinds of segments (sentence A, sentence B)."""
    initializer_range: float = 0.02
    """Standard deviation of the normal that new weights are drawn from, before truncation at two of them."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in LayerNorm."""
    pad_token_id: int | None = 0
    """Id of the padding token: kept for transformers; here padding never enters the encoder."""
    classifier_dropout: float | None = None
    """Dropout before a task head; None takes hidden_dropout_prob."""
    classifier_hidden_layers: int = 0
    """Layers of width H with the activation between the pooler (or the last hidden state) and the classifier's
    output; transformers opens a classifier only without them."""
    num_labels: int = 2
    """Outputs of a classification head."""
    id2label: dict[int, str] | None = None
    """Label index -> name; None names them LABEL_0, LABEL_1, ..."""
    label2id: dict[str, int] | None = None
    """Name -> label index: the inverse of id2label, which is made of it where it is None."""
    problem_type: str | None = None
    """Loss of a sequence-classification head: "regression", "single_label_classification" or
    "multi_label_classification"; None decides by num_labels and the type of the labels."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.hidden_size % self.num_attention_heads:
            raise ModelError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads "
                f"{self.num_attention_heads}; "
                "choose a multiple (64 a head is usual)"
            )
        if self.hidden_act not in HIDDEN_ACTIVATIONS:
            raise ModelError(
                f"hidden_act {self.hidden_act!r} is not known; choose one of {', '.join(HIDDEN_ACTIVATIONS)}"
            )
        if self.problem_type is not None and self.problem_type not in PROBLEM_TYPES:
            raise ModelError(
                f"problem_type {self.problem_type!r} is not known; choose one of {', '.join(PROBLEM_TYPES)}"
            )
        self._check_pad_token()
        self._check_labels()

    def _check_numbers(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        smallest = dict.fromkeys((*sizes, "max_position_embeddings", "type_vocab_size", "num_labels"), 1)
        for name, least in (smallest | {"embedding_size": 1, "classifier_hidden_layers": 0}).items():
            value, most = getattr(self, name), _LARGEST.get(name, _LARGEST_SIZE)
            if not _is_integer(value) or value < least:
                raise ModelError(f"{name} is {value!r:.40}; give a whole number of at least {least}")
            if value > most:
                shown = f"{float(value):.3g}" if value < 1e300 else "a number of hundreds of digits"
                raise ModelError(f"{name} is {shown}, over the limit of {most:,}; is config.json damaged?")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            if name == "classifier_dropout" and value is None:
                continue
            if not _is_number(value) or not 0 <= value < 1:
                raise ModelError(f"{name} is {value!r}; give a probability from 0 up to, not including, 1")
            setattr(self, name, float(value))
        for name in ("initializer_range", "layer_norm_eps"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value <= sys.float_info.max:
                raise ModelError(f"{name} is {value!r:.40}; give a positive number")
            setattr(self, name, float(value))

    def _check_pad_token(self) -> None:
        pad = self.pad_token_id
        if pad is not None and (not _is_integer(pad) or not 0 <= pad < self.vocab_size):
            raise ModelError(f"pad_token_id is {pad!r}; give an id below vocab_size {self.vocab_size}, or none")

    def _check_labels(self) -> None:
        if self.id2label is None and self.label2id is not None:
            numbers = self.label2id.values() if isinstance(self.label2id, dict) else [self.label2id]
            if not all(map(_is_label_number, numbers)):
                raise ModelError(f"label2id is {self.label2id!r}; give a mapping from names to label numbers")
            self.id2label = {int(number): str(name) for name, number in self.label2id.items()}
        if self.id2label is None:
            return
        if not isinstance(self.id2label, dict) or not all(map(_is_label_number, self.id2label)):
            raise ModelError(f"id2label is {self.id2label!r}; give a mapping from label numbers to names")
        self.id2label = {int(key): str(name) for key, name in self.id2label.items()}
        if sorted(self.id2label) != list(range(self.num_labels)):
            raise ModelError(
                f"id2label names the labels {sorted(self.id2label)} but num_labels is {self.num_labels}; "
                "name every label from 0 to num_labels - 1"
            )
        # Tools read either of the two.
        self.label2id = {name: index for index, name in self.id2label.items()}

    @property
    def num_stored_layers(self) -> int:
        """Layers with weights of their own."""
        return self.num_hidden_layers

    @property
    def embedding_size(self) -> int:
        """E, width of the embeddings."""
        return self.hidden_size

    @property
    def has_projection(self) -> bool:
        """Whether a linear layer leads from the embeddings to the layers."""
        return False

    @property
    def num_head_parameters(self) -> int:
        """Trainable numbers of the pooler and the heads in the class for pretraining, but for the tied decoder."""
        hidden, embedded = self.hidden_size, self.embedding_size
        pooler = hidden * hidden + hidden
        words = hidden * embedded + embedded + 2 * embedded + self.vocab_size
        return pooler + words + 2 * hidden + 2

    @property
    def family_name(self) -> str:
        """For indexes of models."""
        return self.model_type

    @property
    def shape(self) -> str:
        """For people: "4 layers x 256"."""
        return f"{self.num_hidden_layers} layers x {self.hidden_size}"

    @classmethod
    def from_preset(cls, name: str, vocab_size: int, **changes: Any) -> Self:
        """One of PRESETS with a vocabulary; heads and feed-forward follow the hidden size unless given."""
        if name not in PRESETS:
            raise ModelError(f"there is no model size {name!r}; choose one of {', '.join(PRESETS)}")
        layers, hidden = PRESETS[name]
        hidden = changes.get("hidden_size", hidden)
        sizes = {"vocab_size": vocab_size, "num_hidden_layers": layers, "hidden_size": hidden}
        cls._refuse_unknown(changes)
        return cls(**(sizes | cls.sizes_beside(hidden) | changes))

    @classmethod
    def sizes_beside(cls, hidden_size: int) -> dict[str, int]:
        """What follows the hidden size in a preset."""
        return {"num_attention_heads": max(1, hidden_size // 64), "intermediate_size": 4 * hidden_size}

    def changed(self, **changes: Any) -> Self:
        """A copy with other values; label names go when their number changes, the number follows new
        names."""
        self._refuse_unknown(changes)
        if "id2label" in changes:
            names = changes["id2label"]
            changes = {"label2id": None} | ({} if names is None else {"num_labels": len(names)}) | changes
        elif changes.get("num_labels", self.num_labels) != self.num_labels:
            changes = {"id2label": None, "label2id": None} | changes
        return replace(self, **changes)

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """The content of a config.json for transformers; `architecture` is the name of the saved class."""
        values = asdict(self)
        num_labels = values.pop("num_labels")
        names = self.id2label
        if names is None and num_labels != 2:
            names = {index: f"LABEL_{index}" for index in range(num_labels)}
        if names is None:
            del values["id2label"], values["label2id"]
        else:
            values["id2label"] = {str(index): name for index, name in names.items()}
            # A script may have replaced id2label since; label2id is always its inverse.
            values["label2id"] = {name: int(index) for index, name in names.items()}
        if architecture is not None:
            values["architectures"] = [architecture]
        if not self.classifier_hidden_layers:
            del values["classifier_hidden_layers"]
        model_type = self.own_model_type if self.classifier_hidden_layers else self.model_type
        return values | {"model_type": model_type, "tie_word_embeddings": True}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read the content of a config.json; keys that are not ours are ignored unless they change the model.

        Raises ModelError for another model_type and for features that this encoder does not have.
        """
        if values.get("model_type") not in (cls.model_type, cls.own_model_type):
            raise ModelError(
                f'model_type is {values.get("model_type")!r}, and only "{cls.model_type}" and "{cls.own_model_type}" '
                "can be read; give the folder of such a model"
            )
        if values.get("position_embedding_type", "absolute") != "absolute":
            raise ModelError(
                f"position_embedding_type {values['position_embedding_type']!r} is not supported; "
                "use a model with absolute positions"
            )
        for name in ("is_decoder", "add_cross_attention"):
            if values.get(name):
                raise ModelError(f"{name} is true, and this is an encoder only; use a model without it")
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        names = known.get("label2id") if known.get("id2label") is None else known["id2label"]
        if isinstance(names, dict):
            known.setdefault("num_labels", len(names))
        return cls(**known)

    @classmethod
    def _refuse_unknown(cls, changes: dict[str, Any]) -> None:
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ModelError(f"{cls.__name__} has no field {', '.join(unknown)}; its fields are {', '.join(known)}")


def parameter_count(config: BertConfig) -> int:
    """Trainable numbers of the class for pretraining; the decoder that shares the word embedding counts once."""
    hidden, inner, embedded = config.hidden_size, config.intermediate_size, config.embedding_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    embeddings = rows * embedded + 2 * embedded + config.has_projection * (embedded * hidden + hidden)
    attention = 4 * (hidden * hidden + hidden)
    feed_forward = 2 * hidden * inner + inner + hidden
    layers = config.num_stored_layers * (attention + feed_forward + 4 * hidden)
    return embeddings + layers + config.num_head_parameters


def flops_per_token(config: BertConfig, sequence_length: int, masked_fraction: float = 0.15) -> float:
    """Useful floating-point operations to train on one token: forward and backward, three times a forward pass.

    Counts matrix products only, two operations per multiply-add: the layers, attention at `sequence_length` tokens, the
    MLM head for the masked fraction, pooler and NSP once per sequence (Kaplan et al. 2020, section 2.1). In the last
    layer all tokens need key and value; only masked and first tokens need the rest.
    """
    hidden, inner, embedded = config.hidden_size, config.intermediate_size, config.embedding_size
    key_value = 2 * 2 * hidden * hidden
    rest = 2 * (2 * hidden * hidden + 2 * hidden * inner) + 4 * sequence_length * hidden
    layers = (config.num_hidden_layers - 1) * (key_value + rest)
    last = key_value + min(1, masked_fraction + 1 / sequence_length) * rest
    projection = config.has_projection * 2 * embedded * hidden
    head = masked_fraction * 2 * (hidden * embedded + embedded * config.vocab_size)
    pooled = 2 * (hidden * hidden + 2 * hidden) / sequence_length
    return 3 * (projection + layers + last + head + pooled)


def _is_label_number(value: Any) -> bool:
    """Also as text, as in JSON; of a few digits."""
    return len(str(value)) < 10 and str(value).isdecimal()


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
