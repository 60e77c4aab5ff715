"""The training loop, and the run it advances. What is learned is passed in as an objective."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor, nn

from data_prep.errors import Interrupted
from data_prep.preparation import say
from data_prep.random_keys import keys
from model import PackedBatch

from .batches import Batches, Position
from .budget import Budget
from .checkpoint import Checkpoints
from .distributed import World, unsynchronised
from .errors import PretrainError
from .interruption import Interruption
from .optimizer import Optimizer, Schedule, clip
from .progress import Progress
from .spikes import UsualLoss

# So many steps in a row without a finite loss and gradient end a run.
MOST_SKIPPED_IN_A_ROW = 10


@dataclass
class Counters:
    """What a run has done so far; saved with each checkpoint."""

    step: int = 0
    tokens: int = 0
    """Tokens computed by all processes, special tokens included, padding never."""
    epochs: float = 0.0
    seconds: float = 0.0
    saving_seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    evaluations: int = 0
    best: list[float] | None = None
    """The lowest judgement of an evaluation so far, and the step it was made at."""
    best_step: int = 0
    evaluations_since_best: int = 0
    before_decay: int | None = None
    """The step whose checkpoint a warmup-stable-decay schedule can be extended from."""
    losses: dict[str, float] = field(default_factory=dict)
    """Sums of the losses, and the number of steps, since the last row of metrics.jsonl."""
    usual_loss: UsualLoss = field(default_factory=UsualLoss)
    spikes: int = 0

    def __post_init__(self):
        if isinstance(self.usual_loss, dict):
            self.usual_loss = UsualLoss(**self.usual_loss)


@dataclass
class Run:
    """Everything a training run holds and advances.

    Args:
        loss_sums: batch -> {name: scalar}, the objective's function of the model, as `World.parallel` made it.
        counts: batch -> {name: number of targets}.
        schedule: the learning rate, as a share of `learning_rate`.
        precision: gives the context that the model computes in.
        judge: numbers of which the best evaluation has the lowest, the first ones first.
        patience: so many evaluations without a new best end the run; None: none do.
        reserve: seconds at the end of a time budget that are kept for the last evaluation and checkpoint.
        describe: facts for the checkpoint's state that the loop does not know.
    """

    model: nn.Module
    loss_sums: nn.Module
    counts: Callable[[PackedBatch], dict[str, float]]
    optimizer: Optimizer
    budget: Budget
    schedule: Schedule
    learning_rate: float
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
    world: World = field(default_factory=World)
    interruption: Interruption = field(default_factory=Interruption)

    def __post_init__(self):
        self._clock = time.monotonic() - self.counters.seconds
        self._last_save = (self.counters.step, self.counters.seconds)
        self.largest_computed = 0
        self._agreed_seconds = self.counters.seconds
        self.is_to_stop = False

    def take_up(self, schedule: Schedule) -> None:
        """Go on with the schedule of the checkpoint; a budget that has grown extends it."""
        self.schedule = schedule
        if self.budget.amount > schedule.total:
            c, used = self.counters, self.amount_used()
            is_stable = schedule.kind == "warmup-stable-decay" and c.before_decay in (None, c.step)
            has_fallen = used > schedule.warmup and not is_stable
            self.schedule = replace(
                schedule, total=self.budget.amount, restart=used if has_fallen else schedule.restart
            )
            c.before_decay = None

    def seconds(self) -> float:
        """Time used, that of interrupted parts up to their last checkpoint included, by this process's clock."""
        return time.monotonic() - self._clock

    def agree(self) -> None:
        """Take the time of the main process, and a request of any process to stop, for all."""
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

    def has_stalled(self) -> bool:
        """Whether `patience` is at its end."""
        return self.patience is not None and self.counters.evaluations_since_best >= self.patience

    def is_over(self) -> bool:
        """Whether the budget is used up, or `patience` is at its end."""
        return self.used() >= 1 or self.has_stalled()

    def evaluations_due(self) -> int:
        """How many evaluations belong to the part of the budget that is used."""
        # A third of three epochs is one evaluation, also where it comes out as 0.9999.
        return int(self.used() * self.evaluations + 1e-9)

    def _decay_begins(self) -> bool:
        begins = self.schedule.kind == "warmup-stable-decay" and self.amount_used() >= self.schedule.decay_start
        return begins and self.counters.before_decay is None

    def checkpoint_is_due(self) -> bool:
        step, seconds = self._last_save
        since = {"steps": self.counters.step - step, "seconds": self._agreed_seconds - seconds}
        return since[self.checkpoint_every.unit] >= self.checkpoint_every.amount or self._decay_begins()

    def save(self, position: Position) -> None:
        """Write a checkpoint of this moment, unless this step has one."""
        c = self.counters
        if self._decay_begins():
            c.before_decay = c.step
        self._last_save = (c.step, self._agreed_seconds)
        if not self.world.is_main or self.checkpoints.path(c.step).exists():
            return
        began = time.monotonic()
        c.seconds = self.seconds()
        facts = {"schedule": asdict(self.schedule), "metrics_bytes": self.progress.metrics.flush(), **self.describe}
        state = {"counters": asdict(c), "position": asdict(position), **facts}
        kept = {step for step in (c.best_step, c.before_decay) if step is not None}
        self.checkpoints.save(c.step, self.model, self.optimizer, state, kept)
        c.saving_seconds += time.monotonic() - began


