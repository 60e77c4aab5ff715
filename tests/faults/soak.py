"""Pretrain on a time budget for a long time, stopped and killed in turn, and watch memory, files and lost steps.

    python tests/faults/soak.py --minutes 30 --restart-every 2
    python tests/faults/soak.py --minutes 30 --restart-every 2 --prepared prepared --processes 2

Exit code 0: nothing ended in a mistake, memory is flat, no file is left over, no kill cost more than it may.
"""

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from drive import die
from lives import Life
from runs import Job, Seen

SAMPLE_EVERY = 2.0
# What memory may grow in a life, from its second quarter to its last, in per cent, and the seconds of training from
# which on a life is judged: an evaluation and a picture have to fall into both quarters.
MOST_GROWTH = 5.0
LEAST_SECONDS = 60
# What the README promises of the folder of a run; checkpoints and .lock besides.
PROMISED = {"settings.yaml", "prepared", "final", "metrics.jsonl", "curves.png", "results.json", ".lock", "checkpoints"}
# Seconds; a checkpoint is due that often, and its writing takes time.
CHECKPOINT_EVERY = 5


@dataclass
class Lived:
    """One life of the run: how it ended, where, and what memory it used, in megabytes, at which second."""

    end: str
    code: int | None = None
    step: int = 0
    went_on_from: int = 0
    samples: list[tuple[float, float]] = field(default_factory=list)

    @property
    def span(self) -> float:
        """Seconds from the first to the last look at its memory."""
        return self.samples[-1][0] - self.samples[0][0] if self.samples else 0.0

    def peak(self, first: float, last: float) -> float:
        """The highest memory in a part of the life, from 0 to 1; that of its imports does not count."""
        start, span = self.samples[0][0] if self.samples else 0.0, max(self.span, 1e-9)
        return max((mb for second, mb in self.samples if first <= (second - start) / span <= last), default=0.0)


def megabytes(life: Life) -> float:
    """Memory of all processes of a life; what they share is counted once (PSS)."""
    total = 0
    for pid in life.pids():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def live(job: Job, out: Path, log: Path, end: str, seconds: float) -> Lived:
    """Let the run go on for this many seconds, then end it so; or until it is over."""
    lived, seen = Lived(end), Seen(out, job)
    lived.went_on_from = seen.newest()
    with job.start(out, log) as life:
        began = time.monotonic()
        while life.code() is None and time.monotonic() - began < seconds:
            if "Training" in life.out:
                lived.samples.append((time.monotonic() - began, megabytes(life)))
            time.sleep(min(SAMPLE_EVERY, seconds / 20))
        # Before it trains, metrics.jsonl is as the life before left it.
        lived.step = seen.last()[0] if lived.samples else lived.went_on_from
        if end == "SIGKILL":
            die(life, None)
        elif life.code() is None:
            life.signal(signal.SIGTERM)
            life.wait(60)
        lived.code = life.code()
        if (out / "results.json").exists():
            # The signal came after the end.
            lived.end, lived.code = "its own", max(0, lived.code)
        if lived.end != "SIGKILL" and lived.code not in (0, 75):
            print(life.out, life.err, sep="\n", file=sys.stderr)
    return lived


def left_over(out: Path) -> list[str]:
    """Files and folders that the README does not promise."""
    found = [path.name for path in out.iterdir() if path.name not in PROMISED]
    hidden = [path for path in out.rglob("*") if path.name.endswith(".tmp") or path.name in (".work", ".old")]
    checkpoints = [path for path in (out / "checkpoints").iterdir() if not path.name.startswith("step-")]
    return sorted({*found, *(path.relative_to(out).as_posix() for path in [*hidden, *checkpoints])})


def steps_lost(lives: list[Lived]) -> list[tuple[str, int, float]]:
    """Of each end but the last: how it was, the steps that were done again, and the seconds these had taken."""
    found = []
    for lived, after in zip(lives, lives[1:], strict=False):
        lost = max(0, lived.step - after.went_on_from)
        found.append((lived.end, lost, lost * lived.span / max(1, lived.step - lived.went_on_from)))
    return found


def growth(lived: Lived) -> float:
    """By how much memory grew from the second quarter of a life to its last, in per cent."""
    before, after = lived.peak(0.25, 0.5), lived.peak(0.75, 1.0)
    return 100 * (after / before - 1) if before else 0.0


