"""Model folders in the layout of transformers: config.json and model.safetensors, and the names inside.

Written: exactly the tensors of the class of the same name in transformers (BertForPreTraining: 14 + 16 *
layers), and the layers of a deep classification head, which it lacks, under names of our own. Read: those,
shards with an index, pytorch_model.bin, and the names of old releases.
"""

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .config import BertConfig, ModelError
from .encoder import initialise_parameter
from .weights import StoredWeights, check_place, open_weights, read_json

_MODULES = {
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
}
_LAYER_MODULES = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "intermediate": ("intermediate.dense",),
    "output": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}
_DEEP_HEAD = ("classifier.hidden.", "classifier.output.")
_ENCODER = ("bert.embeddings.", "bert.encoder.")
_TASK_HEADS = ("classifier.", "qa_outputs.")
_WORDS = "bert.embeddings.word_embeddings.weight"
_DECODER = "cls.predictions.decoder.weight"
_BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")


def huggingface_names(name: str) -> tuple[str, ...]:
    """The tensors of transformers that make up a parameter of ours, top to bottom: three for qkv, else one.

    `name` as in a model with heads, with "bert." before the encoder. A deep classification head keeps its own.
    """
    if name.startswith(_DEEP_HEAD):
        return (name,)
    module, _, kind = name.rpartition(".")
    if not module.startswith("bert.layers."):
        return (f"{_MODULES[module]}.{kind}",)
    _, _, index, part = module.split(".")
    return tuple(f"bert.encoder.layer.{index}.{theirs}.{kind}" for theirs in _LAYER_MODULES[part])


