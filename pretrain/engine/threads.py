"""How many threads compute a step: in a budget of time as many as are fastest beside whatever else runs.

The threads of an operation wait for each other. Where another program has one of their cores, two threads do a fraction
of what one does alone; where none has, they do up to twice as much (measured: docs/performance.md). Sums over other
numbers of threads differ in their last bits, so budgets that are counted, which can be repeated to the bit, keep them.
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from .device import available_cores
from .settings import Budget, LoopSettings

# A rate means something after a second and two steps, or after two seconds.
_SECONDS, _STEPS = 1.0, 2
# Seconds until a trial after a change, and at most; and how many times as long as a trial the pause after it is, at
# least.
_SOONEST, _LATEST, _PAUSES = 5.0, 120.0, 20
# By what factor another number must be faster; at what share of the rate it is given up at once; and what share of the
# usual rate is so little that another number is tried at once.
_BETTER, _HOPELESS, _SLOW = 1.1, 0.5, 0.7
# How idle the core of another thread must have been for that number to be tried; and for how many seconds it is looked
# which cores are idle before the first step.
_ROOM, _LOOK = 0.5, 0.2
# Processes that want to run, for each core of a busy machine.
_CROWDED = 1.75


class IdleCores:
    """How many of the cores that this process may use are idle, by Linux's counters of each core's time (proc(5)).

    Args:
        path: the file of these counters.
    """

    def __init__(self, path: Path = Path("/proc/stat")):
        self._path = path
        self._before = self._times()

    def __call__(self) -> float | None:
        """Since the last call, on average; None where the system does not say.

        Time of programs that give way to others (`nice`) counts as idle, time that a hypervisor took away does not.
        """
        before, self._before = self._before, self._times()
        shares = []
        for core, (idle, total) in self._before.items():
            idle_before, total_before = before.get(core, (idle, total))
            if total <= total_before:
                return None
            shares.append((idle - idle_before) / (total - total_before))
        return sum(shares) if shares else None

    def _times(self) -> dict[int, tuple[int, int]]:
        """Core -> ticks in which it was idle, ticks in all."""
        try:
            lines = [line.split() for line in self._path.read_text(encoding="ascii").splitlines()]
            mine = os.sched_getaffinity(0)
        except OSError:
            return {}
        times = {}
        for name, *columns in filter(None, lines):
            core = name.removeprefix("cpu")
            if core != name and core.isdigit() and int(core) in mine:
                user, nice, system, idle, waiting, *rest = map(int, columns[:8])
                times[int(core)] = nice + idle + waiting, user + nice + system + idle + waiting + sum(rest)
        return times


def busy(settings: LoopSettings, idle: Callable[[], float | None] | None = None) -> str | None:
    """A sentence where other programs use cores that the threads of a run want. Several threads wait for each other, so
    for them it looks for a moment which cores are idle; for one thread the load of the last minute tells.

    Args:
        idle: how many cores were idle since it was last asked, or None where that is not known.
    """
    # Fine-tuning that chooses among budgets has none yet: they are of epochs.
    is_counted = settings.budget == "auto" or Budget.parse(settings.budget).is_counted
    threads, cores = int(settings.threads), available_cores()
    if settings.device != "cpu":
        return None
    there = _looked(idle or IdleCores()) if threads > 1 else None
    if there is None:
        there = 0.0 if os.getloadavg()[0] >= _CROWDED * (os.cpu_count() or 1) else float(cores)
    if there > min(threads, cores) - _ROOM:
        return None
    others = f"Warning: other programs use about {max(1, round(cores - there))} of the {cores} cores"
    if threads == 1 or not is_counted:
        return f"{others}, so training gets a share of them only: end the others for full speed."
    fewer = max(1, round(there))
    return (
        f"{others}, and threads wait for each other: {threads} of them may be half as fast as {fewer}, or less. "
        f"End the others, or stop and go on with --threads {fewer}."
    )


def _looked(idle: Callable[[], float | None]) -> float | None:
    """How many cores are idle now, for `_LOOK` seconds."""
    idle()
    time.sleep(_LOOK)
    return idle()


class Window:
    """Steps in a row, and their rate.

    Args:
        skipped: how many steps at its beginning do not count, as kernels are compiled for a new number of threads.
    """

    def __init__(self, skipped: int = 0):
        self.lasted, self.seconds, self.tokens, self.steps = 0.0, 0.0, 0, -skipped
        """`lasted`: seconds of all steps; the others are of those that count."""

    def add(self, seconds: float, tokens: int) -> None:
        self.lasted += seconds
        self.steps += 1
        if self.steps > 0:
            self.seconds += seconds
            self.tokens += tokens

    @property
    def is_long(self) -> bool:
        """Whether its rate means something."""
        return self.seconds >= _SECONDS * (1 if self.steps >= _STEPS else 2)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / max(1e-9, self.seconds)


class Threads:
    """The number of threads, while steps are taken: now and then another number is tried for a second.

    More are tried only where there are idle cores for them. As a context, for all that a run computes: it sets out
    with as many as there are idle cores for, and at its end there are as many as before.

    Args:
        most: threads at first, and at most.
        may_change: False: they stay as they are.
        use: what sets the number of threads.
        idle: how many cores were idle since it was last asked, or None where that is not known.
    """

    number: int
    """The fastest so far, or the first."""
    _tried: int | None
    """Another one, which is being tried."""
    _others: Iterator[int]
    """Those to be tried, in turn."""
    _window: Window
    """Steps of the number in use."""
    _since: float
    """Seconds since the last trial."""
    _pause: float
    """Seconds from one trial to the next."""
    _rate: float
    """Of `number`, tokens a second."""
    _usual: float
    """The highest rate of late."""

    def __init__(self, most: int, may_change: bool = True, use: Callable[[int], None] = torch.set_num_threads,
                 idle: Callable[[], float | None] | None = None):  # fmt: skip
        self.most, self.may_change, self._use = most, may_change and most > 1, use
        self._idle = idle or IdleCores()
        self._begin(most)

    @classmethod
    def of(cls, settings: LoopSettings, processes: int) -> Self:
        """Those of a run: they may change where a single process computes on the CPU in a budget of time."""
        is_timed = not Budget.parse(settings.budget).is_counted
        return cls(torch.get_num_threads(), is_timed and settings.device == "cpu" and processes == 1)

    def __enter__(self) -> Self:
        if self.may_change:
            idle = _looked(self._idle)
            self._begin(self.most if idle is None else max(1, min(self.most, round(idle))))
            self._use(self.number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.may_change:
            self._use(self.most)

    def took(self, seconds: float, tokens: int) -> None:
        """Record a step; the next one may be computed by another number of threads."""
        if not self.may_change:
            return
        self._window.add(seconds, tokens)
        if self._tried is None:
            self._waited(seconds)
        elif self._window.is_long and self._window.rate > _BETTER * self._rate:
            self._choose(self._tried, self._window.rate)
        elif self._window.is_long or tokens < _HOPELESS * self._rate * seconds:
            self._use(self.number)
            self._pause = max(min(_LATEST, 2 * self._pause), _PAUSES * self._window.lasted)
            # A rate that has fallen with any number of threads is the usual one from here on.
            self._wait(self._rate)

    def _waited(self, seconds: float) -> None:
        """Another step of the number that is the fastest so far."""
        self._since += seconds
        if self._window.is_long:
            self._rate, self._window = self._window.rate, Window()
            self._usual = max(self._usual, self._rate)
            idle = self._idle()
            if self._since >= self._pause or self._rate < _SLOW * self._usual:
                self._try(next(self._others), idle)

    def _try(self, number: int, idle: float | None) -> None:
        if idle is None or idle >= _ROOM * (number - self.number):
            self._tried, self._window = number, Window(skipped=1)
            self._use(number)

    def _begin(self, number: int) -> None:
        """Set out with this number; the first trial comes at once, as nothing is known yet."""
        self._choose(number, usual=0.0)
        self._pause, self._window = 0.0, Window(skipped=1)

    def _choose(self, number: int, usual: float) -> None:
        """Go on with this number, which is in use."""
        self.number, self._pause = number, _SOONEST
        near = {number - 1, number * 3 // 4, number // 2, number + 1, number * 2}
        self._others = cycle(sorted(other for other in near if 1 <= other <= self.most and other != number))
        self._wait(usual)

    def _wait(self, usual: float) -> None:
        """Until the next trial; `usual` is the rate to expect."""
        self._tried = None
        self._window, self._since, self._usual, self._rate = Window(), 0.0, usual, usual
