"""A fine-tuning from its settings to `final/` and `results.json`, or from where it stopped; the search for a rate."""

import hashlib
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from data_prep.console import command_line
from data_prep.console.screen import say
from data_prep.durable import file_digest, read_object, write_json, write_text
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from pretrain.engine.device import Machine
from pretrain.engine.distributed import World
from pretrain.engine.folder import whole_folder
from pretrain.engine.process import Interruption
from pretrain.engine.progress import clock
from pretrain.engine.stage import SETTINGS_FILE, as_before, stage

from . import report
from .batches import Encoded
from .dataset import Dataset, read_dataset
from .metrics import combined
from .model_card import model_card
from .resolve import MAY_DIFFER, learning_rate, model_config, out_folder, resolve, with_budget, with_task
from .settings import FinetuneError, FinetuneSettings
from .tasks import HeldOut, Task
from .training import Material, SeedTraining, best_of


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
    settings: FinetuneSettings, out: Path, dataset: Dataset, world: World, interruption: Interruption
) -> dict:
    """Train every seed that is not finished, then write down and say what they reached; returns results.json."""
    settings = with_task(with_budget(settings, len(dataset.train)), dataset.task)
    torch.set_num_threads(settings.threads)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    material = prepare(settings, dataset)

    def finished() -> dict | None:
        refuse_fewer_seeds(out, seeds)
        return finished_results(out, seeds, material.digest)

    results = world.from_main(finished)
    if results:
        say(f"{out} holds this run, finished: see {out / 'results.json'} and {out / 'final'}.")
        return results
    if world.is_main:
        write_text(out / SETTINGS_FILE, command_line.to_yaml(settings))
    introduce(settings)
    tried = None
    if settings.learning_rate == "search":
        search = RateSearch(settings, out, material, world, interruption).found()
        settings, tried = replace(settings, learning_rate=search["learning_rate"]), search["tried"]
    found = []
    for seed in seeds:
        if settings.seeds > 1:
            say(f"\nSeed {seed}:")
        found.append(SeedTraining(settings, seed, out / _seed_name(seed), material, world, interruption).results())
    best = best_of(dataset.task, found, settings.metric, len(dataset.validation))
    return world.from_main(lambda: Results(settings, out, dataset, found, best, tried).write())


def finished_results(out: Path, seeds: range, digest: str) -> dict | None:
    """The content of results.json, if it is that of these seeds on these texts; else None."""
    results = read_object(out / "results.json", data=str, validation=dict)
    if results is None or results["data"] != digest:
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
    """Tokenizer and ids; says how much of the texts will be cut."""
    tokenizer = WordPieceTokenizer.load(settings.model)

    task, parts = dataset.task, (dataset.train, dataset.validation, dataset.test)
    train, validation, test = (
        task.encode(part, tokenizer, settings.sequence_length, settings.long_text) for part in parts
    )
    say(cut_sentence(train, settings))
    facts = [part.digest() for part in (train, validation, test)]
    facts += [weights_digest(Path(settings.model)), tokenizer.digest(), *task.facts()]
    digest = hashlib.blake2b("\0".join(facts).encode(), digest_size=16).hexdigest()
    return Material(dataset, tokenizer, train, validation, digest)


