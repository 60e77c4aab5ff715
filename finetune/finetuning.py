"""A fine-tuning from its settings to `final/` and `results.json`, or from where it was interrupted."""

import hashlib
import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from data_prep.console import command_line
from data_prep.console.screen import say
from data_prep.files import file_digest, write_json, write_text
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from pretrain.engine.distributed import World, joined
from pretrain.engine.earlier_run import SETTINGS_FILE, agreed, as_before
from pretrain.engine.folder import whole_folder
from pretrain.engine.interruption import Interruption
from pretrain.engine.machine import Machine
from pretrain.engine.output import claimed
from pretrain.engine.progress import clock

from . import report
from .data import Encoded
from .dataset import Dataset, read_dataset
from .errors import FinetuneError
from .metrics import combined, confusion, per_class
from .model_card import model_card
from .rate_search import RateSearch
from .resolve import MAY_DIFFER, model_config, out_folder, resolve, with_budget
from .settings import FinetuneSettings
from .tasks import classification as task
from .training import Material, SeedTraining, best_of

# With more classes results.json has the scores of each.
MOST_CLASSES_SHOWN = 50


def finetune(settings: FinetuneSettings) -> Path:
    """Run, or go on with, a fine-tuning; returns its output folder.

    Raises:
        FinetuneError, PretrainError, PrepError: the input cannot be used, or the output folder holds something else.
    """
    out = out_folder(settings)
    with joined(settings.device) as world, Interruption() as interruption:
        settings = agreed(settings, world, lambda: resolve(as_before(settings, out, MAY_DIFFER) or settings))
        with claimed(out) if world.is_main else nullcontext():
            run_seeds(settings, out, read_dataset(settings), world, interruption)
    return out


def run_seeds(
    settings: FinetuneSettings, out: Path, dataset: Dataset, world: World, interruption: Interruption
) -> dict:
    """Train every seed that is not finished, then write down and say what they reached; returns results.json."""
    settings = with_budget(settings, len(dataset.train))
    torch.set_num_threads(settings.threads)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    material = prepare(settings, dataset)

    def finished() -> dict | None:
        refuse_fewer_seeds(out, seeds)
        return finished_results(out, seeds, material.digest)

    results = world.first(finished)
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
        found.append(SeedTraining(settings, seed, out / _seed(seed), material, world, interruption).results())
    best = best_of(found, settings.metric, len(dataset.validation))
    return world.first(lambda: Results(settings, out, dataset, found, best, tried).write())


def finished_results(out: Path, seeds: range, digest: str) -> dict | None:
    """The content of results.json, if it is that of these seeds on these texts; else None."""
    try:
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        is_this = results["data"] == digest and len(results["validation"]["loss"]["seeds"]) == len(seeds)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return results if is_this else None


def refuse_fewer_seeds(out: Path, seeds: range) -> None:
    """Raises FinetuneError where seeds of an earlier run would be left out of the results."""
    more = [path.parent.name for path in out.glob("seed-*/results.json") if path.parent.name not in map(_seed, seeds)]
    if more:
        raise FinetuneError(f"{out} holds {', '.join(sorted(more))} too: give as many --seeds, or another --out")


def _seed(number: int) -> str:
    return f"seed-{number}"


