"""What encoder and heads are built of: activations, LayerNorm, and a dropout that is fast on a CPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .config import BertConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
"""BertConfig.hidden_act -> function."""

_LEVELS = 1 << 8
"""Of a random number."""


def layer_norm(config: BertConfig, size: int | None = None) -> nn.LayerNorm:
    """LayerNorm over H, or another size. Torch takes mean and variance in float32 whatever the input, and the residual
    stream stays float32 under autocast."""
    return nn.LayerNorm(config.hidden_size if size is None else size, eps=config.layer_norm_eps)


class Dropout(nn.Module):
    """In training, each value is zero with probability `p`, and scaled by 1 / (1 - p) otherwise.

    Srivastava et al. 2014; masks are drawn several times faster on a CPU than by torch.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        return dropped(values, self.p if self.training else 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropped(values: Tensor, p: float) -> Tensor:
    """`values` with each zero with probability `p`, else scaled by 1 / (1 - p); torch's default generator decides.

    Torch draws a number of 64 bits for each value on a CPU; this makes eight of it. A threshold between two of their
    levels is rounded at random, once a call, in such a way that every value is zero with probability `p` exactly.
    """
    threshold = p * _LEVELS
    # A compiler draws its own numbers, inside the operations around.
    if values.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < threshold <= _LEVELS - 1:
        return F.dropout(values, p)
    return _Dropped.apply(values, int(threshold + torch.rand(()).item()), 1 / (1 - p))


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, threshold: int, scale: float) -> Tensor:
        count = values.numel()
        numbers = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None).view(torch.int8)
        keep = torch.empty_like(values)
        torch.ge(numbers[:count].view(values.shape), threshold - _LEVELS // 2, out=keep)
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (values * keep).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return (grad * keep).mul_(ctx.scale), None, None
