"""A CUDA device without a GPU: torch's fake tensors, which have shapes and types but no numbers.

Python code runs as it would on a GPU, kernels do not. Where a number is read from the device, a real program waits:
`Trace` writes those places down and answers with ones.
"""

import ctypes
import re
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[1]
DEVICE = torch.device("cuda", 0)
# CUDA's allocator hands out multiples of this.
_BLOCK = 512
# Their result has a size that depends on numbers.
_OF_UNKNOWN_SIZE = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"}
# Numbers of c10::DeviceType.
_CUDA, _PRIVATE_USE = 1, 20
_POINTER = ctypes.c_void_p


def obstacle() -> str | None:
    """Why no GPU can be pretended here."""
    return None if sys.platform == "linux" else "the libraries of torch have other names than on Linux"


@contextmanager
def fake_gpu(capability: tuple[int, int], bf16: bool) -> Iterator[FakeTensorMode]:
    """A block in which tensors on "cuda:0" are fake.

    Args:
        capability: what the GPU says its compute capability is.
        bf16: whether it says that it computes in bfloat16.
    """
    with ExitStack() as stack:
        for target, name, value in (
            ("torch.cuda.amp.common", "amp_definitely_not_available", False),
            ("torch.cuda", "is_bf16_supported", bf16),
            ("torch.cuda", "get_device_capability", capability),
        ):
            stack.enter_context(patch(f"{target}.{name}", lambda *_, value=value, **__: value))
        stack.enter_context(patch("torch.cuda.Event", _Event))
        # A GPU would page-lock the memory; which tensors were asked for is what counts here.
        stack.enter_context(patch.object(Tensor, "pin_memory", _pinned))
        stack.enter_context(patch("torch.nn.functional.scaled_dot_product_attention", _memory_efficient))
        if not torch.cuda.is_available():
            stack.enter_context(_known_to_autograd())
        yield stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))


def on_gpu(make: Callable[[], nn.Module]) -> nn.Module:
    """A module whose parameters are fake and on the GPU; call it in a block of `fake_gpu`."""
    with patch("torch.nn.init.trunc_normal_", lambda tensor, *_, **__: tensor):
        module = make()
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(torch.empty_like(parameter, device=DEVICE)))
    # Where it is to go it is already, and torch cannot move fake parameters.
    module.to = lambda *_, **__: module
    return module


