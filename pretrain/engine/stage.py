"""What every stage begins with: its processes, its settings, and its output folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from .distributed import World, joined
from .earlier_run import Settings, agreed
from .folder import claimed
from .interruption import Interruption


@contextmanager
def stage(
    settings: Settings, out: Path, resolved: Callable[[], Settings]
) -> Iterator[tuple[Settings, World, Interruption]]:
    """The processes are joined, signals are watched, `out` is claimed, all for the time of the context.

    Args:
        resolved: gives the settings without `auto`; the main process asks it, before `out` is made.

    Yields:
        (the settings that all processes have, the processes, the signals)

    Raises:
        PretrainError: another process holds `out`.
    """
    with joined(settings.device) as world, Interruption() as interruption:
        settings = agreed(settings, world, resolved)
        with claimed(out) if world.is_main else nullcontext():
            yield settings, world, interruption
