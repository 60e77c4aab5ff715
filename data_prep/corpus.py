"""Documents out of files, folders, globs and Hub data sets; the rules for what a document and a line are."""

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean, median
from typing import Any

from . import builtin
from .errors import PrepError
from .readers import (
    Meter,
    Source,
    byte_chunks,
    check_encoding,
    resolve,
    rows,
    text_blocks,
    text_lines,
)
from .sentences import check_language, split

TEXT_COLUMNS = ("text", "content", "body", "abstract", "document", "sentence")
"""Names that a text column usually has, the most usual first."""

LONG_LINE = 40
"""Words. In one file without blank lines, lines with so many are documents of their own."""

SPLIT_SHARE = 0.1
"""Lines are sentences where fewer than this share of a sample would split further."""

_SAMPLED_FILES = 16
_SAMPLED_ROWS = 200
_SAMPLED_LINES = 2000
_SAMPLED_LINE_LENGTH = 1000
# Characters, shared by the sampled files. A megabyte would not reach the end of the first document where
# documents are novels; this many still take a fraction of a second.
_SAMPLED_TEXT = 8 << 20
_LEAST_SAMPLED_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    lines: list[str]
    """In order, none empty, without white space at their ends."""
    source: str
    """Where it starts, for people: "notes.txt:12"."""
    group: str | None
    """The value of the group column: documents of one group must not be held out from each other."""


@dataclass(frozen=True, slots=True)
class CorpusRules:
    """What a document and a line are in a corpus, and why."""

    document: str
    """"file", "blank-line" or "line" for text files, "row" where there are only rows."""
    line: str
    """"sentence" or "paragraph"."""
    text_column: str | None
    why: str
    """In plain words, one sentence on each line: the document (of each kind of source), then the line."""

    def sentences(self) -> list[str]:
        """The sentences of `why`."""
        return self.why.split("\n")


