"""Entities as annotation tools write them, with places in the text: Label Studio, doccano, Prodigy; in and out."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from data_prep.text.cells import JOINERS, is_ideograph, kind_of, name_of, parsed_cell

COLUMNS = ("answer", "spans", "_task_hash", "id", "data", "annotations", "completions", "annotation_id")
"""What is asked for here beside the columns of texts and labels."""


_OF_A_TASK = {
    "id", "inner_id", "data", "meta", "annotations", "completions", "predictions", "drafts", "file_upload", "project",
    "created_at", "updated_at", "updated_by", "overlap", "is_labeled", "total_annotations", "cancelled_annotations",
    "total_predictions", "comment_count", "unresolved_comment_count", "comment_authors", "last_comment_updated_at",
    "reviews", "agreement", "state",
}  # fmt: skip
"""What Label Studio writes about a task: a row with another column is no task, be it one with a column "data"."""


class Mention(NamedTuple):
    """Characters `start` to `end` (the first one after it) of a text, and their type."""

    start: int
    end: int
    type: str


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """A task of Label Studio's export as a row with its data, "id" and "label"; any other row as it is.

    Of several annotations of one text the first that was not cancelled is taken; of this the entities, or the choices,
    joined by semicolons, as are several choices in one column of the JSON-MIN or CSV export.
    """
    data, annotations = row.get("data"), row.get("annotations", row.get("completions"))
    is_task = isinstance(annotations, list) or (annotations is None and row.keys() <= _OF_A_TASK)
    if not isinstance(data, Mapping) or not is_task:
        return {name: _joined(value) for name, value in row.items()} if "annotation_id" in row else row
    made = [each for each in annotations or () if isinstance(each, Mapping) and not each.get("was_cancelled")]
    found = {"id": row["id"], **data} if "id" in row else dict(data)
    if not made:
        return found
    result = made[0].get("result") or []
    if not isinstance(result, list):
        return {**found, "label": result}
    values = [each.get("value") for each in result if isinstance(each, Mapping)]
    entities = [each for each in values if isinstance(each, Mapping) and each.get("labels")]
    chosen = [_listed(each["choices"]) for each in values if isinstance(each, Mapping) and each.get("choices")]
    if entities or not values:
        return {**found, "label": entities}
    return {**found, "label": ";".join(str(name) for names in chosen for name in names)} if chosen else found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _joined(value: Any) -> Any:
    found = parsed_cell(value)
    chosen = found.get("choices") if isinstance(found, Mapping) else None
    return ";".join(map(str, chosen)) if isinstance(chosen, list) else value


def is_left_out(row: Mapping[str, Any]) -> bool:
    """Whether somebody rejected or ignored the row in Prodigy, whose exports have a hash of each task."""
    return ("spans" in row or row.get("_task_hash") is not None) and _is_rejected(row)


def _is_rejected(value: Mapping[str, Any]) -> bool:
    return value.get("answer") in ("reject", "ignore")


def is_without_entities(row: Mapping[str, Any], column: str) -> bool:
    """Whether the row was annotated, and nothing was found in it: such rows lack the column in Label Studio's JSON-MIN
    export, and may lack it in that of Prodigy."""
    is_annotated = row.get("annotation_id") is not None or (
        row.get("_task_hash") is not None and row.get("answer") == "accept"
    )
    return row.get(column) is None and is_annotated


class _Span(NamedTuple):
    """An entity whose places are counted in characters, or in UTF-16 units."""

    start: int
    end: int
    type: str
    text: str | None
    """What the tool says that it covers."""
    of_doccano: bool


def mentions(value: Any, text: str, column: str) -> list[Mention]:
    """The entities of a text, in order.

    Args:
        value: a list of [start, end, type], or of objects with start and end (or start_offset and end_offset) and label
            (or labels, a list of one); those that were rejected in Prodigy are left out. Places are characters, or
            UTF-16 units where only these fit: doccano counts them, as early versions of Label Studio did.

    Raises:
        ValueError: with what is wrong.
    """
    if value is None:
        raise ValueError(f'has no "{column}"')
    if not isinstance(value, list):
        raise ValueError(f'has {kind_of(value)} in "{column}", which is no list of entities')
    spans = [_span(each, column) for each in value if not (isinstance(each, Mapping) and _is_rejected(each))]
    place = _reading(spans, text)
    found = sorted(_mention(span, place, text, column) for span in spans)
    for before, after in zip(found, found[1:], strict=False):
        if after.start < before.end:
            raise ValueError(
                f'has entities that overlap in "{column}" ({before.start} to {before.end} and {after.start} to '
                f"{after.end}), and a word has one tag"
            )
    return found


def _span(value: Any, column: str) -> _Span:
    own, of_doccano = None, False
    if isinstance(value, Mapping):
        of_doccano = "start_offset" in value
        start, end = (value.get(name, value.get(f"{name}_offset")) for name in ("start", "end"))
        kind, own = value.get("label", value.get("labels")), value.get("text")
        if isinstance(kind, list) and len(kind) == 1:
            kind = kind[0]
        elif isinstance(kind, list) and kind:
            raise ValueError(f'has an entity with {len(kind)} names in "{column}", and a word has one tag')
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 3:
        start, end, kind = value
    else:
        raise ValueError(f'has {kind_of(value)} in "{column}" where an entity should be')
    if not isinstance(kind, str) or not kind.strip():
        raise ValueError(f'has an entity without a name in "{column}"')
    if not all(isinstance(place, int) and not isinstance(place, bool) for place in (start, end)):
        raise ValueError(f'has an entity without start and end in "{column}"')
    return _Span(start, end, name_of(kind), own if isinstance(own, str) else None, of_doccano)


def _reading(spans: Sequence[_Span], text: str) -> Callable[[int], int]:
    """The character of a place: the first reading that fits all entities of a text, else the one of their form."""
    characters, units = _same_place, partial(_characters, text)
    if not spans or max(text, default="") <= "\uffff":
        return characters
    readings = (units, characters) if all(span.of_doccano for span in spans) else (characters, units)
    return next((at for at in readings if all(_fits(span, at, text) for span in spans)), readings[0])


def _same_place(place: int) -> int:
    return place


def _fits(span: _Span, place: Callable[[int], int], text: str) -> bool:
    """Whether it covers what the tool says, or else whole words."""
    start, end = place(span.start), place(span.end)
    if not 0 <= start < end <= len(text):
        return False
    if span.text is not None:
        return _are_alike(text[start:end], span.text)
    around, inside = (text[start - 1 : start], text[end : end + 1]), (text[start], text[end - 1])
    return not any(a.isspace() or (_is_of_word(a) and _is_of_word(b)) for a, b in zip(inside, around, strict=True))


def _is_of_word(character: str) -> bool:
    """Whether it is a letter or a digit, or a vowel sign, an accent or a joiner that belongs to one. An ideograph is a
    word of its own."""
    if character and is_ideograph(character):
        return False
    return character.isalnum() or character in JOINERS or (character > "" and unicodedata.category(character)[0] == "M")


def _are_alike(found: str, own: str) -> bool:
    """Whether texts are the same but for white space; Label Studio writes a line break as a backslash with an n."""
    one, other = (" ".join(re.sub(r"\\[nr]", " ", each).split()) for each in (found, own))
    return one == other


def _mention(span: _Span, place: Callable[[int], int], text: str, column: str) -> Mention:
    start, end = place(span.start), place(span.end)
    if span.text is not None and not _are_alike(text[max(0, start) : max(0, end)], span.text):
        raise ValueError(f'has an entity at {start} to {end} in "{column}" whose text is another one there')
    if not 0 <= start <= end <= len(text):
        raise ValueError(f'has an entity at {start} to {end} in "{column}", and its text has {len(text)} characters')
    if start == end:
        raise ValueError(f'has an entity at {start} to {end} in "{column}", where no character is')
    return Mention(start, end, span.type)


def _characters(text: str, units: int) -> int:
    """How many characters are in the first UTF-16 units of a text; a place outside it stays as far outside."""
    encoded = text.encode("utf-16-le", "surrogatepass")
    outside = min(0, units) + max(0, units - len(encoded) // 2)
    return len(encoded[: 2 * max(0, units)].decode("utf-16-le", "ignore")) + outside


def _units(text: str, characters: int) -> int:
    return len(text[:characters].encode("utf-16-le", "surrogatepass")) // 2


def doccano(row: Mapping[str, Any], text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A row that doccano imports, whose places are UTF-16 units."""
    label = [[_units(text, each.start), _units(text, each.end), each.type] for each in found]
    # It numbers the rows itself.
    own = {"source_id": row["id"]} if "id" in row else {}
    return {**own, **_others(row, text), "text": text, "label": label}


