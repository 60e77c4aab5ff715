"""What a person sees of a classifier's results: tables, the picture of the confusions, and the worst mistakes."""

import csv
import io
import re
import unicodedata
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.durable import replaced, write_text

# A wider table does not fit a terminal.
_MOST_COLUMNS = 12
_MOST_CONFUSIONS = 10
# Scores of each part.
_MOST_OF_PARTS = 3
_MOST_CHARACTERS = 300
# In points; a smaller count in the picture cannot be read.
_SMALLEST_LETTERS = 4
# Line breaks, controls, marks that turn the direction of writing, and halves of characters.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Fonts with the East Asian scripts, for the letters that matplotlib's own font lacks; those installed are used.
_MORE_FONTS = ("Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo")
SHOWN = {
    "accuracy": "accuracy",
    "macro-F1": "macro_f1",
    "weighted F1": "weighted_f1",
    "MCC": "mcc",
    "macro precision": "macro_precision",
    "macro recall": "macro_recall",
    "AUROC": "auroc",
}
# Of two classes.
SHOWN_OF_TWO = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "positive predictive value": "ppv",
    "negative predictive value": "npv",
    "average precision": "average_precision",
}


class Mistake(NamedTuple):
    """A text that was given a wrong class, and the probability of that class."""

    place: str
    text: str
    text_pair: str | None
    gold: str
    predicted: str
    probability: float


