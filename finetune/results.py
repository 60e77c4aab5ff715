"""What the seeds of a fine-tuning reached, as files and on the screen."""

import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.console.screen import say
from data_prep.durable import read_object, write_json, write_text
from pretrain.engine.folder import whole_folder
from pretrain.engine.progress import clock

from . import report
from .baselines import run_baselines
from .dataset import Dataset
from .intervals import by_part, intervals
from .metrics import combined
from .model_card import model_card
from .predictor import ENSEMBLE_FILE, seed_folders
from .resolve import model_config
from .settings import FinetuneError, FinetuneSettings
from .tasks import HeldOut, Task
from .training import outputs_of, seed_name


class Results:
    """What all seeds reached, as files and on the screen.

    Args:
        found: results of each seed.
        best: those of the seed that is best on the validation texts.
        searched: what was tried on the validation texts before, for results.json.
    """

    def __init__(self, settings: FinetuneSettings, out: Path, dataset: Dataset, found: list[dict], best: dict,
                 searched: dict[str, Any]):  # fmt: skip
        self.settings, self.out, self.dataset, self.found = settings, out, dataset, found
        self.best, self.searched = best, searched
        self.task = dataset.task.with_decision(best.get("decision", {}))
        self.seed_folder = out / seed_name(self.best["seed"])
        # What one seed does is shown on the texts that chose nothing, if there are any.
        split = "test" if dataset.test else "validation"
        examples, outputs = dataset.held_out()[split], outputs_of(self.seed_folder, split)
        self.shown = HeldOut(split, best["seed"], examples, self.task.targets(examples), outputs)

    def write(self, with_baselines: bool = True) -> dict:
        """Write everything, results.json last, and say it; returns the content of results.json."""
        results = self._results() | {"baselines": {}}
        # Baselines are slow on a great many texts: the model is written before them, and old results are removed.
        (self.out / "results.json").unlink(missing_ok=True)
        self._write_final(results)
        if with_baselines:
            results["baselines"] = run_baselines(self.settings, self.dataset)
            write_text(self.out / "final" / "README.md", self._card(results))
        self.task.write_files(self.out, self.shown, self.settings)
        write_json(self.out / "results.json", results)
        self._say(results)
        return results

    def _results(self) -> dict:
        scores, shown = [self._scores(found) for found in self.found], self.shown
        return {
            "validation": combined([found["validation"] for found in scores]),
            "test": combined([found["test"] for found in scores]) if self.dataset.test else None,
            "intervals": {shown.split: intervals(self.task, shown.targets, shown.outputs, shown.examples)},
            "ensemble": self._ensemble(),
            **presented(self.settings, self.dataset),
            "by": self._by(),
            **self.task.results(self.dataset.train, self.dataset.held_out(), self.shown),
            "best_seed": self.best["seed"],
            "chosen_by": self.settings.metric,
            "budget": self.settings.budget,
            "learning_rate": self.best["learning_rate"],
            **self.searched,
            "restarts": sum(len(found["restarts"]) for found in self.found),
            "learned_nothing": [found["seed"] for found in self.found if found["learned_nothing"]],
            "rows": self.dataset.rows(),
            "seconds": round(sum(found["seconds"] for found in self.found) + self.searched["search_seconds"], 1),
            "data": self.best["data"],
        }

    def _scores(self, found: dict) -> dict[str, dict]:
        """Those of a seed, from its outputs: one that an earlier release trained has written fewer down."""
        task, folder = self.dataset.task.with_decision(found.get("decision", {})), self.out / seed_name(found["seed"])
        held_out = self.dataset.held_out().items()
        return {split: task.scores(task.targets(rows), outputs_of(folder, split)) for split, rows in held_out}

    def _ensemble(self) -> dict | None:
        """What the mean of the seeds' outputs reaches, and ensemble.json; None for one seed, or where there is none."""
        if len(self.found) < 2 or not self.task.has_answers:
            return None
        folders = [self.out / seed_name(found["seed"]) for found in self.found]
        held_out, task = self.dataset.held_out(), self.dataset.task
        means = {split: task.averaged([outputs_of(folder, split) for folder in folders]) for split in held_out}
        task = task.tuned(task.targets(held_out["validation"]), means["validation"])
        write_json(self.out / ENSEMBLE_FILE, {"decision": task.decision(), "seeds": [each.name for each in folders]})
        scores = {
            split: task.scores(task.targets(rows), task.finished(means[split])) for split, rows in held_out.items()
        }
        return {"validation": None, "test": None, **scores}

    def _by(self) -> dict[str, dict]:
        """Of the split that is shown, if parts are asked for."""
        shown = self.shown
        if not self.dataset.columns.part:
            return {}
        others = [
            (self.dataset.task.with_decision(found.get("decision", {})), outputs_of(self.out / name, shown.split))
            for found in self.found
            if (name := seed_name(found["seed"])) != self.seed_folder.name
        ]
        return {shown.split: by_part(self.task, shown.targets, shown.outputs, shown.examples, others)}

    def _card(self, results: dict) -> str:
        config = model_config(str(self.seed_folder / "model"))
        settings = replace(self.settings, learning_rate=self.best["learning_rate"])
        return model_card(self.task, config, results, self.dataset.columns.texts, settings)

    def _write_final(self, results: dict) -> None:
        model = self.seed_folder / "model"
        with whole_folder(self.out / "final", sum(path.stat().st_size for path in model.iterdir())) as folder:
            shutil.copytree(model, folder, dirs_exist_ok=True)
            write_text(folder / "README.md", self._card(results))

    def _say(self, results: dict) -> None:
        task = self.task
        say(f"\n{report.scores_table(task.shown, results['validation'], results['test'], results['intervals'])}")
        if results["ensemble"]:
            reached = results["ensemble"][self.shown.split]
            shown = ", ".join(f"{title} {report.number(reached[name])}" for title, name in list(task.shown.items())[:3])
            say(f"mean of the seeds' outputs (finetune.predict --ensemble), {self.shown.split}: {shown}")
        if told := report.trouble("The model", results["restarts"], results["learned_nothing"]):
            say(told)
        for split, found in results["by"].items():
            say(f"\n{report.parts_table(task.shown, found, f'{split}, by {self.dataset.columns.part}')}")
        if results["baselines"]:
            what = f"{task.baselines_are}, {self.shown.split}"
            say(f"\n{report.baselines_table(task.shown, results['baselines'], self.shown.split, what)}")
        for sentence in task.tell(self.out, results, self.best, self.shown, self.settings.seeds):
            say(sentence)
        say(f"\nTrained in {clock(results['seconds'])}. The model is in {self.out / 'final'}.")
        trained = self.dataset.columns.texts
        if len(task.asked_columns(trained)) == len(trained):
            say(f"Try it:\n  python -m finetune.predict --model {shlex.quote(str(self.out / 'final'))} FILE")


