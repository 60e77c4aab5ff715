"""A training that learned nothing about its labels: how it is noticed, and how it begins again at a lower rate."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from data_prep.durable import read_object, write_json

from .settings import FinetuneError

MOST_RESTARTS = 2
# The learning rate of a restart, as a share of the one before.
GENTLER = 0.3
# Fewer steps are too few to expect anything of.
FEWEST_STEPS = 50
# By what share the loss is below the entropy of the labels, at least, where something was learned; where every text is
# given one class, that is easily had by chance.
LEAST_GAIN, LEAST_GAIN_OF_ONE_CLASS = 0.02, 0.1
# What scikit-learn's log_loss does with float32 (see `finetune.metrics.scores`).
_SMALLEST = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Collapse:
    """What a training that learned nothing ended at, on texts that it was trained on."""

    learning_rate: float
    loss: float
    """Mean negative log probability of the gold class, in nats."""
    entropy: float
    """The loss of one who knows how frequent the classes are and reads no text."""
    classes: int
    """How many different classes the texts were given."""

    def __str__(self) -> str:
        given = "one class for every text" if self.classes == 1 else f"{self.classes} classes for the texts"
        return (
            f"learned nothing at {self.learning_rate:g}: loss {self.loss:.3f} on its training texts, "
            f"{self.entropy:.3f} without reading them; {given}"
        )


def collapse_of(
    gold: np.ndarray, probabilities: np.ndarray, class_weights: np.ndarray | None, learning_rate: float
) -> Collapse | None:
    """What a training that learned nothing ended at; None for one that learned something.

    Args:
        gold: int64 [n], of training texts.
        probabilities: float32 [n, C], the model's for these texts.
        class_weights: float32 [C], how much a text of each class counted in training; None: all the same.
    """
    weights = np.ones(len(gold)) if class_weights is None else class_weights[gold].astype(np.float64)
    shares = np.bincount(gold, weights) / weights.sum()
    shares = shares[shares > 0]
    entropy = float(-(shares * np.log(shares)).sum())
    of_gold = probabilities[np.arange(len(gold)), gold].astype(np.float64)
    loss = float(np.average(-np.log(np.maximum(of_gold, _SMALLEST)), weights=weights))
    classes = len(np.unique(probabilities.argmax(1)))
    if loss < (1 - (LEAST_GAIN_OF_ONE_CLASS if classes == 1 else LEAST_GAIN)) * entropy:
        return None
    return Collapse(learning_rate, loss, entropy, classes)


class Restarts:
    """The trainings of a seed that learned nothing, on disk until the seed has its results.

    Args:
        path: the file; there is none before the first of them.
        data: tells the texts and the model from others.
    """

    def __init__(self, path: Path, data: str):
        self.path, self.data = path, data

    def before(self) -> list[dict]:
        """The collapses so far, the first one first.

        Raises:
            FinetuneError: the file is damaged, or of other texts.
        """
        if not self.path.exists():
            return []
        found = read_object(self.path, data=str, collapses=list)
        if found and found["data"] == self.data:
            return found["collapses"]
        raise FinetuneError(f"{self.path} is damaged, or of other texts: remove {self.path.parent} to train it again")

    def add(self, collapse: Collapse) -> None:
        """Write down one more."""
        write_json(self.path, {"data": self.data, "collapses": [*self.before(), asdict(collapse)]})

    def learning_rate(self, first: float) -> float:
        """The rate to train at now, of a seed whose first training was to be at `first`."""
        return float(f"{first * GENTLER ** len(self.before()):.2g}") if self.before() else first
