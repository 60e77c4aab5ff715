"""Muon: the optimizer of the matrices inside the model (Jordan et al. 2024)."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

# a x + b x^3 + c x^5 five times takes singular values from 0.002 to 1 to between 0.7 and 1.2 (Jordan et al. 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
# The root mean square of AdamW's steps, which Muon's are scaled to (Liu et al. 2025, section 2.2).
_RMS = 0.2
_SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with decoupled weight decay (Jordan et al. 2024; Liu et al. 2025, section 2).

    A step moves the entries of a matrix by 0.2 times the learning rate in root mean square, as AdamW does.

    Args:
        parameters: matrices [m, n], or groups of them.
        lr: learning rate.
        momentum: of the moving average of gradients.
        dtype: what the Newton-Schulz iterations compute in. bfloat16 pays only where the machine has instructions for
            it: without them it is 30 times as slow as float32.
    """

    found_inf: Tensor | None = None
    """Scalar on the device of the parameters: a step where it is not 0 changes nothing (as in torch's fused AdamW)."""

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take a step with the gradients that are there; unlike those of torch, it takes no closure.

        One that fails for lack of memory has changed nothing: directions, which take it, come first.
        """
        skip = self.found_inf
        taken = 1.0 if skip is None else 1.0 - skip
        changes = []
        for group in self.param_groups:
            matrices = [p for p in group["params"] if p.grad is not None]
            if not matrices:
                continue
            momentum, momenta = group["momentum"], [self._momentum_of(p) for p in matrices]
            kept = 1 - (1 - momentum) * taken
            # Not a product with 0, which is not finite where the gradient is not.
            gradients = [p.grad if skip is None else torch.where(skip > 0, 0.0, p.grad) for p in matrices]
            # The gradient moved towards its new average: g + momentum * (kept * m + (1 - momentum) * g - g).
            ahead = torch._foreach_mul(momenta, momentum * kept)
            torch._foreach_add_(ahead, gradients, alpha=1 - momentum**2)
            directions = orthogonal(ahead, self.dtype)
            torch._foreach_mul_(directions, [-_RMS * group["lr"] * math.sqrt(max(p.shape)) for p in matrices])
            torch._foreach_mul_(directions, taken)
            shrunk = 1 - group["lr"] * group["weight_decay"] * taken
            changes.append((momenta, kept, gradients, 1 - momentum, matrices, shrunk, directions))
        for momenta, kept, gradients, weight, matrices, shrunk, directions in changes:
            torch._foreach_mul_(momenta, kept)
            torch._foreach_add_(momenta, gradients, alpha=weight)
            torch._foreach_mul_(matrices, shrunk)
            torch._foreach_add_(matrices, directions)

    def _momentum_of(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum_buffer"]
        return momentum


def orthogonal(matrices: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Each matrix [m, n] with its singular values moved near 1, in float32; those of one shape are computed together.

    Args:
        dtype: what the iterations compute in.
    """
    found: dict[int, Tensor] = {}
    # [m, n] and its transpose are one shape: the iterations want no more rows than columns.
    for shape in {tuple(sorted(matrix.shape)) for matrix in matrices}:
        places = [i for i, matrix in enumerate(matrices) if tuple(sorted(matrix.shape)) == shape]
        wide = torch.stack([matrices[i] if matrices[i].shape == shape else matrices[i].mT for i in places])
        for i, result in zip(places, newton_schulz(wide, dtype), strict=True):
            found[i] = result if matrices[i].shape == shape else result.mT
    return [found[i] for i in range(len(matrices))]


def newton_schulz(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Five iterations of an odd quintic polynomial on the singular values of matrices [..., m, n], m <= n; float32."""
    norm = torch.linalg.matrix_norm(matrices, keepdim=True).clamp(min=_SMALLEST_NORM)
    x = (matrices / norm).to(dtype)
    rows, columns = x.shape[-2:]
    # In lower precision small singular values would drown in the rounding of the Gram matrix.
    iterate = _on_gram_matrix if dtype == torch.float32 and columns > 2 * rows else _on_matrix
    return iterate(x).float()


def _on_matrix(x: Tensor) -> Tensor:
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x


def _on_gram_matrix(x: Tensor) -> Tensor:
    """The same on m x m matrices alone: all factors are polynomials of one Gram matrix, so they commute."""
    gram = x @ x.mT
    product = factor = _factor(gram)
    for _ in range(_ITERATIONS - 1):
        gram = factor @ gram @ factor
        factor = _factor(gram)
        product = factor @ product
    return product @ x


def _factor(gram: Tensor) -> Tensor:
    """a + b G + c G^2."""
    factor = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
    factor.diagonal(dim1=-2, dim2=-1).add_(_A)
    return factor
