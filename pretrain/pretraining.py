"""One pretraining from its settings to `final/` and `results.json`, or from where it was interrupted."""

import json
import shutil
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from data_prep import command_line
from data_prep.preparation import prepare, say
from data_prep.prepared import PreparedCorpus, write_json, write_text
from model import ModelError, parameter_count
from model.huggingface import read_config

from .batches import Batches, Position
from .budget import Budget
from .build import make_data, make_model, make_objective, make_optimizer, open_checkpoint, precision_context
from .checkpoint import Checkpoints, commit_folder, load_optimizer, save_model_folder
from .errors import PretrainError
from .evaluate import Evaluation, EvaluationPlan
from .loop import Counters, Run, train
from .model_card import model_card
from .optimizer import schedule
from .output import claimed
from .plots import draw_curves
from .progress import MetricsFile, Progress, results_table, summary
from .resolve import SETTINGS_FILE, as_before, automatic_batch_size, out_folder, resolve
from .settings import PretrainSettings

_METRICS = ("mlm_loss", "mlm_perplexity", "mlm_accuracy", "unigram_entropy", "most_frequent_accuracy",
            "nsp_loss", "nsp_accuracy", "nsp_majority")  # fmt: skip


def pretrain(settings: PretrainSettings) -> Path:
    """Run, or go on with, a pretraining; returns its output folder.

    Raises:
        PretrainError, PrepError: the input cannot be used, or the output folder holds something else.
    """
    out = out_folder(settings)
    settings = as_before(settings, out) or settings
    settings = resolve(settings, base_config(settings))
    with claimed(out):
        Pretraining(settings, out).run()
    return out


def base_config(settings: PretrainSettings):
    """The config of the model that `--init-from` names, None without it."""
    if settings.init_from is None:
        return None
    try:
        return read_config(Path(settings.init_from))
    except ModelError as error:
        raise PretrainError(str(error)) from error


def is_finished(settings: PretrainSettings, out: Path, corpus: str) -> bool:
    """Whether `out` holds the results of this budget on the corpus of this digest."""
    try:
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        return Budget.parse(results["budget"]) == Budget.parse(settings.budget) and results["prepared"] == corpus
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_corpus(settings: PretrainSettings, out: Path) -> PreparedCorpus:
    """The prepared corpus that `--prepared` names, or the one of `--corpus`, prepared now unless it is there."""
    if settings.prepared:
        return PreparedCorpus(settings.prepared)
    prep = replace(settings.prep, tokenizer=settings.init_from or settings.prep.tokenizer)
    return prepare(prep, settings.examples, out / "prepared")


def examples_in(budget: Budget, settings: PretrainSettings, evaluation: Evaluation, corpus_tokens: int) -> float:
    """About how many examples a counted budget comprises; 0 for a time budget."""
    per_token = len(evaluation.examples) / max(1, int(evaluation.examples.lengths().sum()))
    rates = {"steps": settings.batch_size, "epochs": corpus_tokens * per_token, "tokens": per_token, "seconds": 0}
    return budget.amount * rates[budget.unit]


def with_batch_size(settings: PretrainSettings, evaluation: Evaluation) -> PretrainSettings:
    """The settings with the batch size chosen by the mean length of the held-out examples."""
    if settings.batch_size != "auto":
        return settings
    mean = float(evaluation.examples.lengths().mean())
    return replace(settings, batch_size=automatic_batch_size(settings.device, mean))


