"""Which task: as it is named, as the rows show it, or as a model folder was trained for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.console.screen import say
from data_prep.durable import read_object
from data_prep.text.cells import parsed_cell, usual_column

from ..choices import usual_choices
from ..columns import find_columns, first_rows, named_columns, names_of
from ..questions.answers import are_answers
from ..rows import BUILTIN, Columns, listed
from ..settings import FACTS_FILE, FinetuneError, FinetuneSettings
from . import Task
from .classification import Classification
from .multi_label import SEPARATOR, MultiLabel
from .multiple_choice import MultipleChoice
from .question_answering import QuestionAnswering
from .regression import Regression
from .similarity import Similarity
from .tagging import Tagging

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (Classification, MultiLabel, Regression, Tagging, MultipleChoice, QuestionAnswering, Similarity)
}
# What can be learned of the built-in texts.
_OF_BUILTIN = (Classification.name, Similarity.name)
# What stands for no number, in lower case.
_MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}


def task_of(settings: FinetuneSettings) -> tuple[Task, str | None]:
    """The task that is named, or the one that the first training rows are of, which is said; and the column of labels
    that is named, or shows it.

    Raises:
        FinetuneError: the built-in texts are none for the task that is named.
    """
    if settings.task not in ("auto", *_OF_BUILTIN) and settings.train == BUILTIN:
        raise FinetuneError(f"the built-in texts have no labels for --task {settings.task}: give --train")
    if settings.task != "auto":
        return TASKS[settings.task](), settings.label_column
    if settings.train == BUILTIN:
        return Classification(), None
    rows = first_rows(settings.train, settings.encoding, named_columns(settings))
    if columns := columns_of_choices(rows, settings):
        say(f'Task: {MultipleChoice.name}, as "{columns.label}" holds which of {listed(columns.choices)} is right '
            "(--task names another).")  # fmt: skip
        return MultipleChoice(), columns.label
    names = list(dict.fromkeys(name for row in rows for name in row))
    usual = [name for task in TASKS.values() if task.needs_labels for name in task.label_columns]
    column = settings.label_column or usual_column(names, usual)
    lists = (name for name in Tagging.text_columns if any(isinstance(parsed_cell(row.get(name)), list) for row in rows))
    words = next(lists, None)
    name, why = kind_of_labels([row.get(column) for row in rows], [row.get(words) for row in rows] if words else ())
    # Where the labels show nothing, their column is looked for by the names that are usual for classes.
    is_usual = column is not None and column.strip().lower() in Classification.label_columns
    if name != Classification.name or is_usual or settings.label_column in names:
        say(f'Task: {name}, as "{column}" holds {why} (--task names another).')
    return TASKS[name](), settings.label_column if name == Classification.name else column


def columns_of_choices(rows: Sequence[dict[str, Any]], settings: FinetuneSettings) -> Columns | None:
    """The columns of rows that plainly are of multiple choice: choices under a usual name, of which the label of most
    rows names one, and which are not the same in all rows, as the names of classes would be."""
    task = MultipleChoice()
    try:
        # Groups and parts that these rows lack may be those of further files.
        named = named_columns(settings)
        named = named.of_rows(names_of(rows), {"group", "part"})
        columns = find_columns(task, settings.train, rows, named, labelled=True)
    except FinetuneError:
        return None
    if columns.choices != usual_choices(rows, columns.choices):
        return None
    found = []
    for row in rows:
        try:
            found.append(frozenset(task.example("", row, columns).choices or ()))
        except ValueError:
            continue
    return columns if 2 * len(found) > len(rows) and len(set(found)) > 1 else None


def kind_of_labels(values: Sequence[Any], words: Sequence[Any] = ()) -> tuple[str, str]:
    """The name of a task, and what speaks for it.

    Args:
        values: the labels of the first rows.
        words: their words, where a column holds lists of them.
    """
    pairs = zip(map(parsed_cell, values), map(parsed_cell, words))  # noqa: B905
    alike = [isinstance(a, list) and isinstance(b, list) and len(a) == len(b) for a, b in pairs]
    values = [parsed_cell(value) for value in values if value is not None and value != ""]
    if any(map(are_answers, values)):
        return QuestionAnswering.name, "answers with their places"
    lists = [value for value in values if isinstance(value, list | tuple)]
    if 2 * len(lists) > len(values):
        if any(isinstance(each, list | tuple | Mapping) for value in lists for each in value):
            return Tagging.name, "places of entities"
        if alike and 2 * sum(alike) > len(alike):
            return Tagging.name, "a tag for each word"
        return MultiLabel.name, "lists"
    numbers = [_number(value) for value in values if str(value).strip().lower() not in _MISSING]
    if numbers and all(number is not None for number in numbers) and any(n != int(n) for n in numbers):
        return Regression.name, "numbers with fractions"
    texts = {value for value in values if isinstance(value, str)}
    parts = [part for text in texts for part in {part.strip() for part in text.split(SEPARATOR)}]
    # Names that come again in other company; those in a name with a semicolon do not.
    if any(SEPARATOR in text for text in texts) and len(set(parts)) < len(parts):
        return MultiLabel.name, "names joined by semicolons"
    return Classification.name, "one class a row"


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def task_of_folder(folder: Path) -> Task:
    """The task that a model was fine-tuned for: by our finetune.json, else by its config."""
    facts = read_object(folder / FACTS_FILE, task=str) or {}
    config: Mapping[str, Any] = read_object(folder / "config.json") or {}
    by_type = {"regression": Regression.name, "multi_label_classification": MultiLabel.name}
    name = facts.get("task") or by_type.get(config.get("problem_type"), Classification.name)
    # Behind the name of its family, in that of its class.
    by_head = {
        "TokenClassification": Tagging.name,
        "MultipleChoice": MultipleChoice.name,
        "QuestionAnswering": QuestionAnswering.name,
    }
    if "task" not in facts:
        heads = [str(each).partition("For")[2] for each in config.get("architectures") or ()]
        name = next((by_head[head] for head in heads if head in by_head), name)
    return TASKS.get(name, Classification)()
