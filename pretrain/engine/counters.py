"""What a run has done so far."""

from dataclasses import dataclass, field
from typing import Any

from .loss_scale import FIRST
from .outcome import Outcome
from .spikes import UsualLoss


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
    loss_scale: float = FIRST
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
    losses: dict[str, float] = field(default_factory=dict)
    """Sums of the losses, and the number of steps, since the last row of metrics.jsonl."""
    usual_loss: UsualLoss = field(default_factory=UsualLoss)
    spikes: int = 0
    machines: list[dict[str, Any]] = field(default_factory=list)
    """What the run has computed on: facts of each machine, and the step it was the first for."""

    def __post_init__(self) -> None:
        if isinstance(self.usual_loss, dict):
            self.usual_loss = UsualLoss(**self.usual_loss)

    def count(self, outcome: Outcome) -> None:
        """Count a step that changed no weight; waits for the step."""
        self.overflows += outcome.overflowed
        self.skipped += outcome.is_sick
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if outcome.is_sick else 0
