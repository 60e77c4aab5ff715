"""Names and texts in the columns of a terminal, a table or a picture: on one line, cut, and still distinct."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_MOST_CHARACTERS = 300
# Line breaks, controls, marks that turn the direction of writing, and halves of characters.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def short_names(labels: Sequence[str], width: int) -> list[str]:
    """Distinct names of at most `width` (6 or more) columns: cut at the end, else in the middle, else numbered."""
    lines = [one_line(label) for label in labels]
    for cut in (_cut, _cut_in_the_middle):
        names = [cut(line, width) for line in lines]
        if len(set(names)) == len(names):
            return names
    return [_cut(f"{place} {line}", width) for place, line in enumerate(lines)]


def one_line(text: str) -> str:
    """The text without line breaks and what cannot be printed."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def folder_name(name: str) -> str:
    """The folder of a model or a candidate, by its name in tables."""
    return name.replace(", ", "-").replace(" ", "-")


def code_span(text: str) -> str:
    """A code span of Markdown, on one line and cut; its fence is longer than any run of backticks inside (CommonMark
    6.1)."""
    text = one_line(text)
    if not text:
        return "(empty)"
    if len(text) > _MOST_CHARACTERS:
        text = text[: _MOST_CHARACTERS - 1] + "…"
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def cell(text: str) -> str:
    """The same in a table."""
    return code_span(text).replace("|", "\\|")


def _cut(text: str, width: int) -> str:
    return text if display_width(text) <= width else _start(text, width - 1) + "…"


def _cut_in_the_middle(text: str, width: int) -> str:
    if display_width(text) <= width:
        return text
    return _start(text, width // 2) + "…" + _start(text[::-1], (width - 1) // 2)[::-1]


def _start(text: str, width: int) -> str:
    """As much of the text as fills `width` columns."""
    return text[: bisect_right(list(accumulate(map(display_width, text))), width)]


def display_width(text: str) -> int:
    """Columns of a terminal that a text fills: East Asian letters take two, marks on a letter and joiners none."""
    widths = (2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
    return sum(
        width
        for letter, width in zip(text, widths, strict=True)
        if letter == "\u00ad" or unicodedata.category(letter) not in ("Mn", "Me", "Cf")
    )
