"""Many processes as one run: who writes, what all agree on, and how one that ends takes the others with it.

torchrun (https://docs.pytorch.org/docs/stable/elastic/run.html), or whatever sets the same variables, such as srun with
the script of docs/many_gpus.md, starts the processes. Without them a run is a world of one, for which everything here
does nothing. What the processes tell each other goes through a store: torchrun's own, else one in the main process.
"""

import contextlib
import gc
import inspect
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from data_prep.errors import Interrupted, SaidElsewhere, StoppedElsewhere

from .device import find_device
from .settings import PretrainError

# A process that waits for another one's sum gives up after this; those that wait for its work never do.
_TIMEOUT = timedelta(minutes=10)
_ENDED, _STOPPED, _LOST, _LEFT = "ended", "stopped", "lost", "left"
# Seconds that a process whose peer is gone waits for the peer's reason, and the main process for those that ask for it.
_GRACE = 3.0
_SIGNS_OF_LOSS = ("gloo", "NCCL", "Connection closed", "Connection reset")


class LostPeer(Exception):
    """Another process of the run has ended."""


@dataclass
class World:
    """The processes of a run. What they add up is here; gradients are DistributedDataParallel's matter.

    `rank` is this process's number, from 0; process 0 is the one that writes.
    """

    rank: int = 0
    size: int = 1
    store: dist.Store = field(default_factory=dist.HashStore, repr=False)
    _answers: int = field(default=0, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks to people."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum over all processes of each value, in float64; every process must ask for as many."""
        return self.sum_tensor(torch.tensor(values, dtype=torch.float64)).tolist()

    def sum_tensor(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes, in place, on its device."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def from_main(self, function: Callable[[], Any]) -> Any:
        """Call `function` in the main process and return its value in all; the others wait, however long it takes.

        The value must be JSON-serialisable.
        """
        if self.size == 1:
            return function()
        key = f"answer-{self._answers}"
        self._answers += 1
        if self.is_main:
            self.store.set(key, json.dumps(function()))
        return json.loads(self.wait(key))

    def wait(self, key: str) -> bytes:
        """What a process has put under a key of the store, however long it takes.

        Raises:
            LostPeer: another process has ended.
        """
        try:
            while not self.store.check([key]):
                if self.store.check([_ENDED]):
                    raise LostPeer("another process has ended")
                time.sleep(0.05)
            answer: bytes = self.store.get(key)
            return answer
        except dist.DistNetworkError as error:
            raise LostPeer("the main process has ended") from error

    def parallel(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over all processes at the end of each backward pass."""
        if self.size == 1:
            return module
        devices = [torch.cuda.current_device()] if next(module.parameters()).is_cuda else None
        # Buffers stay the same everywhere. From torch 2.13 on the option has another name.
        known = inspect.signature(DistributedDataParallel).parameters
        options: dict[str, Any] = {
            "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
        }
        return DistributedDataParallel(module, devices, gradient_as_bucket_view=True, **options)


def unsynchronised(module: nn.Module) -> AbstractContextManager[None]:
    """A backward pass in it adds to this process's gradients alone."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


@contextmanager
def joined(wanted: str) -> Iterator[World]:
    """The world this process was started in; left together, whether all is well or not.

    The first process to fail says why; a command ends silently in the others, with the same exit code.

    Args:
        wanted: the `--device`; with cuda each process takes the GPU of its number on its machine.

    Raises:
        SaidElsewhere, StoppedElsewhere: another process has failed, or was stopped, and says so.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield World()
        return
    try:
        store, rank, size = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(agreed_name(store, rank, size), store)
    except (ValueError, RuntimeError) as error:
        reason = _first_line(error)
        raise PretrainError(f"the processes do not find each other ({reason}): start them with torchrun") from error
    world = World(rank, size, dist.PrefixStore("domain-bert", store))
    try:
        _connect(world, find_device(wanted), dist.PrefixStore("group", store))
        with nullcontext() if world.is_main else contextlib.redirect_stdout(open(os.devnull, "w")):
            yield world
    except (Exception, Interrupted) as error:
        # The launcher ends the processes that are left with a signal; they may say why first.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            _end(world, error)
        except dist.DistNetworkError:
            _end_without_store(world, error)
        finally:
            _leave(world)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            # A script may catch the mistake and make another call. To leave a group of NCCL could mean to wait for a
            # peer that is gone.
            if dist.is_initialized() and dist.get_backend() == "gloo":
                dist.destroy_process_group()
        raise
    # What still refers to the group keeps its threads alive, and these can abort a process that ends.
    gc.collect()
    dist.destroy_process_group()
    _leave(world)


def agreed_name(store: dist.Store, rank: int, size: int) -> str:
    """A name that these processes have agreed on just now, and that none had before.

    After a restart the launcher's store still holds what the processes before have written, and each machine counts
    only its own restarts. So the main process draws a name and publishes it, the others answer with names of their own,
    and one that finds its own name among the answers knows that what it has read is not left over.

    Raises:
        PretrainError: some did not answer for ten minutes.
    """
    mine, deadline = secrets.token_hex(8), time.monotonic() + _TIMEOUT.total_seconds()
    if rank == 0:
        store.set("called", mine)
        answers: dict[str, str] = {}
        while len(answers) < size - 1:
            for other in map(str, range(1, size)):
                if other not in answers and store.check([f"answer-{other}"]):
                    called, _, name = store.get(f"answer-{other}").decode().partition(" ")
                    answers |= {other: name} if called == mine else {}
            _pause(deadline, f"{size - 1 - len(answers)} of {size - 1} processes did not answer the first one")
        store.set(f"heard-{mine}", json.dumps(answers))
        return mine
    answered = ""
    while True:
        called = store.get("called").decode() if store.check(["called"]) else ""
        if called != answered:
            store.set(f"answer-{rank}", f"{called} {mine}")
            answered = called
        elif called and store.check([f"heard-{called}"]):
            if json.loads(store.get(f"heard-{called}")).get(str(rank)) == mine:
                return called
        _pause(deadline, "the first process does not answer")


def _pause(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise PretrainError(f"the processes do not find each other ({problem}): start all of them again")
    time.sleep(0.05)


def _connect(world: World, device: str, store: dist.Store) -> None:
    # Its functions have the group that is there when it is imported as a default and never let go of it;
    # DistributedDataParallel imports it.
    import torch.distributed.nn.functional

    backend = "gloo"
    world.store.set(f"device-{world.rank}", device)
    devices = {world.wait(f"device-{rank}").decode() for rank in range(world.size)}
    if len(devices) > 1:
        raise PretrainError(
            f"some processes find a GPU and others none ({' and '.join(sorted(devices))}): let each find one, or give "
            "--device cpu"
        )
    if device == "mps":
        raise PretrainError(
            "several processes compute on CPUs or on CUDA GPUs: give --device cpu, or start one process"
        )
    if device == "cuda":
        number, there = int(os.environ.get("LOCAL_RANK", world.rank)), torch.cuda.device_count()
        if number >= there:
            raise PretrainError(
                f"process {number} of this machine (LOCAL_RANK, from 0) takes the GPU of its number, and sees {there}: "
                "start one process for each GPU, and let each see all of them"
            )
        torch.cuda.set_device(number)
        # What the host has to know, all agree on by gloo: no step waits for the GPU on its account.
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=_TIMEOUT)
        return
    except RuntimeError as error:
        reason = _first_line(error)
    # Not while the other one is handled: that would be taken for the loss of a process that was there.
    raise PretrainError(
        f"the processes cannot be connected ({reason}): let nothing block the ports between the machines, and name the "
        "network interface in GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) where they have several"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _end(world: World, error: BaseException) -> None:
    """Leave a world that has failed: returns if this process is the one to speak.

    Raises:
        PretrainError: a peer is gone and said nothing.
        Interrupted: a peer was stopped by a signal before this process, which speaks.
        SaidElsewhere, StoppedElsewhere: another process speaks.
    """
    if loss := _loss_of_peer(error) or _loss_of_peer(error.__context__):
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline and not world.store.check([_ENDED]):
            time.sleep(0.05)
        if _is_first(world, _LOST):
            raise PretrainError(
                "another process of this run ended without a word (killed, or out of memory): give the same command "
                f"again to go on from the last checkpoint ({_first_line(loss)})"
            ) from error
        reason = _reason(world.store.get(_ENDED))
        if reason != _STOPPED:
            raise SaidElsewhere(reason if reason != _LOST else "another process of this run has ended") from error
        error = Interrupted("stopped by a signal: what was saved before is there")
    if isinstance(error, Interrupted):
        _is_first(world, _STOPPED)
        raise error if world.is_main else StoppedElsewhere(str(error))
    if not _is_first(world, str(error)):
        raise SaidElsewhere(str(error)) from error


def _end_without_store(world: World, error: BaseException) -> None:
    """As `_end`, in a process that cannot ask the others, because the main process is gone and the store with it.

    Raises:
        PretrainError: the main process is gone; one of those that are left speaks.
        SaidElsewhere, StoppedElsewhere: another process speaks.
    """
    if isinstance(error, Interrupted):
        raise StoppedElsewhere(str(error)) from error
    if _loss_of_peer(error) or _loss_of_peer(error.__context__):
        if world.rank > 1:
            raise SaidElsewhere("the first process of this run has ended") from error
        raise PretrainError(
            "the first process of this run has ended (killed, or out of memory, if it does not say why): give the same "
            "command again to go on from the last checkpoint"
        ) from error


def _leave(world: World) -> None:
    """Let the main process end last where the store is in it."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    deadline = time.monotonic() + _GRACE
    with contextlib.suppress(dist.DistNetworkError):
        left = world.store.add(_LEFT, 1)
        while world.is_main and left < world.size and time.monotonic() < deadline:
            time.sleep(0.05)
            left = world.store.add(_LEFT, 0)


def _is_first(world: World, reason: str) -> bool:
    """Whether no other process has ended, or for another reason; from now on the others know this one."""
    mine = f"{world.rank} {reason}"
    first = world.store.compare_set(_ENDED, "", mine)
    return first.decode() == mine or (reason != _LOST and _reason(first) != reason)


def _reason(ended: bytes) -> str:
    return ended.decode().partition(" ")[2]


def _loss_of_peer(error: BaseException | None) -> Exception | None:
    """The error, if it is that of a sum in which another process does not take part any more."""
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS_OF_LOSS):
        return error
    return error if isinstance(error, LostPeer) else None
