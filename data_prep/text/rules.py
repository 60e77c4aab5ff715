"""What a document and a line are in a corpus, as told or as a look at its beginning shows."""

import difflib
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, islice
from statistics import fmean, median
from typing import Any

from ..errors import PrepError
from .cells import MOST_WORDS_OF_NAME, TEXT_COLUMNS, column_names, kind_of, line_of, lines_of, usual_column
from .lines import Meter, text_blocks
from .readers import Rows, refuse, rows
from .sentences import split
from .sources import Source, listing
from .wrapping import LineBreaks, num_words

LONG_LINE = 40
"""Words. In one file without blank lines, a line with this many is a document."""

_MANY_LINES = 50
"""Of a block between blank lines. Where they are long too, each may be a document."""

SPLIT_SHARE = 0.1
"""Lines are sentences where those that would split further hold less than this share of the text."""

DOCUMENTS = ("auto", "file", "blank-line", "line")
LINES = ("auto", "sentence", "paragraph", "wrapped")

LARGE_FILE = 4_000_000
"""Bytes of text. Few documents are so long, so a file that is has rules of its own."""

_SAMPLED_FILES = 16
_SAMPLED_ROWS = 200
_SAMPLED_LINES = 2000
_SAMPLED_LINE_LENGTH = 1000
# Characters, shared by the sampled files. A megabyte would not reach the end of the first document where
# documents are novels; this many still take a fraction of a second.
_SAMPLED_TEXT = 8 << 20
_LEAST_SAMPLED_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class CorpusRules:
    """What a document and a line are in a corpus, and why."""

    document: str
    """"file", "blank-line" or "line" for text files; without them "row", or "module" (of the built-in corpus)."""
    line: str
    """"sentence", "paragraph" or "wrapped"."""
    wrapped: frozenset[str]
    """Of "texts" and "rows" those whose lines were cut at a margin."""
    text_column: str | None
    why: str
    """In plain words, one sentence on each line: the document (of each kind of source), then the line."""

    def sentences(self) -> list[str]:
        """The sentences of `why`."""
        return self.why.split("\n")


