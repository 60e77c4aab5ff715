"""How good predicted classes and numbers are: scores of one training, of draws of the texts, and of several seeds.

C classes, n texts. Gold labels are np.int64 [n], probabilities np.float32 [n, C]; the prediction is what is given as
such (int64 [n]), else the class of the largest probability, the first of several that are equal.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .operating_point import rates
from .ranking import Ranking, calibration_error
from .ratios import mean_of_defined, of_one_draw, ratio

METRICS = (
    "accuracy",
    "macro_precision",
    "macro_recall",
    "macro_f1",
    "weighted_precision",
    "weighted_recall",
    "weighted_f1",
    "mcc",
    "auroc",
    "average_precision",
    "calibration_error",
    "loss",
)
OF_TWO = ("sensitivity", "specificity", "ppv", "npv", "positive_f1", "positive_f2", "positive_f05")
"""Besides the METRICS, where one of two classes is looked for (see `operating_point.rates`)."""
# With more classes nobody asks how well each of them is ranked.
_MOST_RANKED = 100
# What scikit-learn's log_loss does with float32: a gold class of probability 0 costs 15.9 nats, not infinity.
SMALLEST = float(np.finfo(np.float32).eps)


def scores(
    gold: np.ndarray, probabilities: np.ndarray, positive: int | None = None, predicted: np.ndarray | None = None
) -> dict[str, float | None]:
    """The METRICS of predictions, as scikit-learn defines them with `zero_division=0`.

    Macro averages are over the classes that occur among gold labels or predictions; `mcc` is Matthews' correlation for
    any number of classes (Gorodkin 2004), 0 where the predictions are of a single class, and None where the gold labels
    are (scikit-learn has 0 there too); `auroc` and `average_precision` are of the positive class, or the mean over the
    classes among the gold labels, each against the rest, and None where there is none, or with over 100 classes;
    `calibration_error` is that of the answers (see `ranking`); `loss` is the mean negative log probability of the gold
    class in nats, probabilities below 1.2e-7 counted as that.

    Args:
        positive: of two classes the one that is looked for, for the scores OF_TWO.
    """
    return of_one_draw(scores_of_draws(gold, probabilities, [np.arange(len(gold))], positive, predicted))


def _of_two(gold: np.ndarray, predicted: np.ndarray, positive: int, weights: np.ndarray) -> dict[str, float | None]:
    """The scores OF_TWO."""
    found = rates(gold == positive, predicted == positive, weights)
    return {name: found[name.removeprefix("positive_")] for name in OF_TWO}


def _ranked(
    gold: np.ndarray, probabilities: np.ndarray, positive: int | None, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """`auroc` and `average_precision` of each of B draws of the texts (see `scores`): [B], NaN for None.

    Args:
        counts: [B, n], how often each text is drawn.
    """
    classes = [positive] if positive is not None else range(probabilities.shape[1])
    found = np.full((2, len(counts), 1), np.nan)
    if len(classes) <= _MOST_RANKED:
        of_texts = np.ascontiguousarray(counts.T)
        found = np.stack([Ranking(probabilities[:, c]).of_draws(of_texts, gold == c) for c in classes], axis=-1)
    return dict(zip(("auroc", "average_precision"), mean_of_defined(found), strict=True))


def scores_of_draws(
    gold: np.ndarray,
    probabilities: np.ndarray,
    draws: Sequence[np.ndarray],
    positive: int | None = None,
    predicted: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The `scores` of draws of the texts, all at once: name -> float64 [B], NaN for what is not defined.

    Args:
        draws: B arrays of the numbers of texts, each as often as it is drawn.
    """
    from scipy.sparse import csr_array

    n, c = probabilities.shape
    predicted = probabilities.argmax(1) if predicted is None else predicted
    right = np.flatnonzero(gold == predicted)
    counts = counts_of(draws, n)
    every = np.arange(n)

    def of_class(texts: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """How often each class is drawn: [B, C]."""
        return (csr_array((np.ones(len(texts)), (classes, texts)), shape=(c, n)) @ counts.T).T

    of_gold, of_given, of_right = of_class(every, gold), of_class(every, predicted), of_class(right, gold[right])
    total, occurs = counts.sum(1), (of_gold + of_given) > 0
    found = {"accuracy": of_right.sum(1) / total}
    columns = {
        "precision": ratio(of_right, of_given),
        "recall": ratio(of_right, of_gold),
        "f1": ratio(2 * of_right, of_gold + of_given),
    }
    for name, column in columns.items():
        found[f"macro_{name}"] = (column * occurs).sum(1) / occurs.sum(1)
        found[f"weighted_{name}"] = (column * of_gold).sum(1) / total
    # Gorodkin 2004, equation 8, of the margins.
    covariance = of_right.sum(1) * total - (of_gold * of_given).sum(1)
    spread = (total**2 - (of_gold**2).sum(1)) * (total**2 - (of_given**2).sum(1))
    found["mcc"] = np.where((of_gold > 0).sum(1) < 2, np.nan, ratio(covariance, np.sqrt(spread)))
    of_text = probabilities[every, gold].astype(np.float64)
    found["loss"] = counts @ np.log(1 / np.clip(of_text, SMALLEST, 1)) / total
    confidence, is_right = probabilities[every, predicted], predicted == gold
    found["calibration_error"] = np.array([calibration_error(confidence, is_right, weights) for weights in counts])
    found |= _ranked(gold, probabilities, positive, counts)
    ordered = {name: found[name] for name in METRICS}
    if positive is None:
        return ordered
    of_two = [_of_two(gold, predicted, positive, weights) for weights in counts]
    return ordered | {name: np.array([each[name] for each in of_two], np.float64) for name in OF_TWO}


def counts_of(draws: Sequence[np.ndarray], n: int) -> np.ndarray:
    """How often each of n texts is in each draw: float64 [B, n]."""
    return np.stack([np.bincount(draw, minlength=n) for draw in draws]).astype(np.float64)


def per_class(
    gold: np.ndarray, probabilities: np.ndarray, labels: Sequence[str], predicted: np.ndarray | None = None
) -> list[dict]:
    """`label`, `precision`, `recall`, `f1` and `support` (gold texts) of every class; an undefined score is 0.0."""
    from sklearn.metrics import precision_recall_fscore_support

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        precision, recall, f1, support = precision_recall_fscore_support(
            gold,
            probabilities.argmax(axis=1) if predicted is None else predicted,
            labels=np.arange(len(labels)),
            zero_division=0,
        )
    columns = zip(labels, precision.tolist(), recall.tolist(), f1.tolist(), map(int, support), strict=True)
    return [dict(zip(("label", "precision", "recall", "f1", "support"), row, strict=True)) for row in columns]


def confusion(gold: np.ndarray, probabilities: np.ndarray, num_labels: int, predicted: np.ndarray | None = None) -> Any:
    """How many texts of each gold class (rows) were given each class (columns): int64 [C, C], sparse."""
    from scipy.sparse import coo_array

    predicted = probabilities.argmax(axis=1) if predicted is None else predicted
    return coo_array((np.ones(len(gold), np.int64), (gold, predicted)), shape=(num_labels, num_labels)).tocsr()


def spread(values: Sequence[float | None]) -> dict:
    """`mean`, `std` (of a sample: divided by n - 1; None for one value) and the values themselves as `seeds`; mean and
    std are None where a value is, which is not defined."""
    if any(value is None for value in values):
        return {"mean": None, "std": None, "seeds": list(values)}
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "std": std, "seeds": list(values)}


