"""Training steps with the draw of their batches, timed."""

import time

from pretrain.engine.batches import Batches
from pretrain.engine.settings import Budget, LoopSettings, Schedule
from pretrain.engine.step import Learner, step


class Steps:
    """Steps as the loop takes them, in a budget that is counted, with neither evaluations nor checkpoints.

    Args:
        progress: what changes over the budget (see `Schedule.progress`) stays where it is there; None: it changes.
    """

    def __init__(self, settings: LoopSettings, learner: Learner, batches: Batches, progress: float | None = None):
        self.settings, self.learner, self.batches, self.progress = settings, learner, batches, progress
        self.budget = Budget.parse(settings.budget)
        self.schedule = Schedule(settings.schedule, settings.warmup * self.budget.amount, self.budget.amount)

    def used(self) -> float:
        """How much of the budget is used, in its unit."""
        counters = self.learner.counters
        return self.budget.used(0.0, counters.step, counters.epochs, counters.tokens)

    def are_over(self) -> bool:
        return self.used() >= self.budget.amount

    def take(self) -> float:
        """Draw a batch and take a step; returns the seconds."""
        began, used = time.perf_counter(), self.used()
        self.learner.optimizer.set_learning_rate(self.settings.learning_rate * self.schedule(used))
        progress = self.schedule.progress(used) if self.progress is None else self.progress
        self.batches.draw(self.learner.counters.step, progress)
        step(self.learner, self.batches)
        self.learner.counters.epochs = self.batches.epochs
        return time.perf_counter() - began