def table(lives: list[Lived]) -> str:
    names = f"{'life':>4}  {'end':<8}{'code':>5}{'from':>8}{'to step':>9}"
    lines = [names + f"{'2nd quarter':>13}{'last':>9}{'peak':>9}  MB"]
    for number, lived in enumerate(lives, 1):
        parts = (lived.peak(0.25, 0.5), lived.peak(0.75, 1.0), lived.peak(0.0, 1.0))
        lines.append(
            f"{number:>4}  {lived.end:<8}{lived.code!s:>5}{lived.went_on_from:>8}{lived.step:>9}"
            f"{parts[0]:>13,.0f}{parts[1]:>9,.0f}{parts[2]:>9,.0f}"
        )
    return "\n".join(lines)


def judged(lives: list[Lived], out: Path) -> list[str]:
    """What is not as it should be."""
    wrong = [f"life {number} ended with {lived.code}" for number, lived in enumerate(lives, 1)
             if lived.code not in ((-9,) if lived.end == "SIGKILL" else (0, 75))]  # fmt: skip
    if wrong:
        return wrong
    grown = [growth(lived) for lived in lives if lived.span >= LEAST_SECONDS]
    if grown and statistics.median(grown) > MOST_GROWTH:
        wrong.append(f"memory grows: {statistics.median(grown):.1f} % in a life")
    peaks = [lived.peak(0.0, 1.0) for lived in lives if lived.samples]
    if len(peaks) > 2 and peaks[-1] > peaks[0] * (1 + 2 * MOST_GROWTH / 100):
        wrong.append(f"memory grows from life to life: {peaks[0]:,.0f} MB to {peaks[-1]:,.0f} MB")
    for end, steps, seconds in steps_lost(lives):
        if seconds > (2 * CHECKPOINT_EVERY if end == "SIGKILL" else 0):
            wrong.append(f"{end} cost {steps} steps, {seconds:.0f} s")
    wrong += [f"left over: {name}" for name in left_over(out)]
    rows = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    if rows != sorted(rows):
        wrong.append("metrics.jsonl has steps twice or out of order")
    if lives[-1].code != 0 or not (out / "results.json").exists():
        wrong.append("the run did not end")
    return wrong


def soak(options: argparse.Namespace, folder: Path) -> bool:
    """The whole story; whether all is well."""
    source = [f"--prepared={options.prepared}"] if options.prepared else ["--corpus=builtin"]
    fixed = ("--device=cpu", f"--checkpoint-every={CHECKPOINT_EVERY}s", "--log-every=1", *options.more)
    job = Timed("pretrain.run", (*source, *fixed), 0, 10, options.processes, f"{options.minutes * 60:.0f}s")
    out, lives, seconds = folder / "out", [], 60 * options.restart_every
    # Imports and preparation do not count as training; on a slow machine the last life is to end the run.
    cut_short = 2 * round(options.minutes / options.restart_every)
    while not lives or lives[-1].code in (75, -9):
        end = ("SIGTERM", "SIGKILL")[len(lives) % 2]
        until = seconds if len(lives) < cut_short else 60 * options.minutes + 600
        lives.append(live(job, out, folder / f"log-{len(lives)}", end, until))
    print(table(lives))
    for end, steps, lost in steps_lost(lives):
        print(f"{end}: {steps} steps ({lost:.1f} s) done again")
    grown = statistics.median(map(growth, lives))
    print(f"memory from the second quarter of a life to its last: {grown:+.1f} % (median)")
    wrong = judged(lives, out)
    print("\n".join(wrong) or "all is well")
    return not wrong


@dataclass(frozen=True)
class Timed(Job):
    """A job with a budget of time."""

    budget: str = "60s"

    def given(self, out: Path) -> list[str]:
        return [*self.arguments, f"--budget={self.budget}", f"--evaluations={self.evaluations}", f"--out={out}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of training, restarts not counted")
    parser.add_argument("--restart-every", type=float, default=2.0, help="minutes")
    parser.add_argument("--processes", type=int, default=1, help="started by torchrun")
    parser.add_argument("--prepared", type=Path, help="a prepared corpus; the built-in one without it")
    parser.add_argument("--keep", type=Path, help="a new folder to work in, which stays")
    parser.add_argument("more", nargs="*", help="further options of the pretraining, after --")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True)
        return 0 if soak(options, options.keep.resolve()) else 1
    with tempfile.TemporaryDirectory() as name:
        return 0 if soak(options, Path(name)) else 1


if __name__ == "__main__":
    sys.exit(main())
