"""How BERT's training examples were made in 2018 (Devlin et al. 2019, appendix A.1-A.2), for measuring its speed.

Written from a description of the release, in plain Python and in memory, as that was. What the project does
instead, and why, is in docs/how_it_works.md.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

Sentence = list[int]
Document = list[Sentence]

SHORT_SHARE, MASKED_SHARE, MASK_SHARE, RANDOM_SHARE, TRIES = 0.1, 0.15, 0.8, 0.1, 10


class Vocabulary(NamedTuple):
    """Ids that making examples needs."""

    size: int
    cls: int
    sep: int
    mask: int


class Example(NamedTuple):
    """One masked pair: label 0 is "b follows a", 1 "b is from elsewhere"."""

    ids: list[int]
    token_types: list[int]
    masked_positions: list[int]
    masked_targets: list[int]
    label: int


def make_examples(documents: Sequence[Document], vocabulary: Vocabulary, length: int, seed: int) -> list[Example]:
    """One copy of the masked examples of all documents, shuffled."""
    draw = random.Random(seed)
    examples = []
    for index in range(len(documents)):
        for a, b, label in document_pairs(documents, index, length - 3, draw):
            examples.append(masked(a, b, label, vocabulary, length, draw))
    draw.shuffle(examples)
    return examples


def document_pairs(documents: Sequence[Document], index: int, room: int, draw: random.Random):
    """(a, b, label) of one document. Sentences that a random b displaces are used again, by the next pair."""
    document = documents[index]
    target = draw.randint(2, room) if draw.random() < SHORT_SHARE else room
    begin = 0
    while begin < len(document):
        end, size = begin, 0
        while end < len(document) and size < target:
            size += len(document[end])
            end += 1
        middle = begin + (draw.randint(1, end - begin - 1) if end - begin > 1 else 1)
        a = joined(document[begin:middle])
        if end - begin == 1 or draw.random() < 0.5:
            b, label, begin = sentences_of_another(documents, index, target - len(a), draw), 1, middle
        else:
            b, label, begin = joined(document[middle:end]), 0, end
        cut(a, b, room, draw)
        if a and b:
            yield a, b, label


def sentences_of_another(documents: Sequence[Document], index: int, target: int, draw: random.Random) -> Sentence:
    """Sentences from a random place of another document; after some tries of the same one."""
    for _ in range(TRIES):
        other = draw.randrange(len(documents))
        if other != index:
            break
    place = draw.randrange(len(documents[other]))
    tokens: Sentence = []
    while place < len(documents[other]) and (not tokens or len(tokens) < target):
        tokens += documents[other][place]
        place += 1
    return tokens


def joined(sentences: Sequence[Sentence]) -> Sentence:
    """The tokens of sentences."""
    return [token for sentence in sentences for token in sentence]


def cut(a: Sentence, b: Sentence, room: int, draw: random.Random) -> None:
    """Take tokens off the longer of the two, at its front or back at random, until both fit."""
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        del longer[0 if draw.random() < 0.5 else -1]


def masked(a: Sentence, b: Sentence, label: int, vocabulary: Vocabulary, length: int, draw: random.Random) -> Example:
    """[CLS] a [SEP] b [SEP] with 15 % of it to be predicted."""
    ids = [vocabulary.cls, *a, vocabulary.sep, *b, vocabulary.sep]
    token_types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    candidates = [*range(1, len(a) + 1), *range(len(a) + 2, len(ids) - 1)]
    draw.shuffle(candidates)
    wanted = min(max(1, round(MASKED_SHARE * len(ids))), round(MASKED_SHARE * length) + 1)
    positions = sorted(candidates[:wanted])
    labels = [ids[position] for position in positions]
    for position in positions:
        fate = draw.random()
        if fate < MASK_SHARE:
            ids[position] = vocabulary.mask
        elif fate < MASK_SHARE + RANDOM_SHARE:
            ids[position] = draw.randrange(vocabulary.size)
    return Example(ids, token_types, positions, labels, label)
