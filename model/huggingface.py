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
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .blocks import Dropout
from .config import BertConfig, ModelError
from .initialisation import initialise_parameter
from .names import BERT_NAMES, TensorNames, layer_by_name
from .some_rows import SomeRows
from .weights import StoredWeights, check_place, open_weights, read_json

CONFIG_FILE = "config.json"


class PretrainedModel(nn.Module):
    """A torch module with a `config`, made by that alone, that is read from a folder and written into one."""

    config_class: ClassVar[type[BertConfig]] = BertConfig
    names: ClassVar[TensorNames] = BERT_NAMES
    training_only: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the names of parameters that a training needs and no folder has: `save_pretrained` leaves them out,
    `from_pretrained` draws them."""
    newly_initialised: tuple[str, ...] = ()
    """Tensors that from_pretrained drew at random, under the names of transformers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def shape(self) -> str:
        """For people: "4 layers x 256"."""
        return self.config.shape

    @property
    def num_parameters(self) -> int:
        """Numbers in its folder; shared ones count once."""
        return sum(tensor.numel() for tensor in _stored(self))

    @property
    def num_bytes(self) -> int:
        """Of all weights in its folder, and of those that only a training needs."""
        tensors = [*_stored(self), *self.training_only_parameters().values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def layer_matrices(self) -> list[nn.Parameter]:
        """The weight matrices inside the layers, which Muon optimizes."""
        raise NotImplementedError

    def head_matrices(self) -> list[nn.Parameter]:
        """The weight matrices inside the heads that Muon can optimize too: none, unless a class names them."""
        return []

    def set_dropout(self, probability: float) -> None:
        """Train with this dropout everywhere in the model. The config, and with it the folder, keeps its own."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.p = probability

    def learn_words(self, ids: Tensor) -> None:
        """Train only the embeddings of these ids, where that saves memory (see `some_rows`). Training must read no
        others; eval mode and `save_pretrained` still have all of them.

        Args:
            ids: int64, in any order, repeats allowed.
        """
        raise NotImplementedError

    def layer_of(self, name: str) -> int | None:
        """The layer that a parameter is of, from 1; 0 for what is below the layers, None for what is above them."""
        return layer_by_name(name)

    def training_only_parameters(self) -> dict[str, nn.Parameter]:
        """Those that the folder of the model does not have, by name."""
        return {name: p for name, p in self.named_parameters() if name.startswith(self.training_only)}

    @classmethod
    def architecture(cls) -> str:
        """The class of its folder, as config.json names it: the one without what only a training needs."""
        return next(kind.__name__ for kind in cls.__mro__ if not getattr(kind, "training_only", ()))

    def remade(self, **config_changes: Any) -> Self:
        """A fresh model of the same class and sizes, but for these fields of the config."""
        return type(self)(self.config.changed(**config_changes))

    def folders(self, folder: Path) -> list[Path]:
        """Those that `save_pretrained` writes: a model each, which needs its tokenizer there."""
        return [folder]

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, new_head: bool = False, **config_changes: Any) -> Self:
        """Load the model of a folder, in float32 on the CPU, in eval mode. Nothing is ever downloaded.

        Heads that the folder lacks are initialised from torch's global generator, reported in one warning and listed in
        `newly_initialised`; heads that this class does not have are ignored. A classifier with another number of hidden
        layers is another head.

        Args:
            new_head: initialise the task head (classifier, qa_outputs) even where the folder has one, of whatever size,
                without the warning.
            config_changes: replace fields of config.json (num_labels=5).

        Raises:
            ModelError: the folder is missing, damaged, of another model or of other sizes.
        """
        folder = Path(folder)
        saved = read_config(folder, cls.config_class)
        config = saved.changed(**config_changes)
        stored = open_weights(folder, cls.names.prefix)
        if new_head or config.classifier_hidden_layers != saved.classifier_hidden_layers:
            stored = _without_heads(stored, cls.names.task_heads)
        with torch.device("meta"):
            # Whatever torch.set_default_dtype says.
            model = cls(config).float()
        missing = _check(model, stored)
        model.to_empty(device="cpu")
        _fill(model, stored)
        model.newly_initialised = missing
        unasked = [name for name in missing if not (new_head and name.startswith(cls.names.task_heads))]
        if unasked:
            warnings.warn(
                f"{folder} has no values for {', '.join(unasked)}: they start at random. Train the model before use.",
                stacklevel=2,
            )
        return model.eval()

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors, each whole or not at all; other files stay.

        Raises:
            ModelError: a module was put into the model that folders have no place for, or that is not of the sizes
                that the config asks for.
        """
        folder, tensors = Path(folder), to_huggingface(self)
        _check_sizes(self)
        folder.mkdir(parents=True, exist_ok=True)
        # A class without a classifier writes none of its layers, and transformers can open the folder.
        config = self.config if hasattr(self, "classifier") else self.config.changed(classifier_hidden_layers=0)
        text = json.dumps(config.to_dict(self.architecture()), indent=2, sort_keys=True) + "\n"
        _replace(folder / "model.safetensors", lambda path: save_tensors(tensors, path))
        _replace(folder / CONFIG_FILE, lambda path: path.write_text(text, encoding="utf-8"))


def to_huggingface(model: PretrainedModel) -> dict[str, Tensor]:
    """The parameters of a model under the names of transformers, on the CPU."""
    tensors: dict[str, Tensor] = {}
    for name, parameter, owner in _parameters(model):
        names, values = model.names.of(name), owner.whole() if isinstance(owner, SomeRows) else parameter.detach()
        for theirs, rows in zip(names, values.cpu().chunk(len(names)), strict=True):
            # Cloned, for a chunk shares its memory with its neighbours, which safetensors does not write.
            tensors[theirs] = rows.clone() if len(names) > 1 else rows.contiguous()
    if _is_bare(model):
        return {name.removeprefix(model.names.prefix): tensor for name, tensor in tensors.items()}
    return tensors


def read_config(folder: Path, kind: type[BertConfig]) -> BertConfig:
    """The config.json of a folder; raises ModelError, naming the file, if it cannot be honoured."""
    values = read_config_values(folder)
    try:
        return kind.from_dict(values)
    except ModelError as error:
        raise ModelError(f"{folder / CONFIG_FILE}: {error}") from None


def read_config_values(folder: Path) -> dict[str, Any]:
    """What stands in the config.json of a folder; raises ModelError if there is none, or it is no JSON."""
    path = folder / CONFIG_FILE
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; give a local model folder, for nothing is downloaded")
    check_place(path)
    if not path.is_file():
        # Where a run leaves its model.
        final = folder / "final"
        meant = str(final) if (final / path.name).is_file() else "the folder that holds config.json"
        raise ModelError(f"{path} is missing, so {folder} is not a model folder; give {meant}")
    return read_json(path)


def _is_bare(model: nn.Module) -> bool:
    return not hasattr(model, "bert")


def _parameters(model: PretrainedModel) -> list[tuple[str, nn.Parameter, nn.Module]]:
    """Of those that folders have (name with "bert." before the encoder, parameter, the module that owns it)."""
    prefix = "bert." if _is_bare(model) else ""
    return [
        (f"{prefix}{name}", parameter, model.get_submodule(name.rpartition(".")[0]))
        for name, parameter in model.named_parameters()
        if not name.startswith(model.training_only)
    ]


def _stored(model: PretrainedModel) -> list[Tensor]:
    """What folders have of the parameters: of an embedding of which some rows are learned, all."""
    return [owner.table if isinstance(owner, SomeRows) else parameter for _, parameter, owner in _parameters(model)]


def _without_heads(stored: StoredWeights, heads: tuple[str, ...]) -> StoredWeights:
    """The same file, as if it had no tensors with these prefixes."""
    kept = {name: shape for name, shape in stored.shapes.items() if not name.startswith(heads)}
    return replace(stored, shapes=kept)


def _check(model: PretrainedModel, stored: StoredWeights) -> tuple[str, ...]:
    """Compare names and shapes before anything is allocated; the names of missing head tensors."""
    missing, known = [], set()
    for name, parameter, _ in _parameters(model):
        names = model.names.of(name)
        rows = parameter.shape[0] // len(names)
        for theirs in names:
            known.add(theirs)
            source = _source(theirs, stored, model.names)
            if source is None:
                missing.append(theirs)
            else:
                _check_shape(theirs, stored.shapes[source], (rows, *parameter.shape[1:]), stored.path, model.names)
    lost = [name for name in missing if name.startswith(model.names.encoder)]
    if lost:
        raise ModelError(
            f"{stored.path} lacks {len(lost)} tensors that config.json asks for, {lost[0]} first: "
            "the two files do not belong together, or the model is another; copy the folder again"
        )
    surplus = [name for name in stored.shapes if name.startswith(model.names.encoder) and name not in known]
    if surplus:
        raise ModelError(
            f"{stored.path} holds {len(surplus)} tensors that config.json does not ask for, "
            f"{surplus[0]} first: "
            "the two files do not belong together (compare num_hidden_layers)"
        )
    if {first for first, _ in model.names.tied} <= known:
        _check_tied(stored, model.names)
    return tuple(missing)


def _check_sizes(model: PretrainedModel) -> None:
    """Refuse to save what `from_pretrained` would refuse to load."""
    with torch.device("meta"):
        asked = {name: parameter.shape for name, parameter, _ in _parameters(type(model)(model.config))}
    for (name, _, _), stored in zip(_parameters(model), _stored(model), strict=True):
        if stored.shape != asked.get(name, stored.shape):
            raise ModelError(
                f"{name} has shape {tuple(stored.shape)}, but the model's config asks for {tuple(asked[name])}; "
                "give the config the sizes of the weights, then save"
            )


def _check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...], path: Path, names: TensorNames) -> None:
    if found != expected:
        remedy = "make the sizes agree"
        if name.startswith(names.task_heads):
            remedy += ", or start with a new head (new_head=True)"
        raise ModelError(
            f"{path}: {name} has shape {found}, but config.json and the arguments ask for {expected}; {remedy}"
        )


