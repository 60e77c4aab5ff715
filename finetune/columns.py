"""Which columns of a table hold the texts, the labels and the rest: as they are named, or as it is usual."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from typing import Any

from data_prep.text.cells import column_names, usual_column
from data_prep.text.sources import listing

from .rows import BUILTIN, Columns, Labels, table_rows
from .settings import FinetuneError, FinetuneSettings

# Of the rows at the front of a file, for finding its columns.
_SAMPLED_ROWS = 1_000


def named_columns(settings: FinetuneSettings) -> Columns:
    """Those that the options name."""
    return Columns(tuple(settings.text_column), settings.label_column, settings.group_column, settings.report_by)


def first_rows(path: str, encoding: str, named: Columns, lines: bool = False) -> list[dict[str, Any]]:
    """The rows that show what is in a file of labelled texts (see `rows.table_rows`)."""
    found = table_rows(path, encoding, lines=lines, named=named.named())
    return [row for _, row in islice(found, _SAMPLED_ROWS)]


def names_of(rows: Iterable[dict[str, Any]]) -> set[str]:
    """Those of the columns that rows have."""
    return {name for row in rows for name in row}


def columns_of_file(
    task: Labels,
    path: str,
    encoding: str,
    named: Columns,
    show_text: bool = True,
    may_lack: Collection[str] = (),
) -> Columns:
    """The columns of a file of labelled texts (see `find_columns`).

    Args:
        may_lack: the named ones that it may be without (see `Columns.of_rows`).
    """
    if path == BUILTIN:
        return task.settled(Columns(("text",), "label"))
    sample = first_rows(path, encoding, named, lines=not task.needs_labels)
    named = named.of_rows(names_of(sample), may_lack)
    return find_columns(task, path, sample, named, labelled=True, show_text=show_text)


def columns_of_further_file(
    path: str,
    encoding: str,
    columns: Columns,
    trained: Columns,
    train: str,
    show_text: bool = True,
    may_lack: Collection[str] = (),
) -> Columns:
    """The columns of a further file, which has those of the training file.

    Args:
        columns: that are wanted.
        trained: those of the training file, `train`.
        may_lack: the wanted ones that it may be without (see `Columns.of_rows`).

    Raises:
        FinetuneError: it is without another one.
    """
    names = sorted(names_of(first_rows(path, encoding, columns)))
    columns = columns.of_rows(names, may_lack)
    for name in columns.named():
        if name not in names:
            there = f"among {column_names(names, show_text)}" if names else "and no rows"
            remedy = f"call its columns as in {train}"
            if name not in trained.named():
                option = "--group-column" if name == columns.group else "--report-by"
                remedy = f"pass one of them as {option}, or leave that out"
            raise FinetuneError(f'{path} has no column "{name}" {there}: {remedy}')
    return columns


def find_columns(
    task: Labels, path: str, sample: Sequence[dict[str, Any]], named: Columns, *, labelled: bool, show_text: bool = True
) -> Columns:
    """The columns of rows: those that are named, else those with a usual name, else the only one of text.

    Args:
        path: where the rows are from, for messages.
        sample: the first rows.
        named: those that a person names.
        labelled: whether a column of labels is needed.
        show_text: whether messages may show what could be text, as names of columns can be.

    Raises:
        FinetuneError: there is no such column, or it cannot be told which one.
    """
    names = list(dict.fromkeys(name for row in sample for name in row))
    if not names:
        wanted = "texts and labels" if labelled else "texts"
        raise FinetuneError(f"{path} has no rows with columns: give a file with {wanted}")
    shown, texts, label = column_names(names, show_text), named.texts, named.label
    _check_named(path, named, names, shown)
    if labelled and label is None:
        label = usual_column(names, task.label_columns)
        if label is None and task.needs_labels:
            raise FinetuneError(
                f"{path} has no column of labels that can be told by its name among {shown}: pass --label-column"
            )
    if label in texts:
        raise FinetuneError(f'"{label}" is named as text and as label: pass another --label-column')
    others = [name for name in names if name not in (named.group, named.part)]
    choices = task.choice_columns(sample, [name for name in others if name != label], texts)
    if choices is None:
        raise FinetuneError(
            f"{path} has no column of choices that can be told by its name among {shown}: call it choices, or name it "
            "behind the text in --text-column"
        )
    others = [name for name in others if name not in choices]
    texts = tuple(name for name in texts if name not in choices)
    if not texts and task.takes_pairs:
        texts = _pair(task.pair_columns, [name for name in names if name not in choices], label)
    if not texts and not task.needs_pairs:
        texts = _text_columns(task, path, sample, others, label, show_text)
    _check_number(task, path, texts, shown)
    first = task.first_number(sample, choices, label)
    return task.settled(replace(named, texts=tuple(texts), label=label, choices=choices, first_number=first))


def _check_named(path: str, named: Columns, names: Sequence[str], shown: str) -> None:
    """Raises FinetuneError where an option names a column that is not there."""
    others = {"--label-column": named.label, "--group-column": named.group, "--report-by": named.part}
    for option, name in [*(("--text-column", name) for name in named.texts), *others.items()]:
        if name is not None and name not in names:
            near = listing(get_close_matches(name, names, n=1))
            remedy = f"did you mean {option} {near}?" if near else f"pass one of them as {option}"
            raise FinetuneError(f'{path} has no column "{name}" among {shown}: {remedy}')


def _check_number(task: Labels, path: str, texts: Sequence[str], shown: str) -> None:
    """Raises FinetuneError where a task is for single texts and there are two, or the reverse."""
    if len(texts) > 1 and not task.takes_pairs:
        raise FinetuneError(f"--text-column names two columns, and {path} is to be read word by word: give one")
    if len(texts) < 2 and task.needs_pairs:
        both = " and ".join(f'"{name}"' for name in task.pair_columns[0])
        raise FinetuneError(
            f"{path} has no columns {both} among {shown}: pass --text-column with the names of both, in this order"
        )


def _pair(pairs: Sequence[tuple[str, str]], names: Sequence[str], label: str | None) -> tuple[str, ...]:
    """The first pair of usual names that columns have; the group may be one of them, a premise say."""
    others = [name for name in names if name != label]
    found = [tuple(usual_column(others, [name]) for name in pair) for pair in pairs]
    return next((pair for pair in found if all(pair)), ())


def _text_columns(
    task: Labels, path: str, sample: Sequence[dict[str, Any]], names: list[str], label: str | None, show_text: bool
) -> tuple[str, ...]:
    others = [name for name in names if name != label]
    usual = usual_column(others, task.usual_text_columns(sample, label))
    if usual:
        return (usual,)
    texts = [name for name in others if any(isinstance(row.get(name), str) for row in sample)]
    if len(texts) != 1 or not show_text:
        raise FinetuneError(
            f"{path}: the column of texts cannot be told by its name among {column_names(names, show_text)}: pass "
            f"--text-column with one name{', or two for pairs' if task.takes_pairs else ''}"
        )
    return (texts[0],)
