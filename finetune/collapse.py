"""A training that learned nothing about its labels: how it is noticed, and how it begins again at a lower rate."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from data_prep.durable import read_object, write_json
from pretrain.engine.settings import LOWEST_RATE

from .metrics import SMALLEST
from .settings import FinetuneError

MOST_RESTARTS = 2
# The learning rate of a restart, as a share of the one before.
GENTLER = 0.3
# Fewer steps are too few to expect anything of.
FEWEST_STEPS = 50
# By what share the loss is below that of one who reads no text, at least, where something was learned; where every text
# is given one class, that is easily had by chance.
LEAST_GAIN, LEAST_GAIN_OF_ONE_CLASS = 0.02, 0.1
# Where labels are all alike, there is nothing to learn.
_NOTHING = 1e-6


@dataclass(frozen=True)
class Collapse:
    """What a training that learned nothing ended at, on texts that it was trained on."""

    learning_rate: float
    loss: float
    """The mean over the texts; of classes and labels in nats."""
    unread: float
    """The loss of one who knows how frequent the labels are, or their mean, and reads no text."""
    given: str = ""
    """What the texts were given."""

    def __str__(self) -> str:
        return (
            f"learned nothing at {self.learning_rate:g}: loss {self.loss:.3f} on its training texts, "
            f"{self.unread:.3f} for a guess without reading them{self.given and '; '}{self.given}"
        )


def collapse_of(
    gold: np.ndarray, probabilities: np.ndarray, class_weights: np.ndarray | None, learning_rate: float,
    item: str = "text", kind: str = "class",
) -> Collapse | None:  # fmt: skip
    """What a training on classes that learned nothing ended at; None for one that learned something.

    Args:
        gold: int64 [n], of training texts, or of their words.
        probabilities: float32 [n, C], the model's for these.
        class_weights: float32 [C], how much a text of each class counted in training; None: all the same.
        item, kind: what they are called.
    """
    weights = np.ones(len(gold)) if class_weights is None else class_weights[gold].astype(np.float64)
    shares = np.bincount(gold, weights) / weights.sum()
    of_gold = probabilities[np.arange(len(gold)), gold].astype(np.float64)
    loss = float(np.average(-np.log(np.maximum(of_gold, SMALLEST)), weights=weights))
    classes = len(np.unique(probabilities.argmax(1)))
    given = f"one {kind} for every {item}" if classes == 1 else f"{classes} answers for the {item}s"
    least = LEAST_GAIN_OF_ONE_CLASS if classes == 1 else LEAST_GAIN
    return where_no_better(Collapse(learning_rate, loss, float(entropies(shares).sum()), given), least)


def collapse_of_labels(gold: np.ndarray, probabilities: np.ndarray, learning_rate: float) -> Collapse | None:
    """The same of a training on several labels.

    Args:
        gold: [n, K] of 0 and 1, of training texts.
        probabilities: float32 [n, K], the model's for these texts.
    """
    shares = gold.mean(0, dtype=np.float64)
    of_gold = np.where(gold > 0, probabilities, 1 - probabilities.astype(np.float64))
    loss = float(-np.log(np.maximum(of_gold, SMALLEST)).mean())
    unread = float((entropies(shares) + entropies(1 - shares)).mean())
    return where_no_better(Collapse(learning_rate, loss, unread))


def where_no_better(found: Collapse, least: float = LEAST_GAIN) -> Collapse | None:
    """The collapse where its loss is hardly below that of one who reads no text, else None; None where there was
    nothing to learn.

    Args:
        least: by what share it is lower where something was learned.
    """
    return None if found.unread < _NOTHING or found.loss < (1 - least) * found.unread else found


def entropies(shares: np.ndarray) -> np.ndarray:
    """Of each share its part of an entropy, in nats: -p log p."""
    return -shares * np.log(np.where(shares > 0, shares, 1.0))


def restarts_left(before: Sequence[dict]) -> int:
    """How often the next seed may begin again: not at all where the seeds before it learned nothing, at lower rates
    either, as what they were given cannot be learned then.

    Args:
        before: the results of these seeds.
    """
    is_tried = any(len(found["restarts"]) >= MOST_RESTARTS for found in before)
    return 0 if is_tried and all(found["learned_nothing"] for found in before) else MOST_RESTARTS


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

    def add(self, collapse: Collapse, seconds: float) -> None:
        """Write down one more.

        Args:
            seconds: that the training took.
        """
        found = asdict(collapse) | {"seconds": round(seconds, 1)}
        write_json(self.path, {"data": self.data, "collapses": [*self.before(), found]})

    def seconds(self) -> float:
        """What all of them took; older versions did not write it down."""
        return sum(found.get("seconds", 0.0) for found in self.before())

    def learning_rate(self, first: float) -> float:
        """The rate to train at now, of a seed whose first training was to be at `first`."""
        gentler = float(f"{first * GENTLER ** len(self.before()):.2g}")
        return max(gentler, LOWEST_RATE) if self.before() else first
