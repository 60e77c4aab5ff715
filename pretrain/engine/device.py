"""What differs by device: which there are, the arithmetic each is good at, its kernels, how the host waits for it."""

import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .settings import PretrainError

DEVICES = ("cpu", "cuda", "mps")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def find_device(wanted: str | torch.device) -> str:
    """The device for `--device`, "cpu", "cuda" or "mps"; raises PretrainError if it is not there."""
    wanted = str(wanted)
    if wanted.startswith("cuda:") and is_there("cuda") and wanted == f"cuda:{torch.cuda.current_device()}":
        # The GPU that this process computes on has two names.
        wanted = "cuda"
    if wanted == "auto":
        return "cuda" if is_there("cuda") else "cpu"
    if not is_there(wanted):
        found = ", ".join(filter(is_there, DEVICES))
        raise PretrainError(f"--device {wanted} is not available on this machine: use one of {found}")
    return wanted


def is_there(device: str) -> bool:
    """Whether this machine has a device of that kind; of another kind than "cpu", "cuda" and "mps" there is none."""
    if device == "mps":
        return torch.backends.mps.is_available()
    return device == "cpu" or (device == "cuda" and torch.cuda.is_available())


def computes_in_bf16(device: str) -> bool:
    """Whether matrix products in bf16 are faster there than in float32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has_onednn = device == "cpu" and torch.backends.mkldnn.is_available()
    return has_onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported() and _has_bf16_instructions()


def _has_bf16_instructions() -> bool:
    """Without them oneDNN computes bf16 in float32 with conversions, slower than float32 itself."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def fastest_precision(device: str) -> str:
    """bf16 where the device computes in it, else fp16 on CUDA (T4, V100 and older), else fp32."""
    if computes_in_bf16(device):
        return "bf16"
    return "fp16" if device == "cuda" else "fp32"


def pays(precision: str, device: str) -> bool:
    """Whether the device computes in this precision at least as fast as in fp32."""
    if precision == "fp16":
        return device != "cpu"
    return precision == "fp32" or computes_in_bf16(device)


def tokens_at_once(device: str) -> int:
    """Tokens of a micro-batch that a device of its kind computes well and usually has the memory for."""
    return 65_536 if device == "cuda" else 8_192


def tokens_a_step(device: str) -> int:
    """Tokens of an optimizer step of a good size."""
    return 28_000 if device == "cuda" else 7_000


def name_of(device: str) -> str | None:
    """What the GPU is called; None for a CPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return "Apple GPU" if device == "mps" else None


def memory_taken(device: str) -> int | None:
    """The most bytes that tensors have had on a GPU; None for a CPU, whose memory is that of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return torch.mps.driver_allocated_memory() if device == "mps" else None


def memory_there(device: str) -> int | None:
    """Bytes that this process may have on a GPU, those it has included; None for a CPU."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return torch.mps.recommended_max_memory() if device == "mps" else None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; the model's mode is put back."""
    was_training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(was_training)


def has_foreach_kernels(device: torch.device) -> bool:
    """Whether one kernel works on a list of tensors there; asking for it elsewhere is an error."""
    return device.type in ("cpu", "cuda")


def steps_behind(device: torch.device) -> int:
    """How many steps the host reads the results of a step later: a GPU works through a queue, and waiting would empty
    it."""
    return 1 if device.type == "cuda" else 0


def optimizers_obey(device: torch.device) -> bool:
    """Whether torch's fused AdamW honours `found_inf` on this device; on MPS it does not."""
    return device.type != "mps"


@dataclass(frozen=True)
class Precision:
    """The arithmetic of matrix products: `Precision("cpu", "bf16")()` is the context that the model computes in.

    Args:
        device: "cpu", "cuda" or "mps".
        name: "bf16" or "fp16" (autocast), or "fp32".

    Raises:
        PretrainError: it has another name.
    """

    device: str
    name: str

    def __post_init__(self) -> None:
        if self.name not in DTYPES:
            raise PretrainError(f"precision {self.name!r} is not known: give one of {', '.join(DTYPES)}")

    @contextmanager
    def __call__(self) -> Iterator[None]:
        is_lower = self.name != "fp32"
        try:
            with torch.autocast(self.device, dtype=DTYPES[self.name] if is_lower else None, enabled=is_lower):
                yield
        finally:
            # Inside an autocast of somebody else, torch would keep the weights it has cast beyond the next step.
            torch.clear_autocast_cache()

    @property
    def needs_loss_scale(self) -> bool:
        """Gradients below 6e-8 vanish in fp16."""
        return self.name == "fp16"

    @property
    def optimizer_dtype(self) -> torch.dtype:
        """What the optimizer's own matrix products compute in. No CPU is fast in fp16."""
        return torch.float32 if self.name == "fp16" and self.device == "cpu" else DTYPES[self.name]


class Arriving:
    """Numbers on their way from the device to the host; asking for them waits for no later work.

    Args:
        values: a tensor of one dimension.
    """

    def __init__(self, values: Tensor):
        self._done: torch.cuda.Event | None = None
        self._values = values.detach().to("cpu", non_blocking=values.is_cuda)
        if values.is_cuda:
            self._done = torch.cuda.Event()
            self._done.record()

    def numbers(self) -> list[float]:
        """The numbers, waited for."""
        if self._done is not None:
            self._done.synchronize()
        return self._values.tolist()


def norm_of(gradients: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients together: a scalar on their device."""
    gradients = list(gradients)
    return torch.nn.utils.get_total_norm(gradients, foreach=has_foreach_kernels(gradients[0].device))


def free_cache(device: torch.device) -> None:
    """Give back what torch keeps of a GPU's memory."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


@dataclass(frozen=True)
class Machine:
    """Facts about this process's machine, as they are written into results.json."""

    processor: str
    """Name of the GPU where one computes, else of the CPU, with its family and model where the name has no number."""
    instructions: str
    """The widest of the CPU that torch uses: "AVX2", "AVX512", "DEFAULT"; empty where a GPU computes."""
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
        gpu = name_of(device)
        return cls(
            processor=gpu or _processor(),
            instructions="" if gpu else torch.backends.cpu.get_cpu_capability(),
            bf16=computes_in_bf16(device),
            cores=available_cores(),
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            python=platform.python_version(),
            system=platform.platform(aliased=True, terse=True),
        )

    def __str__(self) -> str:
        arithmetic = ", ".join(filter(None, (self.instructions, f"{'with' if self.bf16 else 'no'} bf16")))
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


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the CPU. A virtual machine may hide its number, and then has family and model beside it: an
    "AMD EPYC" alone is any of ten years."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return _processor_of_mac() or platform.processor() or platform.machine()
    facts: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    name = facts.get("model name") or platform.machine()
    if "cpu family" not in facts or any(map(str.isdigit, name)):
        return name
    return f"{name}, family {facts['cpu family']}, model {facts.get('model', '?')}"


def _processor_of_mac() -> str:
    """Its name; empty on other systems."""
    with suppress(OSError):
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        return asked.stdout.strip()
    return ""