def combined(results: Sequence[Mapping[str, float]]) -> dict[str, dict]:
    """The scores of several seeds -> the spread of each metric that all of them have."""
    names = [name for name in results[0] if all(name in result for result in results)]
    return {name: spread([result[name] for result in results]) for name in names}


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's, of float64 [n] each that are not constant. Intervals ask for it hundreds of times, and scipy's
    functions work out a p-value too."""
    one, other = (side - side.mean() for side in (one, other))
    return float(np.clip((one / np.linalg.norm(one)) @ (other / np.linalg.norm(other)), -1.0, 1.0))


def regression_scores(gold: np.ndarray, predicted: np.ndarray) -> dict[str, float | None]:
    """How near numbers are: float64 [n] each.

    Pearson's and Spearman's correlation are None, not defined, where one side is constant; `mae` and `rmse` are the
    mean absolute and the root mean squared error, `loss` the mean squared error.
    """
    from scipy.stats import rankdata

    error = predicted - gold
    squared = float(np.mean(error**2))
    is_constant = min(np.ptp(gold), np.ptp(predicted)) == 0 or len(gold) < 2
    return {
        "pearson": None if is_constant else correlation(gold, predicted),
        "spearman": None if is_constant else correlation(rankdata(gold), rankdata(predicted)),
        "mae": float(np.mean(np.abs(error))),
        "rmse": squared**0.5,
        "loss": squared,
    }
