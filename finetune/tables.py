"""Rows out of files, for every task, and what becomes of the bad ones."""

from collections.abc import Iterator
from typing import Any

from data_prep.console.screen import say
from data_prep.text.readers import Meter, check_encoding, rows
from data_prep.text.sources import Source, resolve

from .errors import FinetuneError


class BadRows:
    """Refuses bad rows, or skips and counts them.

    Args:
        skip: whether to skip.
        remedy: what `--skip-bad-rows` would do.
    """

    def __init__(self, skip: bool, remedy: str = "leave such rows out"):
        self.skip, self.remedy = skip, remedy
        self.count = 0
        self._first = ""

    def __call__(self, place: str, problem: str) -> None:
        """Note that the row at `place` cannot be used.

        Raises:
            FinetuneError: bad rows are not skipped.
        """
        if not self.skip:
            raise FinetuneError(f"{place} {problem}: mend the row, or {self.remedy} with --skip-bad-rows")
        self.count += 1
        self._first = self._first or f"{place} {problem}"

    def report(self) -> None:
        """Say how many were skipped, if any were."""
        if self.count:
            say(f"Bad rows skipped: {self.count:,} (the first: {self._first}).")


def table_rows(path: str, encoding: str, columns: list[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """("train.jsonl:17", row) for every row of a file, a folder or a glob of .jsonl, .csv, .tsv and .parquet files.

    Args:
        columns: all that will be asked for (None: all).

    Raises:
        FinetuneError, PrepError: there is no such file, it is damaged, or it has no columns.
    """
    check_encoding(encoding)
    for source in table_sources(path):
        for place, row in rows(source, encoding, Meter(), columns):
            yield f"{source.name}:{place}", row


def table_sources(path: str) -> list[Source]:
    """The files behind a path; raises FinetuneError for one without columns."""
    sources, _ = resolve([path])
    for source in sources:
        if not source.has_rows:
            raise FinetuneError(
                f"{source.shown} is plain text without columns: give .jsonl, .csv, .tsv or .parquet with a column of "
                "texts and one of labels"
            )
    return sources
