"""Runs on disks that fill up. Started where mounting is permitted (`unshare -rm`).

    python small_disks.py FOLDER ARGUMENTS OF A PRETRAINING...

Writes FOLDER/found.json, what came of each run, and FOLDER/out-0, out-1, ..., its folders in the end.
"""

import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pretrain import pretraining
from pretrain.engine import checkpoint
from pretrain.engine.checkpoint import damage_of
from pretrain.run import main


def fill(disk: Path) -> None:
    """Leave no byte."""
    with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def filled_before(module, name: str, call: int, disk: Path) -> Iterator[None]:
    """The disk is filled up right before a function is called for the n-th time."""
    function, calls = getattr(module, name), []

    def wrapped(*arguments, **options):
        calls.append(name)
        if len(calls) == call:
            fill(disk)
        return function(*arguments, **options)

    setattr(module, name, wrapped)
    try:
        yield
    finally:
        setattr(module, name, function)


def mount(disk: Path, megabytes: int, how: str = "") -> None:
    options = f"{how}size={megabytes}m"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        sys.exit(77)


def said_by(run: Callable[[], int]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        return run(), out.getvalue(), err.getvalue()


def story(full_at: str, disk: Path, arguments: list[str], kept: Path) -> dict:
    """A run that meets a full disk, and the same command after there is room."""
    out = disk / "out"
    command = [*arguments, f"--out={out}"]
    # Room for the bytes of a checkpoint, but not for the reserve besides.
    mount(disk, 6 if full_at == "the start" else 64)
    full = {
        "the start": contextlib.nullcontext(),
        "a checkpoint": filled_before(checkpoint, "save_tensors", 2, disk),
        "final": filled_before(pretraining, "save_model_folder", 1, disk),
    }[full_at]
    with full:
        code, _, said = said_by(lambda: main(command))
    found = {"full_at": full_at, "said": said}
    checkpoints = sorted(out.glob("checkpoints/*"))
    found["checkpoints"] = [path.name for path in checkpoints]
    found["damage"] = [damage for damage in map(damage_of, checkpoints) if damage]
    found["hidden"] = [path.name for path in out.rglob("*") if path.name.endswith(".tmp")]
    (disk / "filler").unlink(missing_ok=True)
    mount(disk, 64, "remount,")
    again, found["then"], problem = said_by(lambda: main(command))
    found["codes"] = [code, again]
    assert not problem, problem
    shutil.copytree(out, kept)
    return found


if __name__ == "__main__":
    folder, given = Path(sys.argv[1]), sys.argv[2:]
    found = []
    for number, moment in enumerate(("the start", "a checkpoint", "final")):
        disk = folder / "disks" / str(number)
        disk.mkdir()
        found.append(story(moment, disk, given, folder / f"out-{number}"))
    (folder / "found.json").write_text(json.dumps(found))