def prodigy(row: Mapping[str, Any], text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A row that Prodigy reads."""
    spans = [{"start": each.start, "end": each.end, "label": each.type} for each in found]
    own, others = {"id": row["id"]} if "id" in row else {}, _others(row, text)
    meta = others.get("meta")
    if isinstance(meta, Mapping) and meta.keys().isdisjoint({*own, *others}):
        others |= others.pop("meta")
    return {"text": text, "spans": spans, "meta": own | others}


def label_studio(row: Mapping[str, Any], text: str, found: Sequence[Mention]) -> dict[str, Any]:
    """A task that Label Studio imports, with the entities as predictions to be corrected; its places are characters."""
    result = [
        {
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {
                "start": each.start,
                "end": each.end,
                "text": text[each.start : each.end],
                "labels": [each.type],
            },
        }
        for each in found
    ]
    task = {"data": {**_others(row, text), "text": text}, "predictions": [{"result": result}]}
    return {"id": row["id"], **task} if "id" in row else task


# What a tool writes beside the text, and what it is asked for.
_OWN = {"id", "text", "label", "labels", "spans", "entities", "tokens", "tags", "answer"}


def _others(row: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The columns of a row that are neither text nor labels; what was called "text" and is not this one is
    "source_text"."""
    found = {name: value for name, value in row.items() if name not in _OWN and not name.startswith("_")}
    return found | ({"source_text": row["text"]} if row.get("text", text) != text else {})
