"""A data set of the Hub is read once, into a file on this machine, which later passes read."""

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..durable import replaced
from .readers import Meter, rows
from .sources import Source, split_name


def fetched(source: Source, text_column: str, group_column: str | None, folder: Path) -> Source:
    """The data set as a .jsonl.gz file in `folder` with one or two of its columns, a line for each row.

    A file that is there already was finished, and is used; a broken fetch leaves none.

    Raises:
        PrepError: the data set cannot be opened, or broke off.
    """
    columns = [name for name in (text_column, group_column) if name]
    known_by = json.dumps([source.path, *columns, _state(Path(split_name(source.path)[0]))])
    name = hashlib.blake2b(known_by.encode(), digest_size=16).hexdigest()
    path = folder / f"{name}.jsonl.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(source, columns, path)
    found = path.stat()
    return replace(source, path=str(path), is_copy=True, compressed=True, size=found.st_size, written=found.st_mtime_ns)


def _state(folder: Path) -> list:
    """What changes where a data set in a folder on this machine is written again; nothing for one of the Hub."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _fetch(source: Source, columns: Sequence[str], path: Path) -> None:
    with replaced(path) as unfinished, open(unfinished, "wb") as raw:
        with gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as file:
            for _, row in rows(source, "utf-8", Meter()):
                values = {name: _plain(row[name], name == columns[0]) for name in columns if name in row}
                file.write(json.dumps(values, default=str).encode() + b"\n")


def _plain(value: Any, is_text: bool) -> Any:
    """What JSON can hold of a value: a date may stand for a group, but is no text."""
    if value is None or isinstance(value, str | int | float | list | dict):
        return value
    return {} if is_text else str(value)
