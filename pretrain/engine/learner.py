"""What computes a step: a model, what it learns, and its optimizer, on a device."""

import torch
from torch import Tensor, nn

from model import PackedBatch

from .counters import Counters
from .device import Precision, steps_behind
from .distributed import World
from .loss_scale import LossScale
from .optimizer import Optimizer
from .settings import LoopSettings


class LossSums(nn.Module):
    """An objective and its model as one module, so that DistributedDataParallel sees the whole forward pass.

    Args:
        objective: has `loss_sums(model, batch)`, see `Learner`.
    """

    def __init__(self, model: nn.Module, objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Sums of losses by name: scalars with gradients."""
        return self.objective.loss_sums(self.model, batch)


class Learner:
    """All that `step.step` needs, and what it changes.

    Args:
        settings: resolved ones: device, precision, optimizer and its learning rate, `clip_norm`.
        model: is moved to the device, in training mode.
        objective: `counts(batch)` -> {name: number of targets} and `loss_sums(model, batch)` -> {name: scalar with
            gradient}, of the same names.
        seed: decides the dropout.
        counters: those of the steps so far, which go on.
        world: of all processes that share each step.
    """

    def __init__(self, settings: LoopSettings, model: nn.Module, objective, seed: int,
                 counters: Counters | None = None, world: World | None = None):  # fmt: skip
        self.model = model.to(settings.device).train()
        self.seed, self.clip_norm, self.device = seed, settings.clip_norm, torch.device(settings.device)
        self.counters, self.world = counters or Counters(), world or World()
        self.counts = objective.counts
        self.loss_sums = self.world.parallel(LossSums(model, objective))
        self.precision = Precision(settings.device, settings.precision)
        self.optimizer = Optimizer(
            model, settings.optimizer, settings.learning_rate, settings.weight_decay, self.precision.optimizer_dtype
        )
        c = self.counters
        self.loss_scale = LossScale(self.precision.needs_loss_scale, self.device, c.loss_scale, c.steps_since_overflow)
        self.steps_behind = steps_behind(self.device)
        self.largest_computed = 0
        """Tokens of the largest micro-batch so far."""
