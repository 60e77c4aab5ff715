"""The words that teach a vocabulary, counted in memory that does not grow with the text; and the unigram model of the
counted entries of a vocabulary."""

import string
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np
from tokenizers import normalizers, pre_tokenizers

from .wordpiece import LONGEST_WORD


class FrequentCounts:
    """Counts things that have a length (words, in characters) and keeps the frequent ones.

    As long as the lengths of all different things together are at most `size`, every count is exact. Beyond that, rare
    things are dropped until half of the size is left: lossy counting (Manku & Motwani 2002, section 4.2), with buckets
    that end when the memory is full. A thing has as much credit as it occurred since it came in. To make room, one is
    taken from the credit of each, again and again, until things without credit can be dropped, the latest first. Each
    time, one is taken from half of the size at least, so `most_lost` is at most 2 / `size` times the length of all that
    was counted.

    Args:
        size: the largest sum of the lengths of different things that is kept between two updates.

    Attributes:
        counts: of the things that are kept. Never too high, too low by `most_lost` at most, and exact for a thing
            that was never dropped. A thing that is not here occurred `most_lost` times at most.
        most_lost: the sum of what was taken from the credit of each.
    """

    def __init__(self, size: int):
        self.size = size
        self.counts: Counter = Counter()
        self.most_lost = 0
        self._held = self._known = 0
        # What `most_lost` was when a thing came in, for those that were there when it last changed.
        self._lost_before: dict = {}

    def update(self, counts: Mapping) -> None:
        """Add counts of things, and drop rare ones if there are too many now."""
        self.counts.update(counts)
        new = islice(reversed(self.counts), len(self.counts) - self._known)
        self._held += sum(map(len, new))
        self._known = len(self.counts)
        if self._held > self.size:
            self._drop()

    def _drop(self) -> None:
        things, number = list(self.counts), len(self.counts)
        lengths = np.fromiter(map(len, things), dtype=np.int64, count=number)
        lost_before = (self._lost_before.get(thing, self.most_lost) for thing in things)
        came = np.fromiter(lost_before, dtype=np.int64, count=number)
        credit = np.fromiter(self.counts.values(), dtype=np.int64, count=number) + came - self.most_lost
        order = np.argsort(-credit, kind="stable")
        fit = np.searchsorted(np.cumsum(lengths[order]), self.size / 2, side="right")
        stays = np.sort(order[:fit]).tolist()
        self.most_lost += int(credit[order[fit]])
        self._lost_before = {things[i]: int(came[i]) for i in stays}
        self.counts = Counter({things[i]: self.counts[things[i]] for i in stays})
        self._held, self._known = int(lengths[stays].sum()), len(stays)


MOST_CHARACTERS = 1 << 22
"""Of all different words together: half a million words."""

# So many texts are counted as they are written. Then each different word of them is normalised once.
_TEXTS_AT_ONCE = 64
_WORDS_AT_ONCE = 4_096
# A mark is a word of one character, which has no pair to join. BERT drops \v and \f, where Python would split.
_TO_SPACES = bytes.maketrans(string.punctuation.encode(), b" " * len(string.punctuation))
_DROPPED = b"\v\f"


class WordCounts:
    """Counts the words that teach a vocabulary: those of 2 to 100 characters, normalised and cut as BERT cuts them.

    Counts are exact while the different words have no more than `MOST_CHARACTERS` together. Beyond that, rare words are
    dropped after every 64th text (see `FrequentCounts`). In n characters of text a word loses at most
    2 n / `MOST_CHARACTERS` of its occurrences (238 in 500 million), and one that was never dropped loses none. Which
    words are dropped depends on the texts and their order alone.
    """

    def __init__(self, normalizer: normalizers.Normalizer):
        self._normalizer = normalizer
        self._cutter = pre_tokenizers.BertPreTokenizer()
        self._counts = FrequentCounts(MOST_CHARACTERS)
        self._written: Counter[bytes] = Counter()
        self._texts = 0

    def add(self, text: str) -> None:
        """Count the words of a text, which may be of any length."""
        self._written.update(text.encode().translate(_TO_SPACES, _DROPPED).split())
        self._texts += 1
        if self._texts % _TEXTS_AT_ONCE == 0:
            self._normalise()

    def result(self) -> Counter[str]:
        """How often each word occurs."""
        self._normalise()
        return self._counts.counts

    def _normalise(self) -> None:
        # Words that are equally frequent are normalised together: which is which need not be known.
        equally_frequent: dict[int, list[bytes]] = {}
        for word, count in self._written.items():
            equally_frequent.setdefault(count, []).append(word)
        self._written = Counter()
        found: Counter[str] = Counter()
        for count, words in equally_frequent.items():
            for word in self._spelled(words):
                if 1 < len(word) <= LONGEST_WORD:
                    found[word] += count
        self._counts.update(found)

    def _spelled(self, words: list[bytes]) -> Iterator[str]:
        words = iter(words)
        while some := list(islice(words, _WORDS_AT_ONCE)):
            for word in self._normalizer.normalize_str(b" ".join(some).decode()).split():
                # Letters and digits are not cut, and few words have others; cutting is slow.
                if word.isalnum():
                    yield word
                else:
                    yield from (part for part, _ in self._cutter.pre_tokenize_str(word))


def log_unigram(counts: np.ndarray) -> np.ndarray:
    """Log probabilities under add-one smoothing; entries that never occur, special tokens too, share the floor.

    Args:
        counts: int64 [V].

    Returns:
        float64 [V]; its exponentials sum to 1.
    """
    return np.log(counts + 1.0) - np.log(counts.sum() + len(counts))
