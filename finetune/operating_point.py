"""Where a probability becomes a yes: the threshold that reaches what is asked for, and what it costs."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from .settings import FACTS_FILE, FinetuneError

# With fewer, a temperature would only make probabilities surer.
FEWEST_MISTAKES = 5
# What can be asked for, and what is to be as good as possible there.
OTHER = {"sensitivity": "specificity", "specificity": "sensitivity", "ppv": "sensitivity", "npv": "specificity"}
# A label of at least this many validation texts has a threshold of its own; all others share one.
_OWN_THRESHOLD = 50


class OperatingPoint(NamedTuple):
    """A wish such as sensitivity=0.95."""

    name: str
    value: float

    @classmethod
    def parse(cls, text: str) -> "OperatingPoint":
        """Raises FinetuneError where it names no such score, or no share."""
        name, equals, number = text.partition("=")
        try:
            value = float(number) if equals else -1.0
        except ValueError:
            value = -1.0
        if name not in OTHER or not 0 < value <= 1:
            raise FinetuneError(f"--operating-point {text}: give one of {', '.join(OTHER)} and a share, as in "
                                "sensitivity=0.95")  # fmt: skip
        return cls(name, value)

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}"


def rates(positive: np.ndarray, given: np.ndarray, weights: np.ndarray | None = None) -> dict[str, float | None]:
    """`sensitivity`, `specificity`, `ppv`, `npv` (positive and negative predictive value), and of the positive class
    `f1`, `f2`, `f05` (F-beta: van Rijsbergen 1979); None where nothing is counted.

    Args:
        positive, given: bool [n], the gold labels and the answers.
        weights: [n], how often each text counts; by default once.
    """
    weights = np.ones(len(positive)) if weights is None else weights
    cells = {(gold, answer): float(weights[(positive == gold) & (given == answer)].sum())
             for gold in (True, False) for answer in (True, False)}  # fmt: skip
    right, missed, false, rest = (cells[key] for key in ((True, True), (True, False), (False, True), (False, False)))
    found = {
        "sensitivity": defined_share(right, right + missed),
        "specificity": defined_share(rest, rest + false),
        "ppv": defined_share(right, right + false),
        "npv": defined_share(rest, rest + missed),
    }
    for name, beta in (("f1", 1.0), ("f2", 2.0), ("f05", 0.5)):
        found[name] = defined_share((1 + beta**2) * right, (1 + beta**2) * right + beta**2 * missed + false)
    return found


def defined_share(part: float, whole: float) -> float | None:
    """None of nothing."""
    return float(part / whole) if whole else None


def are_thresholds(values: Sequence[Any]) -> bool:
    """Whether all are numbers that `threshold_for` may give: from 0 to just above 1."""
    return all(isinstance(value, int | float) and 0 <= value <= math.nextafter(1.0, 2.0) for value in values)


def temperature_of(decision: Mapping[str, Any]) -> float | None:
    """That of a model folder. Raises FinetuneError where it is no positive number."""
    found = decision.get("temperature")
    if found is not None and not (isinstance(found, int | float) and 0 < found < 1e30):
        raise FinetuneError(f"the temperature in {FACTS_FILE} is no positive number: copy the folder again")
    return found


def threshold_for(wish: OperatingPoint, positive: np.ndarray, probabilities: np.ndarray) -> float:
    """The threshold on the probability of the positive class that reaches the wish with the best other rate (see
    `OTHER`); of equal ones, the one that exceeds the wish most. It lies between two probabilities. Where no threshold
    reaches the wish, the one that comes nearest.

    Args:
        positive: bool [n], the gold labels.
        probabilities: [n], of the positive class.
    """
    numbers = np.unique(probabilities.astype(np.float64))
    # Below all, between two neighbours, above all.
    cuts = np.concatenate([[0.0], (numbers[1:] + numbers[:-1]) / 2, [np.nextafter(1.0, 2.0)]])
    of_positive, of_negative = (np.sort(probabilities[positive == kind]) for kind in (True, False))
    right = len(of_positive) - np.searchsorted(of_positive, cuts)
    false = len(of_negative) - np.searchsorted(of_negative, cuts)
    missed, rest = len(of_positive) - right, len(of_negative) - false
    parts = {
        "sensitivity": (right, right + missed),
        "specificity": (rest, rest + false),
        "ppv": (right, right + false),
        "npv": (rest, rest + missed),
    }
    reached, other = (part / np.maximum(whole, 1) for part, whole in (parts[wish.name], parts[OTHER[wish.name]]))
    defined = np.flatnonzero((parts[wish.name][1] > 0) & (parts[OTHER[wish.name]][1] > 0))
    if not len(defined):
        return 0.5
    reached, other = reached[defined], other[defined]
    order = np.lexsort((reached, other, np.minimum(reached, wish.value)))
    return float(cuts[defined[order[-1]]])


def label_thresholds(targets: np.ndarray, outputs: np.ndarray, wish: OperatingPoint | None = None) -> np.ndarray:
    """The least probabilities with which labels are given, with the best F1 or what is wished for: one for all, and one
    of its own for a label that at least 50 of the texts have: float64 [K].

    Args:
        targets: [n, K] of 0 and 1.
        outputs: [n, K] probabilities.
    """

    def best(has: np.ndarray, probabilities: np.ndarray) -> float:
        return best_threshold(has, probabilities) if wish is None else threshold_for(wish, has == 1, probabilities)

    found = np.full(targets.shape[1], best(targets.ravel(), outputs.ravel()))
    for label in np.flatnonzero(targets.sum(0) >= _OWN_THRESHOLD):
        found[label] = best(targets[:, label], outputs[:, label])
    return found


def best_threshold(targets: np.ndarray, probabilities: np.ndarray) -> float:
    """The threshold of the best F1 of binary targets [n], between two probabilities; 0.5 where none is positive."""
    if not targets.any():
        return 0.5
    order = np.argsort(-probabilities, kind="stable")
    ranked, right = probabilities[order].astype(np.float64), np.cumsum(targets[order])
    f1 = 2 * right / (np.arange(1, len(ranked) + 1) + targets.sum())
    # A cut between two equal probabilities cannot be made.
    f1[:-1][ranked[:-1] == ranked[1:]] = -1
    place = int(f1.argmax())
    below = ranked[place + 1] if place + 1 < len(ranked) else 0.0
    return float((ranked[place] + below) / 2)


def temperature(gold: np.ndarray, probabilities: np.ndarray) -> float:
    """The temperature that gives the gold classes the largest likelihood (Guo et al. 2017, section 4.2): over 1 for
    probabilities that are too sure.

    Args:
        gold: int64 [n].
        probabilities: float32 [n, C].
    """
    logits = torch.tensor(probabilities, dtype=torch.float64).clamp_min(_SMALLEST).log()  # [n, C]
    of_gold = logits.gather(1, torch.tensor(gold)[:, None]).mean()

    def loss(sharpness: float) -> float:
        return float((logits * sharpness).logsumexp(1).mean() - of_gold * sharpness)

    return _temperature_of_least(loss)


_SMALLEST, _WIDEST = 1e-12, 3.0


def _temperature_of_least(loss: Callable[[float], float]) -> float:
    """The temperature with the least loss, which is given its inverse."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda exponent: loss(math.exp(-exponent)), bounds=(-_WIDEST, _WIDEST), method="bounded")
    return math.exp(found.x)


