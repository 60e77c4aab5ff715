"""A command, its wall time, and the most memory that it and the processes it starts need at one moment."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PROC = Path("/proc")
# Seconds between two looks; a look takes a few milliseconds.
_EVERY = 0.2


def measured(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, int | None]:
    """Run a command to its end.

    Returns:
        Its seconds, and the peak memory in bytes: memory that processes share is counted once (proportional set size).
        None where the system does not tell.

    Raises:
        SystemExit: the command failed; the end of what it printed is shown.
    """
    peak = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        began = time.monotonic()
        process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=errors)
        while True:
            try:
                code = process.wait(timeout=_EVERY)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, tree_memory(process.pid))
        seconds = time.monotonic() - began
        if code:
            errors.seek(0)
            print(errors.read()[-2000:], file=sys.stderr)
            raise SystemExit(f"{' '.join(command)} ended with code {code}: see its output above")
    return seconds, peak or None


def tree_memory(root: int) -> int:
    """Proportional set size, in bytes, of a process and all its descendants; 0 where there is no /proc."""
    return sum(_memory(process) for process in _tree(root))


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold anything; state and parent follow it.
            parent = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        children.setdefault(int(parent), []).append(int(entry.parent.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def _memory(process: int) -> int:
    try:
        lines = (_PROC / str(process) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
