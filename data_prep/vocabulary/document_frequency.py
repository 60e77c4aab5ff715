"""Entries of a vocabulary that occur in several documents: what one person alone wrote is no word of the model."""

import hashlib
from collections.abc import Callable, Iterable

import numpy as np

from ..text.corpus import Document
from .wordpiece import SPECIAL_TOKENS, WordPieceTokenizer


def shared_entries(tokenizer: WordPieceTokenizer, documents: Callable[[], Iterable[Document]], least: int) -> list[str]:
    """The special tokens and the entries that occur in at least `least` documents, in their order.

    Documents of one group (a patient, a case) count as one. A letter, or the form of it that continues a word, occurs
    where the letter stands in the text; a longer entry where the text has it, cut into pieces. What is left spells
    every word as before, in more pieces, but for words with a letter that is gone.
    """
    vocabulary = tokenizer.vocabulary
    letters = sorted({letter for entry in vocabulary if len(letter := entry.removeprefix("##")) == 1})
    number_of_letter = np.zeros(0x110000, dtype=np.int64)
    number_of_letter[[ord(letter) for letter in letters]] = np.arange(1, len(letters) + 1)
    with_piece, with_letter = Owners(len(vocabulary), least), Owners(len(letters) + 1, least)
    for number, document in enumerate(documents(), 1):
        owner = np.uint64(number if document.group is None else _hash(document.group))
        pieces = [np.array(ids, dtype=np.int64) for ids in tokenizer.encode(document.lines)]
        with_piece.add(np.unique(np.concatenate(pieces)), owner)
        text = tokenizer.normalise("\n".join(document.lines))
        codes = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))
        with_letter.add(np.unique(number_of_letter[codes]), owner)
    counts = dict(zip(letters, with_letter.counts[1:].tolist(), strict=True))
    return [
        entry
        for entry, count in zip(vocabulary, with_piece.counts.tolist(), strict=True)
        if entry in SPECIAL_TOKENS or counts.get(entry.removeprefix("##"), count) >= least
    ]


class Owners:
    """How many different owners each of some things has, counted up to `most`.

    Attributes:
        counts: int64 [things].
    """

    def __init__(self, num_things: int, most: int):
        self.counts = np.zeros(num_things, dtype=np.int64)
        self._seen = np.zeros((num_things, most), dtype=np.uint64)

    def add(self, things: np.ndarray, owner: np.uint64) -> None:
        """Count an owner (not 0) of some things: int64 [n], each once."""
        things = things[self.counts[things] < self._seen.shape[1]]
        new = things[~(self._seen[things] == owner).any(axis=1)]
        self._seen[new, self.counts[new]] = owner
        self.counts[new] += 1


def _hash(group: str) -> int:
    """64 bits of a group's name, never 0."""
    content = group.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) | 1
