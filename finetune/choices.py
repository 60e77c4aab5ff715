"""Choices of a row: in which columns they are, which of them is the right one, and each as a sequence of tokens."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data_prep.text.cells import is_blank, kind_of, parsed_cell, usual_column, whole_characters, words_apart
from data_prep.vocabulary.text_tokenizer import TextTokenizer

from .batches import Encoded, head_tail, spans_of
from .rows import Example, listed
from .settings import LongText

USUAL_COLUMNS = ("choices", "options", "endings", "candidates", "alternatives")
"""Usual names of a column with all choices of a row."""
# "ending0", "option_a", "answerB" and, of MedMCQA and PIQA, "opa" and "sol1": a column for each choice.
_ONE_OF_SEVERAL = re.compile(r"(ending|choice|option|answer|alternative|candidate|solution|sol|op)[ _-]?(\d+|[a-j])")


# --- columns


def usual_choices(sample: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[str, ...]:
    """The column of choices, or those of one choice each, that have a usual name; empty if there are none.

    Args:
        sample: the first rows.
        names: of the columns that they may be in.
    """
    usual = usual_column(columns_of_lists(sample, names), USUAL_COLUMNS)
    return (usual,) if usual else _numbered(names)


def columns_of_lists(sample: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The columns with lists of choices."""
    return [name for name in names if any(_parsed(row.get(name)) is not None for row in sample)]


def _numbered(names: Sequence[str]) -> tuple[str, ...]:
    """Columns of one name that are numbered from 0 or 1, or lettered, without a gap: the most there are, in order."""
    families: dict[tuple[str, bool], dict[int, str]] = {}
    for name in names:
        if match := _ONE_OF_SEVERAL.fullmatch(name.lower()):
            is_number = match[2].isdigit()
            number = int(match[2]) if is_number else ord(match[2]) - ord("a")
            families.setdefault((match[1], is_number), {})[number] = name
    whole = [
        [found[number] for number in sorted(found)]
        for found in families.values()
        if len(found) > 1 and min(found) <= 1 and max(found) - min(found) == len(found) - 1
    ]
    return tuple(max(whole, key=len, default=[]))


def first_number_of(sample: Sequence[Mapping[str, Any]], columns: Sequence[str], label: str | None) -> int:
    """The number of the first choice in a column of labels: that of its column, "option1", or 0.

    PIQA and COPA have columns from 1 and count from 0 all the same, so it is 0 too where a row says 0.

    Args:
        sample: the first rows.
        columns: the one with a list, or one for each choice.
    """
    match = _ONE_OF_SEVERAL.fullmatch(columns[0].lower()) if len(columns) > 1 else None
    if label is None or match is None or not match[2].isdigit():
        return 0
    says_0 = any(str(row.get(label)).strip() in ("0", "0.0") for row in sample)
    return 0 if says_0 else int(match[2])


# --- rows


def _parsed(value: Any) -> tuple[list[Any], list[str]] | None:
    """The choices of a cell and, where they have them, their names: a list, a list of {"label", "text"}, or one object
    of two lists; any of them also in the cell of a table. None for what is none of these."""
    value = parsed_cell(value)
    if isinstance(value, Mapping) and isinstance(value.get("text"), list) and isinstance(value.get("label"), list):
        return list(value["text"]), [str(name) for name in value["label"]]
    if not isinstance(value, list | tuple):
        return None
    if value and all(isinstance(each, Mapping) and {"text", "label"} <= each.keys() for each in value):
        return [each["text"] for each in value], [str(each["label"]) for each in value]
    return list(value), []


