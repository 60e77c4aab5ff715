"""Optimizers by parameter role."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from model.huggingface import PretrainedModel
from model.names import layer_by_name

from .device import norm_of
from .muon import Muon

# (learning rate at hidden size 256, exponent of 256 / hidden size)
_PEAK = {"adamw": (1e-3, 0.75), "muon": (3.6e-3, 0.75)}
# Learning rate of AdamW's part beside Muon's, as a share (measured).
_REST_SHARE = 0.65
_BETA1, _EPSILON = 0.9, 1e-6
# Less than this share of the budget before its time a layer begins: a sixth of six epochs may come out as 0.99999.
_ROUNDING = 1e-9


def peak_learning_rate(optimizer: str, hidden_size: int, share: float = 1.0) -> float:
    """The default peak of a fresh model, which falls with the width, or a share of it."""
    at_256, exponent = _PEAK[optimizer]
    return float(f"{at_256 * (256 / hidden_size) ** exponent * share:.2g}")


def decayed(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that weight decay acts on: weights of linear layers and embeddings; no bias, no LayerNorm."""
    chosen = {id(part.weight) for part in model.modules() if isinstance(part, nn.Linear | nn.Embedding)}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in chosen}


class Rates(Protocol):
    """Shares of the learning rate that groups of parameters take."""

    def group(self, name: str) -> int:
        """The group of a parameter, by its name."""

    def share(self, group: int, used: float) -> float:
        """The share of a group when this share of the budget is used up."""


@dataclass(frozen=True)
class HeadRates:
    """Another learning rate for the parameters of some heads, by the same factor over the whole budget.

    Args:
        shares: of the learning rate, by the names of these parameters.
    """

    shares: Mapping[str, float]

    def group(self, name: str) -> int:
        """0 for those of no such head; the others from 1 on, in the order of their shares."""
        return self._levels().index(self.shares.get(name, 1.0))

    def share(self, group: int, used: float) -> float:
        """That of a group's parameters."""
        return self._levels()[group]

    def _levels(self) -> list[float]:
        return [1.0, *sorted(set(self.shares.values()))]


@dataclass(frozen=True)
class DepthRates:
    """Layer-wise learning rate decay and gradual unfreezing, by depth below the head (Howard and Ruder 2018, sections
    3.2, 3.3).

    Args:
        num_layers: layers of the encoder, those that share their weights counted once.
        decay: a layer's rate, as a share of that of the layer above. The head is above the last layer, the embeddings
            below the first.
        unfrozen: share of the budget over which layers are unfrozen one after the other; the head learns at once.
        layer_of: the layer of a parameter by its name (see `PretrainedModel.layer_of`).
    """

    num_layers: int
    decay: float = 1.0
    unfrozen: float = 0.0
    layer_of: Callable[[str], int | None] = layer_by_name

    def group(self, name: str) -> int:
        """How far below the head: 0 for heads and pooler, 1 for the last layer, and so on down to the embeddings."""
        layer = self.layer_of(name)
        return 0 if layer is None else self.num_layers + 1 - layer

    def share(self, group: int, used: float) -> float:
        """The share at this depth when this share of the budget is used up."""
        below = group
        if below and used < self.unfrozen * below / (self.num_layers + 1) - _ROUNDING:
            return 0.0
        return self.decay**below


class AdamW(torch.optim.AdamW):
    """Torch's, which obeys `found_inf` where it is fused.

    A step that runs out of memory changes nothing: the averages are allocated before any change.
    """

    found_inf: Tensor | None = None
    """Scalar on the device of the parameters: a step where it is not 0 changes nothing."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step with the gradients that are there."""
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if not self.state[parameter]:
                averages = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.state[parameter] = {"step": torch.zeros((), device=parameter.device), **averages}
        super().step(closure)