def tell_temperature(value: float | None, calibrates: bool, what: str) -> list[str]:
    """What a run says of a temperature, if there is something to say.

    Args:
        calibrates: whether probabilities are changed.
        what: of which hardly any is answered wrongly where no temperature was found.
    """
    if value is not None:
        told = "at" if calibrates else "as they are; they would fit the validation texts better at"
        # No higher and no lower ones were looked at.
        edge = (
            " or more" if value > 0.99 * math.exp(_WIDEST) else " or less" if value < 1.01 * math.exp(-_WIDEST) else ""
        )
        return [f"probabilities are {told} temperature {value:.2f}{edge}{'' if calibrates else ' (--calibrate)'}"]
    few = f"probabilities are as they were: fewer than {FEWEST_MISTAKES} {what} are answered wrongly, too few to find a"
    return [f"{few} temperature"] if calibrates else []


def label_temperature(targets: np.ndarray, outputs: np.ndarray) -> float:
    """The same of labels, each of which a text has or has not: one for all of them.

    Args:
        targets: [n, K] of 0 and 1.
        outputs: float32 [n, K], the probability of each label.
    """
    # A label that is surely there is no surer than float32 can tell, and so is one that is surely not.
    logits = _logits(np.maximum(outputs, 1 - _SUREST))
    signed = torch.from_numpy(np.where(targets == 1, logits, -logits))  # [n, K], large where the label is right
    return _temperature_of_least(lambda sharpness: -float(F.logsigmoid(signed * sharpness).mean()))


def labels_at_temperature(outputs: np.ndarray, value: float) -> np.ndarray:
    """Probabilities of labels, float32 [n, K], at a temperature; their order stays."""
    from scipy.special import expit

    return expit(_logits(outputs) / value).astype(np.float32)


# The largest number under 1 of float32.
_SUREST = 1 - 2.0**-24


def _logits(probabilities: np.ndarray) -> np.ndarray:
    """float64, finite ones."""
    p = np.clip(probabilities.astype(np.float64), np.finfo(np.float32).tiny, _SUREST)
    return np.log(p) - np.log1p(-p)


def at_temperature(probabilities: np.ndarray, value: float) -> np.ndarray:
    """Probabilities float32 [n, C] at a temperature; the order of the classes stays."""
    logits = np.log(np.maximum(probabilities.astype(np.float64), _SMALLEST)) / value
    logits -= logits.max(1, keepdims=True)
    found = np.exp(logits)
    return (found / found.sum(1, keepdims=True)).astype(np.float32)
