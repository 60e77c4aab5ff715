"""The labelled texts of a fine-tuning: read, checked against each other, and parted."""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import chain

import numpy as np

from data_prep.console.screen import say
from data_prep.text.cells import is_text

from .columns import columns_of_file, columns_of_further_file, first_rows, named_columns, names_of
from .rows import BUILTIN, BadRows, Columns, Example, read_rows
from .settings import FinetuneError, FinetuneSettings
from .split import content_hash, split
from .tasks import Task
from .tasks.selection import task_of

VALIDATION_SHARE = 0.1
# Of the built-in texts, which have no test file of their own.
BUILTIN_TEST_SHARE = 0.1
_SAMPLED_TEXTS = 1_000
MOST_PARTS = 50


@dataclass(frozen=True)
class Dataset:
    """Texts by their use; `test` is empty where there is none."""

    task: Task
    """As the training rows define it."""
    columns: Columns
    train: list[Example]
    validation: list[Example]
    test: list[Example]
    bad_rows: list[tuple[str, str]] = field(default_factory=list)
    """Place and problem of those that were skipped."""

    def held_out(self) -> dict[str, list[Example]]:
        """The parts that nothing is learned from: "validation", and "test" where there is one."""
        return {"validation": self.validation} | ({"test": self.test} if self.test else {})

    def rows(self) -> dict[str, int]:
        """The number of rows of each part."""
        return {"train": len(self.train), "validation": len(self.validation), "test": len(self.test)}

    def groups_and_parts(self) -> str:
        """A digest of those of the held-out rows, in their order: intervals and the scores of parts depend on them."""
        names = [(row.group, row.part) for rows in self.held_out().values() for row in rows]
        return hashlib.blake2b(json.dumps(names).encode(), digest_size=16).hexdigest()


def read_dataset(settings: FinetuneSettings, task: Task | None = None) -> Dataset:
    """Read all files and say what was found.

    Args:
        task: what is to be learned; by default that of `--task`.

    Raises:
        FinetuneError, PrepError: they cannot be used (see `rows` and `Task.fitted`).
    """
    bad_rows: list[tuple[str, str]] = []
    bad, show_text = BadRows(settings.skip_bad_rows, listed=bad_rows), settings.show_text == "yes"
    task, columns, train = read_training_rows(settings, task, bad)
    others, found = {}, [columns]
    for name, path in (("validation", settings.validation), ("test", settings.test)):
        if path is not None:
            found.append(_columns_of(task, name, path, settings, columns))
            rows = read_rows(task, path, settings.encoding, found[-1], bad)
            others[name] = list(task.usable(rows, bad, show_text))
            if not others[name]:
                raise FinetuneError(f"{path} has no usable row: give another --{name}, or none")
    if task.judges_other_rows:
        _refuse_unread(settings, found)
    bad.report()
    if settings.train == BUILTIN and "test" not in others:
        train, others["test"] = split(train, BUILTIN_TEST_SHARE, "test", task.stratum)
    if "validation" not in others:
        train, others["validation"] = split(train, VALIDATION_SHARE, "validation", task.stratum)
        if not others["validation"]:
            raise FinetuneError(f"{settings.train} {_obstacle(train, columns)}: give --validation")
    columns = replace(columns, group=settings.group_column, part=settings.report_by)
    dataset = Dataset(task, columns, train, others["validation"], others.get("test", []), bad_rows)
    check_parts(columns, list(chain(*dataset.held_out().values())), settings)
    describe(dataset, settings)
    return judged(dataset)


def _obstacle(rows: Sequence[Example], columns: Columns) -> str:
    """Why nothing of these rows can be held back."""
    if columns.group is None:
        return "has too few different texts to hold a tenth back"
    if len({row.group for row in rows}) < 2:
        return f'has too few different values of "{columns.group}" to hold a tenth back'
    return f'cannot be split, as each value of "{columns.group}" has a class that no other has'


def judged(dataset: Dataset) -> Dataset:
    """The dataset with its held-out rows as they are judged, and the task with what they say of that."""
    task, held_out = dataset.task.with_held_out(dataset.held_out())
    return replace(dataset, task=task, validation=held_out["validation"], test=held_out.get("test", []))


