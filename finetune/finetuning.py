"""A fine-tuning from its settings to `final/` and `results.json`, or from where it stopped; the search for a rate."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_prep.console import command_line
from data_prep.console.screen import say
from data_prep.durable import read_object, write_json, write_text
from pretrain.engine.device import Machine
from pretrain.engine.distributed import World
from pretrain.engine.folder import weights_digest, whole_folder
from pretrain.engine.process import Interruption
from pretrain.engine.progress import clock
from pretrain.engine.stage import SETTINGS_FILE, as_before, stage

from . import report
from .baselines import run_baselines
from .batches import Encoded
from .dataset import Dataset, read_dataset
from .intervals import by_part, intervals
from .metrics import combined
from .model_card import model_card
from .predictor import ENSEMBLE_FILE, seeds_of
from .resolve import MAY_DIFFER, learning_rate, model_config, out_folder, resolve, with_budget, with_task
from .settings import FinetuneError, FinetuneSettings
from .tasks import HeldOut, Task
from .teacher import open_teacher
from .tokenizer import open_tokenizer
from .training import Material, SeedTraining, best_of, outputs_of


def finetune(settings: FinetuneSettings, task: Task | None = None) -> Path:
    """Run, or go on with, a fine-tuning; returns its output folder.

    Args:
        task: what is learned; by default that of `--task`.

    Raises:
        FinetuneError, PretrainError, PrepError: the input cannot be used, or the output folder holds something else.
    """
    out = out_folder(settings)
    with stage(settings, out, partial(resolved, settings, out)) as (settings, world, interruption):
        run_seeds(settings, out, read_dataset(settings, task), world, interruption)
    return out


def resolved(settings: FinetuneSettings, out: Path) -> FinetuneSettings:
    """The settings without `auto`, those of the run found in `out` included."""
    return resolve(as_before(settings, out, MAY_DIFFER) or settings)


def run_seeds(
    settings: FinetuneSettings,
    out: Path,
    dataset: Dataset,
    world: World,
    interruption: Interruption,
    with_baselines: bool = True,
    needs_seeds: bool = False,
) -> dict:
    """Train every seed that is not finished, then write down and say what they reached; returns results.json.

    Args:
        with_baselines: whether to add the results of what learns without a BERT.
        needs_seeds: whether the caller reads the seeds' outputs, so that a seed whose folder was removed is trained
            again; else a finished run can do without them.
    """
    settings = with_task(with_budget(settings, len(dataset.train)), dataset.task)
    torch.set_num_threads(settings.threads)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    material = prepare(settings, dataset)

    def finished() -> dict | None:
        refuse_fewer_seeds(out, seeds)
        if needs_seeds and not all((out / _seed_name(seed) / "results.json").exists() for seed in seeds):
            return None
        return finished_results(out, seeds, material.digest, presented(settings, dataset))

    results = world.from_main(finished)
    if results:
        say(f"{out} holds this run, finished: see {out / 'results.json'} and {out / 'final'}.")
        return results
    if world.is_main:
        write_text(out / SETTINGS_FILE, command_line.to_yaml(settings))
    introduce(settings)
    searched = {"learning_rates_tried": None, "grid": None}
    if len(candidates := ways(settings)) > 1:
        name = "grid" if settings.grid == "paper" else "rates"
        search = Search(settings, out, material, world, interruption, candidates, name)
        chosen = search.found()
        settings, searched = search.settings_of(chosen), searched | search.results(chosen)
    found = []
    for seed in seeds:
        if settings.seeds > 1:
            say(f"\nSeed {seed}:")
        found.append(SeedTraining(settings, seed, out / _seed_name(seed), material, world, interruption).results())
    best = best_of(dataset.task, found, settings.metric, len(dataset.validation))
    return world.from_main(lambda: Results(settings, out, dataset, found, best, searched).write(with_baselines))


def presented(settings: FinetuneSettings, dataset: Dataset) -> dict[str, Any]:
    """What decides how results are written, not what is learned, for results.json."""
    return {
        "report_by": settings.report_by,
        "show_text": settings.show_text,
        "groups_and_parts": dataset.groups_and_parts(),
    }


# Of runs of releases that did not write it down; their groups and parts are taken for the same.
_PRESENTED_BEFORE = {"report_by": None, "show_text": "yes"}


def finished_results(out: Path, seeds: range, digest: str, asked: Mapping[str, Any]) -> dict | None:
    """The content of results.json, if it is that of these seeds on these texts; else None.

    Args:
        asked: what `presented` gives: results that were written for something else are written again.
    """
    results = read_object(out / "results.json", data=str, validation=dict)
    if results is None or results["data"] != digest:
        return None
    before = asked | _PRESENTED_BEFORE | results
    if any(before[name] != value for name, value in asked.items()):
        return None
    finished = [scores["seeds"] for scores in results["validation"].values() if "seeds" in scores]
    return results if finished and len(finished[0]) == len(seeds) else None


def refuse_fewer_seeds(out: Path, seeds: range) -> None:
    """Raises FinetuneError where seeds of an earlier run would be left out of the results."""
    more = [
        path.parent.name for path in out.glob("seed-*/results.json") if path.parent.name not in map(_seed_name, seeds)
    ]
    if more:
        raise FinetuneError(f"{out} holds {', '.join(sorted(more))} too: give as many --seeds, or another --out")


def _seed_name(number: int) -> str:
    return f"seed-{number}"


def prepare(settings: FinetuneSettings, dataset: Dataset) -> Material:
    """Tokenizer, teacher and ids; says how much of the texts will be cut."""
    tokenizer = open_tokenizer(settings.model)

    task, parts = dataset.task, (dataset.train, dataset.validation, dataset.test)
    teacher = open_teacher(settings, task, tokenizer)
    train, validation, test = (
        task.encode(part, tokenizer, settings.sequence_length, settings.long_text) for part in parts
    )
    say(cut_sentence(train, settings, task))
    facts = [part.digest() for part in (train, validation, test)]
    facts += [weights_digest(Path(settings.model)), tokenizer.digest(), *task.facts()]
    facts += [] if teacher is None else [teacher.digest]
    digest = hashlib.blake2b("\0".join(facts).encode(), digest_size=16).hexdigest()
    return Material(dataset, tokenizer, train, validation, digest, teacher)


def cut_sentence(train: Encoded, settings: FinetuneSettings, task: Task) -> str:
    """What share of the training texts, and of their tokens, the model will not see."""
    length = settings.sequence_length
    if not train.num_long:
        return f"All training texts fit into {length} tokens."
    share = train.num_long / train.num_texts
    sentence = f"{share:.1%} of the training texts are longer than {length} tokens: "
    if settings.long_text == "windows":
        sentence += f"they are read in windows ({len(train.sequences):,} for {train.num_texts:,} texts)."
        more = f" Of questions or second texts that take more than half of a window {train.num_cut:,} tokens are cut."
        return sentence + (more if train.num_cut else "")
    cut = train.num_cut / train.num_tokens
    remedy = " (--long-text windows reads everything)" if task.takes_windows else ""
    return sentence + f"{cut:.1%} of all tokens will be cut{remedy}."


def introduce(settings: FinetuneSettings) -> None:
    """Say what was chosen."""
    start = "from scratch, in the shape of" if settings.from_scratch else "from"
    seeds = f", {settings.seeds} seeds of which the best is kept" if settings.seeds > 1 else ""
    taught = "" if settings.teacher is None else f", taught by {settings.teacher}"
    if settings.grid == "paper":
        how = f" with what is best of {len(paper_grid(settings))} ways, {settings.optimizer}"
    else:
        rate = "a learning rate to be found" if settings.learning_rate == "search" else f"{settings.learning_rate:g}"
        how = f" for {settings.budget}: {settings.batch_size} texts a step, {settings.optimizer} at {rate}"
    say(
        f"Fine-tuning {start} {settings.model}{how}, dropout {settings.dropout:g}, {settings.precision} on "
        f"{settings.device}{seeds}{taught}.\n{Machine.here(settings.device)}."
    )


def outputs_of_seeds(out: Path, task: Task, split: str) -> list[tuple[Task, np.ndarray]]:
    """Of each seed of a finished run the task as this seed decided it, and its outputs for held-out texts."""
    folders = [Path(model).parent for model in seeds_of(out)]
    decisions = [(read_object(folder / "results.json") or {}).get("decision", {}) for folder in folders]
    return [(task.with_decision(d), outputs_of(folder, split)) for d, folder in zip(decisions, folders, strict=True)]


def kept_seed(out: Path, results: Mapping[str, Any], task: Task, split: str) -> tuple[Task, np.ndarray]:
    """The task of a finished run as its best seed decided it, and this seed's outputs for held-out texts."""
    folder = out / _seed_name(results["best_seed"])
    decision = (read_object(folder / "results.json") or {}).get("decision", {})
    return task.with_decision(decision), outputs_of(folder, split)


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
        self.seed_folder = out / _seed_name(self.best["seed"])
        # What one seed does is shown on the texts that chose nothing, if there are any.
        split = "test" if dataset.test else "validation"
        examples, outputs = dataset.held_out()[split], outputs_of(self.seed_folder, split)
        self.shown = HeldOut(split, best["seed"], examples, self.task.targets(examples), outputs)

    def write(self, with_baselines: bool = True) -> dict:
        """Write everything, results.json last, and say it; returns the content of results.json."""
        results = self._results() | {"baselines": run_baselines(self.settings, self.dataset) if with_baselines else {}}
        self._write_final(results)
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
            "learning_rate": self.settings.learning_rate,
            **self.searched,
            "restarts": sum(len(found["restarts"]) for found in self.found),
            "learned_nothing": [found["seed"] for found in self.found if found["learned_nothing"]],
            "rows": self.dataset.rows(),
            "seconds": round(sum(found["seconds"] for found in self.found), 1),
            "data": self.best["data"],
        }

    def _scores(self, found: dict) -> dict[str, dict]:
        """Those of a seed, from its outputs: one that an earlier release trained has written fewer down."""
        task, folder = self.dataset.task.with_decision(found.get("decision", {})), self.out / _seed_name(found["seed"])
        held_out = self.dataset.held_out().items()
        return {split: task.scores(task.targets(rows), outputs_of(folder, split)) for split, rows in held_out}

    def _ensemble(self) -> dict | None:
        """What the mean of the seeds' outputs reaches, and ensemble.json; None for one seed, or where there is none."""
        if len(self.found) < 2 or not self.task.has_answers:
            return None
        folders = [self.out / _seed_name(found["seed"]) for found in self.found]
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
        return {shown.split: by_part(self.task, shown.targets, shown.outputs, shown.examples)}

    def _write_final(self, results: dict) -> None:
        model = self.seed_folder / "model"
        settings = replace(self.settings, learning_rate=self.best["learning_rate"])
        card = model_card(self.task, model_config(str(model)), results, self.dataset.columns.texts, settings)
        with whole_folder(self.out / "final", sum(path.stat().st_size for path in model.iterdir())) as folder:
            shutil.copytree(model, folder, dirs_exist_ok=True)
            write_text(folder / "README.md", card)

    def _say(self, results: dict) -> None:
        task = self.task
        say(f"\n{report.scores_table(task.shown, results['validation'], results['test'], results['intervals'])}")
        if results["ensemble"]:
            reached = results["ensemble"][self.shown.split]
            shown = ", ".join(f"{title} {report.number(reached[name])}" for title, name in list(task.shown.items())[:3])
            say(f"mean of the seeds' outputs (finetune.predict --ensemble), {self.shown.split}: {shown}")
        for split, found in results["by"].items():
            say(f"\n{report.parts_table(task.shown, found, f'{split}, by {self.dataset.columns.part}')}")
        if results["baselines"]:
            what = f"{task.baselines_are}, {self.shown.split}"
            say(f"\n{report.baselines_table(task.shown, results['baselines'], self.shown.split, what)}")
        for sentence in task.tell(self.out, results, self.best, self.shown, self.settings.seeds):
            say(sentence)
        say(f"\nTrained in {clock(results['seconds'])}. The model is in {self.out / 'final'}. Try it:")
        say(f"  python -m finetune.predict --model {self.out / 'final'} FILE")


