"""Batches that are only read, computed side by side on a CPU: one on each thread instead of all threads on each.

The threads of one operation wait for each other at its end, and longer where another program has one of their cores.
Batches do not depend on each other, so threads that have one each need not wait (measured: docs/performance.md).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from threading import Lock
from typing import TypeVar

import torch

# Batches at once. Each needs memory of its own, and Python runs in one thread at a time.
_MOST_AT_ONCE = 8
# Tokens computed at once. On a CPU more of them take no less time and more memory (measured).
_TOKENS_ON_CPU, _TOKENS_ON_GPU = 2048, 65_536


Batch = TypeVar("Batch")
Result = TypeVar("Result")


def tokens_at_once(device: str) -> int:
    """Tokens of a batch that is only read."""
    return _TOKENS_ON_GPU if device == "cuda" else _TOKENS_ON_CPU


class _Sharing:
    """Calls that share the threads of the process out, which may overlap.

    New threads begin with the number that was set last, in whatever thread: while a call is under way, it is that of a
    worker. The last call to end sets again what the first one found.
    """

    def __init__(self):
        self._lock, self._calls, self._threads = Lock(), 0, 0

    def threads(self) -> int:
        """How many there are to share."""
        with self._lock:
            return self._threads if self._calls else torch.get_num_threads()

    def __enter__(self) -> None:
        with self._lock:
            self._threads = self._threads if self._calls else torch.get_num_threads()
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._calls -= 1
            if not self._calls:
                torch.set_num_threads(self._threads)


_SHARING = _Sharing()


def in_parallel(
    compute: Callable[[Batch], Result], batches: Iterable[Batch], device: torch.device | str
) -> Iterator[Result]:
    """What `compute` gives for each batch, in order, without gradients (inference mode).

    On a CPU as many batches as torch has threads are computed at once, at most 8, and share these threads out. A single
    batch has them all, as has every batch on another device. One more batch than are computed is in memory.

    Raises:
        Whatever `compute` or `batches` raises, in its turn; batches that have begun end first.
    """
    batches = iter(batches)
    first = list(islice(batches, 2))
    threads = _SHARING.threads()
    workers = min(threads, _MOST_AT_ONCE)

    @torch.inference_mode()
    def without_gradients(batch: Batch) -> Result:
        return compute(batch)

    if torch.device(device).type != "cpu" or workers == 1 or len(first) < 2:
        yield from map(without_gradients, chain(first, batches))
        return
    with _SHARING:
        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
        try:
            running: deque[Future[Result]] = deque()
            for batch in chain(first, batches):
                running.append(pool.submit(without_gradients, batch))
                if len(running) > workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
