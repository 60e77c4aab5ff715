"""What a person sees of a model's results on the screen: tables of scores, classes, parts and confusions."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.durable import write_text

from .names import display_width, short_names

# A wider table does not fit a terminal.
_MOST_COLUMNS = 12
_MOST_CONFUSIONS = 10
# More make a file of gigabytes, and a picture that nobody can read.
MOST_CLASSES_IN_A_TABLE = 1_000
# Scores of each part.
_MOST_OF_PARTS = 3
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


def confusion_table(matrix: Any, labels: Sequence[str]) -> str:
    """The confusions (sparse [C, C]) as text: gold classes in rows, predicted ones in columns.

    With more than 12 classes: the ten most frequent confusions instead.
    """
    if len(labels) > _MOST_COLUMNS:
        return _most_confused(matrix, labels)
    names = short_names(labels, min(24, max(6, 84 // len(labels) - 2)))
    rows = [[name, *row, sum(row)] for name, row in zip(names, matrix.toarray().tolist(), strict=True)]
    return _aligned([["gold \\ predicted", *names, "total"], *rows])


def _most_confused(matrix: Any, labels: Sequence[str]) -> str:
    names = short_names(labels, 32)
    wrong = [(gold, predicted, count) for gold, predicted, count in _cells(matrix) if gold != predicted]
    first = sorted(wrong, key=lambda cell: -cell[2])[:_MOST_CONFUSIONS]
    rows = [[f"{names[gold]} -> {names[predicted]}", count] for gold, predicted, count in first]
    head = f"The table of all {len(labels)} classes is in confusion.csv. "
    if not rows:
        return head + "No text was given a wrong class."
    return head + "The most frequent confusions:\n" + _aligned([["gold -> predicted", "texts"], *rows])


def _cells(matrix: Any) -> list[tuple[int, int, int]]:
    """(gold, predicted, texts) of each cell of the confusions that is not 0, row by row."""
    cells = matrix.tocoo()
    return sorted(zip(cells.row.tolist(), cells.col.tolist(), cells.data.tolist(), strict=True))


def write_confusion_csv(matrix: Any, labels: Sequence[str], path: Path) -> None:
    """Write the confusions (sparse [C, C]) as CSV, gold classes in rows; the file is replaced as a whole.

    With more than 1,000 classes: a line for each pair of a gold and a predicted class that has texts.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if len(labels) > MOST_CLASSES_IN_A_TABLE:
        writer.writerow(["gold", "predicted", "texts"])
        writer.writerows([labels[gold], labels[predicted], count] for gold, predicted, count in _cells(matrix))
    else:
        writer.writerow(["gold \\ predicted", *labels])
        writer.writerows([label, *row] for label, row in zip(labels, matrix.toarray().tolist(), strict=True))
    write_text(path, text.getvalue())


def per_class_table(rows: Sequence[dict], what: str = "class", counted: str = "texts") -> str:
    """The rows of `metrics.per_class`, `label_metrics.per_label` or `tag_metrics.per_type`, as text."""
    names = short_names([row["label"] for row in rows], 32)
    body = [
        [name, *(f"{row[score]:.3f}" for score in scores_of(row)), row["support"]]
        for name, row in zip(names, rows, strict=True)
    ]
    return _aligned([[what, "precision", "recall", "F1", counted], *body])


def scores_of(row: Mapping[str, Any]) -> list[str]:
    """The names of precision, recall and F1 of a class, a label or a type; of entities the strict ones, which are those
    of the predictions."""
    return [f"{'strict_' * ('strict_f1' in row)}{name}" for name in ("precision", "recall", "f1")]


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
            row.append(_interval(found[metric]))
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


def defined(shown: Mapping[str, str], rows: Sequence[Mapping[str, float | None]]) -> dict[str, str]:
    """Those of the scores, by title, that a row has; all, where no row has any. Pairs with scores and pairs without are
    judged by others."""
    found = {title: metric for title, metric in shown.items() if any(row[metric] is not None for row in rows)}
    return found or dict(shown)


def parts_table(shown: Mapping[str, str], parts: Mapping[str, dict], what: str) -> str:
    """The scores of each part (see `intervals.by_part`) as text, with the interval of the first of them."""
    known = defined(shown, [found["scores"] for found in parts.values()])
    first, *others = list(known.items())[:_MOST_OF_PARTS]
    header = [what, "texts", first[0], "95 % interval", *(title for title, _ in others)]
    rows = []
    for value, found in parts.items():
        ends = found["intervals"][first[1]]
        cells = [number(found["scores"][metric]) for _, metric in others]
        rows.append([value or "(none)", found["texts"], number(found["scores"][first[1]]), _interval(ends), *cells])
    names = short_names([row[0] for row in rows], 32)
    return _aligned([header, *([name, *row[1:]] for name, row in zip(names, rows, strict=True))])


def parts_of_folds_table(shown: Mapping[str, str], parts: Mapping[str, dict], what: str) -> str:
    """The scores of each part over the folds (see `folds.parts_over_folds`) as text."""
    means = [{name: each["mean"] for name, each in found["scores"].items()} for found in parts.values()]
    columns = dict(list(defined(shown, means).items())[:_MOST_OF_PARTS])
    names = short_names([value or "(none)" for value in parts], 32)
    rows = [
        [name, found["texts"], *(score(found["scores"][metric]) for metric in columns.values())]
        for name, found in zip(names, parts.values(), strict=True)
    ]
    return _aligned([[what, "texts", *columns], *rows])


def trouble(name: str, restarts: int, learned_nothing: Sequence[int], of: str = "seeds") -> str:
    """That trainings learned nothing, how often they began again at a lower rate, and whether that helped; "" where all
    of them learned something at once.

    Args:
        name: of what was trained.
        learned_nothing: the numbers of those that learned nothing to the end.
    """
    count = len(learned_nothing)
    if not restarts:
        return f"{name} learned nothing with {count} of its {of}." if count else ""
    times = "once" if restarts == 1 else f"{restarts} times"
    sentence = f"{name} learned nothing and began again at a lower rate {times}"
    return sentence + (f", without success for {count} of its {of}." if count else ".")


def number(value: float | None) -> str:
    """Three digits behind the point, two in all of what would be 0.000, four of a million and more; or "undefined"."""
    return "undefined" if value is None else _shown(value)


def _interval(ends: Sequence[float] | None) -> str:
    return "undefined" if ends is None else f"{_shown(ends[0])} to {_shown(ends[1])}"


def _shown(value: float, sign: str = "") -> str:
    if 0 < abs(value) < 0.0005:
        return f"{value:{sign}.2g}"
    return f"{value:{sign}.3f}" if abs(value) < 1e6 else f"{value:{sign}.4g}"


def score(found: dict, sign: str = "") -> str:
    """A `metrics.spread` as text: 0.812, or 0.812 ± 0.004 of several seeds; `sign` "+" for differences."""
    if found["mean"] is None:
        return "undefined"
    mean, std = found["mean"], found["std"]
    # A spread has as many digits as its mean, where this has few.
    of_std = "" if std is None else f" ± {std:.3f}" if 0.0005 <= abs(mean) < 1e6 or mean == 0 else f" ± {_shown(std)}"
    return _shown(mean, sign) + of_std


def _aligned(rows: Sequence[Sequence]) -> str:
    """Cells in columns two blanks apart, the first to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *others in cells:
        line = first + " " * (widths[0] - display_width(first))
        for text, width in zip(others, widths[1:], strict=True):
            line += " " * (2 + width - display_width(text)) + text
        lines.append(line)
    return "\n".join(lines)