class Pretraining:
    """The parts of one run and the order in which they act."""

    def __init__(self, settings: PretrainSettings, out: Path):
        self.out = out
        self.prepared = open_corpus(settings, out)
        self.objective = make_objective(settings, self.prepared)
        self.stream, self.maker, self.evaluation = make_data(settings, self.prepared, self.objective)
        self.settings = with_batch_size(settings, self.evaluation)
        self.checkpoints = Checkpoints(out / "checkpoints", self.prepared.tokenizer, settings.keep_checkpoints)

    def run(self) -> None:
        if is_finished(self.settings, self.out, self.prepared.digest):
            say(f"{self.out} holds this run, finished: see {self.out / 'results.json'} and {self.out / 'final'}.")
            return
        latest = self.checkpoints.latest()
        began = time.monotonic()
        if latest:
            model, state = open_checkpoint(latest, self.settings, self.prepared)
            say(f"Going on from {latest}.")
        else:
            model, state = make_model(self.settings, self.prepared), {}
        model.to(self.settings.device)
        plan = self._evaluation_plan(model, state)
        optimizer = make_optimizer(self.settings, model)
        if latest:
            load_optimizer(latest, optimizer)
        # Nothing is written before all that was found has been read.
        write_text(self.out / SETTINGS_FILE, command_line.to_yaml(self.settings))
        run = self._make_run(model, optimizer, state, plan, 0.0 if latest else time.monotonic() - began)
        self._introduce(run)
        batches = Batches(self.stream, self.maker, self.settings.batch_size, Position(**state.get("position", {})))
        train(run, batches, self.objective, partial(self.evaluation, count=plan.during))
        if self.checkpoints.latest() != self.checkpoints.path(run.counters.step):
            run.save(batches.position)
        results = self.evaluation(model, plan.final)
        run.progress.evaluation(run.counters, results)
        run.progress.close()
        self._finish(run, results)

    def _evaluation_plan(self, model, state: dict) -> EvaluationPlan:
        if "evaluation" in state:
            return EvaluationPlan(**state["evaluation"])
        budget = Budget.parse(self.settings.budget)
        examples = examples_in(budget, self.settings, self.evaluation, self.stream.num_tokens)
        return self.evaluation.plan(model, budget, examples, self.settings.evaluations)

    def _make_run(self, model, optimizer, state: dict, plan: EvaluationPlan, seconds: float) -> Run:
        settings = self.settings
        counters = Counters(**state["counters"]) if state else Counters(seconds=seconds)
        metrics = MetricsFile(self.out / "metrics.jsonl", state.get("metrics_rows", 0))
        return Run(
            model=model,
            optimizer=optimizer,
            budget=Budget.parse(settings.budget),
            rate=lambda progress: settings.learning_rate * schedule(settings.schedule, settings.warmup)(progress),
            precision=precision_context(settings.device, settings.precision),
            device=torch.device(settings.device),
            checkpoints=self.checkpoints,
            progress=Progress(metrics, settings.log_every, summary, self._draw),
            clip_norm=settings.clip_norm,
            evaluations=settings.evaluations,
            judge=lambda found: [found["mlm_loss"] + found.get("nsp_loss", 0.0)],
            checkpoint_every=Budget.parse(settings.checkpoint_every),
            seed=settings.examples.seed,
            reserve=plan.reserve,
            describe={"prepared": self.prepared.digest, "evaluation": asdict(plan)},
            counters=counters,
        )

    def _draw(self, rows: list[dict]) -> None:
        draw_curves(rows, self.out / "curves.png")

    def _introduce(self, run: Run) -> None:
        """Say what was chosen."""
        settings, config = self.settings, run.model.config
        say(
            f"Training {parameter_count(config):,} parameters ({config.num_hidden_layers} layers x "
            f"{config.hidden_size}, vocabulary {config.vocab_size:,}) for {settings.budget}: "
            f"{settings.batch_size} examples a step, "
            f"{settings.optimizer} at {settings.learning_rate:g}, {settings.precision} on {settings.device}."
        )
        if (self.out / "results.json").exists():
            say("The budget has grown: the learning rate rises again to where the longer schedule has it.")

    def _finish(self, run: Run, found: dict) -> None:
        """Write the model folder, then results.json, and say what to type next."""
        results = {
            "validation": {name: found.get(name) for name in _METRICS},
            "steps": run.counters.step,
            "tokens": run.counters.tokens,
            "seconds": round(run.seconds(), 1),
            "skipped_steps": run.counters.skipped,
            "budget": self.settings.budget,
            "prepared": self.prepared.digest,
        }
        card = model_card(run.model.config, self.prepared.manifest, results, self.settings.prep.language)
        temporary = self.out / ".final.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        save_model_folder(run.model, self.prepared.tokenizer, temporary, card)
        commit_folder(temporary, self.out / "final")
        write_json(self.out / "results.json", results)
        say(f"\n{results_table(results)}\n")
        say(f"The model is in {self.out / 'final'}, the curves in {self.out / 'curves.png'}. Try it:")
        say(f'  python -m pretrain.fill_mask --model {self.out / "final"} "One word is [MASK] here."')
