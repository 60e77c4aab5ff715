"""Which task: as it is named, as the labels show it, or as a model folder was trained for."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from data_prep.console.screen import say
from data_prep.durable import read_object

from ..rows import BUILTIN, table_rows, usual_column
from ..settings import FACTS_FILE, FinetuneSettings
from . import Task
from .classification import Classification
from .multi_label import SEPARATOR, MultiLabel
from .regression import Regression

TASKS: dict[str, type[Task]] = {task.name: task for task in (Classification, MultiLabel, Regression)}
_SAMPLED_ROWS = 1000


def task_of(settings: FinetuneSettings) -> Task:
    """The task that is named, or the one that the labels of the first training rows are of, which is said."""
    if settings.task != "auto":
        return TASKS[settings.task]()
    if settings.train == BUILTIN:
        return Classification()
    rows = [row for _, row in islice(table_rows(settings.train, settings.encoding), _SAMPLED_ROWS)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    usual = [name for task in TASKS.values() for name in task.label_columns]
    column = settings.label_column or usual_column(names, usual)
    name, why = kind_of_labels([row.get(column) for row in rows])
    if name != Classification.name:
        say(f'Task: {name}, as "{column}" holds {why} (--task names another).')
    return TASKS[name]()


def kind_of_labels(values: Sequence[Any]) -> tuple[str, str]:
    """The name of a task, and what speaks for it."""
    values = [value for value in values if value is not None and value != ""]
    if 2 * sum(isinstance(value, list | tuple) for value in values) > len(values):
        return MultiLabel.name, "lists"
    numbers = [_number(value) for value in values]
    if values and all(number is not None for number in numbers) and any(n != int(n) for n in numbers):
        return Regression.name, "numbers with fractions"
    texts = {value for value in values if isinstance(value, str)}
    parts = {part.strip() for text in texts for part in text.split(SEPARATOR)}
    # Names that come again in other company; a name with a semicolon in it does not.
    if any(SEPARATOR in text for text in texts) and len(parts) < len(texts):
        return MultiLabel.name, "names joined by semicolons"
    return Classification.name, "names"


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if abs(number) < float("inf") else None


def task_of_folder(folder: Path) -> Task:
    """The task that a model was fine-tuned for: by our finetune.json, else by the problem_type of its config."""
    facts = read_object(folder / FACTS_FILE, task=str) or {}
    config: Mapping[str, Any] = read_object(folder / "config.json") or {}
    by_type = {"regression": Regression.name, "multi_label_classification": MultiLabel.name}
    name = facts.get("task") or by_type.get(config.get("problem_type"), Classification.name)
    return TASKS.get(name, Classification)()
