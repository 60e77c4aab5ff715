"""Sentences about runs that do not learn as they should, each with what to do."""

import os
from collections.abc import Sequence

from .objective import PretrainingObjective

# Processes that want to run, for each core.
_BUSY = 1.75
# Fewer steps leave a model where it began.
_FEWEST_STEPS = 60
# A model with this many parameters per token of text learns the text by heart.
_PARAMETERS_A_TOKEN = 5


class Trouble:
    """Looks at each held-out evaluation of a pretraining and says every kind of trouble once.

    Args:
        objective: says what the troubles of its parts are.
        evaluations: how many there will be during the run; one more follows at its end.
    """

    def __init__(self, objective: PretrainingObjective, evaluations: int):
        self.objective, self.evaluations = objective, evaluations
        self._said: set[str] = set()

    def found(self, rows: Sequence[dict]) -> list[str]:
        """Sentences about the newest evaluation.

        Args:
            rows: of metrics.jsonl.
        """
        rows = [row for row in rows if "validation" in row]
        warnings = self.objective.warnings(rows, len(rows) / self.evaluations)
        new = {kind: sentence for kind, sentence in warnings.items() if kind not in self._said}
        self._said |= new.keys()
        return list(new.values())


def too_large(parameters: int, tokens: int) -> str | None:
    """A sentence where a model is large for the tokens of its corpus."""
    if parameters <= _PARAMETERS_A_TOKEN * tokens:
        return None
    return (
        f"Warning: the model has {parameters:,} parameters for {tokens:,} tokens of text, and may learn it by heart: "
        "take a smaller --preset, give more text, or continue from an existing BERT with --init-from."
    )


def busy(device: str) -> str | None:
    """A sentence where other programs use the cores."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    if device != "cpu" or load < _BUSY * cores:
        return None
    return (
        f"Warning: {load:.0f} processes want the {cores} cores of this machine, so training gets a share of them only: "
        "end the others for full speed."
    )


def too_short(steps: float, is_timed: bool) -> str | None:
    """A sentence where a budget is too small to learn anything in from nothing; a timed one has more smaller steps."""
    if steps >= _FEWEST_STEPS:
        return None
    smaller = ", or a smaller --preset, which makes more steps of the same time" if is_timed else ""
    return (
        f"Warning: in about {steps:,.0f} steps hardly more than the frequencies of words is learned: give a longer "
        f"--budget{smaller}."
    )