def _check_tied(stored: StoredWeights, names: TensorNames) -> None:
    """Refuse an output matrix or bias that is a second, different copy."""
    for first, second in names.tied:
        if first in stored.shapes and second in stored.shapes:
            if not torch.equal(stored.read(first), stored.read(second)):
                raise ModelError(
                    f"{stored.path}: {second} differs from {first}, and such an untied model is not supported; "
                    "use one whose output layer shares the word embedding"
                )


def _source(name: str, stored: StoredWeights, names: TensorNames) -> str | None:
    """Where the value of a tensor is in the file; a tied one may go by its other name."""
    candidates = (name, *(second for first, second in names.tied if first == name))
    return next((candidate for candidate in candidates if candidate in stored.shapes), None)


@torch.no_grad()
def _fill(model: PretrainedModel, stored: StoredWeights) -> None:
    """Copy what the file has; draw the rest."""
    for name, parameter, owner in _parameters(model):
        names = model.names.of(name)
        for theirs, rows in zip(names, parameter.chunk(len(names)), strict=True):
            source = _source(theirs, stored, model.names)
            if source is None:
                initialise_parameter(owner, name.rpartition(".")[2], rows, model.config.initializer_range)
            else:
                rows.copy_(stored.read(source))
    for name, parameter in model.training_only_parameters().items():
        module, _, kind = name.rpartition(".")
        initialise_parameter(model.get_submodule(module), kind, parameter, model.config.initializer_range)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file with the permissions that new files have: the library gives it to its owner alone."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, {"format": "pt"})
    path.chmod(mode)


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