def presented(settings: FinetuneSettings, dataset: Dataset) -> dict[str, Any]:
    """What decides how results are written, not what is learned, for results.json."""
    return {
        "report_by": settings.report_by,
        "show_text": settings.show_text,
        "groups_and_parts": dataset.groups_and_parts(),
    }


# Of runs of releases that did not write it down; their groups and parts are taken for the same.
_PRESENTED_BEFORE = {"report_by": None, "show_text": "yes"}


def finished_results(
    out: Path, seeds: range, digest: str, asked: Mapping[str, Any], shown: Iterable[str]
) -> dict | None:
    """The content of results.json, if it is that of these seeds on these texts; else None.

    Args:
        asked: what `presented` gives: results that were written for something else are written again.
        shown: scores of the task's tables: results of a release that had fewer are written again.
    """
    results = read_object(out / "results.json", data=str, validation=dict)
    if results is None or results["data"] != digest:
        return None
    before = asked | _PRESENTED_BEFORE | results
    if any(before[name] != value for name, value in asked.items()) or not results["validation"].keys() >= {*shown}:
        return None
    finished = [scores["seeds"] for scores in results["validation"].values() if "seeds" in scores]
    return results if finished and len(finished[0]) == len(seeds) else None


def refuse_fewer_seeds(out: Path, seeds: range) -> None:
    """Raises FinetuneError where seeds of an earlier run would be left out of the results."""
    more = [
        path.parent.name for path in out.glob("seed-*/results.json") if path.parent.name not in map(seed_name, seeds)
    ]
    if more:
        raise FinetuneError(f"{out} holds {', '.join(sorted(more))} too: give as many --seeds, or another --out")


def outputs_of_seeds(out: Path, task: Task, split: str) -> list[tuple[Task, np.ndarray]]:
    """Of each seed of a finished run the task as this seed decided it, and its outputs for held-out texts."""
    return [_decided(folder, task, split) for folder in seed_folders(out)]


def kept_seed(out: Path, results: Mapping[str, Any], task: Task, split: str) -> tuple[Task, np.ndarray]:
    """The task of a finished run as its best seed decided it, and this seed's outputs for held-out texts."""
    return _decided(out / seed_name(results["best_seed"]), task, split)


def _decided(folder: Path, task: Task, split: str) -> tuple[Task, np.ndarray]:
    decision = (read_object(folder / "results.json") or {}).get("decision", {})
    return task.with_decision(decision), outputs_of(folder, split)
