"""One pretraining from its settings to `final/` and `results.json`, or from where it was interrupted."""

import shlex
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from data_prep.console import command_line
from data_prep.console.options import option_name
from data_prep.console.screen import say
from data_prep.durable import read_object, write_json
from data_prep.examples.pairs import VERSION as PAIRS_VERSION
from data_prep.preparation import prepare
from data_prep.prepared import PreparedCorpus
from data_prep.settings import ExampleSettings
from model import BertConfig
from model.families import has_mlm_head, read_pretrainable

from .batches import TrainingPlan
from .build import make_model, open_checkpoint, require_same_objective
from .distillation import check_teacher
from .engine.batches import Batches, Position
from .engine.checkpoint import Checkpoints, load_optimizer, read_state, save_model_folder
from .engine.compilation import compile_layers
from .engine.counters import Counters
from .engine.device import Machine
from .engine.distributed import World
from .engine.folder import model_mistakes, whole_folder
from .engine.loop import Run, train
from .engine.process import Interruption
from .engine.progress import MetricsFile, Progress, Silence
from .engine.settings import Budget, PretrainError, Schedule
from .engine.stage import SETTINGS_FILE, as_before, stage, write_settings
from .engine.step import Learner, rehearse
from .engine.threads import Threads, busy
from .evaluate import Evaluation, EvaluationPlan
from .objective import PretrainingObjective
from .objectives import ObjectiveMaker, make_objective
from .phases import make_phases, with_batch_size, with_weight_decay
from .report import (
    Trouble,
    change_of_length,
    draw_curves,
    model_card,
    no_time,
    not_reached,
    results_table,
    too_large,
    too_many,
)
from .resolve import EARLIER, MAY_DIFFER, compiles, out_folder, resolve, unused, with_preset
from .settings import PretrainSettings

COMPILED_WITH = 8
"""Held-out examples that layers are compiled with."""
DRAWN_EVERY = 10.0
"""Seconds at least between two pictures of the curves, each of which takes half a second; the last is always drawn."""


def pretrain(settings: PretrainSettings, objective: ObjectiveMaker = make_objective) -> Path:
    """Run, or go on with, a pretraining; returns its output folder.

    Args:
        objective: makes what is learned out of the resolved settings and the prepared corpus.

    Raises:
        PretrainError, PrepError: the input cannot be used, or the output folder holds something else.
        Interrupted: a signal came.
    """
    out = out_folder(settings)
    with stage(settings, out, partial(resolved, settings, out)) as (settings, world, interruption):
        torch.set_num_threads(settings.threads)
        Pretraining(settings, out, world, interruption, objective).run()
    return out


def resolved(settings: PretrainSettings, out: Path) -> PretrainSettings:
    """The settings without `auto`, those of the run found in `out` included."""
    settings = as_before(settings, out, MAY_DIFFER, unused, EARLIER) or settings
    return resolve(settings, *base_model(settings))


def base_model(settings: PretrainSettings) -> tuple[BertConfig | None, bool]:
    """The config of the model to start from, None for a fresh one, and whether it has an MLM head; a teacher is looked
    at too.

    Raises:
        PretrainError, PrepError: one of the two is no model, or knows no second text where pairs are to be learned, or
            they do not fit each other (see `check_teacher`).
    """
    with model_mistakes(PretrainError):
        start, teacher = (
            None if folder is None else read_pretrainable(folder) for folder in (settings.starts_from, settings.teacher)
        )
        has_head = settings.starts_from is None or has_mlm_head(settings.starts_from)
    for folder, config in ((settings.starts_from, start), (settings.teacher, teacher)):
        if config is not None and settings.learns_pairs and config.type_vocab_size < 2:
            raise PretrainError(
                f"{folder} knows no second text of a pair (its type_vocab_size is {config.type_vocab_size}), which "
                f"--objective {settings.objective} learns from: give --objective mlm"
            )
    if teacher is not None:
        check_teacher(settings, teacher, start)
    return start, has_head


