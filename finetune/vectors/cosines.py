"""Cosines of vectors: of pairs of texts, of texts at random, and at which place a text finds the one that belongs to
it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

TEMPERATURE = 0.05
"""Cosines are divided by it before a softmax (Gao et al. 2021, section 3)."""
# Cosines that differ by less, as rounding makes them, are equal.
_EQUAL = 1e-6
# Cosines computed at a time: 32 MB.
_AT_ONCE = 8_000_000

COLUMNS = ("cosine", "rank", "loss", "others")
"""What `of_pairs` says of a pair."""
COSINE, RANK, LOSS, OTHERS = range(4)


class RandomCosine:
    """The mean cosine of all pairs of different texts: of unit vectors, by the length of their sum.

    Args:
        count, total: vectors that were taken in before, and the sum of their unit vectors: [H].
    """

    def __init__(self, count: int = 0, total: Sequence[float] | None = None) -> None:
        self.count = count
        self.total: np.ndarray | None = None if total is None else np.array(total, dtype=np.float64)

    def add(self, vectors: np.ndarray) -> None:
        """Take in [n, H]."""
        wide = vectors.astype(np.float64)
        added = (wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)).sum(0)
        self.total = added if self.total is None else self.total + added
        self.count += len(vectors)

    def mean(self) -> float | None:
        """None for less than two texts."""
        if self.count < 2:
            return None
        return float((np.sum(self.total**2) - self.count) / (self.count * (self.count - 1)))

    def sentence(self) -> str:
        """What a person has to know of a cosine; empty for less than two texts."""
        mean = self.mean()
        return "" if mean is None else (
            f"Two of these texts at random have a cosine of {mean:.2f}: judge a cosine beside that, not by itself.\n"
        )  # fmt: skip


def of_pairs(first: Any, second: Any, texts: np.ndarray, is_ranked: bool) -> np.ndarray:
    """The COLUMNS of n pairs: float32 [n, 4].

    The `cosine` of a pair; where `is_ranked`, the `rank` of its second text and its `loss` (see `ranks_and_losses`),
    else NaN; and of `others`, the mean cosine of its first text with the second texts of all other pairs, NaN for a
    single pair.

    Args:
        first, second: unit vectors [n, H], dense or sparse; a text without a word may have zeros.
        texts: int64 [n, 2], the number of each text, the same for equal ones.
    """
    count = len(texts)
    found = np.full((count, len(COLUMNS)), np.nan, dtype=np.float32)
    found[:, COSINE] = own = _dense((first * second).sum(1) if isinstance(first, np.ndarray)
                                    else first.multiply(second).sum(1)).ravel()  # fmt: skip
    if count > 1:
        total = _dense(second.sum(0)).ravel()
        found[:, OTHERS] = (_dense(first @ total).ravel() - own) / (count - 1)
    if is_ranked:
        found[:, RANK], found[:, LOSS] = ranks_and_losses(first, second, texts)
    return found


def ranks_and_losses(first: Any, second: Any, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At which place, from 1, each first text finds its second one by the cosine, and the negative log of its
    probability in a softmax of cosines / TEMPERATURE, in nats: float64 [n] each.

    Candidates are all different second texts, but those that belong to the same first text in another pair, and the
    first text itself. What is as near counts as nearer: a model that gives all texts one vector finds nothing.

    Args:
        first, second, texts: see `of_pairs`.
    """
    from scipy.sparse import csr_matrix

    names, where, column = np.unique(texts[:, 1], return_index=True, return_inverse=True)  # U candidates
    _, query = np.unique(texts[:, 0], return_inverse=True)
    count, candidates = len(texts), second[where]  # [U, H]
    right = csr_matrix((np.ones(count, dtype=bool), (query, column)), shape=(query.max() + 1, len(names)))
    ranks, losses = np.empty(count), np.empty(count)
    at_once = max(1, _AT_ONCE // len(names))
    for begin in range(0, count, at_once):
        part = slice(begin, begin + at_once)
        cosines = _dense(first[part] @ candidates.T)  # [b, U]
        rows, own_column = np.arange(len(cosines)), column[part]
        own = cosines[rows, own_column].astype(np.float64)
        is_out = right[query[part]].toarray() | (texts[part, :1] == names)
        is_out[rows, own_column] = False
        cosines[is_out] = -np.inf
        ranks[part] = (cosines >= own[:, None] - _EQUAL).sum(1)
        highest = cosines.max(1).astype(np.float64)
        shares = np.exp((cosines - highest[:, None]) / TEMPERATURE).sum(1)
        losses[part] = np.log(shares) + (highest - own) / TEMPERATURE
    return ranks, losses


def _dense(values: Any) -> np.ndarray:
    """What numpy or scipy made of a product, as an array."""
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values)
