"""Cross-validation: every row is a test text once, of models that never saw it, nor any of its group."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.console.screen import say
from data_prep.durable import write_json, write_text

from .dataset import VALIDATION_SHARE, Dataset, check_parts, describe, judged, read_training_rows
from .metrics import spread
from .output import to_json
from .report import baselines_table, parts_of_folds_table, scores_table, trouble
from .resolve import with_seeds
from .results import kept_seed
from .rows import BadRows, Example
from .settings import GROUPS, FinetuneError, FinetuneSettings
from .several_runs import as_begun, results_of_run, stage_of_several, write_asked
from .split import split, units_of
from .tasks import Task

MOST_FOLDS = 50
_DOUBTFUL = 100
# The folds are the same whatever the seeds of the run.
_SEED = 2018


def cross_validate(settings: FinetuneSettings, task: Task | None = None) -> Path:
    """Fine-tune once for each fold of `--train`, each in a folder of its own under `--out`; returns that folder.

    results.json there: {"folds", "rows", "restarts", "learned_nothing", "validation", "test": {metric: {"mean", "std",
    "seeds"}}, "baselines", "by"} and what the task adds, where "seeds" are the folds, the score of a fold is the mean
    over its seeds, and "learned_nothing" are the numbers of folds with a seed that learned nothing.

    Args:
        task: what is learned; by default that of `--task`.
    """
    with stage_of_several(settings) as (settings, world, interruption):
        out, datasets = Path(settings.out), list(folds(settings, task))
        write_asked(settings, datasets[0].task, world)
        found, settings = [], with_seeds(settings, [len(dataset.train) for dataset in datasets])
        for number, dataset in enumerate(datasets, 1):
            say(f"\n=== fold {number} of {len(datasets)}")
            describe(dataset, settings)
            run = as_begun(replace(settings, folds=None, out=str(out / f"fold-{number}")), world)
            found.append(results_of_run(run, dataset, world, interruption, needs_seeds=True))
        world.from_main(partial(write_results, out, settings, datasets[0].task, found, datasets))
    return out


def folds(settings: FinetuneSettings, task: Task | None) -> Iterator[Dataset]:
    """A dataset for each fold, which is its test part; a tenth of the rest is its validation part: of its groups, or
    where none can be held back, of its texts.

    Raises:
        FinetuneError: there are fewer different texts or groups than folds.
    """
    bad_rows: list[tuple[str, str]] = []
    bad = BadRows(settings.skip_bad_rows, listed=bad_rows)
    task, columns, rows = read_training_rows(settings, task, bad)
    bad.report()
    if settings.folds == GROUPS and columns.group is None:
        raise FinetuneError("--folds groups leaves one group out at a time: name their column with --group-column")
    check_parts(columns, rows, settings)
    for test in parts_of(rows, task, settings.folds, columns.group):
        held = set(test.tolist())
        rest = [row for number, row in enumerate(rows) if number not in held]
        train, validation = split(rest, VALIDATION_SHARE, "validation", task.stratum)
        if not validation:
            # Of one group alone, or where each has a class of its own, texts: those of the test are of another group in
            # any case.
            train, validation = split(rest, VALIDATION_SHARE, "validation", task.stratum, by_group=False)
        if not validation:
            raise FinetuneError(f"{settings.train} has too few rows for --folds {settings.folds}: give fewer")
        held_out = validation, [rows[number] for number in test]
        yield judged(Dataset(task.fitted_to(rest), columns, train, *held_out, bad_rows))


def parts_of(rows: Sequence[Example], task: Task, number: str, group: str | None) -> list[np.ndarray]:
    """The numbers of the rows of each fold: all copies of a text in one, all texts of a group, and of each stratum
    about the same share.

    Raises:
        FinetuneError: there are too few of them, or too many groups for a fold each.
    """
    units = units_of(rows, "folds")
    known = {unit: place for place, unit in enumerate(dict.fromkeys(units))}
    of_row = np.array([known[unit] for unit in units])
    without = sum(row.group is None for row in rows) if group else 0
    what = f'different values of "{group}"' if group else "different texts"
    what += f" (of them {without:,} rows without one, each a group of its own)" if without else ""
    if number == GROUPS:
        if not 2 <= len(known) <= MOST_FOLDS:
            raise FinetuneError(
                f"there are {len(known):,} {what}, and a fold each takes 2 to {MOST_FOLDS}: give --folds 5"
            )
        return [np.flatnonzero(of_row == place) for place in range(len(known))]
    if len(known) < int(number):
        raise FinetuneError(f"there are {len(known):,} {what}, too few for --folds {number}: give fewer")
    strata = np.unique([task.stratum(row) for row in rows], return_inverse=True)[1]
    found = list(_stratified(strata, of_row, int(number)))
    if not all(map(len, found)):
        raise FinetuneError(f"there are {len(known):,} {what}, too few or too unequal for --folds {number}: give fewer")
    return found


def _stratified(strata: np.ndarray, units: np.ndarray, number: int) -> Iterator[np.ndarray]:
    """The numbers of the rows of each fold; strata [n] count only where one of them has a row for each fold."""
    from sklearn.model_selection import StratifiedGroupKFold

    if np.bincount(strata).max() < number:
        strata = np.zeros_like(strata)
    made = StratifiedGroupKFold(number, shuffle=True, random_state=_SEED)
    with warnings.catch_warnings():
        # It warns of classes with fewer rows than folds.
        warnings.simplefilter("ignore", UserWarning)
        yield from (test for _, test in made.split(strata, strata, units))


def write_rows(out: Path, settings: FinetuneSettings, found: Sequence[dict], datasets: Sequence[Dataset]) -> None:
    """out_of_fold.jsonl: for each test row the answer of a model that did not learn from it, the kept seed of its fold.

    doubtful.jsonl: a tenth of these rows, 100 at most, whose label is the least probable, those first: most of the
    wrong labels are among them (Northcutt et al. 2021).
    """
    shows_text = settings.show_text == "yes"
    rows: list[tuple[dict, Example]] = []
    for number, (results, dataset) in enumerate(zip(found, datasets, strict=True), 1):
        task, outputs = kept_seed(out / f"fold-{number}", results, dataset.task, "test")
        targets = task.of_texts(task.targets(dataset.test), dataset.test)
        for example, target, output in zip(dataset.test, targets, task.of_texts(outputs, dataset.test), strict=True):
            row = {"place": example.place, "fold": number}
            if shows_text and example.group is not None:
                row["group"] = example.group
            row |= {"label": example.label, "doubt": round(task.doubt(target, output), 6)}
            if shows_text or not task.prediction_holds_text:
                row |= task.prediction(output, example)
            rows.append((row, example))
    _write_lines(out / "out_of_fold.jsonl", (row for row, _ in rows))
    rows.sort(key=lambda pair: -pair[0]["doubt"])
    most = rows[: min(_DOUBTFUL, -(-len(rows) // 10))]
    _write_lines(out / "doubtful.jsonl", (row | (_texts(example) if shows_text else {}) for row, example in most))


def _texts(example: Example) -> dict[str, Any]:
    found = {"text": example.text, "text_pair": example.text_pair, "choices": example.choices}
    return {name: value for name, value in found.items() if value is not None}


def _write_lines(path: Path, rows: Iterable[dict]) -> None:
    write_text(path, "".join(to_json(row) + "\n" for row in rows))


def write_results(
    out: Path, settings: FinetuneSettings, task: Task, found: Sequence[dict], datasets: Sequence[Dataset]
) -> None:
    """Write and say what the folds reached together."""
    of_task, sentences = task.of_folds(found)
    results = {
        "folds": len(found),
        "rows": [dataset.rows() for dataset in datasets],
        "restarts": sum(fold.get("restarts", 0) for fold in found),
        "learned_nothing": [number for number, fold in enumerate(found, 1) if fold.get("learned_nothing")],
        "validation": over_folds([fold["validation"] for fold in found]),
        "test": over_folds([fold["test"] for fold in found]),
        "baselines": {
            name: {"test": over_folds([fold["baselines"][name]["test"] for fold in found])}
            for name in found[0]["baselines"]
        },
        "by": parts_over_folds([fold["by"]["test"] for fold in found]) if datasets[0].columns.part else {},
        **of_task,
    }
    write_rows(out, settings, found, datasets)
    write_json(out / "results.json", results)
    say(f"\n{scores_table(task.shown, None, results['test'], what=f'{len(found)} folds')}")
    if told := trouble("The model", results["restarts"], results["learned_nothing"], "folds"):
        say(told)
    if results["by"]:
        say(f"\n{parts_of_folds_table(task.shown, results['by'], f'test, by {datasets[0].columns.part}')}")
    if results["baselines"]:
        say(f"\n{baselines_table(task.shown, results['baselines'], 'test', f'{task.baselines_are}, test')}")
    for sentence in sentences:
        say(sentence)
    say(f"\nThe answer to each row, of a model that did not learn from it, is in {out / 'out_of_fold.jsonl'}, and the "
        f"rows whose label is the most doubtful are in {out / 'doubtful.jsonl'}. Each fold's model is in "
        f"{out}/fold-N/final; without --folds all rows train the one to keep.")  # fmt: skip


def parts_over_folds(parts: Sequence[dict[str, dict]]) -> dict[str, dict]:
    """For each value of `--report-by`, the most frequent first, the number of its test texts, and the spread of its
    scores over the folds that have such texts: value -> {"texts", "scores"}.

    Args:
        parts: of each fold (see `intervals.by_part`).
    """
    found = {}
    for value in dict.fromkeys(value for fold in parts for value in fold):
        of_value = [fold[value] for fold in parts if value in fold]
        scores = [each["scores"] for each in of_value]
        names = [name for name in scores[0] if all(name in each for each in scores)]
        spreads = {name: spread([each[name] for each in scores]) for name in names}
        found[value] = {"texts": sum(each["texts"] for each in of_value), "scores": spreads}
    return dict(sorted(found.items(), key=lambda part: (-part[1]["texts"], part[0])))


def over_folds(scores: Sequence[dict]) -> dict[str, dict]:
    """The spread over the folds of each score's mean over the seeds."""
    names = [name for name in scores[0] if all(name in fold for fold in scores)]
    return {name: spread([fold[name]["mean"] for fold in scores]) for name in names}
