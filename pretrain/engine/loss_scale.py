"""The factor on the loss that keeps small gradients from vanishing in fp16."""

import torch
from torch import Tensor

FIRST = 2.0**16
# After this many steps without an overflow the factor is doubled (the default of torch's GradScaler).
_PATIENCE = 2_000


class LossScale:
    """A power of two, halved where a gradient overflows and doubled after 2,000 steps in which none did
    (Micikevicius et al. 2018, section 3.2). It lives on the device, so that no step waits for it.

    Args:
        is_on: otherwise it stays 1, which changes no bit of a gradient.
        value, steps_since_overflow: where a run goes on.
    """

    def __init__(
        self, is_on: bool, device: torch.device | str = "cpu", value: float = FIRST, steps_since_overflow: int = 0
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

    def state(self) -> tuple[float, int]:
        """Value and steps since the last overflow; waits for the device."""
        return float(self.value), int(self.steps_since_overflow)
