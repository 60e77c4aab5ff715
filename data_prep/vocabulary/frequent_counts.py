"""How often each of many things occurs, in bounded memory: the rare ones of very many are forgotten."""

from collections import Counter
from collections.abc import Mapping
from itertools import islice

import numpy as np


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