@dataclass
class _Sample:
    """What a look at the beginning of some files has shown."""

    blocks: list[int] = field(default_factory=list)
    """Lines in each block between blank lines."""
    several_blocks: bool = False
    words: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class Corpus:
    """Documents out of everything in `paths`, as often as asked, in the same order each time.

    Args:
        paths: files (.txt .jsonl .csv .tsv, also .gz, and .parquet), folders, globs, `builtin`,
            `hub:owner/name[:split]`, `hub:` and a data set's folder on this machine.
        encoding: of the text in files.
        text_column, group_column: names of columns where rows are documents; the first is found if not given.
        document: "auto", "file", "blank-line" or "line": what a document is in .txt files.
        line: "auto", "sentence" or "paragraph".
        language: of the text, for the sentence splitter.

    Attributes:
        files: (name, bytes) of every source. ignored: names in folders that are of no known format.
        rules: CorpusRules. total_bytes: bytes on disk, 0 if not known.
        empty_documents: documents without text that the last pass left out.

    Raises:
        PrepError: at once for what names, settings and a sample show, during `documents()` for what only a
            whole pass can show (a broken line, an invalid byte).
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        encoding: str = "utf-8",
        text_column: str | None = None,
        group_column: str | None = None,
        document: str = "auto",
        line: str = "auto",
        language: str = "en",
    ):
        check_encoding(encoding)
        check_language(language)
        self.encoding, self.group_column, self.language = encoding, group_column, language
        self._sources, self.ignored = resolve(paths)
        self.files = [(source.name, source.size) for source in self._sources]
        sizes = [source.size for source in self._sources]
        on_disk = [source for source in self._sources if source.format not in ("hub", "builtin")]
        if len(on_disk) == len(sizes) and not any(sizes):
            raise PrepError(f"{_listing(self.files)} holds no bytes at all; give files with text in them.")
        self.total_bytes = sum(sizes) if len(on_disk) == len(sizes) else 0
        self.empty_documents = 0
        self._meter = Meter()
        self._refuse_pointless(text_column, document)
        self.rules = self._find_rules(text_column, document, line)

    @property
    def bytes_read(self) -> int:
        """Bytes on disk that the running pass has used up, of `total_bytes`."""
        return self._meter.finished + self._meter.position

    def documents(self) -> Iterator[Document]:
        """One pass over all documents that have text, in constant memory beside the document at hand."""
        self._meter = meter = Meter()
        self.empty_documents = 0
        for source in self._sources:
            for document in self._read(source, meter):
                if document.lines:
                    yield document
                else:
                    self.empty_documents += 1
            meter.finish(source)

    def digest(self) -> str:
        """SHA-256 of names and contents in the order read; no folder, date or machine goes into it."""
        state = hashlib.sha256()
        for source in self._sources:
            state.update(json.dumps([source.name, source.format]).encode())
            if source.format in ("hub", "builtin"):
                for document in self._read(source, Meter()):
                    state.update(json.dumps([document.lines, document.group]).encode())
            else:
                for chunk in byte_chunks(source, Meter(), decompress=False):
                    state.update(chunk)
        return state.hexdigest()

    def _read(self, source: Source, meter: Meter) -> Iterator[Document]:
        if source.format == "builtin":
            for name, text in builtin.documents():
                yield Document(clean_lines(text), name, None)
        elif source.has_rows:
            yield from self._row_documents(source, meter)
        else:
            yield from _text_documents(source, self.encoding, self.rules.document, meter)

    def _row_documents(self, source: Source, meter: Meter) -> Iterator[Document]:
        column, group_column = self.rules.text_column, self.group_column
        wanted = [name for name in (column, group_column) if name]
        missing = set(wanted)
        for place, row in rows(source, self.encoding, meter, wanted):
            if missing:
                missing -= row.keys()
            text = row.get(column)
            text = "" if text is None else text
            if not isinstance(text, str):
                raise PrepError(
                    f'{source.name}:{place} has {text!r:.40} in the column "{column}", which is not text; '
                    "pass --text-column with the column that holds the text."
                )
            group = row.get(group_column)
            yield Document(clean_lines(text), f"{source.name}:{place}", None if group is None else str(group))
        if missing:
            for _, row in islice(rows(source, self.encoding, Meter()), 1):
                self._require_columns(source, column, list(row))

    def _refuse_pointless(self, text_column: str | None, document: str) -> None:
        """Settings that would have nothing to act on are a misunderstanding to clear up."""
        if document not in ("auto", "file", "blank-line", "line"):
            raise PrepError(f'--document "{document}" is not one of auto, file, blank-line, line.')
        with_rows = any(source.has_rows for source in self._sources)
        for option, name in (("--text-column", text_column), ("--group-column", self.group_column)):
            if name and not with_rows:
                raise PrepError(
                    f"{option} {name} has nothing to act on: {_listing(self.files)} has no columns; leave it "
                    "out, or give .jsonl, .csv, .tsv or .parquet files."
                )
        if document != "auto" and not any(source.format == "txt" for source in self._sources):
            raise PrepError(
                f"--document {document} is for .txt files and {_listing(self.files)} is none; leave it out."
            )

    def _find_rules(self, text_column: str | None, document: str, line: str) -> CorpusRules:
        if line not in ("auto", "sentence", "paragraph"):
            raise PrepError(f'--line "{line}" is not one of auto, sentence, paragraph.')
        with_rows = [source for source in self._sources if source.has_rows]
        texts = [source for source in self._sources if source.format == "txt"]
        sample, why = _Sample(), []
        rule = "row" if with_rows else "file"
        with_builtin = any(source.format == "builtin" for source in self._sources)
        if with_builtin:
            why.append("A document is a module of an installed Python package (the built-in corpus).")
        if texts:
            self._sample_texts(texts, sample)
            rule, reason = _document_rule(document, sample, len(texts))
            why.append(reason)
        if with_rows:
            text_column = self._sample_rows(with_rows, text_column, sample)
            why.append(f'A document is a row; its text is in the column "{text_column}".')
        if line == "auto" and with_builtin:
            line = "paragraph"
            reason = "A line is a paragraph, to be split into sentences (so the built-in corpus is written)."
        else:
            line, reason = _line_rule(line, sample.lines, self.language)
        return CorpusRules(rule, line, text_column, "\n".join([*why, reason]))

    def _sample_texts(self, sources: list[Source], sample: _Sample) -> None:
        sources = _spread(sources, _SAMPLED_FILES)
        limit = max(_LEAST_SAMPLED_TEXT, _SAMPLED_TEXT // len(sources))
        for source in sources:
            text, blocks = "", text_blocks(source, self.encoding, Meter())
            while len(text) < limit and (block := next(blocks, "")):
                text += block
            lines = [line.strip() for line in text.split("\n")]
            blocks_found = _block_lengths(lines)
            sample.several_blocks |= len(blocks_found) > 1
            sample.blocks += blocks_found
            filled = [line for line in lines if line]
            sample.words += [line.count(" ") + 1 for line in filled]
            sample.lines += _spread(filled, _SAMPLED_LINES // len(sources))

    def _sample_rows(self, sources: list[Source], text_column: str | None, sample: _Sample) -> str:
        """Finds the text column in the first source that has rows, requires it of the others."""
        sources = _spread(sources, _SAMPLED_FILES)
        for source in sources:
            found = [row for _, row in islice(rows(source, self.encoding, Meter()), _SAMPLED_ROWS)]
            columns = list(dict.fromkeys(name for row in found for name in row))
            if not columns:
                continue
            text_column = text_column or _text_column(source, columns, found)
            self._require_columns(source, text_column, columns)
            texts = [value for row in found if isinstance(value := row.get(text_column), str)]
            lines = [line for text in texts for line in clean_lines(text)]
            sample.lines += _spread(lines, _SAMPLED_LINES // len(sources))
        if text_column is None:
            raise PrepError(f"{_listing(self.files)} has no rows; give files with text in them.")
        return text_column

    def _require_columns(self, source: Source, text_column: str, columns: list[str]) -> None:
        for option, name in (("--text-column", text_column), ("--group-column", self.group_column)):
            if name and name not in columns:
                nearest = [*difflib.get_close_matches(name, columns, n=1, cutoff=0), "NAME"][0]
                raise PrepError(
                    f'{source.name} has no column "{name}" but {", ".join(columns)}; pass {option} {nearest} '
                    "or leave the file out."
                )


def clean_lines(text: str) -> list[str]:
    """The non-empty lines of a text, without white space at their ends."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair, which nothing later could write.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return [line for line in map(str.strip, text.split("\n")) if line]


