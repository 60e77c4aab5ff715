"""Several models on the same texts with the same seeds, beside what learns without a BERT, in one table."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.console.screen import say
from data_prep.durable import write_json, write_text
from pretrain.engine.distributed import World
from pretrain.engine.model_card import table

from .baselines import run_baselines
from .dataset import Dataset, read_dataset
from .intervals import paired
from .metrics import spread
from .names import folder_name
from .report import defined, score, trouble
from .resolve import model_name, with_search
from .results import outputs_of_seeds
from .settings import SCRATCH, FinetuneError, FinetuneSettings
from .several_runs import as_begun, results_of_run, stage_of_several, write_asked
from .tasks import Task

_MOST_COLUMNS = 4
# Of a model's results; the baselines have no budget and no rate.
_KEPT = (
    "validation", "test", "budget", "learning_rate", "learning_rates_tried", "learning_rate_chosen", "grid", "restarts",
    "learned_nothing",
)  # fmt: skip


def compare(settings: FinetuneSettings, task: Task | None = None) -> Path:
    """Fine-tune every model, each in a folder of its own under `--out`; returns that folder.

    results.json there: {"models": {name: {"validation": ..., "test": ...}}, "reference", "differences": {name: {metric:
    {"mean", "std", "seeds"}}}, "shown", "rows"}, where a difference is that of the first model minus the other, seed by
    seed.

    Args:
        task: what is learned; by default that of `--task`.
    """
    with stage_of_several(settings) as (settings, world, interruption):
        runs = named_runs(settings, world)
        dataset = read_dataset(settings, task)
        write_asked(settings, dataset.task, world)
        out, models, how = Path(settings.out), {}, {"with_baselines": False, "needs_seeds": bool(dataset.test)}
        for name, run in runs.items():
            say(f"\n=== {name}")
            models[name] = results_of_run(run, dataset, world, interruption, **how)
        folders = {name: Path(run.out) for name, run in runs.items()}
        world.from_main(partial(write_comparison, settings, out, dataset, models, folders))
    return out


def write_comparison(
    settings: FinetuneSettings, out: Path, dataset: Dataset, models: dict[str, dict], folders: dict[str, Path]
) -> None:
    """Add the baselines to the models' results; write and say the table.

    Args:
        folders: of the models' runs.
    """
    task, split = dataset.task, "test" if dataset.test else "validation"
    of_baselines: dict[str, tuple[Task, dict[str, np.ndarray]]] = {}
    baselines = run_baselines(settings, dataset, of_baselines)
    # A folder may be called as one of them, say "mean".
    shown = {name: f"{name} (baseline)" if name in models else name for name in baselines}
    models = models | {shown[name]: found for name, found in baselines.items()}
    results = table_of(task, models, split) | {"rows": dataset.rows(), "paired": {}}
    if dataset.test:
        # The validation texts have chosen epochs and seeds: there a model is better than it is.
        seeds = {name: outputs_of_seeds(folder, task, split) for name, folder in folders.items()}
        seeds |= {shown[name]: [(tuned, outputs[split])] for name, (tuned, outputs) in of_baselines.items()}
        first = seeds.pop(results["reference"])
        results["paired"] = paired(first, seeds, task.targets(dataset.test), dataset.test)
    text = comparison_table(task, results)
    write_text(out / "comparison.md", text)
    write_json(out / "results.json", results)
    say(f"\n{text}\nThe table is in {out / 'comparison.md'}.")


def named_runs(settings: FinetuneSettings, world: World) -> dict[str, FinetuneSettings]:
    """The settings of each model's run, as it was begun, by its name (see `named_models`).

    Raises:
        FinetuneError, PretrainError: a model cannot be used.
    """
    runs: dict[str, FinetuneSettings] = {}
    for name, model in named_models(settings).items():
        run = replace(model, out=str(Path(settings.out) / folder_name(name)))
        runs[name] = as_begun(run, world, fresh=with_search(run))
    return runs


def named_models(settings: FinetuneSettings) -> dict[str, FinetuneSettings]:
    """The settings for each model, the first one `--model`, by a name that no other has.

    Raises:
        FinetuneError: a model stands twice among them.
    """
    models: dict[str, FinetuneSettings] = {}
    others = ((settings.model, True) if model == SCRATCH else (model, False) for model in settings.compare)
    asked = [(settings.model, False), *others]
    if len({(os.path.realpath(folder), is_scratch) for folder, is_scratch in asked}) < len(asked):
        raise FinetuneError("one model stands twice among --model and --compare: name each once")
    for folder, is_scratch in asked:
        name = base = f"{model_name(folder)}, not pretrained" if is_scratch else model_name(folder)
        count = 2
        while folder_name(name) in map(folder_name, models):
            name, count = f"{base} {count}", count + 1
        models[name] = replace(settings, model=folder, from_scratch=is_scratch, compare=())
    return models


def table_of(task: Task, models: dict[str, dict], shown: str) -> dict:
    """The models' results and the differences of the first one to each other one."""
    kept = {name: {use: found.get(use) for use in _KEPT} for name, found in models.items()}
    reference = next(iter(kept))
    first = kept[reference][shown]
    differences = {}
    for name, found in kept.items():
        if name != reference:
            both = [metric for metric in task.metrics if metric in first and metric in found[shown]]
            differences[name] = {metric: difference(first[metric], found[shown][metric]) for metric in both}
    return {"models": kept, "reference": reference, "differences": differences, "shown": shown}


