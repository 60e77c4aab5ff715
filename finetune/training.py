"""One seed: from the pretrained model to its results on the validation and the test texts."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from data_prep.files import flush_to_disk, write_json
from data_prep.screen import say
from data_prep.wordpiece import WordPieceTokenizer
from model import BertForSequenceClassification
from pretrain.batches import Batches, Position
from pretrain.budget import Budget
from pretrain.build import LossSums, make_optimizer
from pretrain.checkpoint import Checkpoints, damage_of, load_optimizer, num_bytes, read_state, save_model_folder
from pretrain.device import Precision
from pretrain.distributed import World
from pretrain.folder import whole_folder
from pretrain.interruption import Interruption
from pretrain.loop import record_evaluation, train
from pretrain.optimizer import Schedule
from pretrain.progress import MetricsFile, Progress, Silence
from pretrain.training_run import Counters, Run

from .classifier import Facts, TextClassifier, open_classifier
from .data import BatchMaker, Encoded, TextStream
from .dataset import Dataset
from .errors import FinetuneError
from .inference import probabilities
from .settings import FinetuneSettings
from .tasks import classification as task

# Seconds of a time budget kept for the last checkpoint.
_SAVING = 1.0
_ANOTHER_RUN = "was trained on other texts, with others held back, or from another model: give another --out"


@dataclass(frozen=True)
class Material:
    """What all seeds of a run share. `digest` tells it from any other."""

    dataset: Dataset
    tokenizer: WordPieceTokenizer
    train: Encoded
    validation: Encoded
    digest: str


def judge(results: dict[str, float], metric: str) -> list[float]:
    """Validation results as numbers of which the lowest are best: the metric, and the loss where that is equal."""
    value = results[metric]
    return [value if metric == "loss" else -value, results["loss"]]


class SeedTraining:
    """The parts of one seed's training and the order in which they act.

    Args:
        out: its own folder: checkpoints/ while it trains, then model/, results.json and probabilities.npz.
    """

    def __init__(self, settings: FinetuneSettings, seed: int, out: Path, material: Material, world: World,
                 interruption: Interruption):  # fmt: skip
        self.settings, self.seed, self.out, self.material = settings, seed, out, material
        self.world, self.interruption = world, interruption
        self.precision = Precision(settings.device, settings.precision)
        self.checkpoints = Checkpoints(out / "checkpoints", material.tokenizer, settings.keep_checkpoints)
        self.gold = material.validation.labels()

    def _maker(self, encoded: Encoded, places: Sequence[str] = ()) -> BatchMaker:
        return BatchMaker(encoded, self.material.tokenizer, self.settings.micro_batch_tokens, places)

    def results(self) -> dict:
        """The results, of a seed that is finished from its file, else by training."""
        found = self.world.first(self._found)
        if found:
            return found
        run = self._run()
        return self.world.first(lambda: self._finish(run))

    def _found(self) -> dict | None:
        path = self.out / "results.json"
        if not path.exists():
            self.out.mkdir(exist_ok=True)
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            digest = found["data"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FinetuneError(f"{path} is damaged: remove {self.out} to train this seed again") from error
        if digest != self.material.digest:
            raise FinetuneError(f"{self.out} {_ANOTHER_RUN}")
        # A run that ended right after its results were written has left them.
        shutil.rmtree(self.checkpoints.folder, ignore_errors=True)
        say(f"{self.out} is finished.")
        return found

    def _run(self) -> Run:
        newest = self.world.first(lambda: str(self.checkpoints.newest_intact() or ""))
        model, state = self._open(Path(newest)) if newest else (self._fresh_model(), {})
        model.to(self.settings.device)
        if self.settings.freeze_encoder:
            model.freeze_encoder()
        optimizer = make_optimizer(self.settings, model)
        if newest:
            load_optimizer(Path(newest), optimizer)
            say(f"Going on from {newest}.")
        run = self._make_run(model, optimizer, state)
        start = Position(**state.get("position", {}))
        maker = self._maker(self.material.train, [example.place for example in self.material.dataset.train])
        stream = TextStream(self.material.train, self.seed)
        train(run, Batches(stream, maker, self.settings.batch_size, start, self.world), self._evaluate)
        if run.counters.evaluations < run.evaluations and not run.has_stalled():
            record_evaluation(run, self._evaluate(model))
        run.progress.close()
        return run

    def _fresh_model(self) -> BertForSequenceClassification:
        settings = self.settings
        return task.build_model(
            settings.model,
            self.material.dataset.labels,
            self.seed,
            settings.dropout,
            settings.hidden_layers,
            settings.from_scratch,
        )

    def _open(self, checkpoint: Path) -> tuple[BertForSequenceClassification, dict]:
        state = read_state(checkpoint, ["data", "reserve"])
        if state["data"] != self.material.digest:
            raise FinetuneError(f"{checkpoint} {_ANOTHER_RUN}")
        return open_classifier(checkpoint), state

    def _evaluate(self, model: BertForSequenceClassification) -> dict[str, float]:
        maker = self._maker(self.material.validation)
        return task.metrics(self.gold, probabilities(model, maker, self.precision, self.world))

    def _summary(self, results: dict[str, float]) -> str:
        shown = dict.fromkeys(["accuracy", "macro_f1", self.settings.metric, "loss"])
        return "validation " + ", ".join(f"{name.replace('_', '-')} {results[name]:.3f}" for name in shown)

    def _make_run(self, model, optimizer, state: dict) -> Run:
        settings, budget = self.settings, Budget.parse(self.settings.budget)
        reserve = state["reserve"] if state else self._reserve(model, budget)
        learned = task.objective(
            self.material.train, len(self.material.dataset.labels), settings.class_weights == "balanced"
        )
        return Run(
            model=model,
            loss_sums=self.world.parallel(LossSums(model, learned)),
            counts=learned.counts,
            optimizer=optimizer,
            budget=budget,
            schedule=Schedule(settings.schedule, settings.warmup * budget.amount, budget.amount),
            learning_rate=settings.learning_rate,
            precision=self.precision,
            device=torch.device(settings.device),
            checkpoints=self.checkpoints,
            progress=self._progress(state) if self.world.is_main else Silence(),
            clip_norm=settings.clip_norm,
            evaluations=settings.evaluations,
            judge=partial(judge, metric=settings.metric),
            checkpoint_every=Budget.parse(settings.checkpoint_every),
            seed=self.seed,
            patience=settings.patience,
            detect_anomaly=settings.detect_anomaly,
            reserve=reserve,
            describe={"data": self.material.digest, "reserve": reserve},
            counters=Counters(**state["counters"]) if state else Counters(),
            world=self.world,
            interruption=self.interruption,
        )

    def _progress(self, state: dict) -> Progress:
        metrics = MetricsFile(self.out / "metrics.jsonl", state.get("metrics_bytes", 0))
        return Progress(metrics, self.settings.log_every, self._summary, lambda rows: None)

    def _reserve(self, model, budget: Budget) -> float:
        """Seconds of a time budget that the last evaluation and checkpoint will take.

        Raises:
            FinetuneError: they leave little time to train.
        """
        if budget.is_counted:
            return 0.0
        began = time.monotonic()
        self._evaluate(model)
        seconds = time.monotonic() - began
        reserve = self.world.first(lambda: seconds) + _SAVING
        if reserve > budget.amount / 2:
            raise FinetuneError(
                f"reading the validation texts once takes {reserve:.0f} s of a --budget of {budget.amount:.0f} s: give "
                "more time, or fewer validation texts"
            )
        return reserve

    def _finish(self, run: Run) -> dict:
        """Keep the best checkpoint as model/ and ask it for the final results, as `finetune.predict` would."""
        settings, dataset = self.settings, self.material.dataset
        checkpoint = self.checkpoints.path(run.counters.best_step)
        if damage := damage_of(checkpoint):
            raise FinetuneError(f"{damage}: remove {self.out} to train this seed again")
        best = open_classifier(checkpoint)
        with whole_folder(self.out / "model", num_bytes(best.parameters())) as folder:
            save_model_folder(best, self.material.tokenizer, folder, model_max_length=settings.sequence_length)
            Facts(dataset.columns.texts, settings.sequence_length, settings.long_text).write(folder)
        classifier = TextClassifier(self.out / "model", settings.device)
        held_out = {"validation": dataset.validation, "test": dataset.test}
        found = {name: classifier.probabilities(examples) for name, examples in held_out.items() if examples}
        np.savez(self.out / ".probabilities.npz", **found)
        flush_to_disk(self.out / ".probabilities.npz")
        os.replace(self.out / ".probabilities.npz", self.out / "probabilities.npz")
        scores = {name: task.metrics(task.classes(held_out[name], dataset.labels), p) for name, p in found.items()}
        results = {
            "validation": scores["validation"],
            "test": scores.get("test"),
            "seed": self.seed,
            "best_step": run.counters.best_step,
            "steps": run.counters.step,
            "epochs": run.counters.epochs,
            "seconds": round(run.seconds(), 1),
            "saving_seconds": round(run.counters.saving_seconds, 2),
            "skipped_steps": run.counters.skipped,
            "loss_spikes": run.counters.spikes,
            "data": self.material.digest,
        }
        write_json(self.out / "results.json", results)
        shutil.rmtree(self.checkpoints.folder)
        return results
