"""A training step with the draw of its batch, timed."""

import time

from pretrain.engine.batches import Batches
from pretrain.engine.run import Run
from pretrain.engine.step import step


def train_one(run: Run, batches: Batches) -> float:
    """Draw a batch and take a step, as the loop does; returns the seconds."""
    began = time.perf_counter()
    run.optimizer.set_learning_rate(run.learning_rate * run.schedule(run.amount_used()))
    batches.draw()
    step(run, batches)
    run.counters.epochs = batches.epochs
    return time.perf_counter() - began
