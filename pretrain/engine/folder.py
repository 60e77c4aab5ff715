"""Folders of runs and of models: how they are locked, written whole and opened; what is wrong is said in a sentence."""

import errno
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from data_prep.durable import NO_ROOM, file_digest, flush_to_disk, replaced
from data_prep.errors import UserError
from model import ModelError, families
from model.huggingface import PretrainedModel

from .process import has_launcher
from .settings import PretrainError

# Seconds; a server of NFS 4 gives a lock free after 90.
_LOST_LOCK = 150


def require_made(folder: str, default: str, command: str) -> None:
    """Raises PretrainError where no --model was given, and the model that is taken then was not made yet.

    Args:
        default: the folder that is taken.
        command: the module that makes it.
    """
    if folder == default and not Path(folder).exists():
        raise PretrainError(f"there is no {folder}, which python -m {command} makes: run that first, or give a --model")


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """The output folder, made and locked; one that is still empty in the end is removed again.

    Raises:
        PretrainError: another process holds it.
    """
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    try:
        # A job that is started again may find the lock of a machine that was lost, which its file server still keeps.
        lock = FileLock(out / ".lock").acquire(timeout=_LOST_LOCK if has_launcher() else 0)
    except Timeout as error:
        raise PretrainError(f"another process is writing {out}: wait for it, or give another --out") from error
    with lock:
        try:
            yield
        finally:
            # A run that was refused before it began leaves no folder behind.
            if created and not any(entry.name != ".lock" for entry in out.iterdir()):
                (out / ".lock").unlink(missing_ok=True)
                # Another run may have begun beside it.
                with suppress(OSError):
                    for folder in created:
                        folder.rmdir()


@contextmanager
def whole_folder(final: Path, size: int) -> Iterator[Path]:
    """A temporary folder, which gets the name `final` at the end of the block, once all of it is on disk.

    Args:
        size: bytes that will be written, about.

    Raises:
        PretrainError: the disk is full; what stood at `final` before still does.
    """
    try:
        with replaced(final) as temporary:
            _require_room(final.parent, size)
            temporary.mkdir()
            yield temporary
    except (OSError, SafetensorError) as error:
        if _errno(error) not in NO_ROOM:
            raise
        raise PretrainError(_full(final.parent, size)) from error


def _require_room(folder: Path, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    flush_to_disk(folder.parent)
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _full(folder: Path, size: int) -> str:
    free = shutil.disk_usage(folder).free
    return (
        f"the disk of {folder} is full: {size:,} bytes are needed and {free:,} are free (a quota may allow less); what "
        "was saved before is intact: make room and give the same command again to go on"
    )


def _errno(error: OSError | SafetensorError) -> int | None:
    """The system's number of an error; safetensors has it in words only."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


Model = TypeVar("Model", bound=PretrainedModel)


@contextmanager
def model_mistakes(error: type[UserError]) -> Iterator[None]:
    """What a model cannot be made of is a mistake of the person who gave it."""
    try:
        yield
    except ModelError as mistake:
        raise error(str(mistake)) from mistake


def family_of(folder: str | Path, error: type[UserError]) -> families.Family:
    """The family of the model in a folder; raises `error` if there is none."""
    with model_mistakes(error):
        return families.family_of(folder)


def open_model(kind: type[Model], folder: str | Path, error: type[UserError], **config_changes: Any) -> Model:
    """A model of this class. What the folder lacks is new: the caller says so, from `newly_initialised`.

    Raises:
        error: the folder cannot be used.
    """
    with model_mistakes(error), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return kind.from_pretrained(folder, **config_changes)


def weights_digest(folder: Path) -> str:
    """Of all weight files of a model folder."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    return "".join(file_digest(path) for path in files)


def require_embeddings(folder: str | Path, entries: int, embeddings: int, error: type[UserError]) -> None:
    """Raises `error` where a model has fewer embeddings than its tokenizer has entries."""
    if entries > embeddings:
        raise error(f"{folder} has {entries} vocabulary entries and {embeddings} embeddings: use the tokenizer of this "
                    "model")  # fmt: skip
