"""The training loop, and the run it advances. What is learned is passed in as an objective."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field

import torch
from torch import nn

from data_prep.random_keys import keys
from model import PackedBatch

from .batches import Batches, Position
from .budget import Budget
from .checkpoint import Checkpoints
from .errors import PretrainError
from .optimizer import Optimizer, clip
from .progress import Progress

# So many steps in a row without a finite loss and gradient end a run.
MOST_SKIPPED_IN_A_ROW = 10


@dataclass
class Counters:
    """What a run has done so far; saved with each checkpoint."""

    step: int = 0
    tokens: int = 0
    """Tokens computed, special tokens included, padding never."""
    epochs: float = 0.0
    seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    evaluations: int = 0
    best: list[float] | None = None
    """The lowest judgement of an evaluation so far, and the step it was made at."""
    best_step: int = 0
    evaluations_since_best: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    """Sums of the losses, and the number of steps, since the last row of metrics.jsonl."""


@dataclass
class Run:
    """Everything a training run holds and advances.

    Args:
        precision: gives the context that the model computes in.
        rate: learning rate as a function of progress in [0, 1].
        judge: numbers of which the best evaluation has the lowest, the first ones first.
        patience: so many evaluations without a new best end the run; None: none do.
        reserve: seconds at the end of a time budget that are kept for the last evaluation and checkpoint.
        describe: facts for the checkpoint's state that the loop does not know.
    """

    model: nn.Module
    optimizer: Optimizer
    budget: Budget
    rate: Callable[[float], float]
    precision: Callable[[], AbstractContextManager]
    device: torch.device
    checkpoints: Checkpoints
    progress: Progress
    clip_norm: float
    evaluations: int
    judge: Callable[[dict[str, float]], list[float]]
    checkpoint_every: Budget
    seed: int
    patience: int | None = None
    reserve: float = 0.0
    describe: dict = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self):
        self._clock = time.monotonic() - self.counters.seconds
        self._last_save = (self.counters.step, self.counters.seconds)

    def seconds(self) -> float:
        """Time used, that of interrupted parts up to their last checkpoint included."""
        return time.monotonic() - self._clock

    def used(self) -> float:
        """Share of the budget that is used, in [0, 1]."""
        c = self.counters
        seconds = self.seconds()
        if not self.budget.is_counted:
            seconds *= self.budget.amount / max(1e-9, self.budget.amount - self.reserve)
        return self.budget.progress(seconds, c.step, c.epochs, c.tokens)

    def evaluations_due(self) -> int:
        """How many evaluations belong to the part of the budget that is used."""
        # A third of three epochs is one evaluation, also where it comes out as 0.9999.
        return int(self.used() * self.evaluations + 1e-9)

    def has_stalled(self) -> bool:
        """Whether `patience` is at its end."""
        return self.patience is not None and self.counters.evaluations_since_best >= self.patience

    def save(self, position: Position) -> None:
        """Write a checkpoint of this moment."""
        c = self.counters
        c.seconds = self.seconds()
        rows = self.progress.metrics.num_rows
        state = {"counters": asdict(c), "position": asdict(position), "metrics_rows": rows, **self.describe}
        self.checkpoints.save(c.step, self.model, self.optimizer, state, best_step=c.best_step)
        self._last_save = (c.step, c.seconds)

    def checkpoint_is_due(self) -> bool:
        step, seconds = self._last_save
        since = {"steps": self.counters.step - step, "seconds": self.seconds() - seconds}
        return since[self.checkpoint_every.unit] >= self.checkpoint_every.amount


def train(run: Run, batches: Batches, objective, evaluate: Callable[[nn.Module], dict[str, float]]) -> None:
    """Train until the budget is used up, or patience is at its end. The evaluation at the end is left to the caller.

    Args:
        batches: gives global batches as lists of micro-batches, and knows its position.
        objective: see `PretrainingObjective`.
        evaluate: held-out results of a model.

    Raises:
        PretrainError: loss or gradient were not finite for many steps in a row.
    """
    run.model.train()
    # A budget that has grown puts the run back to an earlier share of it.
    run.counters.evaluations = min(run.counters.evaluations, run.evaluations_due())
    while (progress := run.used()) < 1 and not run.has_stalled():
        rate = run.rate(progress)
        run.optimizer.set_learning_rate(rate)
        losses, norm = step(run, next(batches), objective)
        run.counters.epochs = batches.epochs
        used = run.used()
        run.progress.step(run.counters, losses, rate, norm, run.seconds(), used)
        if used < 1 and run.evaluations_due() > run.counters.evaluations:
            evaluate_and_save(run, batches.position, evaluate)
        elif run.checkpoint_is_due():
            run.save(batches.position)


def step(run: Run, micro_batches: list[PackedBatch], objective) -> tuple[dict[str, float], float]:
    """One optimizer step on a global batch; a step whose loss or gradient is not finite changes no weight.

    Returns:
        The mean losses over the targets of the global batch, and the norm of the gradient before clipping.
    """
    counters = run.counters
    totals: dict[str, int] = {}
    for batch in micro_batches:
        for name, count in objective.counts(batch).items():
            totals[name] = totals.get(name, 0) + count
    losses = dict.fromkeys(totals, 0.0)
    for number, batch in enumerate(micro_batches):
        # Dropout depends on where in the run it is drawn, never on what was drawn before.
        torch.manual_seed(int(keys(run.seed, "dropout", 0, counters.step, number)) >> 1)
        with run.precision():
            sums = objective.loss_sums(run.model, batch.to(run.device, non_blocking=True))
        means = {name: value / max(1, totals[name]) for name, value in sums.items()}
        torch.stack(list(means.values())).sum().backward()
        for name, value in means.items():
            losses[name] += value.detach()
    norm = float(clip([p for p in run.model.parameters() if p.grad is not None], run.clip_norm))
    losses = {name: float(value) for name, value in losses.items()}
    if math.isfinite(norm) and all(map(math.isfinite, losses.values())):
        run.optimizer.step()
        counters.skipped_in_a_row = 0
    else:
        skip(run)
    run.optimizer.zero_grad()
    counters.step += 1
    counters.tokens += sum(batch.num_tokens for batch in micro_batches)
    return losses, norm


def skip(run: Run) -> None:
    """Count a step that is not taken; too many in a row end the run."""
    run.counters.skipped += 1
    run.counters.skipped_in_a_row += 1
    if run.counters.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
        good = run.checkpoints.latest()
        raise PretrainError(
            f"the loss or its gradient was not finite for {MOST_SKIPPED_IN_A_ROW} steps in a row (step "
            f"{run.counters.step}): start anew in another --out with a lower --learning-rate or --precision fp32; the "
            f"last good checkpoint is {good or 'none yet'}"
        )


def evaluate_and_save(run: Run, position: Position, evaluate: Callable[[nn.Module], dict[str, float]]) -> None:
    """Evaluate, remember whether this is the best, write a checkpoint."""
    run.counters.evaluations = run.evaluations_due()
    record_evaluation(run, evaluate(run.model))
    run.save(position)


def record_evaluation(run: Run, results: dict[str, float]) -> None:
    """Write down held-out results and remember whether they are the best."""
    counters = run.counters
    judgement = run.judge(results)
    counters.evaluations_since_best += 1
    if counters.best is None or judgement < counters.best:
        counters.best, counters.best_step, counters.evaluations_since_best = judgement, counters.step, 0
    run.progress.evaluation(counters, results)
