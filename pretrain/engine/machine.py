"""The machine a run computes on: what its speed, and the last bits of its numbers, depend on."""

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .device import computes_in_bf16, name_of


@dataclass(frozen=True)
class Machine:
    """Facts about this process's machine, as they are written into results.json."""

    processor: str
    """Name of the GPU where one computes, else of the CPU."""
    instructions: str
    """The widest of the CPU that torch uses: "AVX2", "AVX512", "DEFAULT"."""
    bf16: bool
    """Whether the device has instructions for bfloat16."""
    cores: int
    """That this process may use."""
    threads: int
    """That compute."""
    torch: str
    python: str
    system: str

    @classmethod
    def here(cls, device: str) -> "Machine":
        """The machine of this process, as it is set up now."""
        return cls(
            processor=name_of(device) or _processor(),
            instructions=torch.backends.cpu.get_cpu_capability(),
            bf16=computes_in_bf16(device),
            cores=available_cores(),
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            python=platform.python_version(),
            system=platform.platform(aliased=True, terse=True),
        )

    def __str__(self) -> str:
        arithmetic = f"{self.instructions}, {'with' if self.bf16 else 'no'} bf16"
        threads, cores = (f"{n} {what}{'s' * (n > 1)}" for n, what in ((self.threads, "thread"), (self.cores, "core")))
        return f"{self.processor} ({arithmetic}), {threads} on {cores}, torch {self.torch}"

    def facts(self) -> dict[str, Any]:
        """The same as a dict of plain values."""
        return asdict(self)


def available_cores() -> int:
    """Cores that this process may use, by its affinity and by the quota of its container (rounded up)."""
    from joblib import cpu_count

    return int(cpu_count())


def default_threads() -> int:
    """OMP_NUM_THREADS where it is set, else one thread for each core that this process may use.

    Torch itself takes one for each core of the machine, also in a container that may use two of 96.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdigit() and int(given) else available_cores()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
