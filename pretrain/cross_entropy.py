"""The cross entropy over a vocabulary, for which the scores are looked at once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Scores that are computed on at a time in float32: 2 MB, which stay in the caches of a CPU.
_CHUNK = 2**19


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the negative log likelihoods (nats, float32) of labels [M] under logits [M, V], every label an id.

    The gradient is worked out beside the loss, in the type of the logits, so that no copy of all scores in float32 is
    made, kept, or read again.
    """
    return _CrossEntropySum.apply(logits, labels)


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        total = logits.new_zeros((), dtype=torch.float32)
        rows = max(1, _CHUNK // logits.shape[1] if logits.device.type == "cpu" else logits.shape[0])
        for first in range(0, logits.shape[0], rows):
            part = slice(first, first + rows)
            scores, label = logits[part].float(), labels[part, None]
            probabilities = scores.softmax(-1)
            # The most probable entry has at least 1 / V: the logarithm of its probability is exact.
            normaliser = scores.amax(-1) - probabilities.amax(-1).log()
            total += (normaliser - scores.gather(1, label).squeeze(1)).sum()
            if gradient is not None:
                gradient[part] = probabilities.scatter_add_(1, label, probabilities.new_full(label.shape, -1.0))
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None
