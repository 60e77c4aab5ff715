"""How fast the machine multiplies matrices of the shapes that a training step has: the limit beside useful FLOPs.

Each linear layer of a step is three products, laid out in memory as torch does it: forward, gradient of the input,
gradient of the weight. A shape is measured bare, on tensors that stay where they are, and counts as often as it occurs.
Attention's own products are left out: they are small and slower, and would only lower the limit.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model import BertConfig

# The best rate of a device that is not in a table of peaks is taken from one square product of this size.
_SQUARE = {"cpu": 2048, "cuda": 8192}


def seconds_of(call: Callable[[], object], device: str, at_least: float) -> float:
    """Seconds of one call, from as many in a row as take `at_least` seconds together."""
    times = 1
    while True:
        synchronise(device)
        start = time.perf_counter()
        for _ in range(times):
            call()
        synchronise(device)
        took = time.perf_counter() - start
        if took >= at_least:
            return took / times
        times = max(2 * times, math.ceil(1.1 * times * at_least / max(took, 1e-6)))


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Linear:
    """A linear layer applied to [rows, inputs], `count` times a step."""

    rows: int
    inputs: int
    outputs: int
    count: int

    @property
    def flops(self) -> float:
        """Of one of its three products."""
        return 2 * self.rows * self.inputs * self.outputs

    def products(self, dtype: torch.dtype, device: str) -> list[Callable[[], Tensor]]:
        """Forward, gradient of the input, gradient of the weight."""
        shapes = ((self.rows, self.inputs), (self.outputs, self.inputs), (self.rows, self.outputs))
        value, weight, gradient = (torch.randn(shape, device=device).to(dtype) for shape in shapes)
        return [
            lambda: torch.mm(value, weight.t()),
            lambda: torch.mm(gradient, weight),
            lambda: torch.mm(gradient.t(), value),
        ]


def linears(config: BertConfig, tokens: int, masked: int, sequences: int) -> list[Linear]:
    """The linear layers of a step over these numbers of tokens, masked tokens and sequences."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers - 1
    # The last layer is needed for masked and first tokens alone, but for key and value.
    some = masked + sequences
    return [
        Linear(tokens, hidden, 3 * hidden, layers),
        Linear(tokens, hidden, hidden, layers),
        Linear(tokens, hidden, inner, layers),
        Linear(tokens, inner, hidden, layers),
        Linear(tokens, hidden, 2 * hidden, 1),
        Linear(some, hidden, hidden, 2),
        Linear(some, hidden, inner, 1),
        Linear(some, inner, hidden, 1),
        Linear(masked, hidden, hidden, 1),
        Linear(masked, hidden, config.vocab_size, 1),
        Linear(sequences, hidden, hidden, 1),
    ]


class MatmulRate:
    """FLOPs a second of the products of a step, one after the other: all FLOPs over all seconds.

    Args:
        layers: the linear layers of the step.
        seconds: how long one measurement of all products takes, about.
    """

    def __init__(self, layers: list[Linear], dtype: torch.dtype, device: str, seconds: float):
        self.device, self.seconds = device, seconds / (3 * len(layers))
        self.products = [(layer, product) for layer in layers for product in layer.products(dtype, device)]
        for _, product in self.products:
            product()

    def __call__(self) -> float:
        flops = sum(layer.count * layer.flops for layer, _ in self.products)
        return flops / sum(
            layer.count * seconds_of(product, self.device, self.seconds) for layer, product in self.products
        )


def best_rate(dtype: torch.dtype, device: str, seconds: float = 0.5) -> float:
    """FLOPs a second of a large square product, measured."""
    size = _SQUARE[device]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    torch.mm(a, b)
    return 2 * size**3 / seconds_of(lambda: torch.mm(a, b), device, seconds)
