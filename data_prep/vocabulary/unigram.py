"""The unigram model: the baseline beside every MLM loss, and where the output bias of the MLM head starts."""

import numpy as np


def log_unigram(counts: np.ndarray) -> np.ndarray:
    """Log probabilities under add-one smoothing; entries that never occur, special tokens too, share the floor.

    Args:
        counts: int64 [V].

    Returns:
        float64 [V]; its exponentials sum to 1.
    """
    return np.log(counts + 1.0) - np.log(counts.sum() + len(counts))


def cross_entropy(counts: np.ndarray, targets: np.ndarray) -> float:
    """Mean negative log probability (nats a token) of targets [M] under the unigram model of `counts` [V]."""
    return float(-log_unigram(counts)[targets].mean()) if len(targets) else 0.0


def most_frequent_accuracy(counts: np.ndarray, targets: np.ndarray) -> float:
    """Share of targets [M] that are the most frequent entry: what always saying the same word achieves."""
    return float((targets == counts.argmax()).mean()) if len(targets) else 0.0