def read_training_rows(
    settings: FinetuneSettings, task: Task | None, bad: BadRows
) -> tuple[Task, Columns, list[Example]]:
    """The rows of `--train`, their columns, and the task as they define it."""
    named, show_text = named_columns(settings), settings.show_text == "yes"
    if task is None:
        task, label = task_of(settings)
        named = replace(named, label=label)
    find = partial(columns_of_file, task, settings.train, settings.encoding, named, show_text)
    if task.judges_other_rows and (settings.validation or settings.test):
        _refuse_unknown(settings)
        columns = find({"texts", "label", "group", "part"})
        if len(columns.texts) > 1:
            # Texts alone may lack the scores of held-out pairs.
            columns = find({"texts", "group", "part"})
    else:
        columns = find(not_of_training(settings))
    rows = list(read_rows(task, settings.train, settings.encoding, columns, bad))
    return task.fitted(rows, columns, settings), columns, rows


def not_of_training(settings: FinetuneSettings) -> set[str]:
    """The named columns that further files alone may have: of parts, and where no training rows are held back, of
    groups."""
    return ({"group"} if settings.validation else set()) | ({"part"} if settings.validation or settings.test else set())


def _columns_of(task: Task, name: str, path: str, settings: FinetuneSettings, columns: Columns) -> Columns:
    """Those of a further file, which must have the columns of the first, unless the task takes others."""
    if path == BUILTIN:
        raise FinetuneError(f"--{name} builtin: a part of the built-in texts is held out anyway, leave it out")
    wanted = replace(columns, group=settings.group_column, part=settings.report_by)
    # Of the texts of the final results intervals are of groups, and scores of parts.
    is_shown = name == ("test" if settings.test else "validation")
    may_lack: set[str] = set() if is_shown else {"part"} if columns.group else {"part", "group"}
    if task.judges_other_rows:
        own = _own_columns(task, path, settings, wanted, may_lack)
        if own != columns:
            say(f"Columns of {path}: {own}.")
        return own
    show_text = settings.show_text == "yes"
    return columns_of_further_file(path, settings.encoding, wanted, columns, settings.train, show_text, may_lack)


def _refuse_unknown(settings: FinetuneSettings) -> None:
    """Raises FinetuneError for a column that is named and in no file; where each file may be of another kind, a
    misspelled one would go unnoticed."""
    named, paths = named_columns(settings), filter(None, (settings.train, settings.validation, settings.test))
    names = set()
    for path in paths:
        if path != BUILTIN:
            names |= names_of(first_rows(path, settings.encoding, named, lines=True))
    options = {"--text-column": named.texts, "--label-column": (named.label,), "--group-column": (named.group,)}
    for option, columns in options.items():
        for name in filter(None, columns):
            if name not in names:
                near = get_close_matches(name, names, n=1)
                remedy = f"did you mean {option} {near[0]}?" if near else "name another, or leave it out"
                raise FinetuneError(f'no file has a column "{name}": {remedy}')


def _refuse_unread(settings: FinetuneSettings, found: Iterable[Columns]) -> None:
    """Raises FinetuneError where the column of scores is in no file of pairs."""
    label = settings.label_column
    if label is not None and all(columns.label != label for columns in found):
        raise FinetuneError(f'"{label}" is in no file of pairs, of which scores are read: name two columns of texts '
                            "with --text-column, or leave --label-column out")  # fmt: skip


def _own_columns(
    task: Task, path: str, settings: FinetuneSettings, columns: Columns, may_lack: Collection[str]
) -> Columns:
    """The columns of a file that may have others than the training rows: those named, where it has them, or those of a
    pair in training, else by their names."""
    named = named_columns(settings)
    names = names_of(first_rows(path, settings.encoding, named, lines=not task.needs_labels))
    if not named.texts and len(columns.texts) > 1 and names.issuperset(columns.texts):
        named = replace(named, texts=columns.texts)
    show_text = settings.show_text == "yes"
    return columns_of_file(task, path, settings.encoding, named, show_text, {"texts", "label", "group", *may_lack})


