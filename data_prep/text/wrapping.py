"""Lines that were cut at a margin: how they are known, and joined."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import NamedTuple

UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese and Khmer, which are written without spaces between words."""

WRAPPED_SHARE = 0.5
"""Lines are wrapped if this share of a sample is full: the next word would not have fitted before the margin."""

_MARGINS = range(30, 200)
"""Columns of a line that was cut by a program."""

# Of the margin: letters of a printed page, as PDF has it, are not equally wide.
_SLACK = 0.1
_LEAST_BREAKS = 10
_SAMPLED_BREAKS = 5000
_LONGEST_FIRST_WORD = 20
# Chinese and Japanese, written without spaces: each character is a word here, and two columns wide.
_WIDE = "\u2e80-\u303f\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60"
_IS_WIDE = re.compile(f"[{_WIDE}]")
_WORD = re.compile(f"[{_WIDE}]|[^\\s{_WIDE}]+")
# About as many characters of text without spaces as a word has.
_COUNTED = re.compile(f"[{_WIDE}]{{1,2}}|[{UNSPACED}]{{1,5}}|[^\\s{_WIDE}{UNSPACED}]+")
_SENTENCE_END = re.compile(r"""[.!?…‽؟۔।॥።။។։。！？｡．]["'”’»)\]」』｣）]*$""")
# Thai and Lao have no mark at the end of a sentence.
_WITHOUT_MARKS = re.compile("[\u0e00-\u0eff]")
# How much the beginnings of lines may differ from those of words within lines (total variation, 0 to 1).
_MOST_DIFFERENCE = 0.3
# Sentences end in at least this share of the lines: in few of the full ones, and not much less often than by chance.
_LEAST_WITH_ENDS, _MOST_ENDS, _LEAST_OF_CHANCE = 0.05, 0.3, 0.3
# Of full lines that have the same length more were cut without regard to words.
_MOST_EQUAL = 0.5

_BLANK_LINES = re.compile("\n{2,}")
_HYPHEN_AT_END = re.compile("[-‐]\n")


@cache
def marks() -> str:
    """Accents and vowel signs, which belong to the letter before them: for a set of characters in a pattern."""
    return "".join(letter for letter in map(chr, range(0x10000)) if unicodedata.category(letter) in ("Mn", "Mc"))


class _Hyphens(NamedTuple):
    """Patterns of words with hyphens."""

    compound: re.Pattern[str]
    broken: re.Pattern[str]
    """With a hyphen at the end of a line: a word that was broken there, or one that has it anyway."""
    without_space: re.Pattern[str]
    """A break between lines that no space stands for."""


@cache
def _hyphens(with_marks: bool) -> _Hyphens:
    signs = marks() if with_marks else ""
    letters = f"[^\\W\\d_](?:[^\\W\\d_]|[{signs}])*" if signs else "[^\\W\\d_]+"
    # From the beginning of a run of letters on, else long runs take quadratic time.
    begin = "(?<![^\\W\\d_])" + (f"(?<![{signs}])" if signs else "")
    return _Hyphens(
        re.compile(f"{letters}(?:[-‐]{letters})*"),
        re.compile(f"{begin}({letters})([-‐])\n({letters})"),
        re.compile(f"(?<=[\\w{signs}][-‐])\n(?=\\w)|(?<=[{_WIDE}])\n(?=[{_WIDE}])|\u00ad\n"),
    )


@cache
def _any_mark() -> re.Pattern[str]:
    return re.compile(f"[{marks()}]")


def num_words(line: str) -> int:
    """About how many words a line has, also in a language written without spaces."""
    return sum(1 for _ in _COUNTED.finditer(line))


def unwrapped(lines: list[str]) -> list[str]:
    """The paragraphs of a document that was cut at a margin: what stands between blank lines, on one line each.

    There is no space between characters of Chinese and Japanese, nor behind a hyphen. A soft hyphen (U+00AD) at the end
    of a line goes; any other goes where the document has the word more often without it. A word that stands nowhere
    else follows most of those that do, unless it begins or ends with a word of the document; then its hyphen stays.
    """
    text = "\n".join(lines).strip("\n")
    hyphens = _hyphens(with_marks=_HYPHEN_AT_END.search(text) is not None and _any_mark().search(text) is not None)
    text = _without_hyphens(text, hyphens) if hyphens.broken.search(text) else text
    return [hyphens.without_space.sub("", part).replace("\n", " ") for part in _BLANK_LINES.split(text) if part]


def _without_hyphens(text: str, hyphens: _Hyphens) -> str:
    known = Counter(word.casefold() for word in hyphens.compound.findall(hyphens.broken.sub(" ", text)))

    def surplus(broken: re.Match) -> int:
        """How many times more often the word stands without its hyphen than with it."""
        first, last = broken[1].casefold(), broken[3].casefold()
        return known[first + last] - known[f"{first}-{last}"]

    found = [surplus(word) for word in hyphens.broken.finditer(text)]
    are_broken = sum(times > 0 for times in found) > sum(times < 0 for times in found)

    def joined(broken: re.Match) -> str:
        first, hyphen, last = broken.groups()
        is_new = not (known[first.casefold()] or known[last.casefold()] or last[0].isupper())
        if surplus(broken) > 0 or (surplus(broken) == 0 and are_broken and is_new):
            hyphen = ""
        return first + hyphen + last

    return hyphens.broken.sub(joined, text)


