"""What more labelled rows would bring: the same training on an eighth, a quarter, a half and all of them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from data_prep.console.screen import say
from data_prep.durable import replaced, write_json, write_text
from pretrain.engine.model_card import table

from .dataset import Dataset, read_dataset
from .report import score, trouble
from .resolve import with_seeds
from .settings import FinetuneError, FinetuneSettings
from .several_runs import as_begun, results_of_run, stage_of_several, write_asked
from .split import split
from .tasks import Task

SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
_FEWEST_ROWS = 64
_MOST_COLUMNS = 4


def learning_curve(settings: FinetuneSettings, task: Task | None = None) -> Path:
    """Fine-tune on growing parts of `--train`, each in a folder of its own under `--out`; returns that folder.

    Every part holds the smaller ones; validation and test texts stay the same. results.json there: {"points": [{"rows",
    "validation", "test", "baselines", "restarts", "learned_nothing"}, ...], "shown"}; learning_curve.png draws it.

    Args:
        task: what is learned; by default that of `--task`.
    """
    with stage_of_several(settings) as (settings, world, interruption):
        out, dataset = Path(settings.out), read_dataset(settings, task)
        parts = growing(dataset)
        write_asked(settings, dataset.task, world)
        points, settings = [], with_seeds(settings, [len(part.train) for part in parts])
        for part in parts:
            rows = len(part.train)
            say(f"\n=== {rows:,} training rows")
            run = as_begun(replace(settings, learning_curve=False, out=str(out / f"rows-{rows}")), world)
            found = results_of_run(run, part, world, interruption)
            kept = ("validation", "test", "baselines", "restarts", "learned_nothing")
            points.append({"rows": rows, **{name: found.get(name) for name in kept}})
        world.from_main(partial(write_curve, out, dataset, points))
    return out


def growing(dataset: Dataset) -> list[Dataset]:
    """The dataset with parts of its training rows, the smallest first, of each stratum the same share.

    Raises:
        FinetuneError: there are too few rows to take parts of.
    """
    if len(dataset.train) < 2 * _FEWEST_ROWS:
        raise FinetuneError(
            f"{len(dataset.train):,} training rows are too few for --learning-curve: it takes {2 * _FEWEST_ROWS}"
        )
    parts, rest = [dataset], dataset.train
    for share in SHARES[-2::-1]:
        if share * len(dataset.train) < _FEWEST_ROWS:
            break
        # Half of what is left is put back each time, so that every part holds the smaller ones.
        rest, _ = split(rest, 0.5, f"curve {share:g}", dataset.task.stratum)
        if len(rest) < len(parts[-1].train):
            parts.append(replace(dataset, train=rest, task=dataset.task.fitted_to(rest)))
    if len(parts) == 1:
        raise FinetuneError(f"the {len(dataset.train):,} training rows are of so few groups, or texts, that no half of "
                            "them can be left out: --learning-curve needs more")  # fmt: skip
    return parts[::-1]


def write_curve(out: Path, dataset: Dataset, points: Sequence[dict]) -> None:
    """Write and say the scores of every part."""
    task, shown = dataset.task, "test" if dataset.test else "validation"
    columns = dict(list(task.shown.items())[:_MOST_COLUMNS])
    lines = []
    for point in points:
        lines.append([f"{point['rows']:,}", *(score(point[shown][metric]) for metric in columns.values())])
        for name, found in point["baselines"].items():
            lines.append([f"{name}, {point['rows']:,}", *(score(found[shown][m]) for m in columns.values())])
    text = table([f"training rows, {shown} texts", *columns], lines) + "\n"
    for point in points:
        if told := trouble(
            f"With {point['rows']:,} rows the model", point["restarts"] or 0, point["learned_nothing"] or ()
        ):
            text += f"\n{told}\n"
    write_text(out / "learning_curve.md", text)
    write_json(out / "results.json", {"points": points, "shown": shown})
    draw(points, shown, next(iter(columns.items())), out / "learning_curve.png")
    say(f"\n{text}\nThe table is in {out / 'learning_curve.md'}, the curve in {out / 'learning_curve.png'}.")


def draw(points: Sequence[dict], shown: str, metric: tuple[str, str], path: Path) -> None:
    """Draw a score over the number of rows as PNG, the baselines beside it; the picture is replaced as a whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title, name = metric
    rows = [point["rows"] for point in points]
    curves = {"this model": [point[shown][name] for point in points]}
    for baseline in points[-1]["baselines"]:
        curves[baseline] = [point["baselines"][baseline][shown][name] for point in points]
    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for label, found in curves.items():
        places = [i for i, each in enumerate(found) if each["mean"] is not None]
        errors = [found[i]["std"] or 0.0 for i in places]
        axes.errorbar([rows[i] for i in places], [found[i]["mean"] for i in places], errors, marker="o", label=label)
    axes.set_xscale("log")
    axes.set_xticks(rows, [f"{count:,}" for count in rows])
    axes.minorticks_off()
    axes.set(xlabel="training rows", ylabel=f"{title}, {shown} texts")
    axes.grid(alpha=0.3)
    axes.legend()
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
