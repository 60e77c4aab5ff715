"""A file of answers, written in a stream: whole under its name in the end, and gone on with after an interruption."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from data_prep.durable import flush_descriptor, flush_to_disk, read_object, replaced, require_new_file, write_text
from data_prep.errors import ReadingFailed, UserError
from data_prep.text.sources import Source
from pretrain.engine.settings import PretrainError

from .settings import FinetuneError


@dataclass
class Written:
    """How much of an output is on disk."""

    rows: int = 0
    """Of the input, skipped ones too."""
    bytes: int = 0
    skipped: int = 0
    """Rows without a usable text."""
    seconds: float = 0.0
    """That they took."""
    predictions: int = 0
    columns: list[str] | None = None
    """Of a CSV."""
    num_long: int = 0
    """Texts that were longer than the model reads at once."""
    num_cut: int = 0
    """Tokens that were not read."""
    num_vectors: int = 0
    vector_sum: list[float] | None = None
    """Of unit vectors (see `RandomCosine`)."""


class Output:
    """A file that appears under its name when all of it is written; the same command goes on with what an interrupted
    one has written of it.

    Args:
        path: of the file; None for standard output.
        asked: what decides the content. None: nothing goes on.
        is_binary: whether `file` takes bytes.
        finish: makes the file, at its second argument, of what was written, at its first; None: it is the file.

    Raises:
        FinetuneError: another process is writing it, or something else stands where its beginning is kept.
    """

    def __init__(
        self,
        path: str | None,
        asked: dict[str, Any] | None = None,
        is_binary: bool = False,
        finish: Callable[[Path, Path], None] | None = None,
    ):
        self.path, self.asked, self.is_binary, self.finish = path, asked, is_binary, finish
        self.written = Written()
        self.file: IO[Any] = sys.stdout

    def __enter__(self) -> "Output":
        if self.path is None:
            # The encoding of the terminal is not that of JSON; half a surrogate pair comes out as JSON spells it.
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
            self.file = sys.stdout
            return self
        self._part, self._state = (Path(f"{self.path}{ending}") for ending in (".part", ".part.json"))
        # A hidden name, which no file of somebody else has.
        self._lock = FileLock(Path(self.path).with_name(f".{Path(self.path).name}.lock"), timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise FinetuneError(f"another process is writing {self.path}: give another --out") from None
        try:
            # Another command may have finished it since this one began.
            require_new_file(self.path, FinetuneError)
            self._open()
        except BaseException:
            self._unlock()
            raise
        return self

    def _unlock(self) -> None:
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def _open(self) -> None:
        """Take up what is there, or begin."""
        found = read_object(self._state, asked=dict, written=dict) if self.asked is not None else None
        names = {each.name for each in fields(Written)}
        # What older versions did not write down is as in a new file.
        is_ours = found and found["asked"] == self.asked and found["written"].keys() <= names and self._part.is_file()
        if is_ours:
            self.written = Written(**found["written"])
        size = self._part.stat().st_size if self._part.exists() else 0
        if size and not (is_ours and self.written.bytes <= size):
            remedy = ", or give the options that it was begun with" if self.asked is not None else ""
            raise FinetuneError(f"{self._part} was left by another command: remove it{remedy}")
        if not is_ours:
            # An empty file, or a link to nowhere, that somebody else may have made.
            self._part.unlink(missing_ok=True)
            if self.asked is not None:
                self._write_state()
        if self.is_binary:
            # Its beginning may be written again.
            self._part.touch()
            self.file = open(self._part, "r+b")
        else:
            self.file = open(self._part, "a", encoding="utf-8", errors="backslashreplace", newline="")
        self.file.truncate(self.written.bytes)
        self.file.seek(0, os.SEEK_END)
        if self.written.rows:
            print(f"going on after row {self.written.rows:,}, from {self._part}", file=sys.stderr)

    def beginning(self) -> str:
        """What an interrupted command has written."""
        return self._part.read_text("utf-8") if self.path is not None else ""

    def flush(self, written: Written) -> None:
        """Put what was written on disk, and how much it is."""
        self.file.flush()
        self.written = written
        if self.path is not None and self.asked is not None:
            flush_descriptor(self.file.fileno())
            written.bytes = self._part.stat().st_size
            self._write_state()

    def _write_state(self) -> None:
        # In ASCII: names of files may be no text.
        write_text(self._state, json.dumps({"asked": self.asked, "written": asdict(self.written)}) + "\n")

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self.path is None:
            return
        try:
            self._close(kind)
        except BaseException:
            self._end(is_kept=True)
            raise
        # A mistake in the rows, once mended, gives another file to read; after anything else the same command goes on
        # (one for which a GPU has too little memory, on another device).
        is_mistake = kind is not None and issubclass(kind, UserError)
        is_mistake = is_mistake and not issubclass(kind, ReadingFailed | PretrainError)
        self._end(is_kept=kind is not None and not is_mistake)

    def _close(self, kind: type[BaseException] | None) -> None:
        """Close what was written; make the file of it where nothing went wrong."""
        # What could not be written cannot be written while it is closed.
        with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
            self.file.close()
        if kind is not None:
            return
        path = Path(self.path)
        if self.finish is None:
            # At every moment it has one of its two names.
            flush_to_disk(self._part)
            os.replace(self._part, path)
            flush_to_disk(path.parent)
        else:
            with replaced(path, is_shared=True) as temporary:
                self.finish(self._part, temporary)

    def _end(self, is_kept: bool) -> None:
        # Without a state nothing is known of what was written.
        is_begun = self.written.rows and self._state.is_file() and self._part.is_file()
        if not (is_kept and self.asked is not None and is_begun):
            self._part.unlink(missing_ok=True)
            self._state.unlink(missing_ok=True)
        self._unlock()


def asked_of(settings: Any, sources: Sequence[Source]) -> dict[str, Any] | None:
    """What decides an output: the options, the files to read and the model; None for what can be read only once.

    Args:
        settings: a dataclass with `model`, `out` and `device`, which decides nothing.
    """
    if any(source.written is None for source in sources):
        return None
    files = [[os.path.realpath(source.path), source.size, source.written] for source in sources]
    kinds = (".json", ".safetensors", ".bin", ".txt", ".model")
    model = sorted(
        [path.relative_to(settings.model).as_posix(), path.stat().st_size, path.stat().st_mtime_ns]
        for path in Path(settings.model).rglob("*")
        # Outputs may be written there, too.
        if path.is_file() and path.suffix in kinds and not path.name.endswith(".part.json")
    )
    options = {name: value for name, value in asdict(settings).items() if name != "device"}
    return json.loads(json.dumps({"options": options, "files": files, "model": model}, default=str))


def to_json(value: Any) -> str:
    """On one line; null for NaN and infinity, which JSON does not have.

    Raises:
        FinetuneError: lists are in lists too often.
    """
    try:
        try:
            return json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
        except ValueError:
            return json.dumps(_finite(value), ensure_ascii=False, default=str)
    except RecursionError as error:
        raise FinetuneError("a row holds lists in lists, hundreds deep, and cannot be written: leave it out") from error


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