def train(run: Run, batches: Batches, evaluate: Callable[[nn.Module], dict[str, float]]) -> None:
    """Train until the budget is used up, or patience is at its end, and save. The last evaluation is the caller's.

    Args:
        batches: gives global batches as lists of micro-batches, and knows its position.
        evaluate: held-out results of a model.

    Raises:
        PretrainError: loss or gradient were not finite for many steps in a row.
        Interrupted: a signal came; a checkpoint is written.
    """
    run.model.train()
    run.agree()
    # A budget that has grown puts the run back to an earlier share of it.
    run.counters.evaluations = min(run.counters.evaluations, run.evaluations_due())
    with run.interruption.deferred():
        while not run.is_over():
            if run.evaluations_due() > run.counters.evaluations:
                evaluate_and_save(run, batches.position, evaluate)
                run.agree()
                continue
            if run.checkpoint_is_due() or run.is_to_stop:
                run.save(batches.position)
            stop_if_asked(run)
            rate = run.learning_rate * run.schedule(run.amount_used())
            run.optimizer.set_learning_rate(rate)
            batches.draw()
            losses, norm = step(run, batches)
            run.counters.epochs = batches.epochs
            run.agree()
            take_note(run, losses, rate, norm, batches)
        run.save(batches.position)
        stop_if_asked(run)


def stop_if_asked(run: Run) -> None:
    """Raises Interrupted where a process was asked to stop, after all of them have finished the same step."""
    if run.is_to_stop:
        path = run.checkpoints.path(run.counters.step)
        raise Interrupted(f"stopped by a signal after step {run.counters.step:,}, which {path} holds")


def take_note(run: Run, losses: dict[str, float], rate: float, norm: float, batches: Batches) -> None:
    """Record a step, and the examples of one whose loss stands out."""
    counters, loss = run.counters, sum(losses.values())
    if not math.isfinite(loss) or counters.usual_loss.is_spike(loss):
        counters.spikes += 1
        run.progress.spike(counters, losses, batches.identify())
    run.progress.step(counters, losses, rate, norm, run.seconds(), run.used())


def step(run: Run, batches: Batches) -> tuple[dict[str, float], float]:
    """One optimizer step on a global batch; a step whose loss or gradient is not finite changes no weight.

    Where a GPU has too little memory, the step is computed again in micro-batches of half the size.

    Returns:
        The mean losses over the targets of the global batch, and the norm of the gradient before clipping.
    """
    counters = run.counters
    micro_batches = batches.micro_batches()
    totals = add_counts(run, micro_batches, batches.num_tokens)
    while (losses := add_gradients(run, micro_batches, totals, batches.maker.nothing)) is None:
        run.optimizer.zero_grad()
        halve_micro_batches(batches)
        micro_batches = batches.micro_batches()
    losses = dict(zip(losses, run.world.sum([float(value) for value in losses.values()]), strict=True))
    norm = float(clip([p for p in run.model.parameters() if p.grad is not None], run.clip_norm))
    if math.isfinite(norm) and all(map(math.isfinite, losses.values())):
        run.optimizer.step()
        counters.skipped_in_a_row = 0
    else:
        skip(run)
    run.optimizer.zero_grad()
    counters.step += 1
    return losses, norm


def add_counts(run: Run, micro_batches: list[PackedBatch], num_tokens: int) -> dict[str, float]:
    """Numbers of targets of the global batch; adds its tokens to the counters."""
    totals: dict[str, float] = {}
    for batch in micro_batches:
        for name, count in run.counts(batch).items():
            totals[name] = totals.get(name, 0) + count
    *counts, tokens = run.world.sum([*totals.values(), num_tokens])
    run.counters.tokens += int(tokens)
    return dict(zip(totals, counts, strict=True))


