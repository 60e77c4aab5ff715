"""The worst mistakes of a model, and as Markdown for people."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .names import code_span

MOST_MISTAKES = 20
"""How many are told."""


class Mistake(NamedTuple):
    """A text that was given a wrong class, and the probability of that class."""

    place: str
    text: str
    text_pair: str | None
    gold: str
    predicted: str
    probability: float


def most_confident(
    examples: Sequence,
    gold: np.ndarray,
    probabilities: np.ndarray,
    labels: Sequence[str],
    predicted: np.ndarray | None = None,
) -> list[Mistake]:
    """The wrong predictions with the largest probabilities, those first; equal ones stay in the order of the file.

    Args:
        examples: with `place`, `text` and `text_pair`.
        gold: class ids, int64 [n].
        probabilities: float32 [n, C].
        predicted: the answers, int64 [n]; by default the most probable class.
    """
    predicted = probabilities.argmax(axis=1) if predicted is None else predicted
    wrong = np.flatnonzero(predicted != gold)
    confidence = probabilities[wrong, predicted[wrong]]
    found = []
    for row in wrong[np.argsort(-confidence, kind="stable")][:MOST_MISTAKES]:
        example, names = examples[row], (labels[gold[row]], labels[predicted[row]])
        probability = float(probabilities[row, predicted[row]])
        found.append(Mistake(example.place, example.text, example.text_pair, *names, probability))
    return found


def wrong_labels(
    examples: Sequence, gold: np.ndarray, probabilities: np.ndarray, thresholds: np.ndarray, labels: Sequence[str],
) -> list[Mistake]:  # fmt: skip
    """The labels that were given or left out wrongly and most surely, those first.

    Args:
        gold: [n, K] of 0 and 1.
        probabilities: float32 [n, K].
        thresholds: [K], the least probability with which a label is given.
    """
    given = probabilities >= thresholds
    wrong = np.argwhere(given != gold.astype(bool))
    surety = np.where(given, probabilities, 1 - probabilities)[tuple(wrong.T)]
    found = []
    for place in np.argsort(-surety, kind="stable")[:MOST_MISTAKES]:
        row, label = wrong[place]
        example, names = examples[row], (labels[label], f"not {labels[label]}")
        gold_name, predicted = names[::-1] if given[row, label] else names
        found.append(
            Mistake(example.place, example.text, example.text_pair, gold_name, predicted, float(surety[place]))
        )
    return found


class LargeError(NamedTuple):
    """A text whose number is far off."""

    place: str
    text: str
    text_pair: str | None
    gold: float
    predicted: float


def largest_errors(examples: Sequence, gold: np.ndarray, predicted: np.ndarray) -> list[LargeError]:
    """The predictions that are farthest off, those first; equal ones stay in the order of the file."""
    order = np.argsort(-np.abs(predicted - gold), kind="stable")[:MOST_MISTAKES]
    return [
        LargeError(*(getattr(examples[i], name) for name in ("place", "text", "text_pair")), gold[i], predicted[i])
        for i in order
    ]


class Misplaced(NamedTuple):
    """A text that finds the one that belongs to it behind others."""

    place: str
    text: str
    text_pair: str | None
    rank: int
    """From 1."""


def mistakes_markdown(found: Sequence[Mistake], with_text: bool = True) -> str:
    """Mistakes as a Markdown list; whatever comes from the data stands in code spans, which nothing can break."""
    lines = ["# Most confident mistakes", ""]
    for mistake in found:
        names = f"gold {code_span(mistake.gold)}, predicted {code_span(mistake.predicted)}"
        lines += [f"- {code_span(mistake.place)}: {names} with probability {mistake.probability:.3f}", ""]
        lines += _texts(mistake) if with_text else []
    return "\n".join(lines if found else [*lines, "None: no text was given a wrong answer.", ""])


def errors_markdown(found: Sequence[LargeError], with_text: bool = True) -> str:
    """Errors as a Markdown list (see `mistakes_markdown`)."""
    lines = ["# Largest errors", ""]
    for error in found:
        lines += [f"- {code_span(error.place)}: gold {error.gold:g}, predicted {error.predicted:.4g}", ""]
        lines += _texts(error) if with_text else []
    return "\n".join(lines)


def misplaced_markdown(found: Sequence[Misplaced], with_text: bool = True) -> str:
    """Texts as a Markdown list (see `mistakes_markdown`)."""
    lines = ["# Found last", ""]
    for row in found:
        lines += [f"- {code_span(row.place)}: the second text is found at place {row.rank:,}", ""]
        lines += _texts(row) if with_text else []
    return "\n".join(lines if found else [*lines, "None: every text finds the one that belongs to it first.", ""])


def _texts(row: Mistake | LargeError | Misplaced) -> list[str]:
    """Lines with the text, or both of a pair."""
    lines = [f"  text: {code_span(row.text)}", ""]
    return lines if row.text_pair is None else [*lines, f"  second text: {code_span(row.text_pair)}", ""]
