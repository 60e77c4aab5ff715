"""What a run has done so far: what came of each step, losses far above the usual, the loss scale of fp16."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .device import Arriving

FIRST_LOSS_SCALE = 2.0**16
# After this many steps without an overflow the factor is doubled (the default of torch's GradScaler).
_PATIENCE = 2_000


class LossScale:
    """The loss scale of fp16: a power of two, halved when a gradient overflows and doubled after 2,000 steps without an
    overflow (Micikevicius et al. 2018, section 3.2). It lives on the device, so that no step waits for it.

    Args:
        is_on: False keeps it at 1, which leaves gradients bit for bit the same.
        value, steps_since_overflow: of the checkpoint that a run resumes from.
    """

    def __init__(
        self,
        is_on: bool,
        device: torch.device | str = "cpu",
        value: float = FIRST_LOSS_SCALE,
        steps_since_overflow: int = 0,
    ):
        self.is_on = is_on
        self.value = torch.tensor(value if is_on else 1.0, device=device)
        """float32 scalar."""
        self.steps_since_overflow = torch.tensor(steps_since_overflow, device=device)
        """int64 scalar."""

    def update(self, overflowed: Tensor) -> None:
        """Learn from a step whether its gradient overflowed (bool scalar)."""
        if not self.is_on:
            return
        steps = torch.where(overflowed, 0, self.steps_since_overflow + 1)
        is_due = steps >= _PATIENCE
        self.steps_since_overflow = torch.where(is_due, 0, steps)
        kept = torch.where(is_due, self.value * 2, self.value)
        self.value = torch.where(overflowed, (self.value / 2).clamp(min=1.0), kept)

    def can_shrink(self) -> bool:
        """Whether a gradient that is not finite may have overflowed under it alone; waits for the device."""
        return bool(self.value > 1)

    def state(self) -> tuple[float, int]:
        """Value and steps since the last overflow; waits for the device."""
        return float(self.value), int(self.steps_since_overflow)


# Steps before a loss can count as a spike; the usual loss is an average over about as many.
_WINDOW = 50
# A spike exceeds the usual loss by more than each of three limits: a number of mean absolute deviations; a number of
# nats; and a multiple of the highest recent rise (in about _LATELY steps). The last is for losses that are nearly 0 in
# most steps and high in a few, as in fine-tuning: those few are usual too.
_DEVIATIONS = 8.0
_NATS = 0.2
_TIMES_HIGHEST = 2.0
_LATELY = 300
# Steps after a spike in which no other is looked for.
_PAUSE = 10


@dataclass
class UsualLoss:
    """Moving averages of the loss and of its absolute deviation, and how high it rose lately; saved with checkpoints.

    In 10,000 steps without a spike there are no false alarms with normal noise, and up to 20 where single steps are
    tens of times as high as most (simulated).
    """

    mean: float = 0.0
    deviation: float = 0.0
    highest: float = 0.0
    """Above the mean; fades."""
    steps: int = 0
    pause: int = 0

    def is_spike(self, loss: float) -> bool:
        """Whether this loss, a finite number, stands out from those before; takes note of it."""
        limit = max(_DEVIATIONS * self.deviation, _TIMES_HIGHEST * self.highest, _NATS)
        excess = loss - self.mean
        found = self.steps >= _WINDOW and not self.pause and excess > limit
        self.steps += 1
        self.pause = _PAUSE if found else max(0, self.pause - 1)
        if self.steps > _WINDOW:
            # A spike moves the averages no further than the limit does.
            excess = min(excess, limit)
        if self.steps > 1:
            weight = max(1 / self.steps, 1 / _WINDOW)
            self.deviation += weight * (abs(excess) - self.deviation)
            self.highest = max(excess, self.highest * (1 - 1 / _LATELY))
            self.mean += weight * excess
        else:
            self.mean = loss
        return found


@dataclass(frozen=True)
class Outcome:
    """What a step did, while the device may still be at work on it."""

    step: int
    """Its number, from 1."""
    epochs: float
    tokens: int
    """Of the run up to this step."""
    learning_rate: float
    threads: int
    names: tuple[str, ...]
    """Of the losses."""
    arriving: Arriving
    """The mean losses, the gradient norm before clipping, 1 for a step that is skipped, 1 for an overflow."""
    identify: Callable[[], list[Any]]
    """Where the examples of the step are (see `Batches.identify`)."""
    without_targets: frozenset[str] = frozenset()
    """Names of losses that are 0 for want of a target."""

    @property
    def losses(self) -> dict[str, float]:
        """Means over the targets of the global batch, nats, of those that have any; waits for the step."""
        found = zip(self.names, self.arriving.numbers(), strict=False)
        return {name: value for name, value in found if name not in self.without_targets}

    @property
    def norm(self) -> float:
        """Of the gradient, before clipping; waits for the step."""
        return self.arriving.numbers()[-3]

    @property
    def is_skipped(self) -> bool:
        """Whether loss or gradient were not finite, so that no weight was changed; waits for the step."""
        return self.arriving.numbers()[-2] > 0

    @property
    def overflowed(self) -> bool:
        """Whether the gradient was too large for fp16 under the loss scale, so that no weight was changed."""
        return self.arriving.numbers()[-1] > 0


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
    """Steps whose loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    overflows: int = 0
    """Steps in fp16 that only had too large a loss scale; not among those skipped."""
    loss_scale: float = FIRST_LOSS_SCALE
    steps_since_overflow: int = 0
    evaluations: int = 0
    evaluated_step: int = 0
    best: list[float] | None = None
    """The lowest judgement of an evaluation so far, and the step it was made at."""
    best_step: int = 0
    evaluations_since_best: int = 0
    before_decay: int | None = None
    """The step whose checkpoint a schedule with a plateau can be extended from."""
    micro_batch_tokens: int | None = None
    """What a GPU's memory allowed, where it was less than asked for."""
    losses: dict[str, list[float]] = field(default_factory=dict)
    """Of each loss its sum and the number of steps that had it, since the last row of metrics.jsonl."""
    usual_loss: UsualLoss = field(default_factory=UsualLoss)
    spikes: int = 0
    machines: list[dict[str, Any]] = field(default_factory=list)
    """What the run has computed on: facts of each machine, and the step it was the first for."""

    def __post_init__(self) -> None:
        if isinstance(self.usual_loss, dict):
            self.usual_loss = UsualLoss(**self.usual_loss)
        # Older versions wrote sums, and the number of all steps beside them.
        losses: dict[str, Any] = self.losses
        if (steps := losses.pop("steps", None)) is not None:
            self.losses = {name: [total, steps] for name, total in losses.items()}

    def count(self, outcome: Outcome) -> None:
        """Count the step if it changed no weight; waits for it."""
        self.overflows += outcome.overflowed
        self.skipped += outcome.is_skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if outcome.is_skipped else 0
