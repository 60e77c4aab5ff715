"""What computes a step: an objective and its model as one module, and the optimizer."""

import torch
from torch import Tensor, nn

from model import PackedBatch

from .budget import Budget
from .device import Precision
from .optimizer import Optimizer, Schedule
from .run import Run
from .settings import LoopSettings


class LossSums(nn.Module):
    """An objective and its model as one module, so that DistributedDataParallel sees the whole forward pass.

    Args:
        objective: has `loss_sums(model, batch)`, see `PretrainingObjective`.
    """

    def __init__(self, model: nn.Module, objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Sums of losses by name: scalars with gradients."""
        return self.objective.loss_sums(self.model, batch)


def make_optimizer(settings: LoopSettings, model: nn.Module) -> Optimizer:
    dtype = Precision(settings.device, settings.precision).optimizer_dtype
    return Optimizer(model, settings.optimizer, settings.learning_rate, settings.weight_decay, dtype)


def bare_run(settings: LoopSettings, model: nn.Module, objective, seed: int) -> Run:
    """A run of resolved settings for `step.step` alone, which records and keeps nothing.

    Args:
        seed: decides the dropout.
    """
    budget = Budget.parse(settings.budget)
    return Run(
        model=model.to(settings.device).train(),
        loss_sums=LossSums(model, objective),
        counts=objective.counts,
        optimizer=make_optimizer(settings, model),
        budget=budget,
        schedule=Schedule(settings.schedule, settings.warmup * budget.amount, budget.amount),
        learning_rate=settings.learning_rate,
        precision=Precision(settings.device, settings.precision),
        device=torch.device(settings.device),
        checkpoints=None,
        progress=None,
        clip_norm=settings.clip_norm,
        evaluations=settings.evaluations,
        judge=None,
        checkpoint_every=Budget.parse(settings.checkpoint_every),
        seed=seed,
    )
