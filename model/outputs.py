"""What the model classes return: small dataclasses with the attribute names and the order of transformers."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor
from torch.utils._pytree import register_pytree_node


@dataclass
class Output:
    """Results by name, by key, or by place among those that are not None, as in transformers.

    Its tensors are found by torch: with a static graph, DistributedDataParallel averages the gradients of no others.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()

        def parts(output: "Output") -> tuple[list[Any], tuple[str, ...]]:
            names = tuple(field.name for field in fields(output))
            return [getattr(output, name) for name in names], names

        def whole(values: Iterable[Any], names: tuple[str, ...]) -> "Output":
            return cls(**dict(zip(names, values, strict=True)))

        register_pytree_node(cls, parts, whole)

    def to_tuple(self) -> tuple[Any, ...]:
        """The values that are not None, in order."""
        return tuple(value for _, value in self._present())

    def keys(self) -> list[str]:
        """The names of the values that are not None, in order."""
        return [name for name, _ in self._present()]

    def values(self) -> tuple[Any, ...]:
        """The values that are not None, in order."""
        return self.to_tuple()

    def items(self) -> list[tuple[str, Any]]:
        """Name and value of those that are not None, in order."""
        return self._present()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of this name, or the default where it is None or there is none."""
        return dict(self._present()).get(key, default)

    def __contains__(self, key: object) -> bool:
        """Whether there is a value of this name that is not None."""
        return key in self.keys()

    def __getitem__(self, key: int | slice | str) -> Any:
        return dict(self._present())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __len__(self) -> int:
        return len(self._present())

    def _present(self) -> list[tuple[str, Any]]:
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, value) for name, value in pairs if value is not None]


@dataclass
class EncoderOutput(Output):
    """Of BertModel. From a PackedBatch: [T, H], [N, H], and hidden_states of [T, H]."""

    last_hidden_state: Tensor
    """[N, L, H]."""
    pooler_output: Tensor | None = None
    """[N, H]."""
    hidden_states: tuple[Tensor, ...] | None = None
    """The embeddings and every layer's output, [N, L, H] each."""
    attentions: tuple[Tensor, ...] | None = None
    """Every layer's weights, [N, A, L, L]."""


@dataclass
class PreTrainingOutput(Output):
    """Of BertForPreTraining on padded tensors."""

    loss: Tensor | None
    """MLM + NSP, each a mean, when both kinds of labels were given."""
    prediction_logits: Tensor
    """[N, L, V]."""
    seq_relationship_logits: Tensor
    """[N, 2]."""
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class LogitsOutput(Output):
    """Of the classes with one head."""

    loss: Tensor | None
    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class QuestionAnsweringOutput(Output):
    """Of BertForQuestionAnswering; padding scores the lowest number there is: never an answer."""

    loss: Tensor | None
    start_logits: Tensor
    """[N, L]."""
    end_logits: Tensor
    """[N, L]."""
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
