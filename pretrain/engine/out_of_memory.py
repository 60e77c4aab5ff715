"""What is done where a GPU's memory is too small: the same again with half as many tokens at once."""

import sys
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from .batches import Maker
from .device import free_cache
from .settings import PretrainError

_WORDS = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)
"""In messages of RuntimeError: torch's allocator, the driver, cuBLAS, cuDNN and Metal."""

Result = TypeVar("Result")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less work at once could help: the device's memory was too small for what raised this."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def fitting(
    compute: Callable[[], Result], maker: Maker, lengths: npt.NDArray[np.int64], device: torch.device
) -> Result:
    """The result of `compute`, which is called again with micro-batches of half the size while memory is too small.

    Args:
        compute: reads micro-batches of `maker`; must not change anything, as it may be called again.
        lengths: of the sequences that it reads, in tokens.

    Raises:
        PretrainError: the longest sequence alone is too much.
    """
    while True:
        try:
            return compute()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Out of the handler, whose error holds on to what was computed.
        halve(maker, int(lengths.sum()), int(lengths.max(initial=0)), device)


def halve(maker: Maker, tokens: int, longest: int, device: torch.device) -> None:
    """Compute half as many tokens at once from now on, and say so.

    Args:
        tokens: of all micro-batches together.
        longest: tokens of what cannot be divided.

    Raises:
        PretrainError: no micro-batch has more than that already.
    """
    if maker.micro_batch_tokens <= longest:
        raise PretrainError(
            f"the GPU's memory is too small for {longest:,} tokens at once, which belong together: use a smaller "
            f"model, {maker.remedy}, or --device cpu"
        )
    free_cache(device)
    maker.micro_batch_tokens = max(longest, min(maker.micro_batch_tokens, tokens) // 2)
    # What a command prints may be its results.
    said = f"Out of GPU memory: continuing with {maker.micro_batch_tokens:,} tokens at once, which changes no result."
    print(said, file=sys.stderr, flush=True)
