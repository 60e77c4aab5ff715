"""How good the labels of texts are that may have any number of them.

K labels, n texts.
"""

from collections.abc import Sequence

import numpy as np

from .metrics import SMALLEST, counts_of, defined_ratio, ratio, share
from .operating_point import defined_share
from .ranking import Ranking


def multi_label_scores(gold: np.ndarray, probabilities: np.ndarray, given: np.ndarray) -> dict[str, float | None]:
    """Scores over K labels: [n, K] each, gold of 0 and 1, given of bool.

    Micro averages count every label of every text alike, macro averages the labels that occur among gold or given ones;
    `map` is the mean over the labels with a gold text of the average precision; `lrap` the mean over the texts with a
    gold label of the share of gold labels among those that are as probable or more, mean over the gold ones (label
    ranking average precision; scikit-learn counts texts without a label as 1); `exact_match` the share of texts whose
    labels are all right; `loss` the binary cross entropy, mean over texts and labels, in nats. A score without a gold
    or given label to count is None, not defined.
    """
    from sklearn.metrics import average_precision_score

    gold = gold.astype(bool)
    right, of_gold, of_given = (gold & given).sum(0), gold.sum(0), given.sum(0)
    occurs = (of_gold + of_given) > 0
    f1 = 2 * right[occurs] / (of_gold + of_given)[occurs]
    some = np.flatnonzero(of_gold)
    precisions = [average_precision_score(gold[:, label], probabilities[:, label]) for label in some]
    ranked = _label_rankings(gold, probabilities)
    p = np.clip(probabilities.astype(np.float64), SMALLEST, 1 - SMALLEST)
    return {
        "micro_f1": defined_share(2 * right.sum(), of_gold.sum() + of_given.sum()),
        "macro_f1": float(f1.mean()) if len(f1) else None,
        "micro_precision": defined_share(right.sum(), of_given.sum()),
        "micro_recall": defined_share(right.sum(), of_gold.sum()),
        "map": float(np.mean(precisions)) if precisions else None,
        "lrap": float(ranked[gold.any(1)].mean()) if gold.any() else None,
        "exact_match": float((gold == given).all(1).mean()),
        "loss": float(-np.where(gold, np.log(p), np.log(1 - p)).mean()),
    }


def multi_label_scores_of_draws(
    gold: np.ndarray, probabilities: np.ndarray, given: np.ndarray, draws: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """The `multi_label_scores` of draws of the texts, all at once: name -> [B] (see `scores_of_draws`)."""
    gold = gold.astype(bool)
    counts = counts_of(draws, len(gold))
    right, of_gold, of_given = (counts @ each.astype(np.float64) for each in (gold & given, gold, given))  # [B, K]
    occurs, is_gold, total = (of_gold + of_given) > 0, of_gold > 0, counts.sum(1)
    f1 = ratio(2 * right, of_gold + of_given)
    rankings = [Ranking(column) for column in probabilities.T]
    precisions = np.array([
        [ranking.average_precision(weights, positive) or 0.0
         for ranking, positive in zip(rankings, gold.T, strict=True)]
        for weights in counts
    ])  # fmt: skip
    p = np.clip(probabilities.astype(np.float64), SMALLEST, 1 - SMALLEST)
    losses = -np.where(gold, np.log(p), np.log(1 - p)).mean(1)
    return {
        "micro_f1": defined_ratio(2 * right.sum(1), of_gold.sum(1) + of_given.sum(1)),
        "macro_f1": defined_ratio((f1 * occurs).sum(1), occurs.sum(1).astype(float)),
        "micro_precision": defined_ratio(right.sum(1), of_given.sum(1)),
        "micro_recall": defined_ratio(right.sum(1), of_gold.sum(1)),
        "map": defined_ratio((precisions * is_gold).sum(1), is_gold.sum(1).astype(float)),
        "lrap": defined_ratio(counts @ _label_rankings(gold, probabilities), (counts @ gold.any(1)).astype(float)),
        "exact_match": counts @ (gold == given).all(1) / total,
        "loss": counts @ losses / total,
    }


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
    """`label`, `precision`, `recall`, `f1`, `average_precision` (None without a gold text) and `support` of each."""
    from sklearn.metrics import average_precision_score

    gold, rows = gold.astype(bool), []
    for label, name in enumerate(labels):
        right, of_gold, of_given = ((gold & given)[:, label].sum(), gold[:, label].sum(), given[:, label].sum())
        precision = average_precision_score(gold[:, label], probabilities[:, label]) if of_gold else None
        rows.append({
            "label": name, "precision": share(right, of_given), "recall": share(right, of_gold),
            "f1": share(2 * right, of_gold + of_given),
            "average_precision": None if precision is None else float(precision), "support": int(of_gold),
        })  # fmt: skip
    return rows