def holds_model(out: Path) -> bool:
    """Whether a run has left its model."""
    return all((out / "final" / name).is_file() for name in ("config.json", "model.safetensors"))


def is_finished(settings: PretrainSettings, out: Path, corpus: str, objective: PretrainingObjective) -> bool:
    """Whether `out` holds a model and the results of this budget and objective on the corpus of this digest."""
    results = read_object(out / "results.json", budget=str, prepared=str, validation=dict)
    if results is None or not holds_model(out):
        return False
    if results["prepared"] != corpus or not objective.facts.items() <= results.items():
        return False
    named, learned = results["validation"].keys(), {name for part in objective.parts for name in part.metrics[:1]}
    is_same = learned <= named <= set(objective.metrics)
    return is_same and Budget.parse(results["budget"]) == Budget.parse(settings.budget)


def open_corpus(settings: PretrainSettings, out: Path, world: World) -> PreparedCorpus:
    """The prepared corpus that `--prepared` names, or the one of `--corpus`, prepared now unless it is there.

    The main process prepares and checks it, the others wait.
    """

    def folder() -> str:
        prep = replace(settings.prep, tokenizer=settings.starts_from or settings.prep.tokenizer)
        given = settings.prepared
        examples = settings.examples.of_length(settings.examples.longest)
        corpus = PreparedCorpus(given) if given else prepare(prep, examples, out / "prepared")
        if not (out / SETTINGS_FILE).exists():
            say_other_examples(settings, corpus)
        if corpus.manifest.get("pairs", 1) != PAIRS_VERSION:
            say(
                f"{corpus.folder} was prepared by another version of this tool. The run trains on its text as usual; "
                "the report and the stored pairs there show other pairs than the run uses."
            )
        return str(corpus.folder)

    return PreparedCorpus(world.from_main(folder), verify=False)


def say_other_examples(settings: PretrainSettings, corpus: PreparedCorpus) -> None:
    """Say where a corpus was prepared with other options for pairs and masks than the defaults that the run takes: a
    person may have taken them for settled."""
    now, default = (command_line.as_dict(each) for each in (settings.examples, ExampleSettings()))
    before = corpus.manifest["identity"]
    for name in now:
        if name in before and now[name] == default[name] != before[name]:
            option = option_name(name)
            say(
                f"{corpus.folder} was prepared with {option} {before[name]}, and this run takes {now[name]}: give "
                f"{option} {before[name]} here too to train with that."
            )


def compiled(settings: PretrainSettings, held_out: Evaluation, learner: Learner) -> bool:
    """Have the layers compiled where the settings want it (see `compiles`), and say so.

    Args:
        held_out: gives the examples that they are compiled with.

    Returns:
        Whether they were.

    Raises:
        PretrainError: it is asked for, and cannot be done here.
    """
    if not compiles(settings, learner.world.size):
        return False
    began = time.monotonic()
    batch = next(iter(held_out.maker.micro_batches(held_out.examples[:COMPILED_WITH])))
    obstacle = compile_layers(learner.model, partial(rehearse, learner, batch))
    if obstacle and settings.compile == "layers":
        raise PretrainError(f"the layers cannot be compiled here ({obstacle}): give --compile none")
    if obstacle:
        say(f"The layers cannot be compiled here ({obstacle}): the run goes on without, which is slower.")
    else:
        say(f"The layers were compiled in {time.monotonic() - began:.0f} seconds (--compile none turns this off).")
    return not obstacle