class PretrainedModel(nn.Module):
    """A torch module with a `config`, made by that alone, that is read from a folder and written into one."""

    newly_initialised: tuple[str, ...] = ()
    """Tensors that from_pretrained made anew, under the names of transformers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, new_head: bool = False, **config_changes: Any) -> Self:
        """The model of a folder, in float32 on the CPU, in eval mode; nothing is ever downloaded.

        `config_changes` replace fields of its config.json (num_labels=5). Heads that the folder lacks are
        drawn anew from torch's global generator, warned of once and listed in `newly_initialised`; heads this
        class has no use for are left out. A classifier with another number of hidden layers is another head.
        `new_head` draws the task head (classifier, qa_outputs) anew even where the folder has values for it,
        of whatever size, without the warning. Raises ModelError for a folder that is missing, damaged, of
        another model or of other sizes.
        """
        folder = Path(folder)
        saved = read_config(folder)
        config = saved.changed(**config_changes)
        stored = open_weights(folder)
        if new_head or config.classifier_hidden_layers != saved.classifier_hidden_layers:
            stored = _without_task_head(stored)
        with torch.device("meta"):
            model = cls(config)
        missing = _check(model, stored)
        model.to_empty(device="cpu")
        _fill(model, stored)
        model.newly_initialised = missing
        unasked = [name for name in missing if not (new_head and name.startswith(_TASK_HEADS))]
        if unasked:
            warnings.warn(
                f"{folder} has no values for {', '.join(unasked)}: they start at random. Train the model before use.",
                stacklevel=2,
            )
        return model.eval()

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors, each whole or not at all; other files stay."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = to_huggingface(self)
        # A class without a classifier writes none of its layers, and transformers can open the folder.
        config = self.config if hasattr(self, "classifier") else self.config.changed(classifier_hidden_layers=0)
        text = json.dumps(config.to_dict(type(self).__name__), indent=2, sort_keys=True) + "\n"
        _replace(folder / "model.safetensors", lambda path: save_file(tensors, path, {"format": "pt"}))
        _replace(folder / "config.json", lambda path: path.write_text(text, encoding="utf-8"))


def to_huggingface(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of a model under the names of transformers, on the CPU."""
    tensors: dict[str, Tensor] = {}
    for name, parameter, _ in _parameters(model):
        names = huggingface_names(name)
        for theirs, rows in zip(names, parameter.detach().cpu().chunk(len(names)), strict=True):
            # Cloned, for a chunk shares its memory with its neighbours, which safetensors does not write.
            tensors[theirs] = rows.clone() if len(names) > 1 else rows.contiguous()
    if _is_bare(model):
        return {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    return tensors


def read_config(folder: Path) -> BertConfig:
    """The config.json of a folder; raises ModelError, naming the file, where it cannot be honoured."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder. Give a local model folder; nothing is downloaded.")
    check_place(path)
    if not path.is_file():
        # Where a run leaves its model.
        final = folder / "final"
        meant = f"Did you mean {final}?" if (final / path.name).is_file() else "Give the folder that holds config.json."
        raise ModelError(f"{path} is missing, so {folder} is not a model folder. {meant}")
    values = read_json(path)
    try:
        return BertConfig.from_dict(values)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _is_bare(model: nn.Module) -> bool:
    return not hasattr(model, "bert")


def _parameters(model: nn.Module) -> list[tuple[str, nn.Parameter, nn.Module]]:
    """(name with "bert." before the encoder, parameter, the module that owns it)."""
    prefix = "bert." if _is_bare(model) else ""
    return [
        (f"{prefix}{name}", parameter, model.get_submodule(name.rpartition(".")[0]))
        for name, parameter in model.named_parameters()
    ]


def _without_task_head(stored: StoredWeights) -> StoredWeights:
    """The same file, as if it had no task head."""
    kept = {name: shape for name, shape in stored.shapes.items() if not name.startswith(_TASK_HEADS)}
    return replace(stored, shapes=kept)


def _check(model: nn.Module, stored: StoredWeights) -> tuple[str, ...]:
    """Compare names and shapes before anything is allocated; the names of missing head tensors."""
    missing, known = [], set()
    for name, parameter, _ in _parameters(model):
        names = huggingface_names(name)
        rows = parameter.shape[0] // len(names)
        for theirs in names:
            known.add(theirs)
            source = _source(theirs, stored)
            if source is None:
                missing.append(theirs)
            else:
                _check_shape(theirs, stored.shapes[source], (rows, *parameter.shape[1:]), stored.path)
    lost = [name for name in missing if name.startswith(_ENCODER)]
    if lost:
        raise ModelError(
            f"{stored.path} lacks {len(lost)} tensors that config.json asks for, {lost[0]} first; "
            "the two files do not belong together, or this is not a BERT. Copy the folder again."
        )
    surplus = [name for name in stored.shapes if name.startswith(_ENCODER) and name not in known]
    if surplus:
        raise ModelError(
            f"{stored.path} holds {len(surplus)} tensors that config.json does not ask for, "
            f"{surplus[0]} first; "
            "the two files do not belong together (compare num_hidden_layers)."
        )
    if hasattr(model, "mlm_head"):
        _check_tied(stored)
    return tuple(missing)


def _check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...], path: Path) -> None:
    if found != expected:
        remedy = "make the sizes agree"
        if name.startswith(_TASK_HEADS):
            remedy += ", or start with a new head (new_head=True)"
        raise ModelError(
            f"{path}: {name} has shape {found}, but config.json and the arguments ask for {expected}; {remedy}."
        )


def _check_tied(stored: StoredWeights) -> None:
    """Refuse an output matrix or bias that is a second, different copy."""
    for first, second in ((_WORDS, _DECODER), _BIASES):
        if first in stored.shapes and second in stored.shapes:
            if not torch.equal(stored.read(first), stored.read(second)):
                raise ModelError(
                    f"{stored.path}: {second} differs from {first}; such an untied model is not supported. "
                    "Use one whose output layer shares the word embedding."
                )


def _source(name: str, stored: StoredWeights) -> str | None:
    """Where the value of a tensor is in the file; the output bias may go by its other name."""
    candidates = _BIASES if name == _BIASES[0] else (name,)
    return next((candidate for candidate in candidates if candidate in stored.shapes), None)


@torch.no_grad()
def _fill(model: PretrainedModel, stored: StoredWeights) -> None:
    """Copy what the file has; draw the rest."""
    for name, parameter, owner in _parameters(model):
        names = huggingface_names(name)
        for theirs, rows in zip(names, parameter.chunk(len(names)), strict=True):
            source = _source(theirs, stored)
            if source is None:
                initialise_parameter(owner, name.rpartition(".")[2], rows, model.config.initializer_range)
            else:
                rows.copy_(stored.read(source))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write under a temporary name, to the disk, then rename: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