def _text_documents(source: Source, encoding: str, rule: str, meter: Meter) -> Iterator[Document]:
    start, lines = 1, []
    for number, line in enumerate(text_lines(source, encoding, meter), 1):
        line = line.strip()
        if line:
            if not lines:
                start = number
            lines.append(line)
        if lines and (rule == "line" or (rule == "blank-line" and not line)):
            yield Document(lines, f"{source.name}:{start}", None)
            lines = []
    if lines or rule == "file":
        yield Document(lines, f"{source.name}:{start}", None)


def _block_lengths(lines: list[str]) -> list[int]:
    """How many lines there are in each block between blank lines."""
    lengths = [0]
    for line in lines:
        if line:
            lengths[-1] += 1
        elif lengths[-1]:
            lengths.append(0)
    return [length for length in lengths if length]


def _document_rule(document: str, sample: _Sample, num_files: int) -> tuple[str, str]:
    if document != "auto":
        meaning = {"file": "a file", "blank-line": "a block between blank lines", "line": "a line"}[document]
        return document, f"A document is {meaning}, as --document says."
    if sample.several_blocks:
        length = int(median(sample.blocks))
        if length >= 2:
            reason = f"of about {length} lines (the median)"
            return "blank-line", f"A document is a block between blank lines: there are blocks {reason}."
        return "file", "A document is a file: blank lines stand between single lines, as with paragraphs."
    if num_files > 1:
        return "file", f"A document is a file: there are {num_files:,} text files without blank lines."
    words = int(median(sample.words or [0]))
    shown = f"there is one file, without blank lines, and its lines have about {words} words (the median)"
    if words >= LONG_LINE:
        return "line", f"A document is a line: {shown}."
    return "file", f"The file is one document: {shown}."


def _line_rule(line: str, lines: list[str], language: str) -> tuple[str, str]:
    if line != "auto":
        return line, f"A line is a {line}, as --line says."
    num_split = sum(len(split([text[:_SAMPLED_LINE_LENGTH]], language, "paragraph")) > 1 for text in lines)
    share = num_split / max(1, len(lines))
    seen = f"{share:.0%} of {len(lines):,} sampled lines would be split further"
    if share < SPLIT_SHARE:
        return "sentence", f"A line is a sentence: {seen}."
    return "paragraph", f"A line is a paragraph, to be split into sentences: {seen}."


def _text_column(source: Source, columns: list[str], found: list[dict[str, Any]]) -> str:
    """The column with a usual name, else the one with the longest text, among those that hold only text."""
    lengths = {}
    for name in columns:
        values = [row[name] for row in found if row.get(name) is not None]
        if values and all(isinstance(value, str) for value in values):
            lengths[name] = fmean(map(len, values))
    for name in TEXT_COLUMNS:
        if name in lengths:
            return name
    if not lengths:
        raise PrepError(
            f"{source.name} has no column of text among {', '.join(columns)}; add it, or leave the file out."
        )
    return max(lengths, key=lengths.__getitem__)


def _spread(items: list, most: int) -> list:
    """At most so many items, evenly spread, the first always among them."""
    if len(items) <= most:
        return items
    return [items[index * len(items) // most] for index in range(most)]


def _listing(files: list[tuple[str, int]]) -> str:
    names = [name for name, _ in files]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
