"""Documents out of files, folders, globs and Hub data sets; one of the Hub is read once, into a file that is kept."""

import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..durable import Damaged, check_files, file_facts, read_sealed, replaced, write_sealed
from ..errors import PrepError
from . import builtin
from .bad_rows import BadRows
from .cells import group_of, is_blank, kind_of, line_of, lines_of
from .encodings import AUTO
from .lines import Meter, byte_chunks, check_encoding, encoding_of, text_lines
from .readers import rows
from .rules import CorpusRules, RuleFinder
from .sentences import check_language
from .sources import FORMATS, Exclusion, Source, listing, place_and_parts, resolve
from .wrapping import unwrapped

LONGEST_DOCUMENT = 4_000_000
"""Characters. Longer text without an end is cut into documents of about this length, so that memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    lines: list[str]
    """In order, none empty, without white space at their ends; lines that were wrapped are joined."""
    source: str
    """Where it starts, for people: "notes.txt:12"."""
    group: str | None
    """The value of the group column: documents of one group must not be held out from each other."""
    line: str = "sentence"
    """What its lines are (see `sentences.split`)."""
    file: str | None = None
    """The path of the file that it is from; None for what is in no file."""


class Corpus:
    """Documents out of everything in `paths`, as often as asked, in the same order each time.

    Args:
        paths: files (.txt .jsonl .csv .tsv, also .gz, and .parquet), folders, globs, `builtin`,
            `hub:owner/name[:configuration][:split]`, `hub:` and a data set's folder on this machine.
        exclude: files in `paths` to leave out.
        encoding: of the text in files; "auto": found for each of them.
        text_column, group_column: names of columns where rows are documents; the first is found if not given.
        document: "auto", "file", "blank-line" or "line": what a document is in .txt files.
        line: "auto", "sentence", "paragraph" or "wrapped" (cut at a margin: joined up to the next blank line).
        language: of the text, for the sentence splitter.
        show_text: whether messages may show what could be text, such as the names of columns.
        skip_bad_rows: leave out rows that hold no text or cannot be read, however many (see `BadRows`).
        training: the rules of the corpus that this one is held out from; what documents and lines are is not looked for
            then, but taken from there.

    Attributes:
        files: (name, bytes) of every source. ignored: names in folders that are of no known format.
        rules: CorpusRules of each source.
        has_rows: whether documents of any source are rows. has_texts: whether any is a .txt file. has_files: whether
            any is a file.
        is_decoded: whether any source is in `encoding`; parquet files and data sets say their own.
        empty_documents: documents without text that the last pass left out.
        cuts: how often it cut text that went on for LONGEST_DOCUMENT without the end of a document.
        bad_rows: BadRows of the last pass.

    Raises:
        PrepError: at once for what names, settings and a sample show, during `documents()` for what only a
            whole pass can show (a broken line, an invalid byte, a file that was written to in the meantime).
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        exclude: Exclusion | None = None,
        encoding: str = "utf-8",
        text_column: str | None = None,
        group_column: str | None = None,
        document: str = "auto",
        line: str = "auto",
        language: str = "en",
        show_text: bool = True,
        skip_bad_rows: bool = False,
        training: Sequence[CorpusRules] = (),
    ):
        check_encoding(encoding)
        check_language(language)
        self.encoding = encoding
        self._sources, self.ignored = resolve(paths, exclude)
        self.files = [(source.name, source.size) for source in self._sources]
        if pipe := next((source for source in self._sources if source.is_on_disk and source.written is None), None):
            raise PrepError(f"{pipe.shown} is no file but a pipe, and text is read several times; write it into a file")
        if all(source.is_on_disk for source in self._sources) and not self.total_bytes:
            names = listing((source.shown for source in self._sources), 3)
            raise PrepError(f"{names} holds no bytes at all; give files with text in them")
        self.has_rows = any(source.has_rows for source in self._sources)
        self.has_texts = any(source.format == "txt" for source in self._sources)
        self.has_files = any(source.format not in ("builtin", "hub") for source in self._sources)
        self.is_decoded = any(source.is_decoded for source in self._sources)
        self.empty_documents = self.cuts = 0
        self.bad_rows = BadRows(skip_bad_rows)
        self._meter = Meter()
        self._finder = RuleFinder(
            self._sources, encoding, text_column, group_column, document, line, language, show_text, skip_bad_rows
        )
        found = self._finder.find(training)
        of_paths = {source.path: rules for sources, rules in found for source in sources}
        self.rules: list[CorpusRules] = [of_paths[source.path] for source in self._sources]

    def fetch(self, folder: Path) -> list[str]:
        """Read data sets of the Hub into files in a folder, for all later passes; says in sentences what was read.

        Raises:
            PrepError: a data set cannot be opened, or broke off.
        """
        said = []
        for index, source in enumerate(self._sources):
            if not source.is_on_disk and source.format == "hub":
                copy = hub_copy(source, self._columns(self.rules[index]), folder)
                self._sources[index] = copy
                said.append(f"hub:{source.name} is on this machine now: {copy.size / 1e6:,.1f} MB, compressed.")
        return said

    def known_by(self) -> str | None:
        """Of data sets of the Hub alone, before they are fetched, a digest of what is known without reading: names and
        columns, and when the files of a folder on this machine were written. None where there are other sources."""
        if any(source.format != "hub" for source in self._sources):
            return None
        sources = zip(self._sources, self.rules, strict=True)
        known = [_known_by(source, self._columns(rules)) for source, rules in sources]
        return hashlib.blake2b(json.dumps(known).encode(), digest_size=16).hexdigest()

    def _columns(self, rules: CorpusRules) -> list[str]:
        """Those of a source that are read, that of the text first."""
        return [name for name in (rules.text_column, self._finder.group_column) if name]

    @property
    def total_bytes(self) -> int:
        """Bytes on disk, 0 if not known."""
        return sum(source.size for source in self._sources) * all(source.is_on_disk for source in self._sources)

    @property
    def bytes_read(self) -> int:
        """Bytes on disk that the running pass has used up, of `total_bytes`."""
        return self._meter.finished + self._meter.position

    def introduction(self) -> list[str]:
        """What is read, and how, in sentences."""
        said = []
        if self.ignored:
            said.append(f"Left out: {listing(sorted(self.ignored), 3)}. Only files of {FORMATS} are read.")
        decoded = [source for source in self._sources if source.is_decoded]
        for encoding, names in self._names_by_encoding().items():
            said.append(f"Of {len(decoded):,} files {len(names):,} are read as {encoding}: {listing(names, 3)}.")
        return [*said, *self.rule_sentences(with_paths=True)]

    def rule_sentences(self, with_paths: bool = False) -> list[str]:
        """What documents and lines are, and why; where the sources differ, of those that are alike together.

        Args:
            with_paths: sources are called as messages call them; without, no folder above the one asked for is named.
        """
        alike: dict[tuple, list[int]] = {}
        for index, rules in enumerate(self.rules):
            alike.setdefault((rules.document, rules.line, rules.wrapped), []).append(index)
        if len(alike) == 1:
            return self.rules[0].sentences()
        said = []
        for found in alike.values():
            sources = [self._sources[index] for index in found]
            names = listing((source.shown if with_paths else source.name for source in sources), 3)
            said.append(f"{names}: {' '.join(self.rules[found[0]].sentences())}")
        return said

    def _names_by_encoding(self) -> dict[str, list[str]]:
        """Of files whose encoding was found those that are not UTF-8."""
        names: dict[str, list[str]] = {}
        for source in self._sources if self.encoding == AUTO else ():
            if source.is_decoded and (found := encoding_of(source, AUTO)) != "utf-8":
                names.setdefault(found, []).append(source.shown)
        return names

    def encodings(self) -> dict[str, int]:
        """How many files are of each encoding that was found, UTF-8 left out."""
        return {encoding: len(names) for encoding, names in self._names_by_encoding().items()}

    def documents(self) -> Iterator[Document]:
        """One pass over all documents that have text, in constant memory beside the document at hand."""
        self._meter = meter = Meter()
        self.empty_documents = self.cuts = 0
        self.bad_rows = bad_rows = BadRows(self.bad_rows.skip)
        for source, rules in zip(self._sources, self.rules, strict=True):
            for document in self._read(source, rules, meter, bad_rows):
                if document.lines:
                    yield document
                else:
                    self.empty_documents += 1
            meter.finish(source)

    def digest(self) -> str:
        """SHA-256 of names, contents and encodings found in the order read; no folder, date or machine is in it."""
        state = hashlib.sha256()
        for source, rules in zip(self._sources, self.rules, strict=True):
            state.update(json.dumps([source.name, source.format]).encode())
            if source.format in ("hub", "builtin"):
                for document in self._read(source, rules, Meter(), BadRows(self.bad_rows.skip)):
                    state.update(json.dumps([document.lines, document.group]).encode())
            else:
                for chunk in byte_chunks(source, Meter(), decompress=False):
                    state.update(chunk)
                if self.encoding == AUTO and source.is_decoded:
                    state.update(encoding_of(source, AUTO).encode())
        return state.hexdigest()

    def _read(self, source: Source, rules: CorpusRules, meter: Meter, bad_rows: BadRows) -> Iterator[Document]:
        if source.format == "builtin":
            for name, text in builtin.documents():
                yield Document(clean_lines(text, is_wrapped="texts" in rules.wrapped), name, None, rules.line)
        elif source.has_rows:
            yield from self._row_documents(source, rules, meter, bad_rows)
        else:
            yield from self._text_documents(source, rules, meter)

    def _row_documents(self, source: Source, rules: CorpusRules, meter: Meter, bad_rows: BadRows) -> Iterator[Document]:
        column, group_column = rules.text_column, self._finder.group_column
        shown, wanted = listing([column]), [name for name in (column, group_column) if name]
        bad_rows.listed_as[source.shown] = source.name
        missing = set(wanted)
        for place, row in rows(source, self.encoding, meter, wanted, bad_rows.unusable):
            if missing:
                missing -= row.keys()
            text = row.get(column)
            if text is None or (isinstance(text, str) and is_blank(text)):
                bad_rows.without_text(source.shown, place, shown)
            elif not isinstance(text, str):
                problem = f'has {kind_of(text)} in the column "{shown}", which is not text'
                remedy = "pass --text-column with the column that holds the text"
                bad_rows.unusable(source.shown, place, problem, remedy)
            else:
                bad_rows.good(source.shown)
                lines = clean_lines(text, is_wrapped="rows" in rules.wrapped)
                file = None if source.format == "hub" else source.path
                yield Document(lines, f"{source.name}:{place}", group_of(row, group_column), rules.line, file)
        self._require(source, column, missing)
        bad_rows.finish(source.shown)

    def _text_documents(self, source: Source, rules: CorpusRules, meter: Meter) -> Iterator[Document]:
        is_wrapped, is_file = "texts" in rules.wrapped, rules.document == "file"
        start, lines, size, was_cut = 1, [], 0, False

        def document() -> Document:
            return Document(_joined(lines, is_wrapped), f"{source.name}:{start}", None, rules.line, source.path)

        for number, line in enumerate(text_lines(source, self.encoding, meter), 1):
            line = line_of(line)
            if line and not lines:
                self.cuts += was_cut
                start, was_cut = number, False
            # Blank lines in a row are one.
            if line or (lines and lines[-1]):
                lines.append(line)
                size += len(line)
            ends = rules.document == "line" or (rules.document == "blank-line" and not line)
            # Between paragraphs, if there are any.
            is_too_long = size >= LONGEST_DOCUMENT * (2 if line and is_wrapped else 1)
            if lines and (ends or is_too_long):
                yield document()
                lines, size, is_file, was_cut = [], 0, False, not ends
        if lines or is_file:
            yield document()

    def _require(self, source: Source, column: str, missing: set[str]) -> None:
        """Raises PrepError where no row of a source has a column that is asked for."""
        if missing:
            for _, row in islice(self._finder.rows(source), 1):
                self._finder.require_columns(source, column, list(row))


