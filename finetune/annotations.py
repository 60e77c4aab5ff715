"""Entities as annotation tools write them, with places in the text: Label Studio, doccano, Prodigy; in and out."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from data_prep.text.cells import kind_of


class Mention(NamedTuple):
    """Characters `start` to `end` (the first one after it) of a text, and their type."""

    start: int
    end: int
    type: str


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """A task of Label Studio's export as a row with "text" and "label"; any other row as it is.

    Of several annotations of one text the first that was not cancelled is taken.
    """
    data, annotations = row.get("data"), row.get("annotations", row.get("completions"))
    if not isinstance(data, Mapping) or not isinstance(annotations, list):
        return row
    made = [each for each in annotations if isinstance(each, Mapping) and not each.get("was_cancelled")]
    results = made[0].get("result", []) if made else None
    spans = None if results is None else [each.get("value") for each in results if isinstance(each, Mapping)]
    return {**data, "label": spans}


def mentions(value: Any, text: str, column: str) -> list[Mention]:
    """The entities of a text, in order.

    Args:
        value: a list of [start, end, type], of objects with start and end (or start_offset and end_offset) and label
            (or labels, a list of one), or None where there is none.

    Raises:
        ValueError: with what is wrong.
    """
    if not isinstance(value, list):
        raise ValueError(f'has {kind_of(value)} in "{column}", which is no list of entities')
    found = sorted(_mention(each, text, column) for each in value)
    for before, after in zip(found, found[1:], strict=False):
        if after.start < before.end:
            raise ValueError(
                f'has entities that overlap in "{column}" ({before.start} to {before.end} and {after.start} to '
                f"{after.end}), and a word has one tag"
            )
    return found


def _mention(value: Any, text: str, column: str) -> Mention:
    if isinstance(value, Mapping):
        start, end = (value.get(name, value.get(f"{name}_offset")) for name in ("start", "end"))
        kind = value.get("label", value.get("labels"))
        if isinstance(kind, list) and len(kind) == 1:
            kind = kind[0]
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 3:
        start, end, kind = value
    else:
        raise ValueError(f'has {kind_of(value)} in "{column}" where an entity should be')
    if not isinstance(kind, str) or not kind.strip():
        raise ValueError(f'has an entity without a name in "{column}"')
    if not all(isinstance(place, int) and not isinstance(place, bool) for place in (start, end)):
        raise ValueError(f'has an entity without start and end in "{column}"')
    if not 0 <= start < end <= len(text):
        raise ValueError(f'has an entity at {start} to {end} in "{column}", and its text has {len(text)} characters')
    return Mention(start, end, " ".join(kind.split()))


def doccano(text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A row that doccano imports."""
    return {"text": text, "label": [[each.start, each.end, each.type] for each in found]}


def prodigy(text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A row that Prodigy reads."""
    return {"text": text, "spans": [{"start": each.start, "end": each.end, "label": each.type} for each in found]}


def label_studio(text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A task that Label Studio imports, with the entities as predictions to be corrected."""
    result = [
        {
            "from_name": "label", "to_name": "text", "type": "labels",
            "value": {"start": each.start, "end": each.end, "text": text[each.start : each.end], "labels": [each.type]},
        }
        for each in found
    ]  # fmt: skip
    return {"data": {"text": text}, "predictions": [{"result": result}]}
