"""Texts that a model is asked about: the file or standard input that holds them, their columns, their rows in parts."""

import os
import sys
from collections.abc import Iterator, Sequence
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from data_prep.durable import require_new_file
from data_prep.text.lines import Meter, check_encoding, text_lines
from data_prep.text.sources import Source, resolve

from .columns import find_columns
from .rows import BadRows, Columns, Example, Labels, example_of, rows_of
from .settings import FinetuneError, LongText

# Rows held at a time: enough to put similar lengths together, few enough for a flat memory.
ROWS_AT_ONCE = 1024

_READ = {"head": "their beginning was read", "head-tail": "beginning and end were read", "windows": "read in windows"}

Form = Literal["txt", "jsonl", "csv", "tsv", "conll"]
Part = list[tuple[dict[str, Any], Example | None]]


class Question(Protocol):
    """The settings of a command that asks a model about texts (see `finetune.predict.PredictSettings`)."""

    @property
    def file(self) -> tuple[str, ...]: ...
    @property
    def model(self) -> str: ...
    @property
    def out(self) -> str | None: ...
    @property
    def input_format(self) -> Form | None: ...
    @property
    def text_column(self) -> tuple[str, ...]: ...
    @property
    def encoding(self) -> str: ...
    @property
    def show_text(self) -> Literal["yes", "no"]: ...


def check_question(settings: Question) -> None:
    """Raises FinetuneError where what is asked about, and where the answers go, do not fit together."""
    if len(settings.file) > 1:
        raise FinetuneError(
            f"{len(settings.file)} files were given: give one, their folder, or a pattern in quotes ('2024-*.csv')"
        )
    if settings.file and settings.input_format:
        raise FinetuneError("--input-format is of standard input, and a file was given: leave one out")
    if settings.file == ("builtin",):
        raise FinetuneError("builtin has labels of its own: give a file of texts")
    if not settings.file:
        refuse_taken(settings.text_column)
    if settings.out and settings.file and os.path.realpath(settings.out) == os.path.realpath(settings.file[0]):
        raise FinetuneError(f"--out {settings.out} is the file to read: give another name")


def refuse_taken(columns: Sequence[str]) -> None:
    """Raises FinetuneError where `--text-column`, which takes several names, took the file behind it."""
    if columns and os.path.isfile(columns[-1]):
        raise FinetuneError(f"--text-column took {columns[-1]}, a file: put the file before --text-column")


def begin(settings: Question, default_model: str, made_by: str) -> list[Source]:
    """Check what was given, set the threads of torch, and return the files to read.

    Args:
        default_model: the folder of the model where none is given.
        made_by: the module that makes it.

    Raises:
        UserError: something cannot be read or written.
    """
    import torch

    from pretrain.engine.device import default_threads
    from pretrain.engine.folder import require_made

    check_encoding(settings.encoding)
    if settings.out is not None:
        require_new_file(settings.out, FinetuneError)
    sources = input_sources(settings)
    require_made(settings.model, default_model, made_by)
    torch.set_num_threads(default_threads())
    return sources


def input_sources(settings: Question) -> list[Source]:
    """The files to read, or standard input."""
    if settings.file:
        name = settings.file[0]
        # Words that could be no path: a text, which is not to be repeated.
        is_text = " " in name and "/" not in name and not Path(name).suffix.strip(". ") and not has_magic(name)
        if is_text and not name.startswith("hub:") and not os.path.exists(name):
            raise FinetuneError("what was given is no file: give one of texts, or pipe a text (echo ... |)")
        return resolve(settings.file, labelled=True)[0]
    return [Source("standard input", "/dev/stdin", settings.input_format or "txt")]


def longer_than(length: int, long_text: LongText, more: str = "") -> str:
    """What texts are of more tokens than the model reads at once, and what became of them."""
    return f"longer than {length} tokens ({_READ[long_text]}{more})"


def input_rows(
    source: Source, encoding: str, is_pair: bool, named: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of every row; lines of plain text become rows of "text" and, for pairs, "text_pair".

    Args:
        named: columns that are known by name (see `readers.rows`).
    """
    if source.has_rows:
        yield from rows_of(source, encoding, named=named)
        return
    for number, line in enumerate(text_lines(source, encoding, Meter()), 1):
        first, _, second = line.partition("\t") if is_pair else (line, "", "")
        yield f"{source.name}:{number}", {"text": first} | ({"text_pair": second} if is_pair else {})


def parts_of(
    sources: Sequence[Source],
    settings: Question,
    task: Labels,
    trained: Sequence[str],
    bad: BadRows,
    rows_at_once: int,
    done: int = 0,
) -> Iterator[Part]:
    """The rows with their examples, None for one that is skipped, in input order, a part after the other.

    Args:
        trained: the text columns that the model is asked with, two for pairs; none where that is not known.
        rows_at_once: of a part, but one where a person types them.
        done: rows at the beginning that are passed over.
    """
    if not settings.file and sys.stdin.isatty():
        rows_at_once = 1
    for source in sources:
        columns = None
        waiting = input_rows(source, settings.encoding, len(trained) > 1, [*settings.text_column, *trained])
        while part := list(islice(waiting, rows_at_once)):
            if columns is None:
                columns = text_columns(source, [row for _, row in part], settings, task, trained)
            skipped = min(done, len(part))
            done, part = done - skipped, part[skipped:]
            if part:
                yield [(row, example_of(task, place, row, columns, bad)) for place, row in part]


def text_columns(
    source: Source, sample: Sequence[dict[str, Any]], settings: Question, task: Labels, trained: Sequence[str]
) -> Columns:
    """The columns of the texts: those named, else those of training, else those with a usual name.

    Raises:
        FinetuneError: there are none, or one text where the model is asked with pairs, or the reverse.
    """
    if not source.has_rows:
        if settings.text_column:
            other = "" if settings.file or settings.input_format else ", or say what it is with --input-format csv"
            raise FinetuneError(f"{source.shown} is plain text without columns: leave --text-column out{other}")
        return Columns(("text", "text_pair")[: max(1, len(trained))])
    names = {name for row in sample for name in row}
    wanted = settings.text_column or (trained if names.issuperset(trained) else ())
    show_text = settings.show_text == "yes"
    named = Columns(tuple(wanted))
    columns = find_columns(task, source.shown, sample, named, labelled=False, show_text=show_text)
    if trained and len(columns.texts) != len(trained):
        kinds = {1: "single texts", 2: "pairs of texts"}
        raise FinetuneError(
            f"{settings.model} is asked with {kinds[len(trained)]}, and {source.shown} has {columns}: pass "
            f"--text-column with {'two names' if len(trained) > 1 else 'one name'}"
        )
    return columns
