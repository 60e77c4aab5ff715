"""The names that transformers gives to the tensors of a BERT, and the names they have here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .config import ModelError


@dataclass(frozen=True)
class TensorNames:
    """The way from the parameters of a family to the tensors of its folders.

    Names of ours are those in a model with heads, with "bert." before the encoder.
    """

    modules: Mapping[str, str]
    """A module outside of the layers -> its name there."""
    layer_modules: Mapping[str, tuple[str, ...]]
    """A module of a layer -> the modules there that it joins, top to bottom: three for qkv, else one."""
    prefix: str = "bert."
    """Of the names of the encoder there, in a model with heads."""
    layer: str = "bert.encoder.layer.{}."
    """Before the names there of the modules of a layer, whose number is put in."""
    encoder: tuple[str, ...] = ("bert.embeddings.", "bert.encoder.")
    """Prefixes there of what no folder may lack."""
    task_heads: tuple[str, ...] = ("classifier.", "qa_outputs.")
    """Prefixes there of the heads that fine-tuning adds."""
    own: tuple[str, ...] = ("classifier.hidden.", "classifier.output.")
    """Prefixes of modules that transformers lacks, and that keep their names."""
    tied: tuple[tuple[str, str], ...] = (
        ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    )
    """Pairs of names there of one and the same tensor; the first one is written."""

    def of(self, name: str) -> tuple[str, ...]:
        """The tensors there that make up a parameter of ours, top to bottom.

        Raises:
            ModelError: no folder has a place for it.
        """
        if name.startswith(self.own):
            return (name,)
        module, _, kind = name.rpartition(".")
        if module in self.modules:
            return (f"{self.modules[module]}.{kind}",)
        if match := re.fullmatch(r"bert\.layers\.(\d+)\.(\w+)", module):
            index, part = match.groups()
            if part in self.layer_modules:
                return tuple(f"{self.layer.format(index)}{theirs}.{kind}" for theirs in self.layer_modules[part])
        raise ModelError(
            f"folders of this model have no place for its parameter {name}; keep modules of your own beside the model, "
            "not in it, and save their state_dict in a file of its own"
        )


BERT_NAMES = TensorNames(
    modules={
        "bert.embeddings.word": "bert.embeddings.word_embeddings",
        "bert.embeddings.position": "bert.embeddings.position_embeddings",
        "bert.embeddings.token_type": "bert.embeddings.token_type_embeddings",
        "bert.embeddings.norm": "bert.embeddings.LayerNorm",
        "bert.pooler.dense": "bert.pooler.dense",
        "mlm_head": "cls.predictions",
        "mlm_head.dense": "cls.predictions.transform.dense",
        "mlm_head.norm": "cls.predictions.transform.LayerNorm",
        "nsp_head": "cls.seq_relationship",
        "classifier.linear": "classifier",
        "qa_outputs": "qa_outputs",
    },
    layer_modules={
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention_output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "intermediate": ("intermediate.dense",),
        "output": ("output.dense",),
        "output_norm": ("output.LayerNorm",),
    },
)


def layer_by_name(name: str) -> int | None:
    """The layer that a parameter of ours is of, from 1; 0 for the embeddings below them, None for what is above."""
    if match := re.search(r"\blayers\.(\d+)\.", name):
        return 1 + int(match[1])
    return 0 if ".embeddings." in f".{name}" else None
