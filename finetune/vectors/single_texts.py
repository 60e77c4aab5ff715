"""Texts as sequences of their own, also the two of a pair; and the halves of a text."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from data_prep.text.cells import words_apart
from data_prep.vocabulary.text_tokenizer import TextTokenizer

from ..batches import Encoded, spans_of
from ..rows import Example

_TEXTS_AT_ONCE = 4096
# Whole numbers below this are exact in float32.
_NUMBERS = 1 << 24


def numbers_of(texts: Sequence[str]) -> np.ndarray:
    """A number for each text, the same for those that differ in white space alone: int64 [n]."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(" ".join(text.split()), len(known)) for text in texts], dtype=np.int64)


def encode_single_texts(
    examples: Sequence[Example], scores: np.ndarray, tokenizer: TextTokenizer, sequence_length: int
) -> Encoded:
    """[CLS] text [SEP] for each text of each row, which are its items; the two of a pair stay together. Of a longer
    text the beginning is read.

    `targets` are float32 [I, 2]: the number of the text (see `numbers_of`; modulo 2^24), and the score of its row.

    Args:
        scores: [n], NaN for a row without one.
    """
    texts = [text for row in examples for text in row.every_text()]
    owner = np.repeat(np.arange(len(examples)), [len(row.every_text()) for row in examples])
    capacity = sequence_length - 2
    kept: list[np.ndarray] = []
    whole: list[int] = []
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        part = tokenizer.encode([words_apart(text) for text in texts[begin : begin + _TEXTS_AT_ONCE]])
        kept += [np.asarray(ids[:capacity], np.uint32) for ids in part]
        whole += map(len, part)
    lengths, of_texts = np.array([len(ids) for ids in kept], np.int64), np.array(whole, np.int64)
    spans = np.zeros((len(texts), 4), np.int64)
    spans[:, 0], spans[:, 1] = np.cumsum(lengths) - lengths, lengths
    targets = np.stack([numbers_of(texts) % _NUMBERS, scores[owner]], axis=1).astype(np.float32)
    return Encoded(
        ids=np.concatenate([np.empty(0, np.uint32), *kept]),
        sequences=spans_of(spans, np.zeros(len(texts), dtype=np.int64)),
        text=owner.astype(np.int64),
        targets=targets.reshape(-1, 2),
        item=np.arange(len(texts)),
        place=np.zeros(len(texts), dtype=np.int64),
        bounds=np.arange(len(texts) + 1),
        num_texts=len(examples),
        num_tokens=int(of_texts.sum()),
        num_long=len(np.unique(owner[of_texts > capacity])),
        num_cut=int((of_texts - lengths).sum()),
        together=True,
    )


def halves(example: Example) -> Example | None:
    """The two halves of a text as a pair without a label, cut at the white space nearest to the middle; None for a text
    of a single word."""
    words = example.text.split()
    if len(words) < 2:
        return None
    ends = np.cumsum([len(word) + 1 for word in words])
    middle = 1 + int(np.abs(2 * ends[:-1] - ends[-1]).argmin())
    first, second = " ".join(words[:middle]), " ".join(words[middle:])
    return replace(example, text=first, text_pair=second, label=None)
