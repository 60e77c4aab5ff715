"""Rows of a corpus that hold no text, or cannot be read: counted, listed, and refused where they are too many."""

from collections import Counter
from collections.abc import Sequence

from ..errors import PrepError

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
        """Count a row of a file that has a text."""
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
            raise PrepError(f"{name}:{place} {problem}; {remedy}, or leave such rows out with --skip-bad-rows")
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
                "--text-column with the column that holds it, or leave such rows out with --skip-bad-rows"
            )


def numbers_of_rows(counted: Sequence[BadRows]) -> dict:
    """For the report: `rows`, `bad_rows` and `bad_rows_listed` of all of them."""
    listed = [each for one in counted for each in one.listed]
    return {
        "rows": sum(one.rows for one in counted),
        "bad_rows": sum(one.count for one in counted),
        "bad_rows_listed": listed[:_LISTED],
    }
