"""How good the labels of texts are that may have any number of them.

K labels, n texts.
"""

from collections.abc import Sequence

import numpy as np

from .metrics import SMALLEST, counts_of
from .operating_point import rates
from .ranking import Ranking, label_calibration_error
from .ratios import defined_ratio, mean_of_defined, of_one_draw, ratio


def multi_label_scores(gold: np.ndarray, probabilities: np.ndarray, given: np.ndarray) -> dict[str, float | None]:
    """Scores over K labels: [n, K] each, gold of 0 and 1, given of bool.

    Micro averages count every label of every text alike, macro averages the labels that occur among gold or given ones;
    recall is sensitivity and precision the positive predictive value, beside which specificity and `npv`, the negative
    one, stand. `map` and `auroc` are means over the labels with a gold text of the average precision and, if they have
    another text too, of the area under the ROC curve; `lrap` is the mean over the texts with a gold label of the share
    of gold labels among those that are as probable or more, mean over the gold ones (label ranking average precision;
    scikit-learn counts texts without a label as 1); `exact_match` the share of texts whose labels are all right;
    `calibration_error` that of each label, mean over the labels (see `ranking`); `loss` the binary cross entropy, mean
    over texts and labels, in nats. A score with nothing to count is None, not defined.
    """
    return of_one_draw(multi_label_scores_of_draws(gold, probabilities, given, [np.arange(len(gold))]))


def multi_label_scores_of_draws(
    gold: np.ndarray, probabilities: np.ndarray, given: np.ndarray, draws: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """The `multi_label_scores` of draws of the texts, all at once: name -> [B], NaN for what is not defined (see
    `scores_of_draws`)."""
    gold = gold.astype(bool)
    counts = counts_of(draws, len(gold))
    right, of_gold, of_given = (counts @ each.astype(np.float64) for each in (gold & given, gold, given))  # [B, K]
    occurs, total = (of_gold + of_given) > 0, counts.sum(1)
    f1 = ratio(2 * right, of_gold + of_given)
    num_right, num_gold, num_given, num = right.sum(1), of_gold.sum(1), of_given.sum(1), total * gold.shape[1]
    num_rest = num - num_gold - num_given + num_right  # neither gold nor given
    areas, precisions = _rankings(gold, probabilities, counts)
    p = np.clip(probabilities.astype(np.float64), SMALLEST, 1 - SMALLEST)
    losses = -np.where(gold, np.log(p), np.log(1 - p)).mean(1)
    return {
        "micro_f1": defined_ratio(2 * num_right, num_gold + num_given),
        "macro_f1": defined_ratio((f1 * occurs).sum(1), occurs.sum(1).astype(float)),
        "micro_precision": defined_ratio(num_right, num_given),
        "micro_recall": defined_ratio(num_right, num_gold),
        "micro_specificity": defined_ratio(num_rest, num - num_gold),
        "micro_npv": defined_ratio(num_rest, num - num_given),
        "map": mean_of_defined(precisions),
        "auroc": mean_of_defined(areas),
        "lrap": defined_ratio(counts @ _label_rankings(gold, probabilities), (counts @ gold.any(1)).astype(float)),
        "exact_match": counts @ (gold == given).all(1) / total,
        "calibration_error": label_calibration_error(probabilities, gold, counts),
        "loss": counts @ losses / total,
    }


def _rankings(gold: np.ndarray, probabilities: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUROC and average precision of each label in each draw: [B, K] each, NaN for what is not defined."""
    of_texts = np.ascontiguousarray(counts.T)
    labels = zip(probabilities.T, gold.T, strict=True)
    areas, precisions = np.stack([Ranking(column).of_draws(of_texts, has) for column, has in labels], axis=-1)
    return areas, precisions


def _label_rankings(gold: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """`lrap` of each text: [n], 0 for one without a gold label."""
    found = np.zeros(len(gold))
    for text, (labels, scores) in enumerate(zip(gold, probabilities, strict=True)):
        of_gold = scores[labels]
        # Places among all labels and among the gold ones; of equal scores the last.
        among_all, among_gold = ((each >= of_gold[:, None]).sum(1) for each in (scores, of_gold))
        found[text] = (among_gold / among_all).mean() if len(of_gold) else 0
    return found


def per_label(gold: np.ndarray, probabilities: np.ndarray, given: np.ndarray, labels: Sequence[str]) -> list[dict]:
    """`label`, `precision`, `recall`, `f1`, `specificity`, `npv`, `auroc`, `average_precision` and `support` of each;
    the middle four are None where they are not defined, and the first three 0."""
    rows = []
    for name, has, probability, is_given in zip(labels, gold.astype(bool).T, probabilities.T, given.T, strict=True):
        found = rates(has, is_given)
        area, precision = Ranking(probability).both(np.ones(len(has)), has)
        rows.append({
            "label": name, "precision": found["ppv"] or 0.0, "recall": found["sensitivity"] or 0.0,
            "f1": found["f1"] or 0.0, "specificity": found["specificity"], "npv": found["npv"],
            "auroc": area, "average_precision": precision, "support": int(has.sum()),
        })  # fmt: skip
    return rows