def sampled(examples: Sequence[Example]) -> list[Example]:
    """A thousand of the examples at most, evenly spread."""
    most = min(len(examples), _SAMPLED_TEXTS)
    return [examples[i] for i in np.linspace(0, len(examples) - 1, most).astype(int)]


def describe(dataset: Dataset, settings: FinetuneSettings) -> None:
    """Say what is in the texts and what speaks against them."""
    say(f"Columns: {dataset.columns}.")
    sizes = {"training": dataset.train, "validation": dataset.validation, "test": dataset.test}
    say("Texts: " + ", ".join(f"{len(rows):,} for {name}" for name, rows in sizes.items() if rows) + ".")
    for sentence in dataset.task.describe(dataset.train):
        say(sentence)
    _warn_of_overlap(dataset, is_split=settings.validation is None)
    if dataset.columns.group:
        _warn_of_groups(dataset, settings)


def _warn_of_overlap(dataset: Dataset, is_split: bool) -> None:
    """Texts that occur twice are no reason to stop, but a reason to doubt a result.

    Args:
        is_split: the validation texts were held back of the training ones.
    """
    classes: dict[bytes, set[str]] = {}
    seen: dict[str, set[bytes]] = {}
    for name, rows in (("training", dataset.train), ("validation", dataset.validation), ("test", dataset.test)):
        contents = [content_hash(example, "") for example in rows]
        for content, example in zip(contents, rows, strict=True):
            classes.setdefault(content, set()).add(example.answer)
        for other, known in seen.items():
            shared = sum(content in known for content in contents)
            if shared:
                ours = is_split and name == "validation"
                remedy = "They are of several groups." if ours else "Take them out of one of the two."
                say(
                    f"{shared:,} of {len(rows):,} {name} texts occur in {other} too: the result on those means little. "
                    + remedy
                )
        seen[name] = set(contents)
    doubtful = sum(len(found) > 1 for found in classes.values())
    if doubtful:
        say(f"{doubtful:,} text{' occurs' if doubtful == 1 else 's occur'} with several labels.")


def check_parts(columns: Columns, rows: Sequence[Example], settings: FinetuneSettings) -> None:
    """Raises FinetuneError where `--report-by` names no column of a few values, or one of texts that are not to be
    shown."""
    values = {row.part for row in rows} - {None}
    if settings.show_text == "no" and any(map(is_text, values)):
        raise FinetuneError(f'--report-by "{columns.part}" has texts as values, which would be shown: give a column of '
                            "short names")  # fmt: skip
    if len(values) > MOST_PARTS:
        raise FinetuneError(
            f'--report-by "{columns.part}" has {len(values):,} different values: give a column of at most '
            f"{MOST_PARTS}, a site or a year"
        )


def _warn_of_groups(dataset: Dataset, settings: FinetuneSettings) -> None:
    """What `--group-column` cannot keep apart: rows without a group, and groups that given files share."""
    parts = {"training": dataset.train, "validation": dataset.validation, "test": dataset.test}
    # Of files that have such a column at all.
    grouped = [rows for rows in parts.values() if any(example.group is not None for example in rows)]
    without = sum(example.group is None for rows in grouped for example in rows)
    if without:
        say(f'{without:,} texts have no "{dataset.columns.group}": each counts as a group of its own.')
    held, whole = len(dataset.validation), len(dataset.train) + len(dataset.validation)
    if settings.validation is None and held >= 2 * VALIDATION_SHARE * whole:
        remedy = "" if settings.folds else "--validation with a few groups of your choice, or "
        say(
            f'{held:,} of {whole:,} texts are held back, as those of one "{dataset.columns.group}" stay together: give '
            f"{remedy}rows of more groups."
        )
    groups = {name: {example.group for example in rows} - {None} for name, rows in parts.items()}
    for name, other in (("validation", "training"), ("test", "training"), ("test", "validation")):
        shared = sum(example.group in groups[other] for example in parts[name])
        if shared:
            say(
                f'{shared:,} of {len(parts[name]):,} {name} texts are of a "{dataset.columns.group}" that occurs in '
                f"{other} too: the result on those is no measure of how well the model does on new groups."
            )
