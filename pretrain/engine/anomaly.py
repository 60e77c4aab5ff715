"""`--detect-anomaly`: training stops at the first number that is not finite and says where it arose.

Nothing is installed while the switch is off. While it is on, each activation and each gradient is read once more, and
on a GPU every module waits for its result.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .settings import PretrainError

_AGAIN = "start again in another --out with a lower --learning-rate"
_REMEDY = {
    "weight": f"the steps before were too large, or the model was damaged when training began: {_AGAIN}",
    "forward": f"{_AGAIN} or --precision fp32; if it is this step with any learning rate, look at its examples",
    "backward": f"{_AGAIN} or --precision fp32",
}


@contextmanager
def watched(
    loss_sums: nn.Module, step: Callable[[], int], may_overflow: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Everything the model computes in this block is looked at, forward and backward.

    Args:
        loss_sums: a `LossSums`, also one in DistributedDataParallel. The names in messages are those of its `model`.
        step: the number of the step that is being computed.
        may_overflow: whether the loss scale of fp16 can still be halved, so that a gradient that is not finite means no
            more than that.

    Raises:
        PretrainError: a weight, an input or output of a module, a loss, or a gradient is not finite. The first of them
            in the order of computation is named.
    """
    inner = loss_sums.module if isinstance(loss_sums, DistributedDataParallel) else loss_sums
    model, watch = inner.get_submodule("model"), _Watch(step, may_overflow)
    handles = [inner.register_forward_hook(watch.losses)]
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(partial(watch.before, name or "the model")))
        handles.append(module.register_forward_hook(partial(watch.after, name or "the model")))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            handles.append(parameter.register_hook(partial(watch.parameter_gradient, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Watch:
    """The hooks. Children finish before their parents, so the innermost module is the first to be looked at."""

    def __init__(self, step: Callable[[], int], may_overflow: Callable[[], bool]):
        self.step, self.may_overflow = step, may_overflow

    def before(self, name: str, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The module's own weights, then its inputs; a later look at what flows back to these inputs through it."""
        for own, parameter in module.named_parameters(recurse=False):
            if not is_finite(parameter):
                self.stop(f"the weight {name}.{own}", "weight")
        for tensor in tensors_in(inputs):
            if not is_finite(tensor):
                self.stop(f"the input of {name}", "forward")
        return tuple(self._tapped(name, value) for value in inputs)

    def _tapped(self, name: str, value: Any) -> Any:
        """A tensor as a view of its own: its gradient is this module's share of that of the tensor."""
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        view = value.view_as(value)
        if view.requires_grad:
            view.register_hook(partial(self.gradient, f"the gradient of the input of {name}"))
        return view

    def after(self, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """The module's output; a later look at the gradient that comes back to it."""
        for tensor in tensors_in(output):
            if not is_finite(tensor):
                self.stop(f"the output of {name}", "forward")
            if tensor.requires_grad:
                tensor.register_hook(partial(self.gradient, f"the gradient of the output of {name}"))

    def losses(self, module: nn.Module, inputs: tuple[Any, ...], sums: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            if not is_finite(value):
                self.stop(f"the {name} loss", "forward")

    def gradient(self, what: str, gradient: Tensor) -> None:
        if not is_finite(gradient) and not self.may_overflow():
            self.stop(what, "backward")

    def parameter_gradient(self, name: str, gradient: Tensor) -> None:
        """A gradient whose entries are finite, but not the sum of their squares, would make a step impossible too."""
        if not is_finite(gradient.norm()) and not self.may_overflow():
            what = "norm of the gradient" if is_finite(gradient) else "gradient"
            self.stop(f"the {what} of {name}", "backward")

    def stop(self, what: str, kind: str) -> NoReturn:
        raise PretrainError(f"step {self.step():,}: {what} is not finite (infinite, or no number): {_REMEDY[kind]}")


def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite; true of an empty tensor."""
    return bool(tensor.detach().isfinite().all())


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of real numbers in what goes into a module or comes out of it, inside containers and dataclasses."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from tensors_in(entry)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
