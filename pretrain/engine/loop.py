"""The training loop, and a training with its budget and its checkpoints. What is learned is the run's objective."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from data_prep.errors import Interrupted
from data_prep.memory import give_back

from .anomaly import watched
from .batches import Batches, Position
from .checkpoint import Checkpoints
from .counters import Outcome
from .process import Interruption
from .progress import Progress
from .settings import Budget, LoopSettings, PretrainError, Schedule
from .step import Learner, arrange_sums, step
from .threads import Threads


@dataclass
class Run:
    """A training run with its budget: the learning rate of each step, and when to evaluate, to save and to stop.

    Args:
        settings: resolved ones.
        judge: turns results into numbers; the best evaluation has the lowest, compared in order.
        patience: stop after this many evaluations without a new best; None: never.
        reserve: seconds at the end of a time budget that are kept for the last evaluation and checkpoint.
        until: share of the budget at which `train` returns.
        describe: facts for the checkpoint's state that the loop does not know.
        threads: in use; by default as many as there are now.
    """

    learner: Learner
    settings: LoopSettings
    checkpoints: Checkpoints
    progress: Progress
    judge: Callable[[dict[str, float]], list[float]]
    interruption: Interruption
    patience: int | None = None
    reserve: float = 0.0
    until: float = 1.0
    describe: dict[str, Any] = field(default_factory=dict)
    threads: Threads = field(default_factory=lambda: Threads(torch.get_num_threads(), may_change=False))

    def __post_init__(self) -> None:
        settings, learner = self.settings, self.learner
        self.counters, self.world = learner.counters, learner.world
        self.budget = Budget.parse(settings.budget)
        self.checkpoint_every = Budget.parse(settings.checkpoint_every)
        amount = self.budget.amount
        self.schedule = Schedule(settings.schedule, settings.warmup * amount, amount)
        """The learning rate, as a share of that of the settings."""
        self._clock = time.monotonic() - self.counters.seconds
        self._last_save = (self.counters.step, self.counters.seconds)
        self._agreed_seconds = self.counters.seconds
        self.is_to_stop = False

    def note_machine(self, facts: dict[str, Any]) -> None:
        """Remember the machine that the next steps are computed on."""
        last = self.counters.machines[-1] if self.counters.machines else {}
        if {**last, "from_step": 0} != {**facts, "from_step": 0}:
            self.counters.machines.append({"from_step": self.counters.step + 1, **facts})

    def take_up(self, schedule: Schedule) -> None:
        """Go on with the schedule of the checkpoint; a budget that has grown extends it."""
        self.schedule = schedule
        if self.budget.amount > schedule.total:
            c, used = self.counters, self.amount_used()
            is_stable = schedule.has_plateau and c.before_decay in (None, c.step)
            has_fallen = used > schedule.warmup and not is_stable
            self.schedule = schedule.extended(self.budget.amount, used if has_fallen else None)
            c.before_decay = None

    def seconds(self) -> float:
        """Time used, that of interrupted parts up to their last checkpoint included, by this process's clock."""
        return time.monotonic() - self._clock

    def agree(self) -> None:
        """Agree with the other processes: all use the main process's time, and all stop if any was asked to."""
        mine = [self.seconds() if self.world.is_main else 0.0, float(self.interruption.requested is not None)]
        self._agreed_seconds, requests = self.world.sum(mine)
        self.is_to_stop = requests > 0

    def amount_used(self) -> float:
        """How much of the budget is used, in its unit; the same in all processes."""
        c, seconds = self.counters, self._agreed_seconds
        if not self.budget.is_counted:
            seconds *= self.budget.amount / max(1e-9, self.budget.amount - self.reserve)
        return self.budget.used(seconds, c.step, c.epochs, c.tokens)

    def used(self) -> float:
        """Share of the budget that is used, in [0, 1]."""
        return self.amount_used() / self.budget.amount

    def progressed(self) -> float:
        """How far what changes over the budget has gone, in [0, 1]."""
        return self.schedule.progress(self.amount_used())

    def has_stalled(self) -> bool:
        """Whether `patience` is at its end."""
        return self.patience is not None and self.counters.evaluations_since_best >= self.patience

    def is_over(self) -> bool:
        """Whether the budget is used up to `until`, or `patience` is at its end."""
        return self.used() >= self.until or self.has_stalled()

    def evaluations_due(self) -> int:
        """How many evaluations belong to the part of the budget that is used."""
        # A third of three epochs is one evaluation, also where it comes out as 0.9999.
        return int(self.used() * self.settings.evaluations + 1e-9)

    def evaluation_is_due(self) -> bool:
        """Whether it is time for an evaluation; weights that have been evaluated are not evaluated again."""
        is_new = self.counters.step > self.counters.evaluated_step
        return is_new and self.evaluations_due() > self.counters.evaluations

    def _decay_begins(self) -> bool:
        begins = self.schedule.has_plateau and self.amount_used() >= self.schedule.decay_start
        return begins and self.counters.before_decay is None

    def checkpoint_is_due(self) -> bool:
        saved_at, seconds = self._last_save
        since = {"steps": self.counters.step - saved_at, "seconds": self._agreed_seconds - seconds}
        return since[self.checkpoint_every.unit] >= self.checkpoint_every.amount or self._decay_begins()

    def save(self, position: Position) -> None:
        """Write a checkpoint, unless this step has one. The steps so far must have been recorded (see `read`)."""
        c = self.counters
        if self._decay_begins():
            c.before_decay = c.step
        self._last_save = (c.step, self._agreed_seconds)
        # Tensors of ever-changing sizes fragment the heap.
        give_back()
        # The others wait here, however long the disk takes: waiting for a sum, they would time out. And none may end
        # before the checkpoint is written, because a launcher ends all processes as soon as one has ended.
        self.world.from_main(lambda: self._write(position))

    def _write(self, position: Position) -> None:
        c = self.counters
        if self.checkpoints.path(c.step).exists():
            return
        began = time.monotonic()
        c.seconds = self.seconds()
        # A part in another precision leaves that of fp16 for the next one.
        if self.learner.loss_scale.is_on:
            c.loss_scale, c.steps_since_overflow = self.learner.loss_scale.state()
        facts = {"schedule": asdict(self.schedule), "metrics_bytes": self.progress.metrics.flush(), **self.describe}
        needs = [number for number in (c.best_step, c.before_decay) if number is not None]
        state = {"counters": asdict(c), "position": asdict(position), "needs": needs, **facts}
        self.checkpoints.save(c.step, self.learner.model, self.learner.optimizer, state)
        c.saving_seconds += time.monotonic() - began


