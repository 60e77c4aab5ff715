"""What answers questions without a BERT: the first sentence of a context, or the one most like the question."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np

from data_prep.text.sentences import split

from ..rows import Example
from ..simple_models import words_in
from .answers import Span
from .best_answers import row_of

# No share of words is a certainty.
_LEAST, _MOST = 0.01, 0.99
# Contexts whose sentences are kept, as several questions are asked of one.
_CONTEXTS = 16


def no_answer(examples: Sequence[Example]) -> np.ndarray:
    """No answer for any question (see `best_answers`)."""
    return np.stack([row_of(0.0, np.zeros((0, 2), np.int64), np.zeros(0))] * len(examples))


def first_sentence(examples: Sequence[Example]) -> np.ndarray:
    """The first sentence of each context (see `best_answers`)."""
    return np.stack([_row(sentences(row.text_pair)[0], 1.0) for row in examples])


def most_alike(examples: Sequence[Example]) -> np.ndarray:
    """The sentence of each context with the largest share of the question's words, with this share as its probability,
    beside no answer (see `best_answers`)."""
    found = []
    for row in examples:
        asked = _words(row.text)
        spans, words = zip(*_sentences_with_words(row.text_pair), strict=True)
        shares = [len(asked & each) / max(1, len(asked)) for each in words]
        place = int(np.argmax(shares))
        found.append(_row(spans[place], float(np.clip(shares[place], _LEAST, _MOST))))
    return np.stack(found)


def _row(span: Span, probability: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return row_of(float(np.log(1 - probability)), np.array([span]), np.log([probability]))


def _words(text: str) -> frozenset[str]:
    return frozenset(words_in(text.lower(), shortest=1))


@lru_cache(_CONTEXTS)
def sentences(context: str) -> tuple[Span, ...]:
    """Where the sentences of a context are; all of it where none is found."""
    found = split([line for line in context.splitlines() if line.strip()], rule="paragraph")
    # The splitter changes white space and nothing else.
    letters = (place for place, letter in enumerate(context) if not letter.isspace())
    return tuple(_spans(found, letters)) or ((0, len(context)),)


def _spans(found: Sequence[str], letters: Iterator[int]) -> Iterator[Span]:
    for sentence in found:
        places = list(islice(letters, sum(not letter.isspace() for letter in sentence)))
        if places:
            yield places[0], places[-1] + 1


@lru_cache(_CONTEXTS)
def _sentences_with_words(context: str) -> tuple[tuple[Span, frozenset[str]], ...]:
    return tuple((span, _words(context[slice(*span)])) for span in sentences(context))
