"""Which device to compute on, and what it is good at."""

import torch

from .errors import PretrainError


def find_device(wanted: str) -> str:
    """The device for `--device`; raises PretrainError if it is not there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there[wanted]:
        found = ", ".join(name for name, is_there in there.items() if is_there)
        raise PretrainError(f"--device {wanted} is not there on this machine: use one of {found}")
    return wanted


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
