"""What a user would take without a BERT: a dictionary of the training entities, a linear-chain CRF on word shapes."""

import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from .tags import OUTSIDE, Entity, entities, iob2

Sentences = Sequence[Sequence[str]]
# Words of the longest entity in the dictionary.
_LONGEST = 20


def dictionary(words: Sentences, tags: Sentences, others: Sentences) -> Iterator[list[str]]:
    """Tags for `others`: where words are those of a training entity, in whatever case, its most frequent type.

    Of entities that overlap the first one counts, of those that begin together the longest. Words that were more often
    outside of entities than such an entity are left alone.

    Args:
        words, tags: of the training sentences; tags in IOB2.
    """
    types: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for sentence, tagged in zip(words, tags, strict=True):
        for entity in entities(tagged):
            if entity.end - entity.start <= _LONGEST:
                types[_key(sentence, entity.start, entity.end)][entity.type] += 1
    longest = max(map(len, types), default=0)
    everywhere: Counter[tuple[str, ...]] = Counter()
    for sentence in words:
        for start in range(len(sentence)):
            for end in range(start + 1, min(len(sentence), start + longest) + 1):
                if (key := _key(sentence, start, end)) in types:
                    everywhere[key] += 1
    known = {key: found.most_common(1)[0][0] for key, found in types.items() if 2 * found.total() >= everywhere[key]}
    for sentence in others:
        found, start = [], 0
        while start < len(sentence):
            ends = range(min(len(sentence), start + longest), start, -1)
            end = next((end for end in ends if _key(sentence, start, end) in known), None)
            if end is not None:
                found.append(Entity(start, end, known[_key(sentence, start, end)]))
            start = end or start + 1
        yield iob2(found, len(sentence))


def _key(words: Sequence[str], start: int, end: int) -> tuple[str, ...]:
    return tuple(word.lower() for word in words[start:end])


def most_frequent(words: Sentences, tags: Sentences, others: Sentences) -> Iterator[list[str]]:
    """For each word its most frequent tag in training; for an unknown word the most frequent of all."""
    of_word: dict[str, Counter[str]] = defaultdict(Counter)
    every: Counter[str] = Counter()
    for sentence, tagged in zip(words, tags, strict=True):
        every.update(tagged)
        for word, tag in zip(sentence, tagged, strict=True):
            of_word[word.lower()][tag] += 1
    usual = every.most_common(1)[0][0]
    for sentence in others:
        yield [of_word[key].most_common(1)[0][0] if (key := word.lower()) in of_word else usual for word in sentence]


def has_crf() -> bool:
    """Whether python-crfsuite is installed."""
    try:
        import pycrfsuite  # noqa: F401
    except ImportError:
        return False
    return True


def crf(words: Sentences, tags: Sentences, others: Sentences, labels: Sequence[str]) -> Iterator[np.ndarray]:
    """Probabilities of the labels for each word of a sentence, by a CRF on words, their shapes and their neighbours:
    float32 [W, C] for each.

    Args:
        labels: those that tags are of.
    """
    import pycrfsuite

    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params({"c1": 0.1, "c2": 0.01, "max_iterations": 100, "feature.possible_transitions": True})
    for sentence, tagged in zip(words, tags, strict=True):
        trainer.append(features(sentence), list(tagged))
    with tempfile.TemporaryDirectory(prefix="domain-bert-") as folder:
        path = os.path.join(folder, "crf")
        trainer.train(path)
        tagger = pycrfsuite.Tagger()
        tagger.open(path)
        known = set(tagger.labels())
        for sentence in others:
            tagger.set(features(sentence))
            found = np.zeros((len(sentence), len(labels)), np.float32)
            for column, label in enumerate(labels):
                if label in known:
                    found[:, column] = [tagger.marginal(label, place) for place in range(len(sentence))]
            best = tagger.tag() if len(sentence) else []
            # The best sequence is the answer; the marginals of its tags may not be the largest.
            for row, tag in zip(found, best, strict=True):
                row[labels.index(tag)] = max(row[labels.index(tag)], np.nextafter(row.max(), np.float32(2)))
            yield found
        tagger.close()


_AROUND = (-2, -1, 0, 1, 2)


def features(words: Sequence[str]) -> list[list[str]]:
    """What the CRF knows of each word of a sentence."""
    own = [_of_word(word) for word in words]
    found = []
    for place in range(len(words)):
        each = ["bias"]
        for offset in _AROUND:
            if 0 <= place + offset < len(words):
                few = own[place + offset] if abs(offset) < 2 else own[place + offset][:1]
                each += [f"{offset}:{name}" for name in few]
            elif abs(offset) == 1:
                each.append(f"{offset}:edge")
        found.append(each)
    return found


def _of_word(word: str) -> list[str]:
    lower = word.lower()
    return [
        f"w={lower}", f"shape={shape(word)}", f"p2={lower[:2]}", f"p3={lower[:3]}", f"s2={lower[-2:]}",
        f"s3={lower[-3:]}", f"s4={lower[-4:]}", f"title={word.istitle()}", f"upper={word.isupper()}",
        f"digits={any(map(str.isdigit, word))}",
    ]  # fmt: skip


def shape(word: str) -> str:
    """X for capitals, x for other letters, 0 for digits, each once in a row: "BRCA1-like" is "X0-x"."""
    kinds = ("0" if c.isdigit() else "X" if c.isupper() else "x" if c.isalpha() else c for c in word)
    return re.sub(r"(.)\1+", r"\1", "".join(kinds))


def one_hot(tags: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Probability 1 for each word's tag: float32 [W, C]; a tag that is no label is O."""
    ids = {label: place for place, label in enumerate(labels)}
    found = np.zeros((len(tags), len(labels)), np.float32)
    for row, tag in zip(found, tags, strict=True):
        row[ids.get(tag, ids.get(OUTSIDE, 0))] = 1
    return found