def choices_of(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """The choices of a row, and their names where they have some.

    Of columns of one choice each, the last ones may be empty: such a row has fewer choices.

    Args:
        columns: the one with a list, or one for each choice.

    Raises:
        ValueError: with what is wrong with them.
    """
    names: list[str] = []
    if len(columns) > 1:
        found = [row.get(column) for column in columns]
        while found and is_missing(found[-1]):
            found.pop()
    else:
        value = row.get(columns[0])
        parsed = ([], []) if is_missing(value) else _parsed(value)
        if parsed is None:
            raise ValueError(f"has {kind_of(value)} in {listed(columns)} where a list of choices should be")
        found, names = parsed
    where = f"in {listed(columns)}"
    if len(found) < 2:
        raise ValueError(f"has {('no choices', 'one choice')[len(found)]} {where}, and two are the least")
    if names and len(set(names)) != len(found):
        raise ValueError(f"has {len(found)} choices and {len(set(names))} different labels of them {where}")
    texts = [_choice(each, where) for each in found]
    if len({" ".join(text.split()) for text in texts}) < len(texts):
        raise ValueError(f"has two equal choices {where}")
    return texts, names


def _choice(value: Any, where: str) -> str:
    if is_missing(value):
        raise ValueError(f"has an empty choice {where}")
    if not isinstance(value, str):
        raise ValueError(f"has {kind_of(value)} {where}, which is not text")
    return whole_characters(value)


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: None, a blank text, or NaN."""
    return value is None or (isinstance(value, str) and is_blank(value)) or (
        isinstance(value, float) and math.isnan(value)
    )  # fmt: skip


def right_choice(value: Any, column: str, texts: Sequence[str], names: Sequence[str], first_number: int = 0) -> int:
    """The place of the right choice, from 0.

    Args:
        value: what the row says of it: its name where choices have names, its number, its letter from A, or its text.
        column: where that stands.
        texts, names: see `choices_of`.
        first_number: that of the first choice.

    Raises:
        ValueError: with what is wrong with it.
    """
    if is_missing(value):
        raise ValueError(f'has no "{column}"')
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f'has {kind_of(value)} in "{column}", which names no choice')
    label = " ".join(str(value).split())
    # A number is a place, also where it is the text of a choice.
    by_text = set() if isinstance(value, int) else {
        place for place, text in enumerate(texts) if " ".join(text.split()) == label
    }  # fmt: skip
    # pandas writes the numbers of a column that lacks some as fractions.
    whole = re.fullmatch(r"([+-]?\d{1,9})\.0+", label)
    if whole and label not in names and not by_text:
        label = whole[1]
    if label in names:
        return names.index(label)
    number = int(label) if re.fullmatch(r"[+-]?\d{1,9}", label) else None
    by_number = set() if number is None else {number - first_number}
    by_letter = {ord(label.upper()) - ord("A")} if not names and re.fullmatch("[A-Za-z]", label) else set()
    possible = {place for place in by_number | by_letter | by_text if 0 <= place < len(texts)}
    if len(possible) > 1:
        raise ValueError(f'has a "{column}" that is the number or letter of one choice and the text of another')
    if not possible and number is not None:
        raise ValueError(f"has the {column} {number} and {len(texts)} choices, which are counted from "
                         f"{first_number}")  # fmt: skip
    if not possible:
        raise ValueError(f'has a "{column}" that is none of its {len(texts)} choices')
    return possible.pop()


# --- sequences

_ROWS_AT_ONCE = 1024


def encode_choices(
    examples: Sequence[Example], targets: np.ndarray, tokenizer: TextTokenizer, sequence_length: int,
    long_text: LongText,
) -> Encoded:  # fmt: skip
    """[CLS] text [SEP] choice [SEP] for each choice of a row (Devlin et al. 2019, section 4.4), of at most
    `sequence_length` tokens; a second text stands before each choice. The sequences of a row stay together.

    Tokens are taken off the text, then off the beginning of the second text, and off a choice only where it does not
    fit alone. A choice of which the tokenizer leaves nothing is [UNK].

    Args:
        targets: [I] or [I, K], of each choice, row after row.
        long_text: head keeps the beginning of the text, head-tail a quarter of what fits from the beginning and the
            rest from the end.
    """
    capacity = sequence_length - 2 - tokenizer.pair_separators
    kept: list[np.ndarray] = []
    table: list[tuple[int, int, int, int]] = []
    owners: list[int] = []
    used = num_tokens = num_long = num_cut = 0
    for number, (text, before, choices) in enumerate(_tokenized(examples, tokenizer)):
        fitting = [_fitting(choice, before, capacity) for choice in choices]
        rooms = [min(len(text), capacity - len(choice)) for choice in fitting]
        pieces, starts = _beginnings(text, rooms, long_text)
        ends = used + np.cumsum([sum(map(len, pieces)), *map(len, fitting)])
        table += [
            (used + starts[room], room, int(begin), len(choice))
            for room, begin, choice in zip(rooms, ends, fitting, strict=False)
        ]
        kept += [*pieces, *fitting]
        owners += [number] * len(choices)
        whole = len(text) * len(choices) + sum(map(len, choices))
        cut = whole - sum(rooms) - sum(map(len, fitting))
        used, num_tokens, num_cut = int(ends[-1]), num_tokens + whole, num_cut + cut
        num_long += cut > 0
    of_text = np.array(owners, dtype=np.int64)
    return Encoded(
        ids=np.concatenate(kept) if kept else np.empty(0, dtype=np.uint32),
        sequences=spans_of(
            np.array(table, dtype=np.int64).reshape(-1, 4), np.zeros(len(table), np.int64), tokenizer.pair_separators
        ),
        text=of_text,
        targets=targets,
        item=np.arange(len(table)),
        place=np.zeros(len(table), dtype=np.int64),
        bounds=np.arange(len(table) + 1),
        num_texts=len(examples),
        num_tokens=num_tokens,
        num_long=num_long,
        num_cut=num_cut,
        together=True,
    )


def _tokenized(
    examples: Sequence[Example], tokenizer: TextTokenizer
) -> Iterator[tuple[np.ndarray, int, list[np.ndarray]]]:
    """Ids of each row's text, the number of its second text's tokens, and ids of its choices behind the second text."""
    for begin in range(0, len(examples), _ROWS_AT_ONCE):
        part = examples[begin : begin + _ROWS_AT_ONCE]
        texts = tokenizer.encode([words_apart(row.text) for row in part])
        seconds = tokenizer.encode([words_apart(row.text_pair or "") for row in part])
        choices = iter(tokenizer.encode([words_apart(text) for row in part for text in continuations(row)]))
        for row, ids, second in zip(part, texts, seconds, strict=True):
            of_row = [next(choices) for _ in row.choices or ()]
            whole = [each if len(each) > len(second) else [*each, tokenizer.unk_id] for each in of_row]
            yield np.asarray(ids, np.uint32), len(second), [np.asarray(each, np.uint32) for each in whole]


def _fitting(choice: np.ndarray, before: int, capacity: int) -> np.ndarray:
    """The tokens of a choice that fit, with the last of those before it that leave it whole."""
    begin = min(before, max(len(choice) - capacity, 0))
    return choice[begin : begin + capacity]


def continuations(row: Example) -> list[str]:
    """Each choice of a row, behind its second text if it has one."""
    return [f"{row.text_pair} {choice}" if row.text_pair else choice for choice in row.choices or ()]


def _beginnings(text: np.ndarray, rooms: Sequence[int], long_text: LongText) -> tuple[list[np.ndarray], dict[int, int]]:
    """What is stored of a text, and where in that begins what each room takes of it."""
    pieces: list[np.ndarray] = []
    starts: dict[int, int] = {}
    used = 0
    for room in sorted(set(rooms), reverse=True):
        if long_text != "head-tail" and pieces:
            # The beginning of what the largest room takes.
            starts[room] = 0
            continue
        spans = head_tail(len(text), room) if long_text == "head-tail" else [(0, room)]
        pieces.append(np.concatenate([text[start : start + length] for start, length in spans]))
        starts[room] = used
        used += room
    return pieces, starts
