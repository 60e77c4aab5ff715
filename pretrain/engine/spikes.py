"""Losses far above the usual: what to look at first when training goes wrong."""

from dataclasses import dataclass

# A step is judged after so many; the usual loss is an average over about as many.
_WINDOW = 50
# A spike lies this far above the usual loss: in mean absolute deviations; in nats, below which nothing is worth a look;
# and as a multiple of the highest that losses rose lately, in about so many steps. The last one is for losses that
# are nearly 0 in most steps and high in a few, as in fine-tuning: those few are usual too.
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