def train(run: Run, batches: Batches, evaluate: Callable[[nn.Module], dict[str, float]]) -> None:
    """Train until the budget is used up to `run.until`, or patience is at its end, and save. The evaluation at the end
    of the budget is the caller's.

    Args:
        batches: gives global batches as lists of micro-batches, and knows its position.
        evaluate: held-out results of a model.

    Raises:
        PretrainError: loss or gradient were not finite for many steps in a row.
        Interrupted: a signal came; a checkpoint is written.
    """
    run.learner.model.train()
    # Examples of another length may take more memory for as many tokens.
    run.learner.largest_computed = 0
    if run.world.size > 1:
        arrange_sums(run.learner, batches.maker.empty_batch())
    run.agree()
    if run.counters.micro_batch_tokens:
        # A run that has moved may have chosen smaller ones.
        batches.maker.micro_batch_tokens = min(batches.maker.micro_batch_tokens, run.counters.micro_batch_tokens)
    # A budget that has grown puts the run back to an earlier share of it.
    run.counters.evaluations = min(run.counters.evaluations, run.evaluations_due())
    run.progress.begin(run.counters.tokens, run.seconds(), run.used())
    unread: deque[Outcome] = deque()
    with run.interruption.deferred(), anomalies(run):
        while not run.is_over():
            if run.evaluation_is_due():
                read(run, unread)
                evaluate_and_save(run, batches.position, evaluate)
                run.agree()
                continue
            if run.checkpoint_is_due() or run.is_to_stop:
                read(run, unread)
                run.save(batches.position)
            stop_if_asked(run)
            used = run.amount_used()
            run.learner.optimizer.set_learning_rate(run.settings.peak * run.schedule(used), run.used())
            unread.append(timed_step(run.learner, batches, run.threads, run.progressed()))
            run.counters.epochs = batches.epochs
            run.agree()
            read(run, unread, keep=run.learner.steps_behind)
        read(run, unread)
        if run.until < 1 and run.evaluation_is_due():
            evaluate_and_save(run, batches.position, evaluate)
        run.save(batches.position)
        stop_if_asked(run)