def add_gradients(
    run: Run, micro_batches: list[PackedBatch], totals: dict[str, float], nothing: Callable[[], PackedBatch]
) -> dict[str, Tensor] | None:
    """The gradients of the whole global batch in every process, and the losses of this process's share of it.

    Processes add their gradients up during the backward pass of the last micro-batch. One that is larger than any
    before might run out of memory while the others wait for it: then an empty one comes last.

    Returns:
        None where the GPU's memory was too small.
    """
    losses: dict[str, Tensor] = {}
    alone, together = micro_batches, []
    if run.world.size > 1:
        is_large = micro_batches[-1].num_tokens > run.largest_computed
        alone, together = (micro_batches, [nothing()]) if is_large else (micro_batches[:-1], micro_batches[-1:])
    try:
        for number, batch in enumerate(alone):
            with unsynchronised(run.loss_sums):
                backward(run, batch, number, totals, losses)
            run.largest_computed = max(run.largest_computed, batch.num_tokens)
    except torch.OutOfMemoryError:
        return None
    for batch in together:
        backward(run, batch, len(alone), totals, losses)
    return losses


def backward(run: Run, batch: PackedBatch, number: int, totals: dict[str, float], losses: dict[str, Tensor]) -> None:
    """Add the gradients and losses of a micro-batch."""
    # Dropout depends on where in the run it is drawn, never on what was drawn before.
    torch.manual_seed(int(keys(run.seed, "dropout", run.world.rank, run.counters.step, number)) >> 1)
    with run.precision():
        sums = run.loss_sums(batch.to(run.device, non_blocking=True))
    means = {name: value / max(1, totals[name]) for name, value in sums.items()}
    # The mean over processes, which DistributedDataParallel takes, is to be their sum.
    (torch.stack(list(means.values())).sum() * run.world.size).backward()
    for name, value in means.items():
        losses[name] = losses.get(name, 0.0) + value.detach()


def halve_micro_batches(batches: Batches) -> None:
    """Compute half as many tokens at once from now on.

    Raises:
        PretrainError: single examples are too much already.
    """
    tokens = batches.maker.micro_batch_tokens
    if tokens <= batches.longest:
        raise PretrainError(
            f"the GPU's memory is too small for one example of {batches.longest} tokens: use a smaller --preset or "
            "--sequence-length"
        )
    torch.cuda.empty_cache()
    batches.maker.micro_batch_tokens = max(batches.longest, min(tokens, batches.num_tokens) // 2)
    say(f"The GPU's memory is too small: {batches.maker.micro_batch_tokens:,} tokens at once from now on, in the same "
        "steps (--micro-batch-tokens).")  # fmt: skip


def skip(run: Run) -> None:
    """Count a step that is not taken; too many in a row end the run."""
    run.counters.skipped += 1
    run.counters.skipped_in_a_row += 1
    if run.counters.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
        good = run.checkpoints.all()
        raise PretrainError(
            f"the loss or its gradient was not finite for {MOST_SKIPPED_IN_A_ROW} steps in a row (step "
            f"{run.counters.step}): start anew in another --out with a lower --learning-rate or --precision fp32, or "
            f"find the cause with --detect-anomaly; the last good checkpoint is {good[-1] if good else 'none yet'}"
        )


def evaluate_and_save(run: Run, position: Position, evaluate: Callable[[nn.Module], dict[str, float]]) -> None:
    """Evaluate, remember whether this is the best, write a checkpoint.

    A signal ends the evaluation of a single process at once; it is made anew when the run goes on.
    """
    due = run.evaluations_due()
    try:
        with run.interruption.immediate() if run.world.size == 1 else nullcontext():
            results = evaluate(run.model)
    except Interrupted:
        run.save(position)
        run.is_to_stop = True
        stop_if_asked(run)
    run.counters.evaluations = due
    record_evaluation(run, results)
    run.save(position)


def record_evaluation(run: Run, results: dict[str, float]) -> None:
    """Write down held-out results and remember whether they are the best."""
    counters = run.counters
    judgement = run.judge(results)
    counters.evaluations_since_best += 1
    if counters.best is None or judgement < counters.best:
        counters.best, counters.best_step, counters.evaluations_since_best = judgement, counters.step, 0
    run.progress.evaluation(counters, results)
