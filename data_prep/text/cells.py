"""Values in the rows of a table, and the names of its columns."""

import ast
import json
import math
import re
import unicodedata
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .sources import listing
from .wrapping import UNSPACED

TEXT_COLUMNS = ("text", "content", "body", "abstract", "document", "sentence")
"""Names that a text column usually has, the most usual first."""

# Characters and words of a name; what is longer is a text.
_LONGEST_NAME, MOST_WORDS_OF_NAME = 60, 7
JOINERS = ("\u200c", "\u200d")
"""Without a width: they decide how the letters beside them are written, as in Persian and in many Indian scripts."""
_IDEOGRAPHS = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# Some texts of these scripts have a mark of no width between words. All others are white space that BERT drops as
# control characters: word processors and databases write \v for a line break within a paragraph, pages end with \f.
_WORD_BREAK = re.compile(f"(?<=[{UNSPACED}])\u200b+|\u200b+(?=[{UNSPACED}])|[\v\f\x1c-\x1f\x85]+")
_MAY_BREAK = re.compile("[\u200b\v\f\x1c-\x1f\x85]")
# A list of texts or whole numbers as numpy shows it, which pandas writes into a cell: no comma stands between them.
_ITEM = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+)"""
_OF_NUMPY = re.compile(rf"\[\s*{_ITEM}(?:\s+{_ITEM})+\s*\]")
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


def name_of(text: str) -> str:
    """A name as it is compared with others: letters composed (NFC), single blanks between words."""
    return unicodedata.normalize("NFC", whole_characters(" ".join(text.split())))


def is_blank(text: str) -> bool:
    """Whether a reader sees nothing: white space, control characters and marks of no width alone."""
    return all(letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf") for letter in text)


def is_ideograph(letter: str) -> bool:
    """Whether BERT's tokenizer takes a character for a word of its own (Devlin et al. 2019, multilingual README)."""
    return ord(letter) >= 0x3400 and any(low <= ord(letter) <= high for low, high in _IDEOGRAPHS)


def words_apart(text: str, in_place: bool = False) -> str:
    """The text with a space for what stands between words and the tokenizer drops: white space that counts as control
    characters (a vertical tab), and marks of no width (U+200B) before or behind a word of Thai, Lao, Burmese or Khmer.

    Args:
        in_place: with a space for each of them, so that all characters stay where they are.
    """
    if text.isprintable() or not _MAY_BREAK.search(text):
        return text
    return _WORD_BREAK.sub((lambda marks: " " * len(marks[0])) if in_place else " ", text)


def line_of(line: str) -> str:
    """The line with its words apart, without white space at its ends; "" where a reader sees nothing."""
    line = words_apart(line).strip()
    return "" if line and not line[0].isprintable() and is_blank(line) else line


def lines_of(text: str) -> list[str]:
    """The lines of a value, blank ones included, each as `line_of` has it; CR LF and CR end a line too."""
    text = whole_characters(text).replace("\r\n", "\n").replace("\r", "\n")
    return [line_of(line) for line in text.split("\n")]


def usual_column(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """The first of the usual names that a column has, in whatever case; spelled as usual, if there are two of it."""
    lowered = {name.strip().lower(): name for name in names} | {name: name for name in names if name in usual}
    return next((lowered[name] for name in usual if name in lowered), None)


def is_text(name: str) -> bool:
    """Whether what stands for a name, of a column or a class, is longer than names are."""
    return len(name) > _LONGEST_NAME or len(name.split()) > MOST_WORDS_OF_NAME


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
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object",
             str: "a text", type(None): "nothing"}  # fmt: skip
    return kinds.get(type(value), f"a {type(value).__name__}")


def parsed_cell(value: Any) -> Any:
    """The list or object that a cell of a table spells, as JSON or as pandas writes one of Python or numpy; any other
    value as it is."""
    cell = value.strip() if isinstance(value, str) else ""
    if cell[:1] + cell[-1:] not in ("[]", "{}"):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(cell)
    # Python joins texts that stand side by side.
    joined = "[" + ", ".join(re.findall(_ITEM, cell)) + "]" if _OF_NUMPY.fullmatch(cell) else cell
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError), warnings.catch_warnings():
        # Of backslashes in texts.
        warnings.simplefilter("ignore")
        found = ast.literal_eval(joined)
        return found if isinstance(found, list | dict) else value
    return value
