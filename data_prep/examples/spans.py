"""The choice of several words in a row: the spans of SpanBERT and the n-grams of ALBERT."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from . import Bools, Ints, Keys, runs
from .choice import Choice, Targets
from .random_keys import uniform

Shares = npt.NDArray[np.float64]


def _normalised(shares: Shares) -> Shares:
    return shares / shares.sum()


SPAN_SHARES = _normalised(0.2 * 0.8 ** np.arange(10.0))
"""How probable spans of 1 to 10 words are: a geometric distribution, cut off and normalised again."""
NGRAM_SHARES = _normalised(1 / np.arange(1.0, 4.0))
"""How probable n-grams of 1 to 3 words are."""


@dataclass(frozen=True)
class Words:
    """The words of a packed batch, W of them. A special token is a word here, too."""

    first: Ints
    """[W + 1], the first token of each, then T."""
    of: Ints
    """[T], the word of each token."""
    special: Ints
    """Which of them are special tokens, ascending, then W."""

    @classmethod
    def of_batch(cls, choice: Choice) -> Self:
        """The words between those tokens that are no candidates, which are special."""
        is_start = choice.word_starts()
        starts = np.flatnonzero(is_start)
        special = np.append(np.flatnonzero(~choice.is_candidate[starts]), len(starts))
        return cls(np.append(starts, len(is_start)), np.cumsum(is_start) - 1, special)

    def behind(self, word: Ints, count: Ints) -> Ints:
        """The word `count` words after each of these, at most the special token that ends its segment."""
        return np.minimum(word + count, self.special[np.searchsorted(self.special, word)])


def lengths(key: Keys, shares: Shares) -> Ints:
    """A number of words, from 1 on, for each key, with these probabilities: int64 like `key`."""
    return 1 + np.searchsorted(np.cumsum(shares)[:-1], uniform(key), side="right")


def choose_spans(choice: Choice) -> Targets:
    """Spans of whole words, until the wanted number of tokens is chosen (Joshi et al. 2020, section 3.1).

    A span begins at the word of a random token that is not chosen yet, and stays within its segment. The last span is
    cut short once there are enough tokens. Adjacent spans merge; each span is replaced as a whole.
    """
    words, candidates = Words.of_batch(choice), np.flatnonzero(choice.is_candidate)  # [K]
    # Tokens in random order, but for those already chosen: each next one is any of the rest with equal probability.
    order, begins, count = choice.shuffled(candidates)
    anchors = candidates[order]
    left, is_chosen = choice.wanted.copy(), np.zeros(len(choice.input_ids), dtype=bool)
    for rank in range(int(count.max(initial=0))):
        active = np.flatnonzero((count > rank) & (left > 0))
        if not len(active):
            break
        anchor = anchors[begins[active] + rank]
        is_free = ~is_chosen[anchor]
        active, anchor = active[is_free], anchor[is_free]
        word = words.of[anchor]
        end = words.behind(word, lengths(choice.draws("span length", anchor), SPAN_SHARES))
        left[active] -= _add(is_chosen, words.first[word], words.first[end], left[active])
    places = np.flatnonzero(is_chosen)
    return Targets(places, run_starts(places))


def _add(is_chosen: Bools, first: Ints, end: Ints, most: Ints) -> Ints:
    """Choose those tokens of spans [S] that are not chosen yet, the first `most` [S] of each; how many were added [S].

    Args:
        is_chosen: [T], changed in place.
        first, end: the first token of each span, and the one behind it.
    """
    size = end - first
    tokens, ends = runs(first, size), np.cumsum(size)
    added = np.append(0, np.cumsum(~is_chosen[tokens]))
    before = added[ends - size]  # [S]
    is_chosen[tokens[added[1:] - np.repeat(before, size) <= np.repeat(most, size)]] = True
    return np.minimum(added[ends] - before, most)


def run_starts(places: Ints) -> Ints:
    """The first place of the run that each of these ascending places is in: [M]."""
    is_first = np.diff(places, prepend=-2) != 1
    return places[is_first][np.cumsum(is_first) - 1]


def choose_ngrams(choice: Choice) -> Targets:
    """N-grams of up to three whole words in random order, up to the wanted number of tokens (Lan et al. 2020, section
    4.1, and the code of its authors).

    An n-gram that does not fit is shortened word by word. One that does not fit at all, or overlaps another, is
    skipped. Each token is replaced independently. Where nothing fits, the first pieces of the first word are taken.
    """
    words, wanted = Words.of_batch(choice), choice.wanted
    candidates = np.flatnonzero(choice.is_candidate[words.first[:-1]])  # [C]
    order, begins, count = choice.shuffled(words.first[candidates])
    starts, steps = candidates[order], np.arange(len(NGRAM_SHARES))[:, None]
    left, is_taken = wanted.copy(), np.zeros(len(words.first) + len(steps), dtype=bool)
    for rank in range(int(count.max(initial=0))):
        active = np.flatnonzero((count > rank) & (left > 0))
        if not len(active):
            break
        word = starts[begins[active] + rank]
        first, end = words.first[word], words.behind(word, 1 + steps)  # [3, active]
        size = words.first[end] - first  # [3, active]
        drawn = lengths(choice.draws("n-gram length", first), NGRAM_SHARES)
        n = np.minimum((size <= left[active]).sum(0), drawn)
        inside, columns = word + steps, np.arange(len(word))
        is_inside = (steps < n) & (inside < end[n - 1, columns])
        is_free = (n > 0) & ~(is_taken[inside] & is_inside).any(0)
        is_taken[inside[is_inside & is_free]] = True
        left[active] -= np.where(is_free, size[n - 1, columns], 0)
    is_chosen = is_taken[words.of]
    nothing = np.flatnonzero((left == wanted) & (wanted > 0))
    is_chosen[runs(words.first[starts[begins[nothing]]], wanted[nothing])] = True
    places = np.flatnonzero(is_chosen)
    return Targets(places, places)