@dataclass(frozen=True)
class RuleFinder:
    """Finds the rules of some sources.

    Args:
        text_column, group_column, document, line: as the settings have them; "auto" and None are found.
        language: of the text, for the sentence splitter.
        show_text: whether messages may show what could be text. If not, a text column that has no usual name has to be
            named by a person.
        skip_bad_rows: pass over rows that cannot be read.
        told: what says `document` and `line` where they are given, for people.

    Raises:
        PrepError: a setting is not known, or a column is not there.
    """

    sources: list[Source]
    encoding: str
    text_column: str | None
    group_column: str | None
    document: str
    line: str
    language: str
    show_text: bool = True
    skip_bad_rows: bool = False
    told: str = ""

    def __post_init__(self):
        for option, value, known in (("document", self.document, DOCUMENTS), ("line", self.line, LINES)):
            if value not in known:
                raise PrepError(f'--{option} "{value}" is not one of {", ".join(known)}')
        if self.document == "line" and self.line == "wrapped":
            raise PrepError("--document line cannot be combined with --line wrapped, which joins lines: drop one")

    @property
    def _sources_shown(self) -> str:
        return listing((source.shown for source in self.sources), 3)

    def as_in_training(self, rules: CorpusRules) -> "RuleFinder":
        """The same for a validation corpus, whose documents and lines are those of the training corpus.

        A text that stands in both is then the same in both, so that it is found.
        """
        document, line = self.document, self.line
        if document == "auto" and rules.document in DOCUMENTS and any(each.format == "txt" for each in self.sources):
            document = rules.document
        if line == "auto":
            # Wrapped rows beside text files with a document a line.
            line = "paragraph" if document == "line" and rules.line == "wrapped" else rules.line
        return replace(self, document=document, line=line, told="as in the training corpus")

    def rows(self, source: Source) -> Rows:
        """The rows of a source, for a look at its beginning."""
        unusable = (lambda *facts: None) if self.skip_bad_rows else refuse
        named = [name for name in (self.text_column, self.group_column) if name]
        return rows(source, self.encoding, Meter(), unusable=unusable, named=named)

    def find(self, training: Sequence[CorpusRules] = ()) -> list[tuple[list[Source], CorpusRules]]:
        """The rules of each large file, and those of all others together; the text column is the same everywhere.

        Args:
            training: the rules of the corpus that this one is held out from, if it is. A text that stands in both is
                then read alike in both, so that it is found.
        """
        found: list[tuple[list[Source], CorpusRules]] = []
        known = {(rules.document, rules.line) for rules in training}
        finder = self.as_in_training(training[0]) if len(known) == 1 else self
        for sources in self._read_together():
            column = self.text_column or next((rules.text_column for _, rules in found if rules.text_column), None)
            rules = finder._find(sources, column)
            if training and (rules.document, rules.line) not in known:
                like = next((each for each in training if each.line == rules.line), training[0])
                rules = self.as_in_training(like)._find(sources, column)
            found.append((sources, rules))
        return found

    def _read_together(self) -> list[list[Source]]:
        alone = [source for source in self.sources if source.bytes_of_text >= LARGE_FILE]
        if len(alone) > _SAMPLED_FILES:
            return [self.sources]
        rest = [source for source in self.sources if source.bytes_of_text < LARGE_FILE]
        return [*([source] for source in alone), *([rest] if rest else [])]

    def _find(self, sources: list[Source], text_column: str | None) -> CorpusRules:
        """Read the beginning of some sources and decide."""
        with_rows = [source for source in sources if source.has_rows]
        texts = [source for source in sources if source.format == "txt"]
        of_texts, of_rows, why = _Sample(), _Sample(), []
        document = "row" if with_rows else "module"
        with_builtin = any(source.format == "builtin" for source in sources)
        if with_builtin:
            why.append("A document is a module of an installed Python package (the built-in corpus).")
        if texts:
            self._sample_texts(texts, of_texts)
            document, reason = self._document_rule(of_texts, len(texts))
            why.append(reason)
        if with_rows:
            text_column = self._sample_rows(with_rows, of_rows, text_column)
            why.append(f'A document is a row; its text is in the column "{listing([text_column])}".')
        wrapped = self._wrapped({"texts": of_texts, "rows": of_rows}, document)
        if self.line == "auto" and with_builtin:
            line = "paragraph"
            reason = "A line is a paragraph, to be split into sentences (so the built-in corpus is written)."
        else:
            line, reason = self._line_rule([*of_texts.lines, *of_rows.lines], wrapped)
        column = text_column if with_rows else None
        return CorpusRules(document, line, frozenset(wrapped), column, "\n".join([*why, reason]))

    def _wrapped(self, samples: dict[str, "_Sample"], document: str) -> list[str]:
        """Of the kinds of sources those whose lines were cut at a margin."""
        if self.line != "auto":
            return list(samples) if self.line == "wrapped" else []
        return [kind for kind, sample in samples.items()
                if sample.is_wrapped and not (kind == "texts" and document == "line")]  # fmt: skip

    def _sample_texts(self, sources: list[Source], sample: "_Sample") -> None:
        sources = _spread(sources, _SAMPLED_FILES)
        limit = max(_LEAST_SAMPLED_TEXT, _SAMPLED_TEXT // len(sources))
        for source in sources:
            lines = [line_of(line) for line in _beginning(source, self.encoding, limit).split("\n")]
            blocks_found = [len(block) for block in blocks_of(lines)]
            sample.several_blocks |= len(blocks_found) > 1
            sample.blocks += blocks_found
            filled = [line for line in lines if line]
            sample.words += map(num_words, filled)
            sample.lines += _spread_over_text(filled, _SAMPLED_LINES // len(sources))
            sample.line_breaks.add([lines])

    def _sample_rows(self, sources: list[Source], sample: "_Sample", text_column: str | None) -> str:
        """Finds the text column in the first source that has rows, if none is known, and requires it of the others."""
        sources = _spread(sources, _SAMPLED_FILES)
        limit = max(_LEAST_SAMPLED_TEXT, _SAMPLED_TEXT // len(sources))
        for source in sources:
            found = list(_first_rows(self.rows(source), limit))
            columns = list(dict.fromkeys(name for row in found for name in row))
            if not columns:
                continue
            text_column = text_column or self._text_column(source, columns, found)
            self.require_columns(source, text_column, columns)
            texts = [value for row in found if isinstance(value := row.get(text_column), str)]
            lines = [lines_of(text) for text in texts]
            filled = [line for of_text in lines for line in of_text if line]
            sample.lines += _spread_over_text(filled, _SAMPLED_LINES // len(sources))
            sample.line_breaks.add(lines)
        if text_column is None:
            raise PrepError(f"{self._sources_shown} has no rows; give files with text in them")
        return text_column

    def _text_column(self, source: Source, columns: list[str], found: list[dict[str, Any]]) -> str:
        """The column with a usual name, of those that are mostly text, else the one with the longest, of text alone.

        A "document" that holds names, as of files, is passed over where another column holds sentences.
        """
        lengths, mostly, sentences = {}, set(), {}
        for name in columns:
            values = [row[name] for row in found if row.get(name) is not None]
            texts = [value for value in values if isinstance(value, str)]
            if texts and len(texts) == len(values):
                lengths[name] = fmean(map(len, texts))
            if texts and 2 * len(texts) > len(values):
                mostly.add(name)
                sentences[name] = sum(len(text.split()) > MOST_WORDS_OF_NAME for text in texts) / len(texts)
        if any(sentences[name] > 0.5 for name in lengths):
            mostly -= {name for name in mostly if name.strip().lower() == "document" and sentences[name] < 0.1}
        if usual := usual_column([name for name in columns if name in mostly], TEXT_COLUMNS):
            return usual
        if not lengths:
            values = (row[name] for row in found for name in columns if row.get(name) is not None)
            kinds = listing(dict.fromkeys(kind_of(value) for value in values if not isinstance(value, str)), 3)
            held = f", which hold {kinds}" * bool(kinds)
            raise PrepError(
                f"{source.shown} has no column that holds text alone (its columns: "
                f"{column_names(columns, self.show_text)}{held}); add it{self._leave_out(source)}"
            )
        if not self.show_text:
            raise PrepError(
                f"{source.shown} has no column of text with a usual name ({listing(TEXT_COLUMNS)}): look at its first "
                "line, and name the column with --text-column, or put a line of names above it"
            )
        return max(lengths, key=lengths.__getitem__)

    def _leave_out(self, source: Source) -> str:
        """What a message proposes besides mending the file."""
        can_go = len(self.sources) > 1 and source.format != "hub"
        return f", or leave the file out with --exclude {shlex.quote(source.shown)}" if can_go else ""

    def require_columns(self, source: Source, text_column: str, columns: list[str]) -> None:
        """Raises PrepError, with the nearest name, where a column that is asked for is not among `columns`."""
        for option, name in (("--text-column", text_column), ("--group-column", self.group_column)):
            if name and name not in columns:
                near = [found for found in difflib.get_close_matches(name, columns) if found != text_column][:1]
                if not near and option == "--text-column":
                    near = [found for found in [usual_column(columns, TEXT_COLUMNS)] if found]
                remedy = f"pass {option} {listing(near)}" if near else f"add a column {name} to it"
                raise PrepError(
                    f'{source.shown} has no column "{name}" among {column_names(columns, self.show_text)}; {remedy}'
                    f"{self._leave_out(source)}"
                )

    def _document_rule(self, sample: "_Sample", num_files: int) -> tuple[str, str]:
        if self.document != "auto":
            meaning = {"file": "a file", "blank-line": "a block between blank lines", "line": "a line"}[self.document]
            return self.document, f"A document is {meaning}, {self.told or 'as --document says'}."
        is_wrapped = self.line == "wrapped" or (self.line == "auto" and sample.is_wrapped)
        words = int(median(sample.words or [0]))
        if is_wrapped and sample.several_blocks and num_files > 1:
            return "file", "A document is a file: blank lines stand between paragraphs of wrapped lines."
        if sample.several_blocks:
            length = int(median(sample.blocks))
            if length >= 2:
                reason = f"of about {length:,} lines (the median)"
                if length >= _MANY_LINES and words >= LONG_LINE:
                    reason += f", which have about {words} words; if each line is a document, give --document line"
                return "blank-line", f"A document is a block between blank lines: there are blocks {reason}."
            return "file", "A document is a file: blank lines stand between single lines, as with paragraphs."
        if num_files > 1:
            return "file", f"A document is a file: there are {num_files:,} text files without blank lines."
        shown = f"there is one file, without blank lines, and its lines have about {words} words (the median)"
        if words >= LONG_LINE and self.line != "wrapped":
            return "line", f"A document is a line: {shown}."
        return "file", f"The file is one document: {shown}."

    def _line_rule(self, lines: list[str], wrapped: list[str]) -> tuple[str, str]:
        meaning = "are cut at a margin, and are joined up to the next blank line"
        if self.line == "wrapped":
            return self.line, f"Lines {meaning}, {self.told or 'as --line says'}."
        if self.line != "auto":
            return self.line, f"A line is a {self.line}, {self.told or 'as --line says'}."
        if wrapped:
            where = {"texts": "text files", "rows": "rows"}
            places = " and ".join(where[kind] for kind in wrapped)
            return "wrapped", f"Lines of {places} {meaning}: most of a sample are full and go on in the next."
        times = Counter(line[:_SAMPLED_LINE_LENGTH] for line in lines)
        num_split = sum(times[line] for line in times if len(split([line], self.language, "paragraph")) > 1)
        share = num_split / max(1, len(lines))
        seen = f"{share:.0%} of the sampled text stands in lines that would be split further"
        if share < SPLIT_SHARE:
            return "sentence", f"A line is a sentence: {seen}."
        return "paragraph", f"A line is a paragraph, to be split into sentences: {seen}."


@dataclass
class _Sample:
    """What a look at the beginning of some files has shown."""

    blocks: list[int] = field(default_factory=list)
    """Lines in each block between blank lines."""
    several_blocks: bool = False
    """Whether a file has more than one."""
    words: list[int] = field(default_factory=list)
    """Of each line."""
    lines: list[str] = field(default_factory=list)
    """At evenly spaced places of the text: a longer line stands here more often."""
    line_breaks: LineBreaks = field(default_factory=LineBreaks)

    @property
    def is_wrapped(self) -> bool:
        """Whether the lines were cut at a margin."""
        return self.line_breaks.is_wrapped


def blocks_of(lines: Iterable[str]) -> list[list[str]]:
    """The lines between blank ones, block by block."""
    return [list(block) for is_text, block in groupby(lines, bool) if is_text]


def _beginning(source: Source, encoding: str, length: int) -> str:
    """At least this many characters from the beginning of a text file, or all there are."""
    blocks: list[str] = []
    for block in text_blocks(source, encoding, Meter()):
        blocks.append(block)
        length -= len(block)
        if length <= 0:
            break
    return "".join(blocks)


def _first_rows(found: Rows, length: int) -> Iterator[dict[str, Any]]:
    """At most `_SAMPLED_ROWS` rows, and no more once their texts have this many characters."""
    for _, row in islice(found, _SAMPLED_ROWS):
        yield row
        length -= sum(len(value) for value in row.values() if isinstance(value, str))
        if length <= 0:
            return


def _spread_over_text(lines: list[str], most: int) -> list[str]:
    """So many times the line that holds one of evenly spaced characters of a text."""
    ends = list(accumulate(map(len, lines)))
    if not ends:
        return []
    return [lines[bisect_right(ends, place * ends[-1] // most)] for place in range(most)]


def _spread(items: list, most: int) -> list:
    """At most this many items, evenly spread; the first is always among them."""
    if len(items) <= most:
        return items
    return [items[index * len(items) // most] for index in range(most)]