def clean_lines(text: str, is_wrapped: bool) -> list[str]:
    """The non-empty lines of a text, without white space at their ends; wrapped ones are joined."""
    return _joined(lines_of(text), is_wrapped)


def _joined(lines: list[str], is_wrapped: bool) -> list[str]:
    """The lines with text; of wrapped ones each block between blank lines becomes one, a paragraph."""
    if is_wrapped:
        return unwrapped(lines)
    return [line for line in lines if line]


def hub_copy(source: Source, columns: Sequence[str], folder: Path) -> Source:
    """The data set as a .jsonl.gz file in `folder` with some of its columns, a line for each row.

    A file that is there already was finished, and is used, if it is as it was written.

    Args:
        columns: that of the text first.

    Raises:
        PrepError: the data set cannot be opened, or broke off.
    """
    name = hashlib.blake2b(_known_by(source, columns).encode(), digest_size=16).hexdigest()
    path, seal = folder / f"{name}.jsonl.gz", folder / f"{name}.json"
    try:
        check_files(folder, read_sealed(seal)["files"])
    except Damaged:
        folder.mkdir(parents=True, exist_ok=True)
        _write_hub_copy(source, columns, path)
        write_sealed(seal, {"files": file_facts(folder, [path.name])})
    found = path.stat()
    return replace(source, path=str(path), is_copy=True, compressed=True, size=found.st_size, written=found.st_mtime_ns)


def _known_by(source: Source, columns: Sequence[str]) -> str:
    """What tells these columns of a data set from others: its name, and what changes where one in a folder on this
    machine is written again."""
    folder = Path(place_and_parts(source.path)[0])
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    written = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return json.dumps([source.path, *columns, written])


def _write_hub_copy(source: Source, columns: Sequence[str], path: Path) -> None:
    with replaced(path) as unfinished, open(unfinished, "wb") as raw:
        with gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as file:
            for _, row in rows(source, "utf-8", Meter()):
                values = {name: _json_value(row[name], name == columns[0]) for name in columns if name in row}
                file.write(json.dumps(values, default=str).encode() + b"\n")


def _json_value(value: Any, is_text: bool) -> Any:
    """What JSON can hold of a value: a date may stand for a group, but is no text."""
    if value is None or isinstance(value, str | int | float | list | dict):
        return value
    return {} if is_text else str(value)