# Of the rate that `auto` takes; every model has as many tries.
RATE_SHARES = (0.3, 1.0, 3.0)


def candidate_rates(settings: FinetuneSettings) -> list[float]:
    """The rates to try, the lowest first: they depend on the optimizer and on the width of the model."""
    usual = learning_rate(settings.optimizer, model_config(settings.model).hidden_size)
    return [float(f"{share * usual:.2g}") for share in RATE_SHARES]


def ways(settings: FinetuneSettings) -> dict[str, dict[str, Any]]:
    """What to choose among on the validation texts: a name -> what it changes in the settings."""
    if settings.grid == "paper":
        return paper_grid(settings)
    if settings.learning_rate != "search":
        return {f"{settings.learning_rate:g}": {}}
    return {f"{rate:g}": {"learning_rate": rate} for rate in candidate_rates(settings)}


def paper_grid(settings: FinetuneSettings) -> dict[str, dict[str, Any]]:
    """The grid of the paper (Devlin et al. 2019, section A.3), its rates scaled to the model as `auto` is: name ->
    settings."""
    usual, of_base = candidate_rates(settings)[1], (5e-5, 3e-5, 2e-5)
    found = {}
    for size in (16, 32):
        for rate in of_base:
            for epochs in (2, 3, 4):
                scaled = float(f"{usual * rate / of_base[0]:.2g}")
                found[f"{size} texts, {scaled:g}, {epochs} epochs"] = {
                    "grid": "none", "batch_size": size, "learning_rate": scaled, "budget": f"{epochs}epochs",
                    "evaluations": epochs,
                }  # fmt: skip
    return found


