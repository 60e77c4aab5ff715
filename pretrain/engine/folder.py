"""Folders that are there whole or not at all, whatever ends the process, and when the disk is full."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from data_prep.files import flush_to_disk

from .errors import PretrainError

# No space, quota used up, file larger than allowed.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def require_made(folder: str, default: str, command: str) -> None:
    """Raises PretrainError where no --model was given, and the model that is taken then was not made yet.

    Args:
        default: the folder that is taken.
        command: the module that makes it.
    """
    if folder == default and not Path(folder).exists():
        raise PretrainError(f"there is no {folder}, which python -m {command} makes: run that first, or give a --model")


@contextmanager
def whole_folder(final: Path, size: int) -> Iterator[Path]:
    """A temporary folder, which gets the name `final` at the end of the block, once all of it is on disk.

    Args:
        size: bytes that will be written, about.

    Raises:
        PretrainError: the disk is full; what stood at `final` before still does.
    """
    temporary, old = (final.with_name(f".{final.name}{end}") for end in (".tmp", ".old.tmp"))
    for left_over in (temporary, old):
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        _require_room(final.parent, size)
        temporary.mkdir(parents=True)
        yield temporary
        _commit(temporary, final, old)
    except (OSError, SafetensorError) as error:
        if _errno(error) not in _NO_ROOM:
            raise
        shutil.rmtree(temporary, ignore_errors=True)
        raise PretrainError(_full(final.parent, size)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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


def _commit(temporary: Path, final: Path, old: Path) -> None:
    """Give a finished folder its name; at no moment is neither the old nor the new one on disk."""
    for path in [*temporary.rglob("*"), temporary]:
        flush_to_disk(path)
    if final.exists():
        os.replace(final, old)
    os.replace(temporary, final)
    flush_to_disk(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that, whenever the process ends, no part of it is left under its name."""
    hidden = folder.with_name(f".{folder.name}.old.tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(folder, hidden)
    shutil.rmtree(hidden)
