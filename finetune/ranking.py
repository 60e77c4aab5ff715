"""How well numbers put one kind of text before the other, whatever the threshold: AUROC and average precision."""

import numpy as np

from .ratios import defined_ratio, ratio


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
        area, precision = (float(found[0]) for found in self.of_draws(weights[:, None].astype(np.float64), positive))
        return None if np.isnan(area) else area, None if np.isnan(precision) else precision

    def of_draws(self, counts: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`both` of B draws of the texts, all at once: float64 [B] each, NaN for what is not defined.

        Args:
            counts: float64 [n, B], how often each text is drawn.
            positive: bool [n].
        """
        places = np.flatnonzero(positive[self._order])
        if not len(places):
            return np.full(counts.shape[1], np.nan), np.full(counts.shape[1], np.nan)
        # Only the G numbers of positive texts contribute; negative texts between two of them are summed together.
        numbers, firsts = np.unique(np.searchsorted(self._starts, places, side="right") - 1, return_index=True)
        starts, ends = self._starts[numbers], np.append(self._starts, len(counts))[numbers + 1]
        cuts = np.unique(np.concatenate([[0], starts, ends[ends < len(counts)]]))
        ranked = counts[self._order]
        above = np.cumsum(np.add.reduceat(ranked, cuts), axis=0)
        above = np.concatenate([np.zeros_like(above[:1]), above])  # the texts before each cut, and at last all
        of_positive = np.add.reduceat(ranked[places], firsts)  # [G, B]
        recalled = np.cumsum(of_positive, axis=0)  # [G, B], the positive texts of this number and of larger ones
        given = above[np.searchsorted(cuts, ends)]  # [G, B], the texts of this number and of larger ones
        precisions = ratio(recalled, given)
        # The negative texts of larger numbers stand in the wrong order, those of the same number half so.
        larger = above[np.searchsorted(cuts, starts)] - (recalled - of_positive)
        num_positive, num_negative = recalled[-1], above[-1] - recalled[-1]
        in_order = num_negative - (larger + given - recalled) / 2
        areas = defined_ratio((of_positive * in_order).sum(0), num_positive * num_negative)
        return areas, defined_ratio((of_positive * precisions).sum(0), num_positive)


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
