"""How good tags of words are, and the entities that they mark.

I words of all texts, C tags.
"""

from collections.abc import Sequence

import numpy as np

from ..metrics import SMALLEST, counts_of, per_class
from ..operating_point import defined_share
from ..ratios import defined_ratio, of_one_draw, ratio
from .tags import entities, parts


def tagging_scores(
    targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str], of_words: bool = False
) -> dict[str, float | None]:
    """How many entities were found: `f1`, `precision` and `recall` as conlleval and seqeval count them, where a tag I-
    that continues nothing begins an entity too; `strict_f1`, `strict_precision` and `strict_recall` where it does not
    (seqeval's strict mode); `accuracy` and `loss` of the words' tags. A share of no entity at all is None, not defined,
    where seqeval has 0. Of types of words `macro_f1`, `accuracy` and `loss` (see `scores`).

    Args:
        targets: int64 [I, 2], the text of each word and the place of its tag among `labels`.
        outputs: float32 [I, C] probabilities.
        labels: tags in IOB2.
        of_words: every tag is a type of words, which are no entities.
    """
    texts = np.arange(1 + targets[:, 0].max(initial=0))
    return of_one_draw(tagging_scores_of_draws(targets, outputs, labels, of_words, [texts]))


def tagging_scores_of_draws(
    targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str], of_words: bool, draws: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """The `tagging_scores` of draws of the texts, all at once: name -> [B], NaN for what is not defined.

    Args:
        draws: B arrays of the numbers of texts, each as often as it is drawn.
    """
    texts, gold = targets.T
    n = 1 + max(int(texts.max(initial=0)), *(int(draw.max()) for draw in draws))
    predicted, counts = outputs.argmax(1), counts_of(draws, n)

    def of_draws(numbers: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Sums over the texts of what belongs to the texts of these numbers: [B]."""
        return counts @ np.bincount(numbers, weights, n)

    words, losses = of_draws(texts), np.log(1 / np.clip(outputs[np.arange(len(gold)), gold], SMALLEST, 1))
    of_tags = {
        "accuracy": ratio(of_draws(texts, predicted == gold), words),
        "loss": ratio(of_draws(texts, losses), words),
    }
    if of_words:
        f1, occurs = [], []
        for label in range(len(labels)):
            both = of_draws(texts, (gold == label) & (predicted == label))
            whole = of_draws(texts, gold == label) + of_draws(texts, predicted == label)
            f1.append(ratio(2 * both, whole))
            occurs.append(whole > 0)
        return {"macro_f1": ratio(np.sum(f1, axis=0), np.sum(occurs, axis=0).astype(float)), **of_tags}
    of_gold, given, strict = _found(targets, outputs, labels)
    number = {name: of_draws(np.array([entity[0] for entity in each], np.int64))
              for name, each in {"gold": of_gold, "given": given, "strict": strict, "right": of_gold & given,
                                 "strictly right": of_gold & strict}.items()}  # fmt: skip
    return {
        "f1": defined_ratio(2 * number["right"], number["gold"] + number["given"]),
        "precision": defined_ratio(number["right"], number["given"]),
        "recall": defined_ratio(number["right"], number["gold"]),
        "strict_f1": defined_ratio(2 * number["strictly right"], number["gold"] + number["strict"]),
        "strict_precision": defined_ratio(number["strictly right"], number["strict"]),
        "strict_recall": defined_ratio(number["strictly right"], number["gold"]),
        **of_tags,
    }


def _found(targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> tuple[set, set, set]:
    """The entities of all texts, with the number of their text: the gold ones, those given, and of these the strict."""
    texts, gold = targets.T
    starts = np.flatnonzero(np.diff(texts, prepend=-1))
    names = np.array(labels, dtype=object)
    found: tuple[set, set, set] = (set(), set(), set())
    columns = (gold, False), (outputs.argmax(1), False), (outputs.argmax(1), True)
    for into, (ids, strict) in zip(found, columns, strict=True):
        for text, tags in zip(texts[starts], np.split(names[ids], starts)[1:], strict=True):
            into.update((text, *entity) for entity in entities(tags, strict))
    return found


def _both(gold: set, given: set, strict: set) -> dict[str, float | None]:
    """Lenient and strict scores."""
    names = ("precision", "recall", "f1")
    lenient = dict(zip(names, _agreement(gold, given), strict=True))
    return lenient | dict(zip((f"strict_{name}" for name in names), _agreement(gold, strict), strict=True))


def _agreement(gold: set, given: set) -> tuple[float | None, float | None, float | None]:
    """Precision, recall and F1; None where there is nothing to count."""
    right, all_of_both = len(gold & given), len(gold) + len(given)
    return defined_share(right, len(given)), defined_share(right, len(gold)), defined_share(2 * right, all_of_both)


def per_type(targets: np.ndarray, outputs: np.ndarray, labels: Sequence[str], of_words: bool) -> list[dict]:
    """`label`, `precision`, `recall`, `f1` and `support` (gold entities, or words) of every type, and of entities the
    strict scores (see `tagging_scores`); an undefined one is 0.0, as in `per_class`.

    Args:
        of_words: every tag is a type of words, which are no entities.
    """
    if of_words:
        return per_class(targets[:, 1], outputs, labels)
    found = _found(targets, outputs, labels)
    rows = []
    for name in sorted({parts(label)[1] for label in labels if parts(label)[0]}):
        gold, given, strict = ({entity for entity in each if entity[-1] == name} for each in found)
        scores_of_type = {score: value or 0.0 for score, value in _both(gold, given, strict).items()}
        rows.append({"label": name, **scores_of_type, "support": len(gold)})
    return rows
