"""The learning rate as a function of the budget used."""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from .errors import PretrainError

Kind = Literal["linear", "cosine", "warmup-stable-decay"]
# Of the peak, in the first step.
_FIRST_SHARE = 0.01


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a share of its peak: a continuous function of the amount of the budget that is used; 0 at
    the end.

    All amounts are in the unit of the budget, so that a larger budget leaves the steps before as they were.

    Raises:
        PretrainError: the kind is unknown.
    """

    kind: Kind
    """`warmup-stable-decay` falls in the last fifth (Hu et al. 2024, section 4)."""
    warmup: float
    """Over which it rises linearly, from a hundredth: a first step of 0 would be lost."""
    total: float
    restart: float = 0.0
    """Where a run that had passed its warm-up went on with a larger budget."""
    restart_share: float = 0.0
    """Its share there: it rises linearly from this to that of the larger budget."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise PretrainError(f"the schedule {self.kind!r} is unknown: there are {', '.join(get_args(Kind))}")

    def __call__(self, used: float) -> float:
        if used < self.warmup:
            return _FIRST_SHARE + (1 - _FIRST_SHARE) * used / self.warmup
        share, rise = max(0.0, self._after_warmup(used)), self._rise(used)
        return self.restart_share + (share - self.restart_share) * rise

    def extended(self, total: float, fallen_at: float | None) -> "Schedule":
        """The schedule of a budget that has grown to `total`.

        Args:
            fallen_at: the amount used so far, where the rate has begun to fall: the new schedule goes on from there.
        """
        if fallen_at is None:
            return replace(self, total=total)
        return replace(self, total=total, restart=fallen_at, restart_share=self(fallen_at))

    def _after_warmup(self, used: float) -> float:
        left = (self.total - used) / (self.total - self.warmup)
        if self.kind == "linear":
            return left
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * (1 - left)))
        return 1.0 if used < self.decay_start else (self.total - used) / (self.total - self.decay_start)

    def _rise(self, used: float) -> float:
        """From 0 at a restart to 1, over the share of what is left that the warm-up has of all."""
        length = self.warmup * (self.total - self.restart) / self.total
        return min(1.0, (used - self.restart) / length) if self.restart and length else 1.0

    @property
    def has_plateau(self) -> bool:
        """Whether the rate stays at its peak until `decay_start`, from where a larger budget goes on as if from the
        start."""
        return self.kind == "warmup-stable-decay"

    @property
    def decay_start(self) -> float:
        """Where the rate begins to fall from a plateau."""
        return self.warmup + 0.8 * (self.total - self.warmup)
