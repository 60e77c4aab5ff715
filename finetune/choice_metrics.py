"""How good scores of choices are, beside what needs no BERT: words that text and choice share, and length.

n rows with I choices together. Targets are np.int64 [I, 2], the row of each choice, from 0 and ascending, and 1 for the
right one; scores np.float32 [I, 1], whose softmax over the choices of a row gives probabilities. Equal scores count as
if their order were drawn: the right choice may always stand first.
"""

from collections.abc import Sequence

import numpy as np

from .rows import Example
from .simple_models import word_weights


def of_rows(targets: np.ndarray, scores: np.ndarray) -> dict[str, np.ndarray]:
    """Of each row, float64 [n]: `accuracy`, 1 where the right choice has the highest score, and 1 / t where t choices
    have; `mrr`, 1 / its rank, the mean over the ranks that it shares; `loss`, the negative log of its probability, in
    nats. NaN where a score is."""
    rows, is_right = targets.T
    found = scores[:, 0].astype(np.float64)
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    sizes = np.diff(np.append(starts, len(rows)))
    right = np.flatnonzero(is_right)  # [n]
    of_right = np.repeat(found[right], sizes)  # [I]
    with np.errstate(invalid="ignore"):
        loss = np.logaddexp.reduceat(found, starts) - found[right]
    before = np.add.reduceat((found > of_right).astype(np.int64), starts)
    alike = np.maximum(1, np.add.reduceat((found == of_right).astype(np.int64), starts))
    # Of 1 to m the sum of 1 / rank.
    sums = np.append(0.0, np.cumsum(1 / np.arange(1, sizes.max(initial=0) + 1)))
    each = {"accuracy": (before == 0) / alike, "mrr": (sums[before + alike] - sums[before]) / alike}
    return {**{name: np.where(np.isnan(loss), np.nan, values) for name, values in each.items()}, "loss": loss}


def choice_scores(targets: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """The mean over the rows of `of_rows`."""
    return {name: float(values.mean()) for name, values in of_rows(targets, scores).items()}


def choice_scores_of_draws(
    targets: np.ndarray, scores: np.ndarray, draws: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """The `choice_scores` of draws of the rows: name -> [B].

    Args:
        draws: B arrays of the numbers of rows, each as often as it is drawn.
    """
    found = of_rows(targets, scores)
    return {name: np.array([values[draw].mean() for draw in draws]) for name, values in found.items()}


def chance(rows: Sequence[Example]) -> float:
    """The accuracy of one choice at random."""
    return float(np.mean([1 / len(row.choices or ()) for row in rows]))


def similarity(train: Sequence[Example], others: Sequence[Sequence[Example]]) -> list[np.ndarray]:
    """The cosine of the TF-IDF weights of each choice and of its row's text, both texts if it has two: float32 [I, 1]
    for each set; 0 where the training rows contain no word."""
    vectorizer = word_weights()
    texts = [text for row in train for text in (_question(row), *(row.choices or ()))]
    if not any(map(vectorizer.build_analyzer(), texts)):
        return [np.zeros((len(_every(rows)), 1), np.float32) for rows in others]
    vectorizer.fit(texts)
    found = []
    for rows in others:
        owners = np.repeat(np.arange(len(rows)), [len(row.choices or ()) for row in rows])
        questions = vectorizer.transform(map(_question, rows))[owners]
        # Of the length 1 both.
        products = questions.multiply(vectorizer.transform(_every(rows)))
        found.append(np.asarray(products.sum(1), np.float32).reshape(-1, 1))
    return found


def length(rows: Sequence[Example]) -> np.ndarray:
    """Scores with which a choice is as probable as it is long, in characters: float32 [I, 1]."""
    return np.log([max(1, len(choice)) for choice in _every(rows)]).astype(np.float32)[:, None]


def _every(rows: Sequence[Example]) -> list[str]:
    return [choice for row in rows for choice in row.choices or ()]


def _question(row: Example) -> str:
    return row.text if row.text_pair is None else f"{row.text}\n{row.text_pair}"
