"""Tensors in the files of a model folder: their shapes first, their values on demand."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import ModelError

_AGAIN = "copy it again from where the model came from"
_REMEDY = f"it is damaged, cut short, or of another kind; {_AGAIN}"
# Of a character beyond U+FFFF: halves without the other one are no text.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}


@dataclass
class StoredWeights:
    """Tensors by name: those of transformers' classes with heads (in a BERT "bert." before the encoder), or as they
    stand."""

    path: Path
    """The file that messages name."""
    shapes: dict[str, tuple[int, ...]]
    """Name -> shape."""
    read: Callable[[str], Tensor]
    """Name -> values, on the CPU."""


def open_weights(folder: Path, prefix: str = "bert.") -> StoredWeights:
    """model.safetensors, its shards, or pytorch_model.bin, in that order of preference.

    The names of an encoder without heads get its `prefix`. Raises ModelError where there is no file, or where one
    cannot be read.
    """
    single, index, pickled = (
        folder / name for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    )
    for path in (single, index, pickled):
        check_place(path)
    if single.is_file() or index.is_file():
        return _canonical(open_safetensors(folder), prefix)
    if pickled.is_file():
        return _canonical(_from_pickle(pickled), prefix)
    if (folder / "pytorch_model.bin.index.json").is_file():
        raise ModelError(
            f"{folder} holds its weights in several .bin files, which are not read; save the model as safetensors"
        )
    raise ModelError(
        f"{folder} holds no weights: none of {single.name}, {index.name}, {pickled.name}; copy the folder again"
    )


def open_safetensors(folder: Path) -> StoredWeights:
    """model.safetensors or its shards, under the names that stand there. A pickle is not opened.

    Raises ModelError where there is none, or where a file cannot be read.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    for path in (single, index):
        check_place(path)
    if single.is_file():
        return _from_safetensors(single, [single])
    if index.is_file():
        return _from_safetensors(index, _shards(index))
    raise ModelError(
        f"{folder} holds no {single.name}, and other files of weights are not opened; save the model as safetensors"
    )


def check_place(path: Path) -> None:
    """Raise ModelError where a file of a model folder is a link out of it.

    The cache of the Hub keeps the files of "snapshots" so, in "blobs" beside that; those are taken.
    """
    place, folder = path.resolve(), path.parent.resolve()
    is_cached = place.parent.name == "blobs" and folder.is_relative_to(place.parents[1] / "snapshots")
    if not place.is_relative_to(folder) and not is_cached:
        raise ModelError(f"{path} is a link out of its folder, to {place}; copy the file itself into the folder")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder; raises ModelError where there is none."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if _HALF.search(text):
            # Raises where one stands alone.
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, OSError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}); {_AGAIN}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no settings; {_AGAIN}")
    return content


def _from_safetensors(path: Path, files: list[Path]) -> StoredWeights:
    shapes, places = {}, {}
    for file in files:
        try:
            handle = safe_open(file, framework="pt", device="cpu")
            for name in handle.keys():
                shapes[name] = tuple(handle.get_slice(name).get_shape())
                places[name] = (file, handle)
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read as safetensors ({error}): {_REMEDY}") from None

    def read(name: str) -> Tensor:
        file, handle = places[name]
        try:
            return _numbers(handle.get_tensor(name), name, file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} cannot be read at {name} ({error}): {_REMEDY}") from None

    return StoredWeights(path, shapes, read)


def _shards(index: Path) -> list[Path]:
    """The files that an index names, all present."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) and "\0" not in name for name in places.values()):
        raise ModelError(f"{index} is not an index of safetensors files: {_REMEDY}")
    files = [index.parent / Path(name).name for name in sorted(set(places.values()))]
    for file in files:
        check_place(file)
        if not file.is_file():
            raise ModelError(f"{file}, named by {index.name}, is missing; copy the whole folder again")
    return files


def _from_pickle(path: Path) -> StoredWeights:
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # A damaged pickle can fail in any way; the cause stays in the message.
        reason = str(error).strip().split("\n")[0][:200]
        raise ModelError(f"{path} cannot be read as tensors ({type(error).__name__}: {reason}): {_REMEDY}") from None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ModelError(f"{path} holds something other than named tensors; give the weights of a model")
    # A tensor may be said to be larger than its values. Of a BERT two may share theirs: word embedding and decoder.
    size = sum(value.numel() * value.element_size() for value in tensors.values())
    is_plain = all(value.layout is torch.strided and value.device.type == "cpu" for value in tensors.values())
    if not is_plain or size > 2 * path.stat().st_size:
        raise ModelError(f"{path} holds tensors without values of their own: {_REMEDY}")
    shapes = {str(name): tuple(value.shape) for name, value in tensors.items()}
    return StoredWeights(path, shapes, lambda name: _numbers(tensors[name], name, path))


def _numbers(tensor: Tensor, name: str, path: Path) -> Tensor:
    if not tensor.is_floating_point():
        raise ModelError(f"{path}: {name} holds {tensor.dtype}, not floating-point numbers; use an unquantised model")
    return tensor


def _canonical(stored: StoredWeights, prefix: str) -> StoredWeights:
    """Today's names for old ones, the prefix before a bare encoder, no position_ids of old releases."""
    bare = any(name.startswith("embeddings.") for name in stored.shapes)
    stored_name = {}
    for name in stored.shapes:
        if not name.endswith(".position_ids"):
            stored_name[_today(f"{prefix}{name}" if bare else name)] = name
    return StoredWeights(
        stored.path,
        {name: stored.shapes[theirs] for name, theirs in stored_name.items()},
        lambda name: stored.read(stored_name[name]),
    )


def _today(name: str) -> str:
    for old, new in _OLD_ENDINGS.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
