"""The plan of a run, before time is spent on it: seconds a step, memory, disk, and the measured run most like it."""

import json
import math
import os
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

from .batches import Batches
from .checkpoint import num_bytes
from .device import memory_taken, memory_there
from .settings import LoopSettings
from .step import Learner, step

MEASURED: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("measured.json").read_text(encoding="utf-8")
)
"""Runs of the tables in README.md and docs, by stage; `benchmarks/published.py` writes them. Of a pretraining: tokens
of the text, those that were read in all, parameters, losses in nats, and seconds where its budget was a time, on 2 CPU
cores with bf16. Fine-tunings are means of 3 seeds."""


def nearest(stage: str, task: str | None = None, **numbers: float) -> dict[str, Any] | None:
    """The measured run of a stage whose numbers of these names are nearest to these, by their logarithms; None where
    there is none of the task."""

    def distance(row: dict[str, Any]) -> float:
        return sum(abs(math.log(row[name] / max(1, number))) for name, number in numbers.items())

    return min((row for row in MEASURED[stage] if row.get("task") == task), key=distance, default=None)


def seconds_a_step(learner: Learner, batches: Batches, steps: int) -> float:
    """Do steps of the middle of a budget, at a hundredth of the learning rate. The first one, which warms up memory and
    kernels, is not timed."""
    learner.optimizer.set_learning_rate(learner.optimizer.learning_rate * 0.01)

    def take(count: int) -> None:
        for _ in range(count):
            batches.draw(progress=0.5)
            outcome = step(learner, batches)
        # A GPU is still at work when the host has gone on.
        outcome.arriving.numbers()

    take(1)
    began = time.monotonic()
    take(steps - 1)
    return (time.monotonic() - began) / (steps - 1)


class Needs:
    """What a run of `steps` steps needs of its machine, in bytes, told after steps of its own.

    Attributes:
        memory: see `needed_memory`.
        weights: of the model on disk.
        checkpoints: of all that are there at once: the latest ones, the best, the one before the rate falls from a
            plateau, and the one that is being written.
        warning: a sentence where there is too little memory.
    """

    def __init__(self, settings: LoopSettings, learner: Learner, steps: float):
        self.memory = needed_memory(settings.device, steps)
        self.weights = learner.model.num_bytes
        state = num_bytes(learner.optimizer.state_tensors().values())
        kept = settings.keep_checkpoints + 2 + (settings.schedule == "warmup-stable-decay")
        self.checkpoints = kept * (self.weights + state)
        self.warning = memory_warning(self.memory, free_memory(settings.device), int(settings.micro_batch_tokens))


def memory_warning(needed: float, free: float, micro_batch_tokens: int) -> str | None:
    """A sentence with the remedy where a run needs more memory (bytes) than there is."""
    if needed <= free:
        return None
    return (
        f"Warning: the run needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: lower "
        f"--micro-batch-tokens (now {micro_batch_tokens:,}), or take a smaller model."
    )


# On a CPU the memory of a run grows for hundreds of steps, as freed blocks of other sizes cannot be used again: by 0.13
# to 0.36 of what the steps here need (measured); and each new shape of a product leaves a kernel behind, of which so
# many are kept.
_GROWTH_ON_CPU = 0.25
_KERNELS, _STEPS_UNTIL_ALL = 0.35e9, 500


def needed_memory(device: str, steps: float) -> float:
    """About how much a run will have needed at its end, in bytes: of the GPU where there is one, else of the process.

    It has done a step of the longest examples and a full micro-batch of an evaluation, which nothing later exceeds.
    """
    if (taken := memory_taken(device)) is not None:
        return taken
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak + (_GROWTH_ON_CPU * peak + _KERNELS) * min(1.0, max(0.0, steps) / _STEPS_UNTIL_ALL)


def free_memory(device: str) -> int:
    """How much this process may have in all, in bytes: what it has, and what is free. All there is, where that cannot
    be told."""
    if (there := memory_there(device)) is not None:
        return there
    page, facts = os.sysconf("SC_PAGE_SIZE"), Path("/proc/meminfo")
    available = re.search(r"MemAvailable:\s+(\d+) kB", facts.read_text()) if facts.exists() else None
    if available is None:
        return os.sysconf("SC_PHYS_PAGES") * page
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
    return min([int(available[1]) * 1024, *room_in_groups()]) + resident


def room_in_groups(root: Path = Path("/")) -> list[int]:
    """What each control group of this process (a container, a job of a batch system) that limits memory leaves free, in
    bytes. The cache of files counts as free.

    Args:
        root: of the file system.
    """
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, limits, used = root / "sys/fs/cgroup", "memory.max", "anon"
        elif "memory" in controllers.split(","):
            base, limits, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "total_rss"
        else:
            continue
        # In a container, the path may be that outside of it, and its own group is the base.
        own = base / path.lstrip("/")
        for group in (own, *own.parents):
            limit, taken = (
                _text(group / limits).strip(),
                re.search(rf"^{used} (\d+)$", _text(group / "memory.stat"), re.M),
            )
            if group.is_relative_to(base) and limit.isdecimal() and taken:
                found.append(max(0, int(limit) - int(taken[1])))
    return found


def _text(path: Path) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
