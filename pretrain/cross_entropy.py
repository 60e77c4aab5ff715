"""The cross entropy over a vocabulary, for which the scores are looked at once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Scores that are computed on at a time in float32: 2 MB, which stay in the caches of a CPU; elsewhere 64 MB, enough to
# keep a GPU busy.
_SCORES_AT_ONCE = {"cpu": 2**19}
SCORES_AT_ONCE_ON_GPU = 2**24
# A gradient in float16 is scaled up by this factor: the probability of a rare word is smaller than what float16 tells
# from zero.
_FLOAT16_SCALE = 2.0**10


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
        at_once = _SCORES_AT_ONCE.get(logits.device.type, SCORES_AT_ONCE_ON_GPU)
        rows = max(1, at_once // logits.shape[1])
        ctx.scale = _FLOAT16_SCALE if logits.dtype == torch.float16 else 1.0
        for first in range(0, logits.shape[0], rows):
            part = slice(first, first + rows)
            scores, label = logits[part].float(), labels[part, None]
            probabilities = scores.softmax(-1)
            # The most probable entry has at least 1 / V: the logarithm of its probability is exact.
            normaliser = scores.amax(-1) - probabilities.amax(-1).log()
            total += (normaliser - scores.gather(1, label).squeeze(1)).sum()
            if gradient is not None:
                probabilities.scatter_add_(1, label, probabilities.new_full(label.shape, -1.0))
                gradient[part] = probabilities if ctx.scale == 1.0 else probabilities.mul_(ctx.scale)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        # In place: the scores of a step are among its largest tensors. A second backward pass is an error.
        return gradient.mul_(grad / ctx.scale), None
