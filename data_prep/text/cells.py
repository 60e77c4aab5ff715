"""Values in the rows of a table, the names of its columns, and rows that hold no text or cannot be read."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..errors import PrepError
from .sources import listing

# Characters and words of a name; what is longer is a text.
_LONGEST_NAME, _MOST_WORDS_OF_NAME = 60, 7
# Thai, Lao, Burmese, Khmer: written without spaces. Some of their texts have a mark of no width between words.
_WORD_BREAK = re.compile("(?<=[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b+")
# A whole number, also with zeros before it, or once read as a fraction.
_WHOLE = re.compile(r"^(-?)0*(\d+)(?:\.0+)?$")


def column_names(names: Sequence[str], show: bool) -> str:
    """Names of columns for a message; how many they are where no text may be shown.

    The first row of a table that has no line of names is taken for one.
    """
    return listing(names) if show else f"its {len(names)} columns"


def whole_characters(text: str) -> str:
    """The text with U+FFFD for half of a surrogate pair, which JSON can spell and nothing later could write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def words_apart(text: str) -> str:
    """The text with a space for each mark of no width (U+200B) between words of Thai, Lao, Burmese or Khmer.

    The tokenizer drops such marks.
    """
    return _WORD_BREAK.sub(" ", text) if "\u200b" in text else text


def lines_of(text: str) -> list[str]:
    """The lines of a value, blank ones included, without white space at their ends; CR LF and CR end a line too."""
    text = words_apart(whole_characters(text)).replace("\r\n", "\n").replace("\r", "\n")
    return [line.strip() for line in text.split("\n")]


def is_text(name: str) -> bool:
    """Whether what stands for a name, of a column or a class, is longer than names are."""
    return len(name) > _LONGEST_NAME or len(name.split()) > _MOST_WORDS_OF_NAME


def group_of(row: dict[str, Any], column: str | None) -> str | None:
    """Whose row it is, by its value in the group column; None where there is no column or no value in it.

    Spellings of one name are one group: a number is the same as 7, 007 or, beside missing ones, 7.0; white space, case
    and the form of a letter (composed or not, full width or half) do not count. Two people who are taken for one stay
    on one side together, one who is taken for two might not.
    """
    value = row.get(column)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    name = " ".join(unicodedata.normalize("NFKC", str(value)).casefold().split())
    return _WHOLE.sub(r"\1\2", name) or None


def kind_of(value: Any) -> str:
    """What is there instead of a text, without the text that may be in it."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), f"a {type(value).__name__}")


MOST_BAD = 0.5
"""A file of which more rows are bad is refused, unless bad rows are skipped."""

_LISTED = 20


class BadRows:
    """Counts over one pass.

    Args:
        skip: leave bad rows out, however many there are and whatever is wrong with them. If not, a row that cannot be
            read, or that has something else in place of a text, is refused at once.

    Attributes:
        count: bad rows of all files. rows: all rows. listed: "FILE:PLACE PROBLEM" of the first ones.
        listed_as: the names of files in this list, which goes into the report, by the paths that messages have.
    """

    def __init__(self, skip: bool):
        self.skip = skip
        self.count = self.rows = 0
        self.listed: list[str] = []
        self.listed_as: dict[str, str] = {}
        self._rows: Counter[str] = Counter()
        self._bad: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def good(self, name: str) -> None:
        """Count a row of a file that has a text, an empty one included."""
        self.rows += 1
        self._rows[name] += 1

    def without_text(self, name: str, place: int, column: str) -> None:
        """Count a row that has nothing in the column of the text."""
        self._add(name, place, f'has nothing in the column "{column}"')

    def unusable(self, name: str, place: int, problem: str, remedy: str) -> None:
        """Count a row that cannot be read or is no text.

        Raises:
            PrepError: bad rows are not skipped.
        """
        if not self.skip:
            raise PrepError(f"{name}:{place} {problem}; {remedy}, or leave such rows out with --skip-bad-rows.")
        self._add(name, place, problem)

    def _add(self, name: str, place: int, problem: str) -> None:
        self.count, self.rows = self.count + 1, self.rows + 1
        self._rows[name] += 1
        self._bad[name] += 1
        self._first.setdefault(name, f"{place} {problem}")
        if len(self.listed) < _LISTED:
            self.listed.append(f"{self.listed_as.get(name, name)}:{place} {problem}")

    def finish(self, name: str) -> None:
        """All rows of a file are counted.

        Raises:
            PrepError: more than half of them are bad, and bad rows are not skipped.
        """
        bad, rows = self._bad[name], self._rows[name]
        if bad > MOST_BAD * rows and not self.skip:
            raise PrepError(
                f"{name}: {bad:,} of its {rows:,} rows hold no text (the first: {name}:{self._first[name]}); pass "
                "--text-column with the column that holds it, or leave such rows out with --skip-bad-rows."
            )

    def numbers(self) -> dict:
        """For the report."""
        return {"rows": self.rows, "bad_rows": self.count, "bad_rows_listed": self.listed}
