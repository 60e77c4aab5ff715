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
    """A task of Label Studio's export as a row with its data, "id" and "label"; any other row as it is.

    Of several annotations of one text the first that was not cancelled is taken; of this the entities.
    """
    data, annotations = row.get("data"), row.get("annotations", row.get("completions"))
    if not isinstance(data, Mapping) or not (annotations is None or isinstance(annotations, list)):
        return row
    made = [each for each in annotations or () if isinstance(each, Mapping) and not each.get("was_cancelled")]
    found = {"id": row["id"], **data} if "id" in row else dict(data)
    if not made:
        return found
    values = [each.get("value") for each in made[0].get("result", []) if isinstance(each, Mapping)]
    return {**found, "label": [each for each in values if isinstance(each, Mapping) and "labels" in each]}


def is_left_out(row: Mapping[str, Any]) -> bool:
    """Whether somebody rejected or ignored the row in Prodigy."""
    return "spans" in row and row.get("answer") in ("reject", "ignore")


def mentions(value: Any, text: str, column: str) -> list[Mention]:
    """The entities of a text, in order.

    Args:
        value: a list of [start, end, type], or of objects with start and end (or start_offset and end_offset) and label
            (or labels, a list of one). Where they have a text, it decides between characters and UTF-16 units, which
            Label Studio counts.

    Raises:
        ValueError: with what is wrong.
    """
    if value is None:
        raise ValueError(f'has no "{column}"')
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
    own = None
    if isinstance(value, Mapping):
        start, end = (value.get(name, value.get(f"{name}_offset")) for name in ("start", "end"))
        kind, own = value.get("label", value.get("labels")), value.get("text")
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
    if isinstance(own, str) and text[start:end] != own:
        start, end = (_characters(text, units) for units in (start, end))
        if text[start:end] != own:
            raise ValueError(f'has an entity at {start} to {end} in "{column}" whose text is another one there')
    if not 0 <= start < end <= len(text):
        raise ValueError(f'has an entity at {start} to {end} in "{column}", and its text has {len(text)} characters')
    return Mention(start, end, " ".join(kind.split()))


def _characters(text: str, units: int) -> int:
    """How many characters are in the first UTF-16 units of a text."""
    return len(text.encode("utf-16-le", "surrogatepass")[: 2 * max(0, units)].decode("utf-16-le", "ignore"))


def _units(text: str, characters: int) -> int:
    return len(text[:characters].encode("utf-16-le", "surrogatepass")) // 2


def doccano(row: Mapping[str, Any], text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A row that doccano imports."""
    return {**_others(row), "text": text, "label": [[each.start, each.end, each.type] for each in found]}


def prodigy(row: Mapping[str, Any], text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A row that Prodigy reads."""
    spans = [{"start": each.start, "end": each.end, "label": each.type} for each in found]
    return {"text": text, "spans": spans, "meta": _others(row)}


def label_studio(row: Mapping[str, Any], text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A task that Label Studio imports, with the entities as predictions to be corrected."""
    result = [
        {
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {
                "start": _units(text, each.start),
                "end": _units(text, each.end),
                "text": text[each.start : each.end],
                "labels": [each.type],
            },
        }
        for each in found
    ]
    task = {"data": {**_others(row), "text": text}, "predictions": [{"result": result}]}
    return {"id": row["id"], **task} if "id" in row else task


# What a tool writes beside the text, and what it is asked for.
_OWN = {"id", "text", "label", "labels", "spans", "entities", "tokens", "tags", "answer", "meta"}


def _others(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that are neither text nor labels."""
    return {name: value for name, value in row.items() if name not in _OWN and not name.startswith("_")}
