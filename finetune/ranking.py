"""How well numbers put one kind of text before the other, whatever the threshold: AUROC and average precision."""

import numpy as np


class Ranking:
    """Texts in the order of a number; texts of one number stand together.

    Args:
        numbers: [n], say the probability of a class.
    """

    def __init__(self, numbers: np.ndarray):
        self._order = np.argsort(-numbers, kind="stable")
        ranked = numbers[self._order]
        # Where each number begins.
        self._starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(ranked) else np.zeros(0, int)

    def both(self, weights: np.ndarray, positive: np.ndarray) -> tuple[float | None, float | None]:
        """AUROC, the share of pairs of a positive and a negative text that stand in the right order, a half for equal
        ones (Hanley and McNeil 1982); and average precision, the precision at each threshold, weighted by the recall
        that it adds, as scikit-learn has it. None of texts of one kind, and without a positive text.

        Args:
            weights: [n], how often each text counts.
            positive: bool [n].
        """
        counts = self._counts(weights, positive)
        return _auroc(*counts), _average_precision(*counts)

    def _counts(self, weights: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positive and negative texts of each number, the largest first."""
        ranked, is_positive = weights[self._order].astype(np.float64), positive[self._order]
        if not len(ranked):
            return ranked, ranked
        of_positive = np.add.reduceat(np.where(is_positive, ranked, 0.0), self._starts)
        return of_positive, np.add.reduceat(ranked, self._starts) - of_positive


def _auroc(of_positive: np.ndarray, of_negative: np.ndarray) -> float | None:
    pairs = of_positive.sum() * of_negative.sum()
    if not pairs:
        return None
    below = of_negative.sum() - np.cumsum(of_negative)
    return float((of_positive * (below + of_negative / 2)).sum() / pairs)


def _average_precision(of_positive: np.ndarray, of_negative: np.ndarray) -> float | None:
    found = np.cumsum(of_positive)
    total = found[-1] if len(found) else 0
    if not total:
        return None
    given = found + np.cumsum(of_negative)
    precision = np.divide(found, given, out=np.zeros_like(found), where=given > 0)
    return float((of_positive * precision).sum() / total)


BINS = 15


def calibration_error(confidence: np.ndarray, right: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Expected calibration error: the gap between confidence and accuracy, averaged over 15 bins of equal width, each
    weighted by its texts (Naeini et al. 2015; Guo et al. 2017, section 2).

    Args:
        confidence: [n], the probability of the answer.
        right: bool [n].
        weights: [n], how often each text counts; by default once.
    """
    confidence = confidence.astype(np.float64)
    weights = np.ones(len(confidence)) if weights is None else weights
    gap = np.bincount(_bins(confidence), weights * (confidence - right), BINS)
    return float(np.abs(gap).sum() / weights.sum())


def label_calibration_error(probabilities: np.ndarray, gold: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How far the probabilities of labels are from the share of texts that have them: the `calibration_error` of each
    label by itself, mean over the labels (class-wise: Kull et al. 2019, section 2), for each of B draws: [B].

    Args:
        probabilities: [n, K].
        gold: bool [n, K].
        counts: float64 [B, n], how often each text is drawn.
    """
    probabilities = probabilities.astype(np.float64)
    errors = np.zeros(len(counts))
    for place, gap in zip(_bins(probabilities).T, (probabilities - gold).T, strict=True):
        of_bins = np.zeros((len(gap), BINS))
        of_bins[np.arange(len(gap)), place] = gap
        errors += np.abs(counts @ of_bins).sum(1)
    return errors / counts.sum(1) / probabilities.shape[1]


def _bins(probabilities: np.ndarray) -> np.ndarray:
    """The bin of each: (0, 1/15], (1/15, 2/15], ..."""
    return np.clip(np.ceil(probabilities * BINS).astype(int) - 1, 0, BINS - 1)