def prepare(settings: FinetuneSettings, dataset: Dataset) -> Material:
    """Tokenizer and ids; says how much of the texts will be cut."""
    tokenizer = WordPieceTokenizer.load(settings.model)

    def encode(examples):
        return task.encode(examples, dataset.labels, tokenizer, settings.sequence_length, settings.long_text)

    train, validation, test = encode(dataset.train), encode(dataset.validation), encode(dataset.test)
    say(cut_sentence(train, settings))
    facts = [part.digest() for part in (train, validation, test)]
    facts += [weights_digest(Path(settings.model)), tokenizer.digest(), *dataset.labels]
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
        self.seed_folder = out / f"seed-{self.best['seed']}"
        # The picture, the mistakes and the classes are shown on the texts that chose nothing, if there are any.
        self.shown = "test" if dataset.test else "validation"
        self.examples = getattr(dataset, self.shown)
        path = self.seed_folder / "probabilities.npz"
        try:
            with np.load(path) as stored:
                self.probabilities = stored[self.shown]
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise FinetuneError(f"{path} is damaged: remove {self.seed_folder} to train this seed again") from error
        self.gold = task.classes(self.examples, dataset.labels)

    def write(self) -> dict:
        """Write everything, results.json last, and say it; returns the content of results.json."""
        results = self._results()
        self._write_final(results)
        matrix = confusion(self.gold, self.probabilities, len(self.dataset.labels))
        worst = report.mistakes(self.examples, self.gold, self.probabilities, self.dataset.labels)
        report.write_confusion_csv(matrix, self.dataset.labels, self.out / "confusion.csv")
        title = f"{self.shown} texts, seed {self.best['seed']}"
        report.draw_confusion(matrix, self.dataset.labels, self.out / "confusion.png", title)
        write_text(self.out / "mistakes.md", report.mistakes_markdown(worst, self.settings.show_text == "yes"))
        write_json(self.out / "results.json", results)
        self._say(results, matrix)
        return results

    def _results(self) -> dict:
        test = [found["test"] for found in self.found]
        rows = {name: len(getattr(self.dataset, name)) for name in ("train", "validation", "test")}
        return {
            "validation": combined([found["validation"] for found in self.found]),
            "test": combined(test) if self.dataset.test else None,
            "labels": self.dataset.labels,
            "per_class": {self.shown: per_class(self.gold, self.probabilities, self.dataset.labels)},
            "majority": self._majority(),
            "best_seed": self.best["seed"],
            "chosen_by": self.settings.metric,
            "learning_rate": self.settings.learning_rate,
            "learning_rates_tried": self.tried,
            "restarts": sum(len(found["restarts"]) for found in self.found),
            "learned_nothing": [found["seed"] for found in self.found if found["learned_nothing"]],
            "rows": rows,
            "seconds": round(sum(found["seconds"] for found in self.found), 1),
            "data": self.best["data"],
        }

    def _majority(self) -> dict[str, float]:
        """The accuracy of always answering with the most frequent class of the training texts, on held-out ones."""
        labels = self.dataset.labels
        answer = np.bincount(task.classes(self.dataset.train, labels)).argmax()
        held_out = {"validation": self.dataset.validation, "test": self.dataset.test}
        return {name: float((task.classes(rows, labels) == answer).mean()) for name, rows in held_out.items() if rows}

    def _write_final(self, results: dict) -> None:
        model = self.seed_folder / "model"
        settings = replace(self.settings, learning_rate=self.best["learning_rate"])
        card = model_card(model_config(str(model)), results, self.dataset.columns.texts, settings)
        with whole_folder(self.out / "final", sum(path.stat().st_size for path in model.iterdir())) as folder:
            shutil.copytree(model, folder, dirs_exist_ok=True)
            write_text(folder / "README.md", card)

    def _say(self, results: dict, matrix: np.ndarray) -> None:
        say(f"\n{report.scores_table(results['validation'], results['test'])}")
        majority = results["majority"]
        say(f"always the most frequent class: {self.shown} accuracy {majority[self.shown]:.3f}")
        if self.best["validation"]["accuracy"] <= majority["validation"]:
            say(
                "The model that is kept is no more accurate on the validation texts than that: "
                f"{self.best['validation']['accuracy']:.3f} beside {majority['validation']:.3f}."
            )
        which = f"seed {self.best['seed']}, which is kept" if self.settings.seeds > 1 else "by class"
        if len(self.dataset.labels) <= MOST_CLASSES_SHOWN:
            say(f"\n{self.shown} texts, {which}:\n{report.per_class_table(results['per_class'][self.shown])}")
        say(f"\n{report.confusion_table(matrix, self.dataset.labels)}")
        say(f"\nTrained in {clock(results['seconds'])}. The most confident mistakes are in {self.out / 'mistakes.md'}, "
            f"the confusions in {self.out / 'confusion.png'}, the model in {self.out / 'final'}. Try it:")  # fmt: skip
        say(f"  python -m finetune.predict --model {self.out / 'final'} FILE")
