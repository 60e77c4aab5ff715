"""What a tagger's outputs say: a tag for each word, the entities with their places, and both in the forms of a file."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..output import to_json
from ..rows import Example
from ..settings import FinetuneError
from . import annotations
from .annotations import Mention
from .tags import IO, OUTSIDE, PLAIN, Entity, TagScheme, entities, io_entities, iob2, parts, scheme_of_labels

PREDICTED_WORDS, TAGS, ENTITIES = "predicted_words", "predicted_tags", "predicted_entities"
CONLL = "conll"
# Rows of annotation tools.
_TOOLS = {
    "label-studio": annotations.label_studio,
    "doccano": annotations.doccano,
    "prodigy": annotations.prodigy,
}


class TagDecoder:
    """Turns the outputs of a text, float32 [W, C] for its W words and C tags, into tags and entities.

    Args:
        labels: the names of the tags.
        scheme: that tags are written in.
        is_strict: whether entities begin with B- alone, as those do that are learned here: an I- that continues nothing
            is a mistake of the model, and mostly one word too many. Otherwise it begins an entity.
    """

    def __init__(self, labels: Sequence[str], scheme: TagScheme, is_strict: bool):
        self.labels, self.scheme, self.is_strict = labels, scheme, is_strict
        self._are_names = scheme_of_labels(labels) in (IO, PLAIN)

    def names(self, ids: np.ndarray) -> list[str]:
        """The tags with these places [W] among the labels."""
        return [self.labels[place] for place in ids]

    def tags(self, output: np.ndarray) -> list[str]:
        """The most probable tag of each word; an I- that continues nothing is an O, or a B- (see `is_strict`)."""
        tags = self.names(output.argmax(1))
        if self.scheme.of_words:
            return tags
        have_no_prefix = self._are_names or any(tag != OUTSIDE and not parts(tag)[0] for tag in tags)
        return iob2(io_entities(tags) if have_no_prefix else entities(tags, self.is_strict), len(tags))

    def entities(self, tags: Sequence[str]) -> list[Entity]:
        """Those that the tags of a text mark; each word is one where tags are classes of words."""
        if self.scheme.of_words:
            return [Entity(place, place + 1, tag) for place, tag in enumerate(tags)]
        return entities(tags)

    def mentions(self, tags: Sequence[str], example: Example) -> list[Mention]:
        """The characters of these entities."""
        words = example.words
        return [Mention(words[e.start][0], words[e.end - 1][1], e.type) for e in self.entities(tags)]

    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The words with a tag each, and the entities with their characters, text and mean probability."""
        tags = self.tags(output)
        found = []
        for entity, mention in zip(self.entities(tags), self.mentions(tags, example), strict=True):
            probability = float(output[entity.start : entity.end].max(1).mean())
            text = example.text[mention.start : mention.end]
            found.append({"start": mention.start, "end": mention.end, "label": mention.type, "text": text,
                          "probability": round(probability, 6)})  # fmt: skip
        names = {PREDICTED_WORDS: words_of(example), TAGS: self.scheme.written(tags)}
        return names if self.scheme.of_words else {**names, ENTITIES: found}

    def flat_prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """Words and tags joined by blanks, entities as JSON.

        Raises:
            FinetuneError: a word or a tag has white space in it.
        """
        found = self.prediction(output, example)
        if any(each.split() != [each] for each in (*found[PREDICTED_WORDS], *found[TAGS])):
            raise FinetuneError(
                f"{example.place} has a word or a tag with white space in it, and white space stands between them in a "
                "CSV: use --format jsonl"
            )
        flat = {name: " ".join(found[name]) for name in (PREDICTED_WORDS, TAGS)}
        of_entities = {} if self.scheme.of_words else {ENTITIES: json.dumps(found[ENTITIES], ensure_ascii=False)}
        return flat | of_entities

    def prediction_names(self) -> list[str]:
        """The names in a prediction."""
        return [PREDICTED_WORDS, TAGS, *([] if self.scheme.of_words else [ENTITIES])]

    def written(self, form: str, row: Mapping[str, Any], example: Example, output: np.ndarray) -> str:
        """Words in columns (CONLL), or a row of an annotation tool with the entities as its own."""
        tags = self.tags(output)
        if form == CONLL:
            return conll(words_of(example), self.scheme.written(tags))
        return to_json(_TOOLS[form](row, example.text, self.mentions(tags, example)))


def conll(words: Sequence[str], *columns: Sequence[str]) -> str:
    """A sentence of CoNLL: a word a line and its columns, tabs between."""
    return "".join("\t".join(row) + "\n" for row in zip(words, *columns, strict=True))


def words_of(example: Example) -> list[str]:
    """The words of a text."""
    return [example.text[start:end] for start, end in example.words]
