"""One seed: from the pretrained model to its results on the validation and the test texts."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from torch import Tensor

from data_prep.console.screen import say
from data_prep.durable import read_object, remove_folder, replaced, write_json
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model.bert import BertWithHead
from model.huggingface import PretrainedModel
from pretrain.engine.batches import Batches, Position
from pretrain.engine.checkpoint import Checkpoints, damage_of, load_optimizer, read_state, save_model_folder
from pretrain.engine.counters import Counters
from pretrain.engine.device import Machine, Precision
from pretrain.engine.distributed import World
from pretrain.engine.folder import whole_folder
from pretrain.engine.loop import Run, record_evaluation, train
from pretrain.engine.optimizer import DepthRates
from pretrain.engine.process import Interruption
from pretrain.engine.progress import MetricsFile, Progress, Silence
from pretrain.engine.settings import Budget
from pretrain.engine.step import Learner, Objective
from pretrain.engine.threads import Threads

from .auxiliary import Masking, WithMaskedWords, take_mlm_head
from .batches import BatchMaker, Encoded
from .collapse import FEWEST_STEPS, MOST_RESTARTS, Collapse, Restarts
from .dataset import Dataset, sampled
from .predictor import Facts, Predictor, outputs, outputs_of_items
from .report import number
from .settings import FinetuneError, FinetuneSettings
from .tasks import Task
from .teacher import Teacher, WithTeacher

# Seconds of a time budget kept for the last checkpoint.
_SAVING = 1.0
OUTPUTS_FILE = "probabilities.npz"
_ANOTHER_RUN = "was trained on other texts, with others held back, or from another model or teacher: give another --out"


@dataclass(frozen=True)
class Material:
    """What all seeds of a run share. `digest` tells it from any other."""

    dataset: Dataset
    tokenizer: TextTokenizer
    train: Encoded
    validation: Encoded
    digest: str
    teacher: Teacher | None = None


def best_of(task: Task, seeds: Sequence[dict], metric: str, num_texts: int) -> dict:
    """The seed to keep: of those as good as the best one on the validation texts, the one of the lowest loss there.

    Differences that so few texts cannot tell (see `Task.tolerance`) choose nothing, as the best of them is luck.

    Args:
        seeds: results of each, with "validation".
        num_texts: how many validation texts there are.
    """
    best = min((seed["validation"] for seed in seeds), key=lambda scores: task.judge(scores, metric))
    most = task.judge(best, metric)[0] + task.tolerance(best, metric, num_texts)
    seeds = [seed for seed in seeds if task.judge(seed["validation"], metric)[0] <= most]
    return min(seeds, key=lambda seed: task.judge(seed["validation"], metric)[1])


def depth_rates(settings: FinetuneSettings, model: PretrainedModel) -> DepthRates | None:
    """Shares of the learning rate by depth, where they are asked for."""
    if settings.layer_decay == 1 and not settings.unfreeze:
        return None
    # Layers that share their weights are learned at one rate.
    return DepthRates(model.config.num_stored_layers, settings.layer_decay, settings.unfreeze, model.layer_of)


def learned(settings: FinetuneSettings, objective: Any, model: BertWithHead, words: Tensor, checkpoint: str = "",
            teacher: Teacher | None = None) -> Objective:  # fmt: skip
    """What this model is to learn, a teacher's probabilities and masked words beside its task where they are asked for;
    prepares the model for it.

    Args:
        objective: of the task; a `ClassObjective` where there is a teacher.
        words: the ids of all that it will read while it learns.
        checkpoint: that the model is from; empty before the first one.
    """
    if settings.freeze_encoder:
        model.freeze_encoder()
    if teacher is not None:
        objective = WithTeacher(objective, teacher, settings.teacher_weight)
    if not settings.mlm_weight:
        if not settings.freeze_encoder:
            model.learn_words(words)
        return objective
    take_mlm_head(model, checkpoint or (None if settings.from_scratch else settings.model))
    return WithMaskedWords(objective, settings.mlm_weight)


def seed_name(number: int) -> str:
    """Of the folder of a seed in that of the run."""
    return f"seed-{number}"


def outputs_of(seed_folder: Path, split: str) -> np.ndarray:
    """What a finished seed's model made of held-out texts: float32 [I, C].

    Raises:
        FinetuneError: the file is damaged.
    """
    path = seed_folder / OUTPUTS_FILE
    try:
        with np.load(path) as stored:
            found: np.ndarray = stored[split]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise FinetuneError(f"{path} is damaged: remove {seed_folder} to train this seed again") from error
    return found


class Trained(NamedTuple):
    """What is left of a training when its model and optimizer have given their memory back."""

    counters: Counters
    learning_rate: float
    began: float
    """By `time.monotonic`, as if it had never been interrupted."""


class SeedTraining:
    """The parts of one seed's training and the order in which they act.

    Args:
        out: its own folder: checkpoints/ while it trains, then model/, results.json and probabilities.npz.
        most_restarts: how often it may begin again at a lower rate where it learned nothing.
        reads_test: whether it is asked about the test texts too; False for those of a search, which judges by the
            validation texts. A finished one that is to read them then goes on with that.
    """

    def __init__(self, settings: FinetuneSettings, seed: int, out: Path, material: Material, world: World,
                 interruption: Interruption, most_restarts: int = MOST_RESTARTS,
                 reads_test: bool = True):  # fmt: skip
        self.settings, self.seed, self.out, self.material = settings, seed, out, material
        self.world, self.interruption = world, interruption
        self.most_restarts, self.reads_test = most_restarts, reads_test
        self.precision = Precision(settings.device, settings.precision)
        self.machine, self.threads = Machine.here(settings.device), Threads.of(settings, world.size)
        self.checkpoints = Checkpoints(out / "checkpoints", material.tokenizer, settings.keep_checkpoints)
        self.restarts = Restarts(out / "restarts.json", material.digest)
        self.task = material.dataset.task
        self.targets = self.task.targets(material.dataset.validation)
        self.objective = self.task.objective(material.train, settings)
        self.held_out = self._maker(material.validation)

    def _maker(self, encoded: Encoded) -> BatchMaker:
        return BatchMaker(encoded, self.material.tokenizer, self.settings.micro_batch_tokens)

    def _training_maker(self) -> BatchMaker:
        material, settings = self.material, self.settings
        places = [example.place for example in material.dataset.train]
        masking = Masking(material.tokenizer, self.seed) if settings.mlm_weight else None
        return self.task.maker(material.train, material.tokenizer, settings.micro_batch_tokens, places, masking)

    def results(self) -> dict:
        """The results, of a seed that is finished from its file, else by training."""
        results = self.world.from_main(self._found)
        while not results:
            with self.threads:
                trained = self._run()
                results = self.world.from_main(partial(self._end, trained))
        return results

    def _end(self, trained: Trained) -> dict | None:
        """The results of a training; None where it learned nothing and is to begin again."""
        collapse = self._collapse(trained)
        if collapse is None or len(self.restarts.before()) >= self.most_restarts:
            return self._finish(trained, collapse)
        # Whoever is killed between the two finds checkpoints of a training before.
        self.restarts.add(collapse, time.monotonic() - trained.began)
        remove_folder(self.checkpoints.folder)
        rate = self.restarts.learning_rate(self.settings.learning_rate)
        say(f"Seed {self.seed} {collapse}. It begins again at learning rate {rate:g}.")
        return None

    def _found(self) -> dict | None:
        path = self.out / "results.json"
        if not path.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            return None
        found = read_object(path, data=str)
        if found is None:
            raise FinetuneError(f"{path} is damaged: remove {self.out} to train this seed again")
        if found["data"] != self.material.digest:
            raise FinetuneError(f"{self.out} {_ANOTHER_RUN}")
        if not (self.out / "model").is_dir():
            say(f"The model of {self.out} was removed: this seed is trained again.")
            return None
        # A run that ended right after its results were written has left them.
        self._clear_away()
        say(f"{self.out} is finished.")
        if self.reads_test and self.material.dataset.test and found["test"] is None:
            found = self._with_test_texts(found)
        return {"learning_rate": self.settings.learning_rate, "restarts": [], "learned_nothing": False} | found

    def _with_test_texts(self, found: dict) -> dict:
        """The results of a training that a search has chosen, with those on the test texts."""
        texts, task = self.material.dataset.test, self.task.with_decision(found["decision"])
        given = Predictor(self.out / "model", self.settings.device, task=self.task).outputs(texts)
        self._write_outputs({"validation": outputs_of(self.out, "validation"), "test": given})
        found |= {"test": task.scores(task.targets(texts), given)}
        write_json(self.out / "results.json", found)
        return found

    def _write_outputs(self, found: Mapping[str, np.ndarray]) -> None:
        with replaced(self.out / OUTPUTS_FILE) as temporary, open(temporary, "wb") as file:
            np.savez(file, **found)

    def _run(self) -> Trained:
        newest = self.world.from_main(self._newest)
        model, state = self._open(Path(newest)) if newest else (self.task.build_model(self.settings, self.seed), {})
        stream = self.task.stream(self.material.train, self.seed)
        if state and state.get("order", 1) != stream.order:
            raise FinetuneError(
                f"{newest} was written by a version of this tool that made other batches: finish the run with that, or "
                "give another --out"
            )
        words = self.material.train.words(self.material.tokenizer)
        objective = learned(self.settings, self.objective, model, words, newest, self.material.teacher)
        counters = Counters(**state["counters"]) if state else Counters()
        rates = depth_rates(self.settings, model)
        learner = Learner(self.settings, model, objective, self.seed, counters, self.world, rates)
        if newest:
            load_optimizer(Path(newest), learner.optimizer)
            say(f"Resuming from {newest}.")
        run = self._make_run(learner, state)
        run.describe["order"] = stream.order
        start = Position(**state.get("position", {}))
        train(run, Batches(stream, self._training_maker(), self.settings.batch_size, start, self.world), self._evaluate)
        if run.counters.evaluations < run.settings.evaluations and not run.has_stalled():
            record_evaluation(run, self._evaluate(model))
        run.progress.close()
        return Trained(run.counters, run.settings.peak, time.monotonic() - run.seconds())

    def _newest(self) -> str:
        """The checkpoint to go on from, "" for none; those of a training that was to begin again are removed."""
        newest, restarts = self.checkpoints.newest_intact(), len(self.restarts.before())
        # Earlier releases removed them before they wrote the restart down.
        if newest and read_state(newest, ()).get("restarts", restarts) < restarts:
            remove_folder(self.checkpoints.folder)
            return ""
        return str(newest or "")

    def _open(self, checkpoint: Path) -> tuple[BertWithHead, dict]:
        state = read_state(checkpoint, ["data", "reserve"])
        if state["data"] != self.material.digest:
            raise FinetuneError(f"{checkpoint} {_ANOTHER_RUN}")
        return self.task.open_model(checkpoint), state

    def _evaluate(self, model: BertWithHead) -> dict[str, float]:
        found = outputs(self.task, model, self.held_out, self.precision, self.world)
        task = self.task.tuned(self.targets, found)
        return task.scores(self.targets, task.finished(found))

    def _summary(self, results: dict[str, float]) -> str:
        first = list(self.task.shown.values())[:2]
        shown = dict.fromkeys([*first, self.settings.metric, "loss"])
        return "validation " + ", ".join(f"{name.replace('_', '-')} {number(results[name])}" for name in shown)

    def _make_run(self, learner: Learner, state: dict) -> Run:
        settings = self.settings
        reserve = state["reserve"] if state else self._reserve(learner.model, Budget.parse(settings.budget))
        restarts, rate = self.world.from_main(
            lambda: (len(self.restarts.before()), self.restarts.learning_rate(settings.learning_rate))
        )
        run = Run(
            learner=learner,
            settings=replace(settings, learning_rate=rate),
            checkpoints=self.checkpoints,
            progress=self._progress(state) if self.world.is_main else Silence(),
            judge=partial(self.task.judge, metric=settings.metric),
            interruption=self.interruption,
            patience=settings.patience,
            reserve=reserve,
            threads=self.threads,
            describe={"data": self.material.digest, "reserve": reserve, "restarts": restarts},
        )
        run.note_machine(self.machine.facts() | {"precision": settings.precision})
        return run

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
        reserve = self.world.from_main(lambda: seconds) + _SAVING
        if reserve > budget.amount / 2:
            raise FinetuneError(
                f"reading the validation texts once takes {reserve:.0f} s of a --budget of {budget.amount:.0f} s: give "
                "more time, or fewer validation texts"
            )
        return reserve

    def _best(self, trained: Trained) -> BertWithHead:
        checkpoint = self.checkpoints.path(trained.counters.best_step)
        if damage := damage_of(checkpoint):
            raise FinetuneError(f"{damage}: remove {self.out} to train this seed again")
        return self.task.open_model(checkpoint)

    def _collapse(self, trained: Trained) -> Collapse | None:
        """Whether the best checkpoint learned nothing, asked of some of the training texts."""
        if trained.counters.step < FEWEST_STEPS:
            return None
        settings, examples = self.settings, sampled(self.material.dataset.train)
        length, long_text = settings.sequence_length, settings.long_text
        encoded = self.task.encode(examples, self.material.tokenizer, length, long_text)
        best = self._best(trained).to(settings.device)
        given = outputs_of_items(self.task, best, self._maker(encoded), self.precision, World())
        return self.task.collapse(encoded, given, self.objective, trained.learning_rate)

    def _finish(self, trained: Trained, collapse: Collapse | None) -> dict:
        """Keep the best checkpoint as model/ and ask it for the final results, as `finetune.predict` would."""
        settings, dataset, counters = self.settings, self.material.dataset, trained.counters
        best = self.task.kept(self._best(trained))
        held_out = dataset.held_out() if self.reads_test else {"validation": dataset.validation}
        read = dataset.columns.texts, settings.sequence_length, settings.long_text
        facts = Facts(*read, self.task.name, self.task.decision())
        with whole_folder(self.out / "model", best.num_bytes) as folder:
            save_model_folder(best, self.material.tokenizer, folder, model_max_length=settings.sequence_length)
            self.task.write_model_files(folder, best.config, settings.sequence_length)
            facts.write(folder)
            predictor = Predictor(folder, settings.device, task=self.task)
            found = {name: predictor.outputs(examples) for name, examples in held_out.items()}
            task = self.task.tuned(self.targets, found["validation"])
            found = {name: task.finished(outputs) for name, outputs in found.items()}
            replace(facts, decision=task.decision()).write(folder)
        self._write_outputs(found)
        scores = {name: task.scores(task.targets(held_out[name]), p) for name, p in found.items()}
        results = {
            "validation": scores["validation"],
            "test": scores.get("test"),
            "seed": self.seed,
            "learning_rate": trained.learning_rate,
            "restarts": self.restarts.before(),
            "learned_nothing": collapse is not None,
            "decision": task.decision(),
            "best_step": counters.best_step,
            "steps": counters.step,
            "epochs": counters.epochs,
            "seconds": round(time.monotonic() - trained.began + self.restarts.seconds(), 1),
            "saving_seconds": round(counters.saving_seconds, 2),
            "skipped_steps": counters.skipped,
            "overflowed_steps": counters.overflows,
            "machines": counters.machines,
            "loss_spikes": counters.spikes,
            "data": self.material.digest,
        }
        write_json(self.out / "results.json", results)
        self._clear_away()
        if collapse:
            say(f"Seed {self.seed} {collapse}. Its results are those of a guess.")
        return results

    def _clear_away(self) -> None:
        """Remove what a finished seed needs no more."""
        shutil.rmtree(self.checkpoints.folder, ignore_errors=True)
        self.restarts.path.unlink(missing_ok=True)
