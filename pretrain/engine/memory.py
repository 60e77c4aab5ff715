"""How much memory a run needs, and how much there is."""

import os
import re
import resource
import sys
from pathlib import Path

from .device import memory_taken, memory_there

# On a CPU the memory of a run grows for hundreds of steps, as freed blocks of other sizes cannot be used again: by 0.13
# to 0.36 of what the steps here need (measured); and each new shape of a product leaves a kernel behind, of which so
# many are kept.
_GROWTH_ON_CPU = 0.25


_KERNELS, _STEPS_UNTIL_ALL = 0.35e9, 500


def memory_warning(needed: float, free: float, micro_batch_tokens: int) -> str | None:
    """A sentence with the remedy where a run needs more memory (bytes) than there is."""
    if needed <= free:
        return None
    return (
        f"Warning: the run needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: lower "
        f"--micro-batch-tokens (now {micro_batch_tokens:,}), or take a smaller --preset."
    )


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
    resident = Path("/proc/self/statm").read_text().split()[1]
    return int(available[1]) * 1024 + int(resident) * page
