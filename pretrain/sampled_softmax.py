"""Scores for some entries of the vocabulary in place of all: a sampled softmax (Jean et al. 2015, section 3).

The sum over the vocabulary under a softmax is estimated: each entry is drawn with a probability that grows with its
frequency, and stands for as many as that leaves out. The estimate of the sum is unbiased, and a target's own score is
always exact. A step computes a fifth of the scores, so a model can learn from more masked words for little.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data_prep.examples import Ints
from data_prep.examples.random_keys import keys, uniform
from model.batch import rounded

# Entries that are drawn for a step, in the mean (measured: docs/tried.md).
DRAWN = 2048


@dataclass(frozen=True)
class Entries:
    """The entries of the vocabulary that the scores of a batch are computed for, S of them."""

    ids: Tensor
    """[S] int64, ascending."""
    log_weights: Tensor
    """[S] float32, the logarithm of how many entries each stands for; the lowest number for those that were not drawn,
    which count for nothing but their own targets."""
    targets: Tensor
    """[M] int64, the places of the targets among the entries."""


class EntrySampler:
    """Draws entries for a step: the same for all micro-batches and processes, so that a step does not depend on them.

    Args:
        unigram_counts: int64 [V], how often each entry occurs in the training part.
        seed: decides the draws.
        drawn: entries of a step, in the mean.
    """

    def __init__(self, unigram_counts: np.ndarray, seed: int, drawn: int):
        self.seed, self.probability = seed, inclusion(unigram_counts, drawn)

    def draw(self, step: int) -> np.ndarray:
        """float32 [V]: how many entries each entry stands for in this step; 0 for those that are not drawn."""
        chance = uniform(keys(self.seed, "entries", step, np.arange(len(self.probability))))
        return np.where(chance < self.probability, 1 / self.probability, 0).astype(np.float32)


def inclusion(unigram_counts: np.ndarray, drawn: int) -> np.ndarray:
    """The inclusion probability of each entry: as the square root of its count, summing to `drawn`; float64 [V].

    The square root is a compromise: equal probabilities estimate frequent words badly, and with probabilities
    proportional to the counts a rare word would stand for thousands.
    """
    root = np.sqrt(np.maximum(unigram_counts, 1))
    if drawn >= len(root):
        return np.ones(len(root))
    # The k most frequent are certain, for the smallest k that leaves none of the others above 1.
    falling = np.sort(root)[::-1]
    behind = np.cumsum(falling[::-1])[::-1]  # of those from k on
    certain = np.flatnonzero(falling * (drawn - np.arange(len(root))) <= behind)[0]
    return np.minimum(1.0, root * (drawn - certain) / behind[certain])


def entries(weights: np.ndarray, targets: Ints) -> Entries:
    """The entries that were drawn, all targets, and as many more as make a number that comes again (see `rounded`).

    Args:
        weights: as `EntrySampler.draw` returns them.
        targets: int64 [M].
    """
    is_there = weights > 0
    is_there[targets] = True
    missing = rounded(int(is_there.sum())) - int(is_there.sum())
    is_there[np.flatnonzero(~is_there)[:missing]] = True
    ids = np.flatnonzero(is_there)
    with np.errstate(divide="ignore"):
        # No infinity, which --detect-anomaly would take for a mistake of the run; the exponential is 0 all the same.
        log_weights = np.maximum(np.log(weights[ids]), np.finfo(np.float32).min)
    place = np.zeros(len(weights), dtype=np.int64)
    place[ids] = np.arange(len(ids))
    return Entries(torch.from_numpy(ids), torch.from_numpy(log_weights), torch.from_numpy(place[targets]))