def confusion_table(matrix: np.ndarray, labels: Sequence[str]) -> str:
    """The confusions [C, C] as text: gold classes in rows, predicted ones in columns.

    With more than 12 classes: the ten most frequent confusions instead.
    """
    if len(labels) > _MOST_COLUMNS:
        return _most_confused(matrix, labels)
    names = short_names(labels, min(24, max(6, 84 // len(labels) - 2)))
    rows = [[name, *row, sum(row)] for name, row in zip(names, matrix.tolist(), strict=True)]
    return _aligned([["gold \\ predicted", *names, "total"], *rows])


def _most_confused(matrix: np.ndarray, labels: Sequence[str]) -> str:
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    names = short_names(labels, 32)
    first = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    cells = [(gold, predicted) for gold, predicted in zip(*np.unravel_index(first, wrong.shape), strict=True)]
    rows = [[f"{names[g]} -> {names[p]}", wrong[g, p]] for g, p in cells if wrong[g, p]]
    head = f"The table of all {len(labels)} classes is in confusion.csv. "
    if not rows:
        return head + "No text was given a wrong class."
    return head + "The most frequent confusions:\n" + _aligned([["gold -> predicted", "texts"], *rows])


def write_confusion_csv(matrix: np.ndarray, labels: Sequence[str], path: Path) -> None:
    """Write the confusions [C, C] as CSV, gold classes in rows; the file is replaced as a whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["gold \\ predicted", *labels])
    writer.writerows([label, *row] for label, row in zip(labels, matrix.tolist(), strict=True))
    write_text(path, text.getvalue())


def draw_confusion(matrix: np.ndarray, labels: Sequence[str], path: Path, title: str) -> None:
    """Draw the confusions [C, C] as PNG: colour is the share of the gold class; the picture is replaced as a whole.

    Counts stand in the cells where they fit (always up to 50 classes and counts below 100,000); none stands for 0.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    fonts = [*matplotlib.rcParams["font.family"], *(name for name in _MORE_FONTS if name in installed)]
    side = min(14.0, max(3.0, 0.6 * len(labels)))
    cell = 72 * side / len(labels)
    size = min(9.0, 0.7 * cell)
    names = short_names(labels, 24)
    longest = 0.6 * size * max(map(_columns, names))
    figure = Figure(figsize=(side + longest / 72 + 1.6, side + longest / 72 + 1), layout="compressed")
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from|Matplotlib currently does not support")
        axes = figure.subplots()
        _draw_cells(figure, axes, matrix, cell, size)
        # A dollar sign in a name or in the title is no formula.
        plain = {"parse_math": False, "fontsize": size}
        axes.set_xticks(range(len(names)), names, rotation=0 if longest < 0.9 * cell else 90, **plain)
        axes.set_yticks(range(len(names)), names, **plain)
        axes.set_title(_one_line(title), parse_math=False, fontsize=11)
        axes.set(xlabel="predicted", ylabel="gold")
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png", dpi=110)


def _draw_cells(figure, axes, matrix: np.ndarray, cell: float, size: float) -> None:
    """Colours, the bar that explains them, and the counts that fit; `cell` and the letters' `size` are in points."""
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the gold class", aspect=30)
    for gold, predicted in np.argwhere(matrix):
        count = str(matrix[gold, predicted])
        fitting = min(size, 0.9 * cell / (0.6 * len(count)))
        if fitting >= _SMALLEST_LETTERS:
            colour = "white" if shares[gold, predicted] > 0.5 else "black"
            axes.text(predicted, gold, count, ha="center", va="center", color=colour, fontsize=fitting)


def per_class_table(rows: Sequence[dict], what: str = "class", counted: str = "texts") -> str:
    """The rows of `metrics.per_class`, `per_label` or `per_type`, as text."""
    names = short_names([row["label"] for row in rows], 32)
    body = [
        [name, *(f"{row[score]:.3f}" for score in ("precision", "recall", "f1")), row["support"]]
        for name, row in zip(names, rows, strict=True)
    ]
    return _aligned([[what, "precision", "recall", "F1", counted], *body])


def scores_table(
    shown: Mapping[str, str],
    validation: dict | None,
    test: dict | None,
    intervals: Mapping[str, dict] | None = None,
    what: str = "",
) -> str:
    """The results of `metrics.combined` as text, a column for each split that was measured.

    Args:
        shown: title -> name of the scores.
        intervals: of one split, for the seed that is kept.
        what: the spread is over; by default the seeds.
    """
    parts = {name: found for name, found in (("validation", validation), ("test", test)) if found is not None}
    rows = [[title, *(score(found[metric]) for found in parts.values())] for title, metric in shown.items()]
    header = ["", *parts]
    for split, found in (intervals or {}).items():
        header.append(f"95 % interval, {split}")
        for row, metric in zip(rows, shown.values(), strict=True):
            row.append("undefined" if found[metric] is None else "{:.3f} to {:.3f}".format(*found[metric]))
    text = _aligned([header, *rows])
    seeds = max(len(found["loss"]["seeds"]) for found in parts.values())
    return text if seeds == 1 else f"{text}\nmean ± standard deviation over {what or f'{seeds} seeds'}"


def baselines_table(shown: Mapping[str, str], baselines: Mapping[str, dict], split: str, what: str = "") -> str:
    """What each baseline reached on a split, as text.

    Args:
        what: stands over the titles; by default that they are without a BERT.
    """
    rows = [[title, *(score(found[split][metric]) for found in baselines.values())] for title, metric in shown.items()]
    return _aligned([[what or f"without a BERT, {split}", *baselines], *rows])


def parts_table(shown: Mapping[str, str], parts: Mapping[str, dict], what: str) -> str:
    """The scores of each part (see `intervals.by_part`) as text, with the interval of the first of them."""
    first, *others = list(shown.items())[:_MOST_OF_PARTS]
    header = [what, "texts", first[0], "95 % interval", *(title for title, _ in others)]
    rows = []
    for value, found in parts.items():
        ends = found["intervals"][first[1]]
        cells = [number(found["scores"][metric]) for _, metric in others]
        interval = "undefined" if ends is None else "{:.3f} to {:.3f}".format(*ends)
        rows.append([value or "(none)", found["texts"], number(found["scores"][first[1]]), interval, *cells])
    names = short_names([row[0] for row in rows], 32)
    return _aligned([header, *([name, *row[1:]] for name, row in zip(names, rows, strict=True))])


def parts_of_folds_table(shown: Mapping[str, str], parts: Mapping[str, dict], what: str) -> str:
    """The scores of each part over the folds (see `folds.parts_over_folds`) as text."""
    columns = dict(list(shown.items())[:_MOST_OF_PARTS])
    names = short_names([value or "(none)" for value in parts], 32)
    rows = [
        [name, found["texts"], *(score(found["scores"][metric]) for metric in columns.values())]
        for name, found in zip(names, parts.values(), strict=True)
    ]
    return _aligned([[what, "texts", *columns], *rows])


def number(value: float | None) -> str:
    """Three digits, or "undefined"."""
    return "undefined" if value is None else f"{value:.3f}"


def score(found: dict, sign: str = "") -> str:
    """A `metrics.spread` as text: 0.812, or 0.812 ± 0.004 of several seeds; `sign` "+" for differences."""
    if found["mean"] is None:
        return "undefined"
    return f"{found['mean']:{sign}.3f}" + ("" if found["std"] is None else f" ± {found['std']:.3f}")


def mistakes(
    examples: Sequence,
    gold: np.ndarray,
    probabilities: np.ndarray,
    labels: Sequence[str],
    predicted: np.ndarray | None = None,
    count: int = 20,
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
    for row in wrong[np.argsort(-confidence, kind="stable")][:count]:
        example, names = examples[row], (labels[gold[row]], labels[predicted[row]])
        probability = float(probabilities[row, predicted[row]])
        found.append(Mistake(example.place, example.text, example.text_pair, *names, probability))
    return found


def wrong_labels(
    examples: Sequence, gold: np.ndarray, probabilities: np.ndarray, thresholds: np.ndarray, labels: Sequence[str],
    count: int = 20,
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
    for place in np.argsort(-surety, kind="stable")[:count]:
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


def largest_errors(examples: Sequence, gold: np.ndarray, predicted: np.ndarray, count: int = 20) -> list[LargeError]:
    """The predictions that are farthest off, those first; equal ones stay in the order of the file."""
    order = np.argsort(-np.abs(predicted - gold), kind="stable")[:count]
    return [
        LargeError(*(getattr(examples[i], name) for name in ("place", "text", "text_pair")), gold[i], predicted[i])
        for i in order
    ]


def errors_markdown(found: Sequence[LargeError], with_text: bool = True) -> str:
    """Errors as a Markdown list (see `mistakes_markdown`)."""
    lines = ["# Largest errors", ""]
    for error in found:
        lines += [f"- {_code(error.place)}: gold {error.gold:g}, predicted {error.predicted:.4g}", ""]
        lines += _texts(error) if with_text else []
    return "\n".join(lines)


class Misplaced(NamedTuple):
    """A text that finds the one that belongs to it behind others."""

    place: str
    text: str
    text_pair: str | None
    rank: int
    """From 1."""


def misplaced_markdown(found: Sequence[Misplaced], with_text: bool = True) -> str:
    """Texts as a Markdown list (see `mistakes_markdown`)."""
    lines = ["# Found last", ""]
    for row in found:
        lines += [f"- {_code(row.place)}: the second text is found at place {row.rank:,}", ""]
        lines += _texts(row) if with_text else []
    return "\n".join(lines if found else [*lines, "None: every text finds the one that belongs to it first.", ""])


def draw_numbers(gold: np.ndarray, predicted: np.ndarray, path: Path, title: str) -> None:
    """Draw predicted over gold numbers as PNG; the picture is replaced as a whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    ends = [min(gold.min(), predicted.min()), max(gold.max(), predicted.max())]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.scatter(gold, predicted, s=9, alpha=0.5)
    axes.set(xlabel="gold", ylabel="predicted")
    axes.set_title(_one_line(title), parse_math=False, fontsize=11)
    axes.grid(alpha=0.3)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def mistakes_markdown(found: Sequence[Mistake], with_text: bool = True) -> str:
    """Mistakes as a Markdown list; whatever comes from the data stands in code spans, which nothing can break."""
    lines = ["# Most confident mistakes", ""]
    for mistake in found:
        names = f"gold {_code(mistake.gold)}, predicted {_code(mistake.predicted)}"
        lines += [f"- {_code(mistake.place)}: {names} with probability {mistake.probability:.3f}", ""]
        lines += _texts(mistake) if with_text else []
    return "\n".join(lines if found else [*lines, "None: no text was given a wrong answer.", ""])


def _texts(row: Mistake | LargeError | Misplaced) -> list[str]:
    """Lines with the text, or both of a pair."""
    lines = [f"  text: {_code(row.text)}", ""]
    return lines if row.text_pair is None else [*lines, f"  second text: {_code(row.text_pair)}", ""]


def _code(text: str) -> str:
    """A code span, on one line and cut; its fence is longer than any run of backticks inside (CommonMark 6.1)."""
    text = _one_line(text)
    if not text:
        return "(empty)"
    if len(text) > _MOST_CHARACTERS:
        text = text[: _MOST_CHARACTERS - 1] + "…"
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def short_names(labels: Sequence[str], width: int) -> list[str]:
    """Distinct names of at most `width` (6 or more) columns: cut at the end, else in the middle, else numbered."""
    lines = [_one_line(label) for label in labels]
    for cut in (_cut, _cut_in_the_middle):
        names = [cut(line, width) for line in lines]
        if len(set(names)) == len(names):
            return names
    return [_cut(f"{place} {line}", width) for place, line in enumerate(lines)]


def _one_line(text: str) -> str:
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def _cut(text: str, width: int) -> str:
    return text if _columns(text) <= width else _start(text, width - 1) + "…"


def _cut_in_the_middle(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    return _start(text, width // 2) + "…" + _start(text[::-1], (width - 1) // 2)[::-1]


def _start(text: str, width: int) -> str:
    """As much of the text as fills `width` columns."""
    return text[: bisect_right(list(accumulate(map(_columns, text))), width)]


def _columns(text: str) -> int:
    """Columns of a terminal that a text fills: East Asian letters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _aligned(rows: Sequence[Sequence]) -> str:
    """Cells in columns two blanks apart, the first to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(_columns, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *others in cells:
        line = first + " " * (widths[0] - _columns(first))
        for text, width in zip(others, widths[1:], strict=True):
            line += " " * (2 + width - _columns(text)) + text
        lines.append(line)
    return "\n".join(lines)
