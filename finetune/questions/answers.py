"""Answers to questions in rows: the nested and the flat form of SQuAD, and whether they are where they say."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data_prep.text.cells import kind_of, parsed_cell, whole_characters

Span = tuple[int, int]
"""(start, end) of characters, the end not included."""
COLUMNS = ("paragraphs", "qas", "is_impossible")
"""That are read besides those of question, context and answers."""
# Answers that annotators found plausible for a question without one are no answers.
_LEFT_OUT = "plausible_answers"


def flat_rows(place: str, row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A row for each question of an article or a paragraph in the nested form of SQuAD (Rajpurkar et al. 2016); any
    other row as it is.

    What else an article, a paragraph and a question have (titles, ids) are columns. The place of question 3 in
    paragraph 2 of an article at "train.json:1" is "train.json:1.2.3".
    """
    paragraphs = row.get("paragraphs")
    is_empty = paragraphs == [] and not row.keys() & {"question", "context"}
    if is_empty or (isinstance(paragraphs, list) and any(isinstance(p, Mapping) and "qas" in p for p in paragraphs)):
        others = {name: value for name, value in row.items() if name != "paragraphs"}
        for number, paragraph in enumerate(paragraphs, 1):
            yield from _questions(f"{place}.{number}", paragraph, others)
    elif isinstance(row.get("qas"), list):
        yield from _questions(place, row, {})
    else:
        yield place, row


def _questions(place: str, paragraph: Any, others: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The questions of a paragraph; what is none is a row without a question."""
    if not isinstance(paragraph, Mapping) or not isinstance(paragraph.get("qas"), list):
        yield place, {}
        return
    others = others | {name: value for name, value in paragraph.items() if name != "qas"}
    for number, question in enumerate(paragraph["qas"], 1):
        own = dict(question) if isinstance(question, Mapping) else {}
        own.pop(_LEFT_OUT, None)
        if own.get("is_impossible") is True:
            own.setdefault("answers", [])
        yield f"{place}.{number}", {**others, **own}


def are_answers(value: Any) -> bool:
    """Whether it is what answers with their places are written as; an empty list says nothing of the kind."""
    if isinstance(value, str):
        return "answer_start" in value and value.lstrip()[:1] in ("{", "[")
    each = value if isinstance(value, list) else [value]
    return any(isinstance(answer, Mapping) and {"text", "answer_start"} <= answer.keys() for answer in each)


def answers_of(row: Mapping[str, Any], column: str, context: str) -> tuple[Span, ...]:
    """Where the answers of a row are in its context, the first one first; none for a question without an answer.

    Args:
        column: holds {"text": [...], "answer_start": [...]}, a list of {"text", "answer_start"}, or a cell that
            spells either; it may be empty where the row is said to be impossible.

    Raises:
        ValueError: with what is wrong.
    """
    is_impossible = str(row.get("is_impossible")).strip().lower() in ("true", "1")
    if is_impossible and str(row.get(column) or "").strip() == "":
        return ()
    found = tuple(_span(*pair, context, column) for pair in _pairs(row.get(column), column))
    if found and is_impossible:
        raise ValueError(f'is said to be impossible, and has an answer in "{column}"')
    return found


def _pairs(value: Any, column: str) -> list[tuple[Any, Any]]:
    """(text, start) of each answer."""
    wanted = f'in "{column}", where answers should be, each with "text" and "answer_start"'
    value = parsed_cell(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError(f'has no "{column}" (of a question without an answer: an empty list)')
    if isinstance(value, Mapping) and {"text", "answer_start"} <= value.keys():
        texts, starts = (_listed(value[name]) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise ValueError(f'has {len(texts)} texts and {len(starts)} places of answers in "{column}"')
        return list(zip(texts, starts, strict=True))
    if not isinstance(value, list):
        raise ValueError(f"has {kind_of(value)} {wanted}")
    if odd := [each for each in value if not isinstance(each, Mapping)]:
        raise ValueError(f"has {kind_of(odd[0])} {wanted}")
    return [(each.get("text"), each.get("answer_start")) for each in value]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _span(text: Any, start: Any, context: str, column: str) -> Span:
    """Where an answer is, if it is there. Messages do not repeat it."""
    if not isinstance(text, str):
        raise ValueError(f'has an answer in "{column}" without a text')
    text = whole_characters(text)
    if not text.strip():
        raise ValueError(f'has an empty answer in "{column}" (of a question without an answer: an empty list)')
    if isinstance(start, float) and start.is_integer():
        start = int(start)
    if not isinstance(start, int) or isinstance(start, bool):
        raise ValueError(f'has an answer in "{column}" without a whole number as "answer_start"')
    if start >= 0 and context.startswith(text, start):
        # White space is no part of an answer that is given.
        return start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    where = _where(text, context)
    raise ValueError(f'has an answer in "{column}" that is not at character {start} of its context, {where}')


def _where(text: str, context: str) -> str:
    """Where else an answer is."""
    first = context.find(text)
    if first < 0:
        return f"nor anywhere in its {len(context):,} characters"
    # Overlapping places count too.
    if context.find(text, first + 1) < 0:
        return f"but at {first}"
    return "but at several others"
