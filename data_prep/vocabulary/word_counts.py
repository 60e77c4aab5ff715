"""How often each word of a text occurs, as a vocabulary spells it; the memory does not grow with the text."""

import string
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from tokenizers import normalizers, pre_tokenizers

from .frequent_counts import FrequentCounts
from .wordpiece import LONGEST_WORD

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