def timed_step(learner: Learner, batches: Batches, threads: Threads, progress: float) -> Outcome:
    """A step on the next global batch at this progress, in [0, 1]; its duration may change the number of threads."""
    began, tokens = time.monotonic(), learner.counters.tokens
    batches.draw(learner.counters.step, progress)
    outcome = step(learner, batches)
    threads.took(time.monotonic() - began, learner.counters.tokens - tokens)
    return outcome


def anomalies(run: Run) -> AbstractContextManager[None]:
    """The watch over every module, if it is asked for."""
    if not run.settings.detect_anomaly:
        return nullcontext()
    return watched(run.learner.loss_sums, lambda: run.counters.step + 1, run.learner.loss_scale.can_shrink)


def stop_if_asked(run: Run) -> None:
    """Raises Interrupted where a process was asked to stop, after all of them have finished the same step."""
    if run.is_to_stop:
        path = run.checkpoints.path(run.counters.step)
        raise Interrupted(f"stopped by a signal after step {run.counters.step:,}, which {path} holds")


def read(run: Run, unread: deque[Outcome], keep: int = 0) -> None:
    """Record what the oldest steps did, all but the last `keep`, and the examples of one whose loss stands out.

    Raises:
        PretrainError: too many steps in a row were skipped.
    """
    while len(unread) > keep:
        outcome, counters = unread.popleft(), run.counters
        counters.count(outcome)
        stop_if_skipping(run, outcome)
        loss = sum(outcome.losses.values())
        if not math.isfinite(loss) or counters.usual_loss.is_spike(loss):
            counters.spikes += 1
            run.progress.spike(counters, outcome)
        run.progress.step(counters, outcome, run.seconds(), run.used())


def evaluate_and_save(run: Run, position: Position, evaluate: Callable[[nn.Module], dict[str, float]]) -> None:
    """Evaluate, remember whether this is the best, write a checkpoint.

    A signal ends the evaluation of a single process at once; it is repeated when the run resumes.
    """
    due = run.evaluations_due()
    try:
        with run.interruption.immediate() if run.world.size == 1 else nullcontext():
            results = evaluate(run.learner.model)
    except Interrupted:
        run.save(position)
        run.is_to_stop = True
        stop_if_asked(run)
    run.counters.evaluations, run.counters.evaluated_step = due, run.counters.step
    record_evaluation(run, results)
    run.save(position)


def record_evaluation(run: Run, results: dict[str, float]) -> None:
    """Write down held-out results and remember whether they are the best."""
    counters = run.counters
    # NaN compares false with everything; infinity in its place is worst.
    judgement = [math.inf if math.isnan(value) else value for value in run.judge(results)]
    counters.evaluations_since_best += 1
    if counters.best is None or judgement < counters.best:
        counters.best, counters.best_step, counters.evaluations_since_best = judgement, counters.step, 0
    run.progress.evaluation(counters, results)


# This many steps in a row without a finite loss and gradient end a run.
MOST_SKIPPED_IN_A_ROW = 10


def stop_if_skipping(run: Run, outcome: Outcome) -> None:
    """Raises PretrainError where too many steps in a row were skipped."""
    if run.counters.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
        good = run.checkpoints.all()
        raise PretrainError(
            f"the loss or its gradient was not finite for {MOST_SKIPPED_IN_A_ROW} steps in a row (step "
            f"{outcome.step}): start again in another --out with a lower --learning-rate or --precision fp32, "
            f"or find the cause with --detect-anomaly; the last good checkpoint is {good[-1] if good else 'none yet'}"
        )
