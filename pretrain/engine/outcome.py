"""What a step did, told when the device has done it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .device import Arriving


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
    """The mean losses, the gradient norm before clipping, 1 for a sick step, 1 for an overflow."""
    identify: Callable[[], list[Any]]
    """Where the examples of the step are (see `Batches.identify`)."""

    @property
    def losses(self) -> dict[str, float]:
        """Means over the targets of the global batch, nats; waits for the step."""
        return dict(zip(self.names, self.arriving.numbers(), strict=False))

    @property
    def norm(self) -> float:
        """Of the gradient, before clipping; waits for the step."""
        return self.arriving.numbers()[-3]

    @property
    def is_sick(self) -> bool:
        """Whether loss or gradient were not finite, so that no weight was changed; waits for the step."""
        return self.arriving.numbers()[-2] > 0

    @property
    def overflowed(self) -> bool:
        """Whether the gradient was too large for fp16 under the loss scale, so that no weight was changed."""
        return self.arriving.numbers()[-1] > 0