def weights_digest(folder: Path) -> str:
    """Of all weight files of a model folder."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    return "".join(file_digest(path) for path in files)


def cut_sentence(train: Encoded, settings: FinetuneSettings) -> str:
    """What share of the training texts, and of their tokens, the model will not see."""
    length = settings.sequence_length
    if not train.num_long:
        return f"All training texts fit into {length} tokens."
    share = train.num_long / train.num_texts
    sentence = f"{share:.1%} of the training texts are longer than {length} tokens: "
    if settings.long_text == "windows":
        return sentence + f"they are read in windows ({len(train.sequences):,} for {train.num_texts:,} texts)."
    cut = train.num_cut / train.num_tokens
    return sentence + f"{cut:.1%} of all tokens will be cut (--long-text windows reads everything)."


def introduce(settings: FinetuneSettings) -> None:
    """Say what was chosen."""
    start = "from scratch, in the shape of" if settings.from_scratch else "from"
    rate = "a learning rate to be found" if settings.learning_rate == "search" else f"{settings.learning_rate:g}"
    seeds = f", {settings.seeds} seeds of which the best is kept" if settings.seeds > 1 else ""
    say(
        f"Fine-tuning {start} {settings.model} for {settings.budget}: {settings.batch_size} texts a step, "
        f"{settings.optimizer} at {rate}, dropout {settings.dropout:g}, {settings.precision} on "
        f"{settings.device}{seeds}.\n{Machine.here(settings.device)}."
    )


class Results:
    """What all seeds reached, as files and on the screen.

    Args:
        found: results of each seed.
        best: those of the seed that is best on the validation texts.
        tried: the learning rates that this one was chosen among, each with its validation scores.
    """

    def __init__(self, settings: FinetuneSettings, out: Path, dataset: Dataset, found: list[dict], best: dict,
                 tried: dict[str, dict] | None = None):  # fmt: skip
        self.settings, self.out, self.dataset, self.found = settings, out, dataset, found
        self.best, self.tried = best, tried
        self.task = dataset.task.with_decision(best.get("decision", {}))
        self.seed_folder = out / _seed_name(self.best["seed"])
        # What one seed does is shown on the texts that chose nothing, if there are any.
        split = "test" if dataset.test else "validation"
        examples = dataset.held_out()[split]
        path = self.seed_folder / "probabilities.npz"
        try:
            with np.load(path) as stored:
                outputs = stored[split]
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise FinetuneError(f"{path} is damaged: remove {self.seed_folder} to train this seed again") from error
        self.shown = HeldOut(split, best["seed"], examples, self.task.targets(examples), outputs)

    def write(self) -> dict:
        """Write everything, results.json last, and say it; returns the content of results.json."""
        results = self._results()
        self._write_final(results)
        self.task.write_files(self.out, self.shown, self.settings)
        write_json(self.out / "results.json", results)
        self._say(results)
        return results

    def _results(self) -> dict:
        test = [found["test"] for found in self.found]
        return {
            "validation": combined([found["validation"] for found in self.found]),
            "test": combined(test) if self.dataset.test else None,
            **self.task.results(self.dataset.train, self.dataset.held_out(), self.shown),
            "best_seed": self.best["seed"],
            "chosen_by": self.settings.metric,
            "learning_rate": self.settings.learning_rate,
            "learning_rates_tried": self.tried,
            "restarts": sum(len(found["restarts"]) for found in self.found),
            "learned_nothing": [found["seed"] for found in self.found if found["learned_nothing"]],
            "rows": self.dataset.rows(),
            "seconds": round(sum(found["seconds"] for found in self.found), 1),
            "data": self.best["data"],
        }

    def _write_final(self, results: dict) -> None:
        model = self.seed_folder / "model"
        settings = replace(self.settings, learning_rate=self.best["learning_rate"])
        card = model_card(self.task, model_config(str(model)), results, self.dataset.columns.texts, settings)
        with whole_folder(self.out / "final", sum(path.stat().st_size for path in model.iterdir())) as folder:
            shutil.copytree(model, folder, dirs_exist_ok=True)
            write_text(folder / "README.md", card)

    def _say(self, results: dict) -> None:
        task = self.task
        say(f"\n{report.scores_table(task.shown, results['validation'], results['test'])}")
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


class RateSearch:
    """A training at each rate with the first seed; that of the best rate stays as this seed's.

    Args:
        out: the run's folder. rates.json there says what was found; rates/ holds the trainings until then.
    """

    def __init__(self, settings: FinetuneSettings, out: Path, material: Material, world: World,
                 interruption: Interruption):  # fmt: skip
        self.settings, self.out, self.material = settings, out, material
        self.world, self.interruption = world, interruption

    def found(self) -> dict:
        """{"learning_rate": the best, "tried": {rate: validation scores}, "data": digest}, from rates.json or now."""
        found = self.world.from_main(self._before)
        if not found:
            tried = {f"{rate:g}": self._tried(rate) for rate in candidate_rates(self.settings)}
            found = self.world.from_main(lambda: self._choose(tried))
        self.world.from_main(lambda: self._keep(f"{found['learning_rate']:g}"))
        return found

    def _before(self) -> dict | None:
        path = self.out / "rates.json"
        if not path.exists():
            return None
        found = read_object(path, data=str, learning_rate=float, tried=dict)
        if found and found["data"] == self.material.digest and f"{found['learning_rate']:g}" in found["tried"]:
            return found
        raise FinetuneError(f"{path} is damaged, or of other texts: give another --out")

    def _tried(self, rate: float) -> dict[str, float]:
        say(f"\nLearning rate {rate:g}, seed {self.settings.seed}:")
        settings, folder = replace(self.settings, learning_rate=rate), self.out / "rates" / f"{rate:g}"
        training = SeedTraining(
            settings, settings.seed, folder, self.material, self.world, self.interruption, most_restarts=0
        )
        return training.results()["validation"]

    def _choose(self, tried: dict[str, dict[str, float]]) -> dict:
        best = min(tried, key=lambda rate: self.material.dataset.task.judge(tried[rate], self.settings.metric))
        found = {"learning_rate": float(best), "tried": tried, "data": self.material.digest}
        write_json(self.out / "rates.json", found)
        metric = self.settings.metric
        reached = ", ".join(f"{rate}: {report.number(scores[metric])}" for rate, scores in tried.items())
        say(f"\nLearning rate {best} is the best on the validation texts ({metric.replace('_', '-')} {reached}).")
        return found

    def _keep(self, rate: str) -> None:
        """Give the training at the best rate the name of its seed, and remove the others."""
        training, seed = self.out / "rates" / rate, self.out / _seed_name(self.settings.seed)
        if training.exists() and not seed.exists():
            os.replace(training, seed)
        shutil.rmtree(self.out / "rates", ignore_errors=True)