class Trace(TorchDispatchMode):
    """What a block of `fake_gpu` does: operations, places where the host waits, memory.

    Operations without a tensor on the GPU are computed for real.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        """By name."""
        self.waits: Counter[tuple[str, str]] = Counter()
        """By what it is and where."""
        self.reads = 0
        """Copies to the host that it does not wait for."""
        self.allocated = self.peak = 0
        """Bytes of the GPU's memory that tensors hold now, and the most so far."""
        self._storages: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not any(_is_on_gpu(value) for value in tree_leaves((args, kwargs))):
            with unset_fake_temporarily():
                return function(*args, **kwargs)
        name = function.overloadpacket.__name__
        if name != "device":
            self.operations[name] += 1
        if (answer := self._without_waiting(name, args, kwargs)) is not None:
            return answer
        made = function(*args, **kwargs)
        for value in tree_leaves(made):
            if isinstance(value, FakeTensor) and _is_on_gpu(value):
                self._hold(value)
        return made

    def _without_waiting(self, name: str, args: tuple, kwargs: dict) -> Any:
        """The answer to what a fake tensor cannot tell; None for what it can."""
        source = next((value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)), None)
        if name == "_local_scalar_dense":
            self._wait("a number is read")
            return 1.0 if source.dtype.is_floating_point else 1
        if name in _OF_UNKNOWN_SIZE:
            self._wait(f"{name}: the size of the result is read")
            return source.new_empty(source.numel(), *([source.dim()] if name == "nonzero" else []))
        if name in ("index", "index_put", "index_put_") and any(
            isinstance(value, Tensor) and value.dtype == torch.bool for value in args[1]
        ):
            self._wait(f"{name} by a mask: the number of its entries is read")
            return source.new_empty(source.shape)
        if name == "_to_copy":
            at_once, device = not kwargs.get("non_blocking"), kwargs.get("device") or source.device
            if _is_on_gpu(source) and not _is_on_gpu(device):
                with unset_fake_temporarily():
                    return self._to_host(at_once, torch.empty(source.shape, dtype=kwargs.get("dtype") or source.dtype))
            self._to_gpu(at_once, source)
        if name == "copy_":
            at_once = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
            if not _is_on_gpu(args[0]):
                with unset_fake_temporarily():
                    return self._to_host(at_once, args[0])
            self._to_gpu(at_once, args[1])
        return None

    def _to_host(self, at_once: bool, target: Tensor) -> Tensor:
        if at_once:
            self._wait("a tensor is copied to the host")
        self.reads += not at_once
        return target.fill_(1)

    def _to_gpu(self, at_once: bool, source: Tensor) -> None:
        """A copy from memory that is not page-locked begins when everything before it is done. Numbers go along."""
        if source.device.type == "cpu" and source.dim() and source.numel() and (at_once or not _is_pinned(source)):
            self._wait("a tensor is copied from the host, which waits" if at_once else "memory that is not pinned")

    def _wait(self, what: str) -> None:
        self.waits[what, _place()] += 1

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        size = -(-storage.nbytes() // _BLOCK) * _BLOCK

        def freed(_: weakref.ref) -> None:
            del self._storages[key]
            self.allocated -= size

        self._storages[key] = weakref.ref(storage, freed)
        self.allocated += size
        self.peak = max(self.peak, self.allocated)


def _memory_efficient(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0
) -> Tensor:
    """Attention by the kernel that torch chooses on a GPU for 16 bits with or without a mask; of fake tensors it takes
    the one that is written out."""
    bias = None
    if attn_mask is not None:
        bias = query.new_zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
        bias = bias.expand(*query.shape[:3], key.shape[2])
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    return attend(query, key, value, bias, torch.is_grad_enabled(), dropout_p)[0]


class _Event:
    """A mark in the GPU's queue. Whoever waits for it has asked for a copy before: `Trace` has seen that."""

    def record(self) -> None:
        """Nothing is in the queue."""

    def synchronize(self) -> None:
        """Nothing is to be waited for."""


_pinned_storages: "weakref.WeakSet[torch.UntypedStorage]" = weakref.WeakSet()


def _pinned(tensor: Tensor, *_: Any) -> Tensor:
    copy = tensor.clone()
    _pinned_storages.add(copy.untyped_storage())
    return copy


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.untyped_storage() in _pinned_storages


def _is_on_gpu(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.device.type == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


def _place() -> str:
    """File, line and function of the project's innermost frame that is not in benchmarks/."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT) and path.parent.name not in ("benchmarks", "tests"):
            return f"{path.relative_to(ROOT)}:{frame.lineno} {frame.name}"
    return "outside the project"


@contextmanager
def _known_to_autograd() -> Iterator[None]:
    """Autograd refuses tensors on a device that this build of torch does not know, fake ones too, and asks every device
    that it knows whether it is in use, which is an error without a driver.

    torch has no switch for this. So a guard without any device stands in where CUDA has none, and in the table of
    functions of the object that speaks for CUDA those come first that say: it is there, and not in use. Where they are
    in the table, torch's headers say.
    """
    guards = _guards()
    hooks_of = _library("libtorch_cpu.so")._ZN2at6detail12getCUDAHooksEv
    hooks_of.restype = _POINTER
    hooks = ctypes.cast(hooks_of(), ctypes.POINTER(_POINTER))
    guard, functions = guards[_CUDA], hooks[0]
    guards[_CUDA] = guard or _guard_without_device()
    hooks[0] = _table_with_answers(functions)
    try:
        yield
    finally:
        guards[_CUDA], hooks[0] = guard, functions


def _guards() -> ctypes.Array:
    """The guard of each type of device, or nothing."""
    return (_POINTER * (_PRIVATE_USE + 1)).in_dll(_library("libc10.so"), "_ZN3c104impl26device_guard_impl_registryE")


@cache
def _guard_without_device() -> int:
    """The address of a guard, which stays for good."""
    torch._C._acc.register_python_privateuseone_device_guard(_kept(_Guard()))
    return _guards()[_PRIVATE_USE]


@cache
def _table_with_answers(functions: int) -> int:
    """The address of a copy of the table of functions at an address, with four functions of ours. It stays for good."""
    base, own = _functions("AcceleratorHooksInterface.h"), _functions("CUDAHooksInterface.h")
    # Two words stand in front of the table; the destructor takes two places.
    places = {name: 2 + 1 + place for place, name in enumerate(base + [name for name in own if name not in base])}
    length, word = max(places.values()) + 1, ctypes.sizeof(_POINTER)
    table = _kept((_POINTER * length).from_buffer_copy(ctypes.string_at(functions - 2 * word, length * word)))
    yes = _kept(ctypes.CFUNCTYPE(ctypes.c_bool, _POINTER)(lambda this: True))
    no = _kept(ctypes.CFUNCTYPE(ctypes.c_bool, _POINTER, ctypes.c_int8)(lambda this, index: False))
    for name, answer in {"isBuilt": yes, "isAvailable": yes, "hasCUDA": yes, "hasPrimaryContext": no}.items():
        table[places[name]] = ctypes.cast(answer, _POINTER).value
    return ctypes.addressof(table) + 2 * word


_alive: list[Any] = []


def _kept(thing: Any) -> Any:
    """The same thing, which C++ may use until the process ends."""
    _alive.append(thing)
    return thing


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _functions(header: str) -> list[str]:
    """The functions of a C++ class that have a place in its table, in their order."""
    text = (Path(torch.__file__).parent / "include" / "ATen" / "detail" / header).read_text()
    return re.findall(r"\bvirtual [^;{(]*?(~?\w+)\(", text)
