"""Checkpoints: a model folder that transformers opens, and beside it what is needed to go on exactly.

    checkpoints/step-00001000/           config.json, model.safetensors, tokenizer files
    checkpoints/step-00001000/training_state/state.json, optimizer.safetensors
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from data_prep.wordpiece import WordPieceTokenizer

from .errors import PretrainError
from .optimizer import Optimizer

_STATE = "training_state"


class Checkpoints:
    """The checkpoints of one run: the latest few and the best.

    Args:
        folder: where they are; made at the first save.
        tokenizer: goes into every checkpoint.
        keep: how many of the latest stay.
    """

    def __init__(self, folder: Path, tokenizer: WordPieceTokenizer, keep: int):
        self.folder, self.tokenizer, self.keep = folder, tokenizer, keep

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-" + "[0-9]" * 8))

    def latest(self) -> Path | None:
        return next(reversed(self.all()), None)

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, state: dict, best_step: int) -> Path:
        """Write a checkpoint: it is there whole or not at all. Older ones than the last `keep` and the best go."""
        for left_over in self.folder.glob(".step-*.tmp"):
            shutil.rmtree(left_over)
        final, temporary = self.path(step), self.folder / f".step-{step:08d}.tmp"
        (temporary / _STATE).mkdir(parents=True)
        save_model_folder(model, self.tokenizer, temporary)
        tensors = {name: t.detach().cpu().contiguous() for name, t in optimizer.state_tensors().items()}
        save_file(tensors, temporary / _STATE / "optimizer.safetensors")
        (temporary / _STATE / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        commit_folder(temporary, final)
        kept = {*self.all()[-self.keep :], self.path(best_step)}
        for old in (path for path in self.all() if path not in kept):
            remove_folder(old)
        return final


def read_state(checkpoint: Path, facts: Iterable[str]) -> dict:
    """The state of a checkpoint: counters, position, metrics_rows, and these facts of the stage.

    Raises:
        PretrainError: it is missing or damaged.
    """
    path = checkpoint / _STATE / "state.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {name: state[name] for name in ("counters", "position", "metrics_rows", *facts)}
    except FileNotFoundError as error:
        raise PretrainError(f"{path} is missing: remove {checkpoint} to go on from the checkpoint before it") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise PretrainError(f"{path} is damaged: remove {checkpoint} to go on from the checkpoint before it") from error


def load_optimizer(checkpoint: Path, optimizer: Optimizer) -> None:
    """Take up the optimizer's state from a checkpoint.

    Raises:
        PretrainError: it is missing or damaged.
    """
    path = checkpoint / _STATE / "optimizer.safetensors"
    try:
        optimizer.load_state_tensors(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise PretrainError(f"{path} is damaged: remove {checkpoint} to go on from the checkpoint before it") from error


def save_model_folder(
    model: nn.Module,
    tokenizer: WordPieceTokenizer,
    folder: Path,
    card: str | None = None,
    model_max_length: int | None = None,
) -> None:
    """Write weights, config, tokenizer and, if given, the model card into a folder.

    `model_max_length` is where the tokenizer cuts texts, by default the longest sequence of the model.
    """
    model.save_pretrained(folder)
    tokenizer.save(folder, model_max_length or model.config.max_position_embeddings)
    if card is not None:
        (folder / "README.md").write_text(card, encoding="utf-8")


def commit_folder(temporary: Path, final: Path) -> None:
    """Give a finished folder its name, once all of it is on disk."""
    for path in [*temporary.rglob("*"), temporary]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    if final.exists():
        remove_folder(final)
    os.replace(temporary, final)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that, whenever the process ends, no part of it is left under its name."""
    hidden = folder.with_name(f".{folder.name}.old.tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(folder, hidden)
    shutil.rmtree(hidden)
