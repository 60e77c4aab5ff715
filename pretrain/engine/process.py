"""The process that computes: the memory that libraries keep, what is put back after a run, and signals as requests:
the step under way is finished and saved before the process ends."""

import ctypes
import errno
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, Self

# Numbers of glibc's malloc.h, and the largest threshold that it takes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_FREE, _LARGEST_IN_HEAP = 512 * 2**20, 32 * 2**20


def settle() -> None:
    """Arrange the process; to be called before torch is loaded. What the environment says already stays.

    Torch's layer over oneDNN keeps 1,024 kernels with their scratch memory, one for every new shape: up to gigabytes.
    The shapes that come again (see `model.batch.rounded`) are fewer; here it keeps 512. oneDNN itself keeps 1,024, and
    fewer would not do: fine-tuning of tags meets nearly 900.

    glibc gives the end of its heap back to the system whenever a large tensor there is freed, and takes it again for
    the next one, page by page and zeroed. Here it keeps up to 512 MB of it. Other C libraries are left as they are.
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", "512")
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _MOST_FREE)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)


@contextmanager
def left_as_found() -> Iterator[None]:
    """Inside, torch is in no `no_grad`, `inference_mode` or `autocast`, and its default dtype is float32. Afterwards
    these, its number of threads and the state of its generators are what they were."""
    import torch

    threads, numbers = torch.get_num_threads(), torch.get_default_dtype()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    casts = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}
    with torch.random.fork_rng(gpus), torch.inference_mode(False), torch.enable_grad():
        torch.set_default_dtype(torch.float32)
        for kind in casts:
            torch.set_autocast_enabled(kind, False)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(numbers)
            for kind, was_enabled in casts.items():
                torch.set_autocast_enabled(kind, was_enabled)


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Seconds in which a launcher passes on a signal that its processes have got as well.
_ECHO = 5.0


def has_launcher() -> bool:
    """Whether torchrun, or another one that sets the same variables, has started this process."""
    return "WORLD_SIZE" in os.environ


def _leave_terminal() -> None:
    """What is printed goes nowhere, where it went to the terminal that was closed: writing there fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with suppress(OSError):
            try:
                termios.tcgetattr(stream)
            except termios.error as error:
                if error.args[0] == errno.EIO:
                    os.dup2(nowhere, stream)
    os.close(nowhere)


class Interruption:
    """Handles the signals while it is entered in the main thread; the handlers found are put back.

    The first signal of a kind raises `Interrupted` where nothing is under way that must be finished, and is otherwise
    noted in `requested`; the second one of that kind ends the process at once. (A launcher passes on what it gets, as a
    SIGTERM, to processes that may have seen it already: one signal of each kind is one request, and under a launcher so
    are those of a few seconds.) SIGHUP, which comes when a terminal is closed, and more than once, is let be where it
    is ignored (nohup); what would be printed there is dropped.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._seen: dict[int, float] = {}
        self._deferred = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            watched = [number for number in _SIGNALS if not (is_kept and number == signal.SIGHUP)]
            self._before = {number: signal.signal(number, self._handle) for number in watched}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in self._seen:
            # Shell and kernel both say that a terminal is closed.
            is_meant = number != signal.SIGHUP and time.monotonic() - self._seen[number] > _ECHO * has_launcher()
            if is_meant:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self._seen[number] = time.monotonic()
        if number == signal.SIGHUP:
            _leave_terminal()
        is_first = self.requested is None
        self.requested = signal.Signals(number).name
        if not self._deferred:
            self._stop()
        elif is_first and os.environ.get("RANK", "0") == "0":
            # Who cannot be told is to lose nothing.
            with suppress(OSError):
                print(
                    f"\n{self.requested}: finishing the step (once more to stop at once).", file=sys.stderr, flush=True
                )

    def _stop(self) -> NoReturn:
        # Only now: `pretrain` imports this file before it is known that no other package hides `data_prep`.
        from data_prep.errors import Interrupted

        raise Interrupted(f"stopped by {self.requested}: what was saved before is there")

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a signal is only noted; one that is still unheeded at the end stops there."""
        with self._mode(deferred=True):
            yield
        if self.requested:
            self._stop()

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Inside, a signal stops at once, also one that was noted before."""
        with self._mode(deferred=False):
            if self.requested:
                self._stop()
            yield

    @contextmanager
    def _mode(self, deferred: bool) -> Iterator[None]:
        before, self._deferred = self._deferred, deferred
        try:
            yield
        finally:
            self._deferred = before
