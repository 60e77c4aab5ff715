"""Labelled texts out of files, for every task: what a row is, how it is read, and what becomes of the bad ones."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from data_prep.console.screen import say
from data_prep.text import builtin
from data_prep.text.cells import group_of, is_blank, kind_of, whole_characters
from data_prep.text.lines import Meter, check_encoding, text_lines
from data_prep.text.readers import rows
from data_prep.text.sources import Source, resolve

from .entities.annotations import COLUMNS as OF_TOOLS
from .entities.annotations import is_left_out, plain_row
from .questions.answers import COLUMNS as OF_SQUAD
from .questions.answers import Span, flat_rows
from .settings import FinetuneError

BUILTIN = "builtin"
PAIR_COLUMNS = (
    ("text_a", "text_b"), ("text", "text_pair"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"), ("question1", "question2"), ("question", "answer"), ("query", "passage"),
)  # fmt: skip


class BadRows:
    """Refuses bad rows, or skips and counts them.

    Args:
        skip: whether to skip.
        remedy: what `--skip-bad-rows` would do.
        listed: takes place and problem of all that are skipped; of many rows that are only passed through, none.
    """

    def __init__(self, skip: bool, remedy: str = "leave such rows out", listed: list[tuple[str, str]] | None = None):
        self.skip, self.remedy, self.listed = skip, remedy, listed
        self.count = self.left_out = 0
        self._first = ""

    def __call__(self, place: str, problem: str) -> None:
        """Note that the row at `place` cannot be used.

        Raises:
            FinetuneError: bad rows are not skipped.
        """
        if not self.skip:
            raise FinetuneError(f"{place} {problem}: mend the row, or {self.remedy} with --skip-bad-rows")
        self.count += 1
        if self.listed is not None:
            self.listed.append((place, problem))
        self._first = self._first or f"{place} {problem}"

    def report(self) -> None:
        """Say how many were skipped, if any were, and how many were left out as the tool that wrote them says."""
        if self.left_out:
            say(f"Rows that were rejected or ignored where they were annotated, and are left out: {self.left_out:,}.")
        if self.count:
            say(f"Bad rows skipped: {self.count:,} (the first: {self._first}).")


Label = str | float | tuple[str, ...] | tuple[Span, ...]
"""Of a row of choices the place of the right one, from 0; of a question where its answers are."""


class Labels(Protocol):
    """What a task knows of rows."""

    label_columns: tuple[str, ...]
    """Usual names of the column of labels."""
    takes_pairs: bool = True
    """Whether a row may be a pair of texts."""
    needs_pairs: bool = False
    """Whether it has to be one."""
    needs_labels: bool = True
    """Whether a row has to have a label; if not, a line of plain text is a row, too."""
    pair_columns: Sequence[tuple[str, str]] = PAIR_COLUMNS
    """Usual names of the columns of pairs, the most usual first."""

    def choice_columns(
        self, sample: Sequence[Mapping[str, Any]], names: Sequence[str], texts: Sequence[str]
    ) -> tuple[str, ...] | None:
        """The column with a list of choices, or one for each choice; None where the task needs some and finds none.

        Args:
            sample: the first rows.
            names: of the columns that they may be in.
            texts: of the columns that a person names for the texts.
        """
        return ()

    def usual_text_columns(self, sample: Sequence[Mapping[str, Any]], label: str | None) -> Sequence[str]:
        """Names of the column of texts, the most usual first."""

    def first_number(self, sample: Sequence[Mapping[str, Any]], choices: Sequence[str], label: str | None) -> int:
        """The number of the first choice in the column of labels."""
        return 0

    def settled(self, columns: "Columns") -> "Columns":
        """The columns that were found as the task reads them."""
        return columns

    def example(self, place: str, row: Mapping[str, Any], columns: "Columns") -> "Example":
        """A row as an example; raises ValueError with what is wrong with it ("has no ...")."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the text (or the pair of texts), the class, whose text it is, of which part of all texts, and the choices,
    are."""

    texts: tuple[str, ...] = ()
    label: str | None = None
    group: str | None = None
    part: str | None = None
    choices: tuple[str, ...] = ()
    """One with lists, or one for each choice."""
    first_number: int = 0
    """Of the choices, where labels are numbers."""

    def __str__(self) -> str:
        texts = " and ".join(f'"{name}"' for name in self.texts)
        others = [("labels", self.label), ("groups", self.group), ("parts", self.part)]
        choices = f", choices in {listed(self.choices)}" if self.choices else ""
        choices += f", numbered from {self.first_number}" if self.first_number else ""
        return f"texts in {texts}{choices}" + "".join(f', {what} in "{name}"' for what, name in others if name)

    def named(self) -> list[str]:
        """All of them."""
        return [*self.texts, *self.choices, *filter(None, (self.label, self.group, self.part))]

    def of_rows(self, names: Collection[str], may_lack: Collection[str]) -> "Columns":
        """These columns without those that the rows lack, and may lack; of two columns of texts both go, if both are
        lacking.

        Args:
            names: of the columns of the rows.
            may_lack: fields of `Columns`: "texts", "label", "group", "part".
        """
        lacking = {role for role in may_lack if role != "texts" and getattr(self, role) not in names}
        if "texts" in may_lack and set(self.texts).isdisjoint(names):
            return replace(self, texts=(), **dict.fromkeys(lacking))
        return replace(self, **dict.fromkeys(lacking))


def listed(columns: Sequence[str]) -> str:
    """The name of a column, or of the first and the last of several."""
    return " to ".join(f'"{name}"' for name in dict.fromkeys((columns[0], columns[-1])))


@dataclass(frozen=True, slots=True)
class Example:
    """A row: `place` is for people ("train.jsonl:17"); `text_pair`, `label` and `group` may be absent."""

    place: str
    text: str
    text_pair: str | None = None
    label: Label | None = None
    group: str | None = None
    """Whose text it is: rows of one group must not be held out from each other."""
    part: str | None = None
    """What results are reported by, say the site that it is from."""
    words: tuple[tuple[int, int], ...] | None = None
    """(start, end) of the text's words, for a task that needs them."""
    num_widened: int = 0
    """Entities that began or ended inside a word, and are of the whole word here."""
    choices: tuple[str, ...] | None = None
    """Of which one is the right one, for a task that chooses."""

    @property
    def answer(self) -> Label | None:
        """The label; of a row of choices the right one itself, which is the same in whatever order they stand."""
        return self.label if self.choices is None or self.label is None else self.choices[int(self.label)]

    def every_text(self) -> list[str]:
        """All that is read."""
        return [self.text, *([] if self.text_pair is None else [self.text_pair]), *(self.choices or ())]


