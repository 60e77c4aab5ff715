"""A packed batch as a masking sees it, what a masking returns, and the choice of single tokens and of whole words."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import Bools, Ints, Keys, runs
from .random_keys import keys

# Longer runs of continuing pieces are clauses of a script without spaces, not words.
MOST_PIECES = 10


class Targets(NamedTuple):
    """What a masking chose."""

    places: Ints
    """[M], ascending: the tokens to predict."""
    drawn_at: Ints
    """[M], the token whose random draw decides how each is replaced: itself, or the first token of its span."""


@dataclass(frozen=True)
class Choice:
    """A packed batch as a masking sees it. A special token stands at both ends of each segment."""

    input_ids: Ints
    """[T]"""
    token_type_ids: Ints
    """[T]"""
    sequence: Ints
    """[T], the sequence of each token."""
    position: Ints
    """[T], the place of each token in its sequence."""
    is_candidate: Bools
    """[T], whether it may be a target."""
    starts_word: Bools
    """[V], whether the piece does not begin with `##`."""
    example_key: Keys
    """[N], random."""
    wanted: Ints
    """[N], how many targets each sequence is to have."""

    def draws(self, purpose: str, places: Ints) -> Keys:
        """Random keys of these places [P]; those for another purpose are independent of them."""
        return keys(0, purpose, 0, self.example_key[self.sequence[places]], self.position[places])

    def word_starts(self) -> Bools:
        """Bool [T]: a word starts here. Words end at segment borders; over-long runs fall into single pieces."""
        is_fixed = ~self.is_candidate
        start = self.starts_word[self.input_ids] | is_fixed
        start[:1] = True
        start[1:] |= (np.diff(self.sequence) != 0) | (np.diff(self.token_type_ids) != 0) | is_fixed[:-1]
        word = np.cumsum(start) - 1
        return start | (np.bincount(word)[word] > MOST_PIECES)

    def shuffled(self, places: Ints) -> tuple[Ints, Ints, Ints]:
        """Shuffle token indices [K] within each sequence: the order [K], and for each sequence where its tokens begin
        in that order, and their number, [N] each."""
        sequence = self.sequence[places].astype(np.uint64)
        # By sequence, then by the upper 40 bits of the key, in one sort.
        order = np.argsort((sequence << np.uint64(40)) | (self.draws("mask", places) >> np.uint64(24)), kind="stable")
        count = np.bincount(self.sequence[places], minlength=len(self.wanted))
        return order, np.cumsum(count) - count, count


def choose_tokens(choice: Choice) -> Targets:
    """The candidates with the smallest keys of each sequence, as many as are wanted."""
    candidates = np.flatnonzero(choice.is_candidate)  # [K]
    order, begins, _ = choice.shuffled(candidates)
    drawn = candidates[order]
    sequence = choice.sequence[drawn]
    rank = np.arange(len(drawn)) - begins[sequence]  # [K]
    places = np.sort(drawn[rank < choice.wanted[sequence]])  # [M]
    return Targets(places, places)


def choose_words(choice: Choice) -> Targets:
    """Whole words in random order, up to the wanted number of pieces; a word that does not fit is skipped.

    Where no word fits at all, the first pieces of the first word are taken.
    """
    word_start, wanted = choice.word_starts(), choice.wanted
    first = np.flatnonzero(word_start & choice.is_candidate)  # [W]
    sizes = np.diff(np.append(np.flatnonzero(word_start), len(word_start)))[choice.is_candidate[word_start]]
    order, begins, words = choice.shuffled(first)
    first, sizes = first[order], sizes[order]
    left = wanted.copy()
    take = np.zeros(len(first), dtype=np.int64)  # [W]
    # Rank by rank over all sequences at once: one step a word would be a Python loop over the text.
    for rank in range(int(words.max(initial=0))):
        active = np.flatnonzero((words > rank) & (left > 0))
        if not len(active):
            break
        place = begins[active] + rank
        fits = sizes[place] <= left[active]
        take[place[fits]] = sizes[place[fits]]
        left[active[fits]] -= sizes[place[fits]]
    nothing = np.flatnonzero((left == wanted) & (wanted > 0))
    take[begins[nothing]] = wanted[nothing]
    places = np.sort(runs(first, take))
    return Targets(places, places)
