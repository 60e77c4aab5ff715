"""Whether an error says that a GPU has no memory left: its libraries say it in words of their own."""

import torch

_WORDS = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)
"""In messages of RuntimeError: torch's allocator, the driver, cuBLAS, cuDNN and Metal."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less work at once could help: the device's memory was too small for what raised this."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