def refuse_table(texts: Any) -> None:
    """Raises FinetuneError for a table of pandas or polars, which would give the names of its columns as texts."""
    if hasattr(texts, "columns") and hasattr(texts, "shape"):
        raise FinetuneError('a table was given where texts should be: give one of its columns, as table["text"], or '
                            'for pairs zip(table["text"], table["text_pair"])')  # fmt: skip


def read_rows(task: Labels, path: str, encoding: str, columns: Columns, bad: BadRows) -> Iterator[Example]:
    """The usable rows of a file, or of the labelled twin of the built-in corpus.

    Raises:
        FinetuneError: a row lacks a text or a label, and bad rows are not skipped.
    """
    if path == BUILTIN:
        for number, (text, label) in enumerate(builtin.labelled(), 1):
            yield Example(f"{BUILTIN}:{number}", text, None, label)
        return
    for place, row in table_rows(path, encoding, [*columns.named(), *OF_TOOLS, *OF_SQUAD], lines=not task.needs_labels):
        example = example_of(task, place, row, columns, bad)
        if example:
            yield example


def example_of(task: Labels, place: str, row: dict[str, Any], columns: Columns, bad: BadRows) -> Example | None:
    """A row as an example; None for a bad one that is skipped."""
    if columns.label and is_left_out(row):
        bad.left_out += 1
        return None
    try:
        found = task.example(place, row, columns)
    except ValueError as problem:
        bad(place, str(problem))
        return None
    if columns.group or columns.part:
        found = replace(found, group=group_of(row, columns.group), part=part_of(row, columns.part))
    return found


def part_of(row: dict[str, Any], column: str | None) -> str | None:
    """The value that results are reported by; None where there is none."""
    value = row.get(column)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return whole_characters(" ".join(str(value).split())) or None


def text_of(row: dict[str, Any], column: str) -> str:
    """The text of a row; raises ValueError with what is wrong with it."""
    value = row.get(column)
    if value is None:
        raise ValueError(f'has no "{column}"')
    if not isinstance(value, str):
        raise ValueError(f'has {kind_of(value)} in "{column}", which is not text')
    if is_blank(value):
        raise ValueError(f'has an empty "{column}"')
    return whole_characters(value)


def table_rows(
    path: str, encoding: str, columns: list[str] | None = None, lines: bool = False, named: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """("train.jsonl:17", row) for every row of .jsonl, .csv, .tsv, .json, .conll, .parquet files (see `rows_of`).

    Args:
        columns: all that will be asked for (None: all).
        lines: whether each line of plain text that is not blank is a row of "text", too.
        named: columns that a person named (see `readers.rows`).

    Raises:
        FinetuneError, PrepError: there is no such file, it is damaged, or it has no columns.
    """
    check_encoding(encoding)
    for source in table_sources(path, lines):
        yield from rows_of(source, encoding, columns, named) if source.has_rows else _lines_of(source, encoding)


def _lines_of(source: Source, encoding: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text_lines(source, encoding, Meter()), 1):
        if line.strip():
            yield f"{source.name}:{number}", {"text": line}


def rows_of(
    source: Source, encoding: str, columns: list[str] | None = None, named: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) for every row of a file: what annotation tools and SQuAD nest is flat in them."""
    for place, row in rows(source, encoding, Meter(), columns, named=named):
        yield from flat_rows(f"{source.name}:{place}", plain_row(row))


def table_sources(path: str, lines: bool = False) -> list[Source]:
    """The files behind a path; raises FinetuneError for one without columns, unless its `lines` are taken."""
    sources, _ = resolve([path], labelled=True)
    for source in sources:
        if source.is_on_disk and source.written is None:
            raise FinetuneError(f"{source.shown} is no file but a pipe, and is read several times: save it as a file")
        if not (source.has_rows or lines):
            raise FinetuneError(
                f"{source.shown} is plain text without columns: give .jsonl, .csv, .tsv or .parquet with a column of "
                "texts and one of labels, or .conll with a word and its tag in each line"
            )
    return sources
