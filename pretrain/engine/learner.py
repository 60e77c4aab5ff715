"""What computes a step: a model, what it learns, and its optimizer, on a device."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from model import PackedBatch
from model.huggingface import PretrainedModel

from .counters import Counters, LossScale
from .device import Precision, steps_behind
from .distributed import World
from .optimizer import Optimizer
from .settings import LoopSettings


class Objective(Protocol):
    """What is learned. `model` and `batch` are of the kinds that it is made for."""

    def counts(self, batch: Any) -> Mapping[str, float]:
        """How many targets a batch has, by the name of their loss."""

    def loss_sums(self, model: Any, batch: Any) -> dict[str, Tensor]:
        """The sum of the losses of these targets, by the same names: scalars with gradients."""


class LossSums(nn.Module):
    """An objective and its model as one module, so that DistributedDataParallel sees the whole forward pass."""

    def __init__(self, model: nn.Module, objective: Objective):
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
        seed: decides the dropout.
        counters: those of the steps so far, which go on.
        world: of all processes that share each step.
    """

    def __init__(self, settings: LoopSettings, model: PretrainedModel, objective: Objective, seed: int,
                 counters: Counters | None = None, world: World | None = None):  # fmt: skip
        self.model = model.to(settings.device).train()
        self.seed, self.clip_norm, self.device = seed, settings.clip_norm, torch.device(settings.device)
        self.counters, self.world = counters or Counters(), world or World()
        self.counts = objective.counts
        self.loss_sums = self.world.parallel(LossSums(model, objective))
        self.precision = Precision(settings.device, settings.precision)
        self.optimizer = Optimizer(
            model, settings.optimizer, settings.peak, settings.weight_decay, self.precision.optimizer_dtype
        )
        c = self.counters
        self.loss_scale = LossScale(self.precision.needs_loss_scale, self.device, c.loss_scale, c.steps_since_overflow)
        self.steps_behind = steps_behind(self.device)
        self.largest_computed = 0
        """Tokens of the largest micro-batch so far."""