class Pretraining:
    """The parts of one run and the order in which they act."""

    def __init__(self, settings: PretrainSettings, out: Path, world: World, interruption: Interruption,
                 objective: ObjectiveMaker = make_objective):  # fmt: skip
        self.out, self.world, self.interruption = out, world, interruption
        self.prepared = open_corpus(settings, out, world)
        settings = with_preset(settings, self.prepared.manifest["train"]["tokens"], self.prepared.tokenizer.vocab_size)
        self.objective = objective(settings, self.prepared)
        self.phases = make_phases(settings, self.prepared, self.objective, world)
        self.settings = settings
        self.checkpoints = Checkpoints(out / "checkpoints", self.prepared.tokenizer, settings.keep_checkpoints)
        self.drawn = time.monotonic()
        self.machine = Machine.here(settings.device)
        self.threads = Threads.of(settings, world.size)

    def run(self) -> None:
        if self.world.from_main(lambda: is_finished(self.settings, self.out, self.prepared.digest, self.objective)):
            say(f"{self.out} holds this run, finished: see {self.out / 'results.json'} and {self.out / 'final'}.")
            return
        with self.threads:
            self._train()

    def _train(self) -> None:
        began = time.monotonic()
        checkpoint = self.world.from_main(self._checkpoint)
        if checkpoint:
            model, state = open_checkpoint(Path(checkpoint), self.settings, self.prepared, self.objective)
            say(f"Resuming from {checkpoint}.")
        else:
            model, state = make_model(self.settings, self.prepared, self.objective), {}
        # As transformers is to be told.
        self.prepared.tokenizer.tells_segments = model.config.type_vocab_size > 1
        self.objective.freeze_unused(model)
        model.to(self.settings.device)
        self.settings = with_batch_size(self.settings, self.phases, model)
        tokens = self.prepared.manifest["train"]["tokens"]
        self.settings = with_weight_decay(self.settings, self.phases, model, tokens)
        plan = self.evaluation_plan(model, state)
        counters = Counters(**state["counters"]) if state else Counters()
        learner = Learner(self.settings, model, self.objective, self.settings.examples.seed, counters, self.world,
                          self.objective.rates(model))  # fmt: skip
        self.is_compiled = compiled(self.settings, self.phases[0].evaluation, learner)
        if checkpoint:
            load_optimizer(Path(checkpoint), learner.optimizer)
        else:
            counters.seconds = time.monotonic() - began
            self.world.from_main(partial(self._require_time, model, counters.seconds, plan))
        # Nothing is written before all that was found has been read.
        if self.world.is_main:
            aside = unused(command_line.as_dict(self.settings))
            write_settings(self.settings, self.out, without=aside)
        run = self.make_run(learner, state, plan)
        self.trouble = Trouble(self.objective, run.used)
        self._introduce(run)
        position = Position(**state["position"]) if state else None
        for number in range(len(self.phases)):
            position = self._train_phase(run, number, position, plan)
        results = self.evaluate(self.phases[-1].evaluation, model, plan.final)
        run.progress.evaluation(run.counters, results)
        run.progress.close()
        # A launcher may end the main process when the others have ended: they stay until all is written.
        self.world.from_main(partial(self._finish, run, results))

    def _train_phase(self, run: Run, number: int, position: Position | None, plan: EvaluationPlan) -> Position | None:
        """Train with the examples of one length, unless the run is past them.

        Args:
            position: in the data, in examples of the length that `run.describe` names; None at the start.

        Returns:
            The position after the phase.
        """
        phase, settings = self.phases[number], self.settings.phases[number][1]
        run.until = phase.until
        if len(self.phases) > 1:
            run.progress.notes = {"sequence_length": phase.length}
        before = run.describe["sequence_length"]
        if position and before != phase.length:
            if run.is_over():
                if phase.length > before:
                    say(not_reached(phase.length))
                return position
            position = position.next_buffer()
            # Losses of other examples do not compare.
            run.counters.best = None
            say(change_of_length(before, phase.length, settings.batch_size))
        run.describe["sequence_length"] = phase.length
        batches = Batches(phase.stream, phase.maker, settings.batch_size, position or Position(), self.world)
        train(run, batches, partial(self.evaluate, phase.evaluation, count=plan.during))
        return batches.position

    def evaluate(self, evaluation: Evaluation, model: nn.Module, count: int) -> dict[str, float]:
        """The results on the first `count` held-out examples."""
        return evaluation(model, count)

    def _checkpoint(self) -> str | None:
        """The checkpoint to go on from: the newest, or of a schedule that is extended the last one before its decay."""
        newest = self.checkpoints.newest_intact()
        if newest is None:
            if holds_model(self.out):
                raise PretrainError(
                    f"{self.out} holds a finished model and no checkpoint to go on from: give another --out, with "
                    f"--init-from {self.out / 'final'} to begin with its weights"
                )
            return None
        state = read_state(newest, ())
        # Before any later checkpoint is removed.
        require_same_objective(newest, state, self.objective)
        before_decay = state["counters"]["before_decay"]
        if before_decay is not None and self._has_grown(state):
            earlier = self.checkpoints.newest_intact(up_to=before_decay)
            if earlier and earlier != newest:
                self.checkpoints.remove_after(earlier)
                say(
                    f"The budget has grown: the learning rate at {newest.name} had decayed, so the run goes back to "
                    f"{earlier.name}."
                )
                newest = earlier
        return str(newest)

    def evaluation_plan(self, model, state: dict) -> EvaluationPlan:
        """How many held-out examples the evaluations take: by the budget, or as the checkpoint has it. The last one is
        planned again where the budget has grown, and for a budget of time where the machine has changed."""
        budget, before = Budget.parse(self.settings.budget), None
        if state:
            before = EvaluationPlan(**state["evaluation"])
            has_moved = not budget.is_counted and self.world.from_main(lambda: not self._was_here(state))
            if not has_moved and not self._has_grown(state):
                return before
        phase, settings = self.phases[-1], self.settings.phases[-1][1]
        examples = phase.examples_in(budget, settings.batch_size)
        plan = phase.evaluation.plan(model, budget, examples, self.settings.evaluations)
        # Those during a run stay comparable.
        return replace(plan, during=before.during) if before else plan

    def _has_grown(self, state: dict) -> bool:
        """Whether the budget is larger than that of a checkpoint."""
        return Budget.parse(self.settings.budget).amount > state["schedule"]["total"]

    def _was_here(self, state: dict) -> bool:
        """Whether the newest steps of a checkpoint were computed on a machine like this one."""
        machines = state["counters"]["machines"]
        return bool(machines) and machines[-1]["processor"] == self.machine.processor

    def _require_time(self, model, seconds: float, plan: EvaluationPlan) -> None:
        """Raises PretrainError if a time budget is used up before the first step: nothing would be learned."""
        budget, phase, settings = Budget.parse(self.settings.budget), self.phases[-1], self.settings.phases[-1][1]
        if not budget.is_counted and seconds + plan.reserve >= budget.amount:
            # The evaluation has measured its speed.
            a_step = settings.batch_size / phase.evaluation.training_speed(model)
            raise PretrainError(no_time(settings.budget, seconds, plan.reserve, a_step, not settings.starts_from))

    def make_run(self, learner: Learner, state: dict, plan: EvaluationPlan) -> Run:
        """The run to train on, which goes on from the state of a checkpoint unless that is empty."""
        run = Run(
            learner=learner,
            settings=self.settings,
            checkpoints=self.checkpoints,
            progress=self._progress(state) if self.world.is_main else Silence(),
            judge=self.objective.judge,
            interruption=self.interruption,
            reserve=plan.reserve,
            threads=self.threads,
            describe={
                "prepared": self.prepared.digest,
                "pairs": PAIRS_VERSION,
                "objective": self.objective.name,
                **self.objective.facts,
                "evaluation": asdict(plan),
                # Older checkpoints do not name it: their runs have one.
                "sequence_length": state.get("sequence_length", self.phases[0].length),
            },
        )
        if state:
            run.take_up(Schedule(**state["schedule"]))
        facts = {"precision": self.settings.precision, "processes": self.world.size}
        facts |= {"compiled": True} if self.is_compiled else {}
        run.note_machine(self.machine.facts() | facts)
        return run

    def _progress(self, state: dict) -> Progress:
        ended_at = state["counters"]["step"] if state and self._has_grown(state) else None
        metrics = MetricsFile(self.out / "metrics.jsonl", state.get("metrics_bytes", 0), ended_at)
        weights = {part.name: part.weight for part in self.objective.parts}
        return Progress(metrics, self.settings.log_every, self.objective.summary, self._after_evaluation, weights)

    def _after_evaluation(self, rows: list[dict]) -> None:
        if time.monotonic() - self.drawn >= DRAWN_EVERY:
            self._draw(rows)
        for sentence in self.trouble.found(rows):
            say(sentence)

    def _draw(self, rows: list[dict]) -> None:
        picture = self.out / "curves.png"
        try:
            draw_curves(rows, self.objective, picture)
        except Exception as error:
            # Whatever a library of pictures meets ends no run.
            say(f"{picture} could not be drawn ({next(iter(str(error).splitlines()), type(error).__name__)}).")
        self.drawn = time.monotonic()

    def _introduce(self, run: Run) -> None:
        """Say what was chosen."""
        settings, config = self.settings, run.learner.model.config
        parameters = run.learner.model.num_parameters
        sizes = dict.fromkeys(part.batch_size for _, part in settings.phases)
        say(
            f"Training {parameters:,} parameters ({run.learner.model.shape}, "
            f"vocabulary {config.vocab_size:,}) for {settings.budget}: "
            f"{', then '.join(map(str, sizes))} examples a step, "
            f"{settings.optimizer} at {settings.learning_rate:g}, {settings.precision} on {settings.device}."
        )
        say(f"{self.machine}.")
        tokens = self.prepared.manifest["train"]["tokens"]
        warnings = (
            None if settings.starts_from else too_large(parameters, tokens),
            too_many(settings, tokens),
            busy(settings),
        )
        for warning in filter(None, warnings):
            say(warning)
        if run.world.size > 1:
            say(f"{run.world.size} processes share each step.")
        if run.schedule.restart and run.schedule.restart == run.amount_used():
            say("The budget has grown: the learning rate rises again to where the longer schedule has it.")
            first, last = settings.mask_shares
            if first != last:
                share = TrainingPlan((first, last)).share(run.progressed())
                say(f"The share of tokens to predict is at once that of the larger budget: {share:.1%}.")

    def _finish(self, run: Run, found: dict) -> None:
        """Write the model folder, then the curves and results.json, and say what to type next."""
        results = {
            "validation": {name: found.get(name) for name in self.objective.metrics},
            "steps": run.counters.step,
            "tokens": run.counters.tokens,
            "seconds": round(run.seconds(), 1),
            "saving_seconds": round(run.counters.saving_seconds, 2),
            "parameters": sum(parameter.numel() for parameter in run.learner.model.parameters()),
            "processes": run.world.size,
            "skipped_steps": run.counters.skipped,
            "overflowed_steps": run.counters.overflows,
            "loss_spikes": run.counters.spikes,
            "machines": run.counters.machines,
            "budget": self.settings.budget,
            "prepared": self.prepared.digest,
            **self.objective.facts,
        }
        model = run.learner.model
        card = model_card(model.config, self.objective, self.prepared.manifest, results, self.settings)
        with whole_folder(self.out / "final", model.num_bytes) as folder:
            save_model_folder(model, self.prepared.tokenizer, folder, card)
        self._draw(run.progress.metrics.rows())
        write_json(self.out / "results.json", results)
        say(f"\n{results_table(self.objective.rows(found), results)}\n")
        say(f"The model is in {self.out / 'final'}, the curves in {self.out / 'curves.png'}. Try it:")
        say(f'  python -m pretrain.fill_mask --model {shlex.quote(str(self.out / "final"))} "One word is [MASK] here."')
