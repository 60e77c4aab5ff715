"""Runs in processes of their own, to be killed at any moment; whatever they have started ends with them."""

import contextlib
import importlib
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Self

from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
# In the environment of all processes of one life, so that they are found again.
_MARK = "LIFE_UNDER_TEST"
# Imported once; runs are forked from there, which takes milliseconds. Nothing is computed there.
# Not torch.distributed.nn.functional: when it is imported is itself a matter of a test.
_PRELOADED = [
    "pretrain.pretraining", "finetune.finetuning", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "pyarrow",
    "joblib", "scipy.stats", "sklearn.linear_model", "sklearn.metrics", "sklearn.feature_extraction.text",
    "torch._dynamo", "lives",
]  # fmt: skip


class Life:
    """A command that was started. As a context it kills what is left of it at the end.

    Args:
        log: files of this name with .out and .err take what it prints.
        folder: where it is started.
    """

    def __init__(self, command: Sequence[str], log: Path, folder: Path = ROOT):
        self.log, self.mark = log, uuid.uuid4().hex
        environment = {**one_thread(), _MARK: self.mark}
        with open(f"{log}.out", "ab") as out, open(f"{log}.err", "ab") as err:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=out, stderr=err, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self.kill()

    @property
    def out(self) -> str:
        return Path(f"{self.log}.out").read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return Path(f"{self.log}.err").read_text(encoding="utf-8")

    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def pid(self, rank: int = 0) -> int:
        """The process with this number; of a single one the only process."""
        ranks = {pid: env for pid, env in self._family().items() if env.get("RANK") == str(rank)}
        return min(ranks, key=_start_of, default=self._process.pid)

    def pids(self) -> list[int]:
        """All processes that belong to it."""
        return list(self._family())

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def wait(self, seconds: float = 120) -> int:
        """The exit code; AssertionError if it does not end in time."""
        deadline = time.monotonic() + seconds
        while (code := self.code()) is None:
            assert time.monotonic() < deadline, f"still running after {seconds} s:\n{self.out}\n{self.err}"
            time.sleep(0.005)
        return code

    def wait_until(self, moment: Callable[[], bool], seconds: float = 120, pause: float = 0.004) -> bool:
        """Whether the moment came; False where the run ended before."""
        deadline = time.monotonic() + seconds
        while not moment():
            if self.code() is not None:
                return False
            assert time.monotonic() < deadline, f"the moment did not come in {seconds} s:\n{self.out}\n{self.err}"
            time.sleep(pause)
        return True

    def kill(self) -> None:
        """SIGKILL everything that belongs to it, at once."""
        self._kill_own()
        while family := self._family():
            for pid in family:
                _kill(pid)
            time.sleep(0.005)

    def kill_rank(self, rank: int) -> None:
        _kill(self.pid(rank))

    def signal_rank(self, rank: int, number: int) -> None:
        os.kill(self.pid(rank), number)

    def is_gone(self) -> bool:
        """Whether no process of it is left."""
        return self.code() is not None and not self._family()

    def _kill_own(self) -> None:
        _kill(self._process.pid)
        self._process.wait()

    def _family(self) -> dict[int, dict[str, str]]:
        """The running processes that inherited the mark, with their environment."""
        found = {}
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry)
                text = Path(f"/proc/{entry}/environ").read_bytes().decode(errors="replace")
                if self.mark in text and pid != os.getpid():
                    found[pid] = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
        return found


class Forked(Life):
    """`main` of a module in processes forked from one that has everything imported; as torchrun would start them.

    Args:
        before: called in each process before `main`.
        torchrun: whether the processes find the store of a launcher; else the first one has to hold it.
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path, processes: int = 1,
                 before: Callable[[], None] | None = None, torchrun: bool = True):  # fmt: skip
        self.log, self.mark = log, uuid.uuid4().hex
        for name in ("out", "err"):
            Path(f"{log}.{name}").touch()
        self._ranks = []
        if processes > 1:
            from torch.distributed import TCPStore

            # The launcher's store outlives every process of a run.
            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if torchrun else None
            port = self._store.port if torchrun else free_port()
        for rank in range(processes):
            own = {_MARK: self.mark}
            if processes > 1:
                own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
                own |= {"WORLD_SIZE": str(processes), "MASTER_PORT": str(port)}
                if torchrun:
                    own |= {"LOCAL_WORLD_SIZE": str(processes), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            process = _context().Process(target=live, args=(module, list(arguments), str(log), own, before))
            process.start()
            self._ranks.append(process)

    def code(self) -> int | None:
        codes = [process.exitcode for process in self._ranks]
        return None if None in codes else next(filter(None, codes), 0)

    @property
    def codes(self) -> list[int | None]:
        """The exit code of each process."""
        return [process.exitcode for process in self._ranks]

    def pid(self, rank: int = 0) -> int:
        return self._ranks[rank].pid

    def signal(self, number: int) -> None:
        for process in self._ranks:
            os.kill(process.pid, number)

    def _kill_own(self) -> None:
        for process in self._ranks:
            if process.exitcode is None:
                _kill(process.pid)
        for process in self._ranks:
            process.join()


def live(module: str, arguments: list[str], log: str, environment: dict[str, str], before) -> None:
    """What a forked process does."""
    os.setsid()
    os.environ.update(environment)
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(f"{log}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
    # Pictures take longer than a run does; those that real commands start do draw them.
    Figure.savefig = lambda figure, path, **_: path.write_bytes(b"\x89PNG, not drawn")
    if before:
        before()
    sys.exit(importlib.import_module(module).main(arguments))


def _context():
    """Forks from a process of its own, not from this one, in which threads may run."""
    context = multiprocessing.get_context("forkserver")
    if forkserver._forkserver._forkserver_pid is None:
        context.set_forkserver_preload(_PRELOADED)
        before = dict(os.environ)
        os.environ.update(one_thread())
        try:
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(before)
    return context


def free_port(first: int = 20_000, last: int = 29_999) -> int:
    """A port that nobody listens on, outside of those that the system gives away by itself."""
    for port in random.Random().sample(range(first, last + 1), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise OSError("no port is free")


def one_thread() -> dict[str, str]:
    """This environment with one thread a process, our packages found, and no memory of a launcher."""
    paths = [str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _start_of(pid: int) -> int:
    """When a process was started, in clock ticks."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return sys.maxsize