class Search:
    """A training with the first seed for each of several candidates; that of the best one stays as this seed's.

    Args:
        out: the run's folder. NAME.json there says what was found; NAME/ holds the trainings until then.
        candidates: what each changes in the settings, by a name.
        name: "rates" or "grid".
    """

    def __init__(self, settings: FinetuneSettings, out: Path, material: Material, world: World,
                 interruption: Interruption, candidates: Mapping[str, Mapping[str, Any]], name: str):  # fmt: skip
        self.settings, self.out, self.material = settings, out, material
        self.world, self.interruption, self.candidates, self.name = world, interruption, candidates, name

    def found(self) -> dict:
        """{"chosen": the best candidate, "tried": {candidate: validation scores}, "data": digest}."""
        found = self.world.from_main(self._before)
        if not found:
            tried = {name: self._tried(name) for name in self.candidates}
            found = self.world.from_main(lambda: self._choose(tried))
        self.world.from_main(lambda: self._keep(found["chosen"]))
        return found

    def results(self, found: dict) -> dict[str, Any]:
        """For results.json."""
        if self.name == "rates":
            return {"learning_rates_tried": found["tried"]}
        return {"grid": {"chosen": found["chosen"], "tried": found["tried"]}}

    def settings_of(self, found: dict) -> FinetuneSettings:
        """The settings with what was chosen."""
        return replace(self.settings, **self.candidates[found["chosen"]])

    def _before(self) -> dict | None:
        path = self.out / f"{self.name}.json"
        if not path.exists():
            return None
        found = read_object(path, data=str, tried=dict)
        if found and "learning_rate" in found:
            # As rates.json was written before there was a grid.
            found["chosen"] = f"{found.pop('learning_rate'):g}"
        if (
            found
            and found["data"] == self.material.digest
            and found.get("chosen") in {*found["tried"]} & {*self.candidates}
        ):
            return found
        raise FinetuneError(f"{path} is damaged, or of other texts: give another --out")

    def _folder(self, name: str) -> Path:
        return self.out / self.name / name.replace(", ", "-").replace(" ", "-")

    def _tried(self, name: str) -> dict[str, float]:
        what = "Learning rate " if self.name == "rates" else ""
        say(f"\n{what}{name}, seed {self.settings.seed}:")
        settings = replace(self.settings, **self.candidates[name])
        training = SeedTraining(
            settings, settings.seed, self._folder(name), self.material, self.world, self.interruption,
            most_restarts=0, reads_test=False,
        )  # fmt: skip
        return training.results()["validation"]

    def _choose(self, tried: dict[str, dict[str, float]]) -> dict:
        metric = self.settings.metric
        best = min(tried, key=lambda name: self.material.dataset.task.judge(tried[name], metric))
        found = {"chosen": best, "tried": tried, "data": self.material.digest}
        write_json(self.out / f"{self.name}.json", found)
        reached = "; ".join(f"{name}: {report.number(scores[metric])}" for name, scores in tried.items())
        what = "Learning rate " if self.name == "rates" else ""
        say(f"\n{what}{best} is the best on the validation texts ({metric.replace('_', '-')} {reached}).")
        return found

    def _keep(self, name: str) -> None:
        """Give the training of the best one the name of its seed, and remove the others."""
        training, seed = self._folder(name), self.out / _seed_name(self.settings.seed)
        if training.exists() and not seed.exists():
            os.replace(training, seed)
        shutil.rmtree(self.out / self.name, ignore_errors=True)
