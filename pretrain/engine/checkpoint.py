"""Checkpoints: a model folder that transformers opens, and beside it what is needed to go on exactly.

checkpoints/step-00001000/           config.json, model.safetensors, tokenizer files
checkpoints/step-00001000/training_state/state.json, optimizer.safetensors
checkpoints/step-00001000/training_state/heads.safetensors  of a model with parameters that only a training needs
checkpoints/step-00001000/training_state/manifest.json      size and digest of each file, and of itself
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from data_prep.console.screen import say
from data_prep.durable import Damaged, check_files, file_facts, read_object, read_sealed, remove_folder, write_sealed
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model.huggingface import PretrainedModel, save_tensors

from .folder import whole_folder
from .optimizer import Optimizer
from .settings import PretrainError

FORMAT = 2
_STATE = "training_state"
_MANIFEST = "manifest.json"
_HEADS = "heads.safetensors"
_OTHER_VERSION = "{} was written by another version of this tool: finish the run with that, or give another --out"
# Config, tokenizer and state, generously.
_SMALL_FILES = 4_000_000


class Checkpoints:
    """The checkpoints of one run: the latest few, and those that these need.

    Args:
        folder: where they are; made at the first save.
        tokenizer: goes into every checkpoint.
        keep: how many of the latest stay.
    """

    def __init__(self, folder: Path, tokenizer: TextTokenizer, keep: int):
        self.folder, self.tokenizer, self.keep = folder, tokenizer, keep

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-" + "[0-9]" * 8))

    def save(self, step: int, model: PretrainedModel, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Write a checkpoint atomically. Then remove older ones, except the last `keep` and those of the steps that
        these name in `state["needs"]`.

        Raises:
            PretrainError: the disk is full; the checkpoints before are intact.
        """
        tensors = {name: t.detach().cpu().contiguous() for name, t in optimizer.state_tensors().items()}
        size = model.num_bytes + num_bytes(tensors.values()) + _SMALL_FILES
        with whole_folder(self.path(step), size) as folder:
            save_model_folder(model, self.tokenizer, folder)
            (folder / _STATE).mkdir()
            save_tensors(tensors, folder / _STATE / "optimizer.safetensors")
            if heads := model.training_only_parameters():
                values = {name: p.detach().cpu().contiguous() for name, p in heads.items()}
                save_tensors(values, folder / _STATE / _HEADS)
            text = json.dumps({"format": FORMAT, **state}, indent=2) + "\n"
            (folder / _STATE / "state.json").write_text(text, encoding="utf-8")
            files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
            write_sealed(folder / _STATE / _MANIFEST, {"files": file_facts(folder, files)})
        latest = self.all()[-self.keep :]
        kept = {*latest, *(self.path(step) for checkpoint in latest for step in _needs(checkpoint))}
        for old in (path for path in self.all() if path not in kept):
            try:
                remove_folder(old)
            except OSError as error:
                say(f"Warning: {old} could not be removed ({error.strerror}), and takes up space on the disk.")

    def newest_intact(self, up_to: int | None = None) -> Path | None:
        """The newest intact checkpoint, of a step up to `up_to` if given; None if there is none.

        Newer ones that are damaged are reported and renamed to damaged-step-..., so that they no longer count.

        Raises:
            PretrainError: there are checkpoints, but all are damaged, or of another version.
        """
        for left_over in self.folder.glob(".*.tmp"):
            shutil.rmtree(left_over, ignore_errors=True)
        damage = None
        for checkpoint in reversed(self.all()):
            if up_to is not None and checkpoint > self.path(up_to):
                continue
            _refuse_without_manifest(checkpoint)
            damage = damage_of(checkpoint)
            if damage is None:
                return checkpoint
            aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(checkpoint, aside)
            say(f"{damage}: not used, and renamed to {aside}.")
        # Also those that an earlier start has put aside.
        damage = damage or next((f"{path.name} is damaged" for path in self.folder.glob("damaged-step-*")), None)
        if damage and up_to is None:
            raise PretrainError(f"no checkpoint in {self.folder} is intact ({damage}): give another --out")
        return None

    def remove_after(self, checkpoint: Path) -> None:
        """Remove the checkpoints of later steps, the last one first."""
        for later in reversed([path for path in self.all() if path > checkpoint]):
            remove_folder(later)


def damage_of(checkpoint: Path) -> str | None:
    """What is wrong with the files of a checkpoint, None for an intact one."""
    try:
        check_files(checkpoint, read_sealed(checkpoint / _STATE / _MANIFEST)["files"])
    except Damaged as damage:
        return str(damage)
    return None


def _refuse_without_manifest(checkpoint: Path) -> None:
    """Checkpoints of the first format are whole, and not this version's."""
    if not (checkpoint / _STATE / _MANIFEST).exists():
        state = _state(checkpoint)
        if state is not None and "format" not in state:
            raise PretrainError(_OTHER_VERSION.format(checkpoint))


def _needs(checkpoint: Path) -> list[int]:
    """The steps whose checkpoints this one refers to; none if it was damaged after it was written."""
    state = _state(checkpoint, needs=list)
    return state["needs"] if state else []


def _state(checkpoint: Path, **kinds: type) -> dict[str, Any] | None:
    return read_object(checkpoint / _STATE / "state.json", **kinds)


def num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def read_state(checkpoint: Path, facts: Iterable[str]) -> dict[str, Any]:
    """The state of an intact checkpoint: what the loop wrote, and these facts of the stage.

    Raises:
        PretrainError: it was written by another version.
    """
    state = _state(checkpoint, format=int, counters=dict, position=dict, schedule=dict, metrics_bytes=int)
    if state is None or state["format"] != FORMAT or not all(name in state for name in facts):
        raise PretrainError(_OTHER_VERSION.format(checkpoint))
    return state


def load_optimizer(checkpoint: Path, optimizer: Optimizer) -> None:
    """Take up the optimizer's state from an intact checkpoint.

    Raises:
        PretrainError: it was written by another version.
    """
    try:
        optimizer.load_state_tensors(load_file(checkpoint / _STATE / "optimizer.safetensors"))
    except ValueError as error:
        raise PretrainError(_OTHER_VERSION.format(checkpoint)) from error


@torch.no_grad()
def load_heads(checkpoint: Path, model: PretrainedModel) -> None:
    """Take up the parameters that only a training needs from an intact checkpoint of the same objective."""
    if heads := model.training_only_parameters():
        stored = load_file(checkpoint / _STATE / _HEADS)
        for name, parameter in heads.items():
            parameter.copy_(stored[name])


def save_model_folder(
    model: PretrainedModel,
    tokenizer: TextTokenizer,
    folder: Path,
    card: str | None = None,
    model_max_length: int | None = None,
) -> None:
    """Write weights, config, tokenizer and, if given, the model card into a folder.

    `model_max_length` is where the tokenizer cuts texts, by default the longest sequence of the model.
    """
    model.save_pretrained(folder)
    for place in model.folders(folder):
        tokenizer.save(place, model_max_length or model.config.max_position_embeddings)
    if card is not None:
        (folder / "README.md").write_text(card, encoding="utf-8")
