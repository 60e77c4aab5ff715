"""Sentences about runs that do not learn as they should, each with what to do."""

import os
from collections.abc import Sequence

# Nats: a loss so near to that of word frequencies is not better.
_PLATEAU = 0.1
# From this share of the evaluations on, words should be learned.
_EARLY = 0.4
# A model that guesses is right a little more often than the majority in some evaluations.
_GUESSING = 0.02
# Nats over the best evaluation: more than two evaluations of the same weights on other examples differ.
_RISE = 0.05
# Processes that want to run, for each core.
_BUSY = 1.75
# Fewer steps leave a model where it began.
_FEWEST_STEPS = 60
# A model with so many parameters a token of text learns the text by heart.
_PARAMETERS_A_TOKEN = 5


class Trouble:
    """Looks at each held-out evaluation of a pretraining and says every kind of trouble once.

    Args:
        evaluations: how many there will be during the run; one more follows at its end.
    """

    def __init__(self, evaluations: int):
        self.evaluations = evaluations
        self._said: set[str] = set()

    def found(self, rows: Sequence[dict]) -> list[str]:
        """Sentences about the newest evaluation.

        Args:
            rows: of metrics.jsonl.
        """
        rows = [row for row in rows if "validation" in row]
        results, share = rows[-1]["validation"], len(rows) / self.evaluations
        checks = {"plateau": _plateau(results, share), "rise": _rise(rows), "guessing": _guessing(results, share)}
        new = {kind: sentence for kind, sentence in checks.items() if sentence and kind not in self._said}
        self._said |= new.keys()
        return list(new.values())


def _plateau(results: dict, share: float) -> str | None:
    loss, unigram = results["mlm_loss"], results["unigram_entropy"]
    if share < _EARLY or loss < unigram - _PLATEAU:
        return None
    return (
        f"Warning: after {min(1, share):.0%} of the budget the loss is still that of word frequencies alone "
        f"({loss:.2f}, {unigram:.2f}): give a longer --budget or a smaller --preset; if that does not help, half the "
        "--learning-rate, and look into prep_report.md for text that repeats."
    )


def _rise(rows: Sequence[dict]) -> str | None:
    # The last evaluation takes more examples than those before: other text, with other frequencies of words.
    latest_text = rows[-1]["validation"]["unigram_entropy"]
    rows = [row for row in rows if row["validation"]["unigram_entropy"] == latest_text]
    best = min(rows, key=lambda row: row["validation"]["mlm_loss"])
    lowest, latest = best["validation"]["mlm_loss"], rows[-1]["validation"]["mlm_loss"]
    if latest < lowest + _RISE:
        return None
    return (
        f"Warning: the held-out loss has risen from {lowest:.2f} at step {best['step']:,} to {latest:.2f}: the model "
        "learns the text by heart. Give more text, a shorter --budget, a smaller --preset or --dropout 0.1."
    )


def _guessing(results: dict, share: float) -> str | None:
    if share <= 1 or "nsp_accuracy" not in results or results["nsp_accuracy"] > results["nsp_majority"] + _GUESSING:
        return None
    return (
        f"Warning: next sentences are guessed ({results['nsp_accuracy']:.1%} right, {results['nsp_majority']:.1%} by "
        "always one answer): they are learned after words are. Give a longer --budget if you want to fine-tune on "
        "pairs of texts."
    )


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