class LineBreaks:
    """What the breaks between lines show, added up over the sources of a sample.

    A text is cut at a margin wherever its words reach it: lines begin as words within lines do, and few of those that
    are full end a sentence. Sentences, verses and records that have a line each are seldom full, begin otherwise, and
    end a sentence always or never. Nothing here needs a script with capital letters.
    """

    def __init__(self):
        self.breaks = self.full = 0
        self._equal = self._justified = 0
        self._full_sentence_ends = self._lines_with_ends = self._without_marks = 0
        self._words_within = self._ends_within = 0
        self._first: Counter[str] = Counter()
        self._within: Counter[str] = Counter()

    def add(self, texts: Iterable[list[str]]) -> None:
        """Count the breaks between lines that follow each other in texts of one source, blank lines included."""
        pairs = [pair for lines in texts for pair in pairwise([*lines, ""]) if pair[0]]
        pairs = pairs[:: -(-len(pairs) // _SAMPLED_BREAKS) or 1]
        self._lines_with_ends += sum(_ends_sentence(line) for line, following in pairs if not following)
        pairs = [pair for pair in pairs if pair[1]]
        self.breaks += len(pairs)
        # Chinese is cut by columns or by characters.
        measure = max((len, _width), key=lambda measure: sum(_are_full(pairs, measure)))
        equal: Counter[int] = Counter()
        for (line, following), is_full in zip(pairs, _are_full(pairs, measure), strict=True):
            if is_full:
                self._add(line, following)
                equal[measure(line)] += not _IS_WIDE.match(following)
            else:
                self._lines_with_ends += _ends_sentence(line)
        self._equal += max(equal.values(), default=0)

    def _add(self, line: str, following: str) -> None:
        words, first = _WORD.findall(line), _WORD.search(following)[0]
        ends = sum(map(_ends_sentence, words[:-1]))
        self.full += 1
        self._justified += "  " in line
        self._full_sentence_ends += _ends_sentence(line)
        self._lines_with_ends += ends > 0
        self._without_marks += _WITHOUT_MARKS.search(line) is not None
        self._words_within += len(words) - 1
        self._ends_within += ends
        self._first[_kind(first)] += 1
        self._within.update(map(_kind, words[1:]))

    @property
    def is_wrapped(self) -> bool:
        """Whether the lines were cut at a margin."""
        if self.breaks < _LEAST_BREAKS or self.full < WRAPPED_SHARE * self.breaks:
            return False
        if self._equal > _MOST_EQUAL * self.full and not self._justified:
            return False
        return self._begin_like_words() and (self._without_marks > self.full / 2 or self._end_like_words())

    def _begin_like_words(self) -> bool:
        first, within = self._first.total(), max(1, self._within.total())
        kinds = self._first.keys() | self._within.keys()
        difference = sum(abs(self._first[kind] / first - self._within[kind] / within) for kind in kinds) / 2
        return difference <= _MOST_DIFFERENCE

    def _end_like_words(self) -> bool:
        expected = self.full * self._ends_within / max(1, self._words_within)
        found = self._full_sentence_ends
        has_sentences = self._lines_with_ends >= _LEAST_WITH_ENDS * self.breaks
        return has_sentences and _LEAST_OF_CHANCE * expected - 3 <= found <= _MOST_ENDS * self.full


def _are_full(pairs: list[tuple[str, str]], measure: Callable[[str], int]) -> list[bool]:
    """Of each line whether the first word of the following one would have gone over the margin."""
    lengths = [measure(line) for line, _ in pairs]
    # A link or a table may stand out of it.
    margin = sorted(lengths)[int(0.95 * len(lengths))] if lengths else 0
    if margin not in _MARGINS:
        return [False] * len(pairs)
    least = margin - _SLACK * margin
    first_words = (_WORD.search(following)[0] for _, following in pairs)
    return [length + _room(first, measure) >= least for length, first in zip(lengths, first_words, strict=True)]


def _room(word: str, measure: Callable[[str], int]) -> int:
    """What a word takes at the end of a line. A mark that may not begin a line takes the character before it along."""
    return 2 * measure(word) if _IS_WIDE.match(word) else min(measure(word), _LONGEST_FIRST_WORD)


def _ends_sentence(line: str) -> bool:
    return _SENTENCE_END.search(line[-8:]) is not None


def _kind(word: str) -> str:
    """What a word begins with."""
    letter = word[0]
    if letter.isalpha():
        return "lower" if letter.islower() else "upper" if letter.isupper() else "letter"
    return "number" if letter.isdigit() else "mark"


def _width(line: str) -> int:
    """Columns of a line on a screen."""
    return len(line) if line.isascii() else len(line) + len(_IS_WIDE.findall(line))
