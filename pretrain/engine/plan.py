"""The plan of a run, before time is spent on it: seconds a step, memory, disk, and the measured run most like it."""

import json
import math
import time
from pathlib import Path
from typing import Any

from .batches import Batches
from .checkpoint import num_bytes
from .learner import Learner
from .memory import free_memory, memory_warning, needed_memory
from .settings import LoopSettings
from .step import step

MEASURED: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("measured.json").read_text(encoding="utf-8")
)
"""Runs of README.md, on 2 CPU cores with bf16, by stage. Losses are in nats; fine-tunings are means of 3 seeds."""


def nearest(stage: str, **numbers: float) -> dict[str, Any]:
    """The measured run of a stage whose numbers of these names are nearest to these, by their logarithms."""

    def distance(row: dict[str, Any]) -> float:
        return sum(abs(math.log(row[name] / max(1, number))) for name, number in numbers.items())

    return min(MEASURED[stage], key=distance)


def seconds_a_step(learner: Learner, batches: Batches, steps: int) -> float:
    """Do steps at a hundredth of the learning rate. The first one, which warms up memory and kernels, is not timed."""
    learner.optimizer.set_learning_rate(learner.optimizer.learning_rate * 0.01)
    for number in range(steps):
        if number == 1:
            began = time.monotonic()
        batches.draw()
        step(learner, batches)
    return (time.monotonic() - began) / (steps - 1)


class Needs:
    """What a run of `steps` steps needs of its machine, in bytes, told after steps of its own.

    Attributes:
        memory: see `needed_memory`.
        weights: of the model on disk.
        checkpoints: of all that are there at once: the latest ones, the best, and the one that is being written.
        warning: a sentence where there is too little memory.
    """

    def __init__(self, settings: LoopSettings, learner: Learner, steps: float):
        self.memory = needed_memory(settings.device, steps)
        self.weights = num_bytes(learner.model.parameters())
        state = num_bytes(learner.optimizer.state_tensors().values())
        self.checkpoints = (settings.keep_checkpoints + 2) * (self.weights + state)
        self.warning = memory_warning(self.memory, free_memory(settings.device), int(settings.micro_batch_tokens))