def difference(first: dict, other: dict) -> dict:
    """First minus other, seed by seed; a baseline that knows no seed is the same for all."""
    others: Sequence[float] = other["seeds"]
    if len(others) == 1:
        others = list(others) * len(first["seeds"])
    pairs = zip(first["seeds"], others, strict=True)
    return spread([None if a is None or b is None else a - b for a, b in pairs])


def comparison_table(task: Task, results: dict) -> str:
    """Markdown: a row a model with its results, and below what the first model has over each other one."""
    shown, reference = results["shown"], results["reference"]
    means = [{m: found[shown][m]["mean"] for m in task.shown.values()} for found in results["models"].values()]
    columns = dict(list(defined(task.shown, means).items())[:_MOST_COLUMNS])
    num_seeds = len(results["models"][reference][shown]["loss"]["seeds"])
    cells = []
    for name, found in results["models"].items():
        cells.append([name, *(score(found[shown][metric]) for metric in columns.values()), _rate(found)])
    for name, found in results["differences"].items():
        cells.append([f"{reference} minus {name}", *(score(found[m], "+") for m in columns.values()), ""])
        if results["paired"]:
            of_texts = results["paired"][name]
            cells.append(["its 95 % interval", *(_interval(of_texts.get(metric)) for metric in columns.values()), ""])
    seeds = "one seed" if num_seeds == 1 else f"mean ± standard deviation over {num_seeds} seeds"
    notes = [f"{seeds[0].upper()}{seeds[1:]}; differences are taken seed by seed."]
    if results["paired"]:
        notes.append(
            f"Intervals of differences, and p, are over resamples of the {shown} texts, or of their groups, for "
            "the seeds that were trained: where these differ by as much, other seeds may decide otherwise."
        )
    else:
        notes.append("The validation texts have chosen epochs and seeds: give --test to see which difference is real.")
    if any(found["learning_rates_tried"] for found in results["models"].values()):
        notes.append(
            "Each model has the learning rate that was best for it on the validation texts, of those in brackets."
        )
    if any(found["grid"] for found in results["models"].values()):
        notes.append("Each model has what was best for it on the validation texts among the paper's grid.")
    budgets = {name: found["budget"] for name, found in results["models"].items() if found["budget"]}
    if len(set(budgets.values())) > 1 and not any(found["grid"] for found in results["models"].values()):
        told = ", ".join(f"{name} {budget}" for name, budget in budgets.items())
        notes.append(f"The models were trained for {told} (--budget gives all of them the same).")
    for name, found in results["models"].items():
        if said := trouble(name, found["restarts"] or 0, found["learned_nothing"] or ()):
            notes.append(said)
    return table([f"{shown} texts", *columns, "learning rate"], cells) + "\n\n" + "\n".join(notes) + "\n"


def _interval(found: dict | None) -> str:
    """The interval of a difference, and its p."""
    if found is None or found["interval"] is None:
        return "undefined"
    low, high = found["interval"]
    return f"{low:+.3f} to {high:+.3f}, p {found['p']:.3f}"


def _rate(found: dict) -> str:
    """The learning rate of a model, with those it was chosen among, or what was chosen of the grid."""
    if not found["learning_rate"]:
        return ""
    if found["grid"]:
        return found["grid"]["chosen"]
    rate, tried = f"{found['learning_rate']:g}", ", ".join(found["learning_rates_tried"] or ())
    chosen = found["learning_rate_chosen"] or rate
    # The seed that is kept may have begun again.
    return chosen + f" ({tried})" * bool(tried) + f", then {rate}" * (chosen != rate)
