"""SIGTERM and SIGINT as requests: the step under way is finished and saved before the process ends."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from data_prep.errors import Interrupted

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """Handles the signals while it is entered; the handlers found are put back.

    The first signal of a kind raises `Interrupted` where nothing is under way that must be finished, and is otherwise
    noted in `requested`; the second one of that kind ends the process at once. (A launcher that is interrupted from the
    keyboard passes a SIGTERM on to processes that have seen the SIGINT: one of each is one request.)
    """

    def __init__(self):
        self.requested: str | None = None
        self._seen: set[int] = set()
        self._deferred = False
        self._before = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame) -> None:
        if number in self._seen:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._seen.add(number)
        self.requested = signal.Signals(number).name
        if self._deferred:
            print(f"\n{self.requested}: finishing the step (once more to stop at once).", file=sys.stderr, flush=True)
        else:
            self._stop()

    def _stop(self) -> None:
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
