"""Files that are there whole or not at all, also after a power cut, and the digest of a file."""

import hashlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_json(path: Path, content: object) -> None:
    """Write JSON atomically: the file is there whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text atomically: the file is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Return once a file's bytes, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder of the system's temporary ones, gone at the end of the block, also where SIGTERM or SIGHUP ends it."""
    # Only the main thread may watch signals.
    ends = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = [signal.signal(number, lambda number, frame: sys.exit(128 + number)) for number in ends]
    try:
        with tempfile.TemporaryDirectory(prefix="domain-bert-") as folder:
            yield Path(folder)
    finally:
        for number, handler in zip(ends, before, strict=True):
            signal.signal(number, handler)


def leads_out(path: Path) -> bool:
    """Whether a file is a link out of its folder. The cache of the Hub keeps its files in "blobs" two folders above."""
    place, folder = path.resolve(), path.parent.resolve()
    return not place.is_relative_to(folder) and place.parent != folder.parent.parent / "blobs"


def file_digest(path: Path) -> str:
    """blake2b (128 bits) of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
