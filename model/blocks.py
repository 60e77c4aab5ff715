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


class Dropout(nn.Dropout):
    """Dropout (Srivastava et al. 2014) whose masks are drawn several times faster on a CPU than by torch."""

    def forward(self, input: Tensor) -> Tensor:
        return dropped(input, self.p if self.training else 0.0)


def dropped(values: Tensor, p: float) -> Tensor:
    """`values` with each zero with probability `p`, else scaled by 1 / (1 - p); torch's default generator decides.

    Torch draws a number of 64 bits for each value on a CPU; this makes eight of it.
    """
    # A compiler draws its own numbers, inside the operations around.
    if values.device.type != "cpu" or torch.compiler.is_compiling() or not has_level(p):
        return F.dropout(values, p)
    return _Dropped.apply(values, level_of(p), 1 / (1 - p))


def has_level(p: float) -> bool:
    """Whether `level_of` has a level for a probability; none of 0, nor of nearly 1."""
    return 0 < p * _LEVELS <= _LEVELS - 1


def level_of(p: float) -> int:
    """The level under which a share `p` of `drawn_levels` is.

    A probability between two of the levels is rounded at random, once a call, in such a way that every value is under
    it with probability `p` exactly.
    """
    return int(p * _LEVELS + torch.rand(()).item()) - _LEVELS // 2


def drawn_levels(shape: torch.Size) -> Tensor:
    """int8 of a shape, on the CPU: each of the 256 levels, from -128 to 127, is as probable."""
    count = shape.numel()
    numbers = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None)
    return numbers.view(torch.int8)[:count].view(shape)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, level: int, scale: float) -> Tensor:
        keep = torch.ge(drawn_levels(values.shape), level, out=torch.empty_like(values))
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (values * keep).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return (grad * keep).mul_(ctx.scale), None, None
