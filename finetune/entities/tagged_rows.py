"""Words with a tag each in rows, or texts with the places of their entities, as examples."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.text.cells import kind_of, name_of, parsed_cell, whole_characters

from ..rows import Columns, Example, text_of
from ..words import joined, words_of
from . import annotations
from .annotations import Mention
from .tags import Entity, iob2

_ENDS = re.compile(r"[^\S\u00a0\u2007\u202f]+")


def tagged_example(place: str, row: Mapping[str, Any], columns: Columns) -> Example:
    """A row of words with a tag each, or of a text with the places of its entities; the label is the tags.

    Raises:
        ValueError: with what is wrong with it.
    """
    column = columns.texts[0]
    words, tags = row.get(column), None if columns.label is None else row.get(columns.label)
    if columns.label is not None and annotations.is_without_entities(row, columns.label):
        tags = []
    tags = parsed_cell(tags)
    if _are_words(found := parsed_cell(words), tags, columns):
        words = found
    if isinstance(words, str) and not are_tags(tags):
        text = text_of(row, column)
        spans = words_of(text)
        label, num_widened = None, 0
        if columns.label is not None:
            found = annotations.mentions(tags, text, columns.label)
            covered = _covering(found, spans, columns.label)
            label = tuple(iob2(covered, len(spans)))
            num_widened = sum(
                spans[entity.start][0] < mention.start or mention.end < spans[entity.end - 1][1]
                for mention, entity in zip(found, covered, strict=True)
            )
        return Example(place, text, label=label, words=tuple(spans), num_widened=num_widened)
    if isinstance(words, str):
        words = text_of(row, column).split()
    text, spans = joined([_word(word, column) for word in _list(words, column)])
    label = None if columns.label is None else tuple(_tag(tag, columns.label) for tag in _list(tags, columns.label))
    if label is not None and len(label) != len(spans):
        raise ValueError(f'has {len(spans)} words in "{column}" and {len(label)} tags in "{columns.label}"')
    return Example(place, text, label=label, words=tuple(spans))


def _are_words(found: Any, tags: Any, columns: Columns) -> bool:
    """Whether what a cell spells is a list of words, and no text in brackets: there is a tag for each, unless tags are
    not asked for."""
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        return False
    return bool(found) if columns.label is None else isinstance(tags, list) and len(tags) == len(found)


def are_tags(value: Any) -> bool:
    """Whether it is a list of tags, not of entities; an empty list says nothing of the kind."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, str | int) for each in value)


def _covering(found: Sequence[Mention], words: Sequence[tuple[int, int]], column: str) -> list[Entity]:
    """The words that each mention is of, whole ones where it begins or ends inside one."""
    starts, ends = [start for start, _ in words], [end for _, end in words]
    entities_ = []
    for mention in found:
        entity = Entity(bisect_right(ends, mention.start), bisect_left(starts, mention.end), mention.type)
        if entity.start >= entity.end:
            raise ValueError(f'has an entity at {mention.start} to {mention.end} in "{column}", where no word is')
        if entities_ and entities_[-1].end > entity.start:
            raise ValueError(f'has two entities in one word (at {mention.start}) in "{column}", and a word has one tag')
        entities_.append(entity)
    return entities_


def _list(value: Any, column: str) -> list[Any]:
    if isinstance(value, str):
        value = value.split()
    if value is None or (isinstance(value, list) and not value):
        raise ValueError(f'has no "{column}"')
    if not isinstance(value, list | tuple):
        raise ValueError(f'has {kind_of(value)} in "{column}" where a list should be')
    return list(value)


def _word(value: Any, column: str) -> str:
    if isinstance(value, Mapping) and "text" in value:
        value = value["text"]
    if not isinstance(value, str):
        raise ValueError(f'has {kind_of(value)} in "{column}" where a word should be')
    if not value.strip():
        raise ValueError(f'has an empty word in "{column}"')
    # What would end a line or a column of CoNLL; a blank that allows no break is a character of the word.
    return whole_characters(_ENDS.sub(" ", value.strip()))


def _tag(value: Any, column: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'has a word without a tag in "{column}"')
    return name_of(value)