def grouped(named: Mapping[str, Tensor], rates: Rates | None) -> dict[int, dict[str, Tensor]]:
    """Parameters by their group, all in one without rates."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, parameter in named.items():
        found.setdefault(rates.group(name) if rates else 0, {})[name] = parameter
    return found or {0: {}}


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019), or Muon for matrices with AdamW for everything else.

    Muon (Jordan et al. 2024) orthogonalises the momentum of a matrix; its step is scaled to AdamW's root mean square
    (Liu et al. 2025, section 2.2). It bears a higher learning rate than AdamW, which gets 0.65 of it here.

    Args:
        model: parameters with a gradient are optimized.
        kind: "adamw" or "muon".
        learning_rate: the peak; `set_learning_rate` sets the current one.
        dtype: what Muon's iterations compute in (see `muon.Muon`).
        rates: by groups of parameters; None: one for all.
        beta2: of AdamW, for the mean of squared gradients.
        of_heads: whether Muon's matrices are those of `head_matrices` too, beside the layers'.
    """

    def __init__(
        self,
        model: PretrainedModel,
        kind: str,
        learning_rate: float,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
        rates: Rates | None = None,
        beta2: float = 0.999,
        of_heads: bool = False,
    ):
        decay = {id(p) for p in decayed(model).values()}
        names = {name: p for name, p in model.named_parameters() if p.requires_grad}
        of_muon = [*model.layer_matrices(), *(model.head_matrices() if of_heads else [])] if kind == "muon" else []
        inside = {id(p) for p in of_muon}
        matrices = {name: p for name, p in names.items() if id(p) in inside}
        rest = {name: p for name, p in names.items() if name not in matrices}
        groups: list[dict[str, Any]] = []
        for group, named in grouped(rest, rates).items():
            for is_decayed in (True, False):
                chosen = [p for p in named.values() if (id(p) in decay) == is_decayed]
                groups.append({"params": chosen, "weight_decay": weight_decay if is_decayed else 0.0, "group": group})
        betas = (_BETA1, beta2)
        self.parts: list[AdamW | Muon] = [AdamW(groups, lr=learning_rate, betas=betas, eps=_EPSILON, fused=True)]
        if matrices:
            by = [{"params": list(named.values()), "group": g} for g, named in grouped(matrices, rates).items()]
            self.parts.append(Muon(by, learning_rate, weight_decay, dtype=dtype))
        self.rates = rates
        self.learning_rate = learning_rate
        """The current one."""
        self._shares = [_REST_SHARE if matrices else 1.0, 1.0]
        self._name_of = {id(p): name for name, p in names.items()}

    def set_learning_rate(self, value: float, used: float = 0.0) -> None:
        """Set the current learning rate; beside Muon, everything but the matrices takes 0.65 of it.

        Args:
            used: share of the budget, for rates that change with it.
        """
        self.learning_rate = value
        for part, share in zip(self.parts, self._shares, strict=False):
            for group in part.param_groups:
                of_group = self.rates.share(group["group"], used) if self.rates else 1.0
                group["lr"] = of_group * share * value

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    @property
    def has_state(self) -> bool:
        """Whether a step was made, or a state taken up."""
        return any(part.state for part in self.parts)

    def state_tensors(self) -> dict[str, Tensor]:
        """The state as tensors named `KEY/PARAMETER`, for example `exp_avg/bert.embeddings...`."""
        tensors = {}
        for part in self.parts:
            for parameter, state in part.state.items():
                for key, value in state.items():
                    tensors[f"{key}/{self._name_of[id(parameter)]}"] = value
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take up a state written by `state_tensors` of an optimizer of the same kind over the same parameters.

        Raises:
            ValueError: a parameter has another shape.
        """
        stored: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, value in tensors.items():
            key, _, of = name.partition("/")
            stored[of][key] = value
        for part in self.parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    name = self._name_of[id(parameter)]
                    part.state[parameter] = state = {
                        # Not of the file, which is to be removed while this is in use.
                        key: value.to(parameter.device, copy=True)
                        for key, value in stored[name].items()
                    }
                    if any(value.dim() and value.shape != parameter.shape for value in state.values()):
                        raise ValueError(f"{name} has another shape than its state")


def clip(parameters: Sequence[Tensor], largest: float, loss_scale: Tensor | float = 1.0) -> Tensor:
    """Scale all gradients together so that their global norm is at most `largest`; returns the norm before.

    Args:
        loss_scale: the factor that the gradients were multiplied by; gradients and norm are divided by it.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = norm_of(gradients) / loss_scale
    factor = (largest / (norm + 1e-6)).clamp(max=1.0) / loss_scale
    torch._foreach_mul_(gradients, factor)
    return norm
