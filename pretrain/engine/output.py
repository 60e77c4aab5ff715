"""The output folder of a run: one process at a time, and nothing left of a run that never began."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import PretrainError


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """The output folder, made and locked; one that is still empty in the end is removed again.

    Raises:
        PretrainError: another process holds it.
    """
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise PretrainError(f"another process is writing {out}: wait for it, or give another --out") from error
    finally:
        # A run that was refused before it began leaves no folder behind.
        if created and not any(entry.name != ".lock" for entry in out.iterdir()):
            (out / ".lock").unlink(missing_ok=True)
            for folder in created:
                folder.rmdir()
