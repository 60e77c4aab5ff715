"""Kill a run again and again, let it go on, and compare its folder with that of an undisturbed run, bit for bit.

python tests/faults/drive.py --kills 25 --seed 1
python tests/faults/drive.py --kills 10 --seed 1 --processes 2
python tests/faults/drive.py --kills 10 --seed 1 --finetune
"""

import argparse
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lives import ROOT, Life
from runs import Job, Seen, differences, finetuning, pretraining, write_corpus, write_rows

# Seconds in which a run of which one process was killed has ended by itself.
ALL_GONE = 60
_KINDS = {"write": 55, "written": 10, "row": 15, "evaluation": 12, "start": 8}


@dataclass(frozen=True)
class Moment:
    """When a run is to be killed.

    kind: "write": inside the writing of a checkpoint; "written": right after one has its name; "row": after a row of
    metrics; "evaluation": inside one; "final": while final/ and the results are written; "start": some time after the
    start; "preparation": while the corpus is being prepared.

    Args:
        step: the first such moment from this step on.
        delay: seconds that pass after it.
        victim: the process that is killed; None: all of them.
    """

    kind: str
    step: int
    delay: float
    victim: int | None = None


@dataclass
class Kill:
    """What came of a moment: whether the run was there when it died, and in what state that left the folder."""

    moment: Moment
    was_met: bool = False
    found: str = ""
    went_on_from: str = ""


def moments(count: int, seed: int, job: Job, steps: int, prepares: bool, slowness: float = 1.0) -> list[Moment]:
    """Moments over the whole of a run, in order.

    Args:
        steps: of all its parts.
        prepares: whether it begins with a preparation.
        slowness: stretches the delays after the start.
    """
    rng = random.Random(seed)
    first = ["preparation"] * (2 if prepares and count >= 8 else 0)
    last = ["final"] * (count // 12 + (count >= 4))
    between = count - len(first) - len(last)
    kinds = first + rng.choices(list(_KINDS), list(_KINDS.values()), k=between) + last
    found = []
    for number, kind in enumerate(kinds):
        place = (number - len(first) + rng.random()) / max(1, between)
        delay = {"start": rng.uniform(0, 4 * slowness), "preparation": rng.uniform(0, 0.5)}
        delay |= {"write": rng.uniform(0, 0.08), "evaluation": rng.uniform(0, 0.02), "final": rng.uniform(0, 0.01)}
        victim = rng.choice([None, *range(job.processes)]) if job.processes > 1 else None
        found.append(Moment(kind, round(0.85 * steps * max(0.0, place)), delay.get(kind, 0.0), victim))
    return found


def is_there(moment: Moment, seen: Seen) -> Callable[[], bool]:
    """A function that says whether the moment has come, for a life that starts now."""
    before, prepared = _mark(seen.metrics), seen.out / "prepared"
    final_before, newest_before = _mark(seen.out / ".final.tmp"), seen.newest()

    def has_begun() -> bool:
        return _mark(seen.metrics) not in (None, before)

    def final() -> bool:
        return _mark(seen.out / ".final.tmp") not in (None, final_before) or (seen.out / "results.json").exists()

    def writing() -> bool:
        return has_begun() and seen.writing() is not None and seen.last()[0] >= moment.step

    return {
        "write": writing,
        "written": lambda: has_begun() and seen.newest() >= max(moment.step, newest_before + 1),
        "row": lambda: has_begun() and seen.last()[0] >= moment.step,
        "evaluation": lambda: has_begun() and seen.evaluates() and seen.last()[0] >= moment.step,
        "final": final,
        "start": lambda: True,
        "preparation": lambda: (prepared / ".work").exists() and not (prepared / "prepared.json").exists(),
    }[moment.kind]


def _mark(path: Path) -> int | None:
    """Tells a file or folder from one that was there before, None where there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def state_of(moment: Moment, seen: Seen) -> str:
    """What a killed run left behind at that moment; empty where it was over already."""
    temporary = seen.writing()
    if moment.kind == "write":
        return f"{sum(path.is_file() for path in temporary.rglob('*'))} files in {temporary.name}" if temporary else ""
    if moment.kind == "evaluation":
        return f"step {seen.last()[0]} without its results" if seen.evaluates() else ""
    if moment.kind == "final":
        return "no results yet" if seen.writing_final() else ""
    if moment.kind == "preparation":
        return "blocks, no corpus" if not (seen.out / "prepared" / "prepared.json").exists() else ""
    return f"step {seen.last()[0]}, checkpoint {seen.newest()}"


def killed_run(job: Job, out: Path, plan: list[Moment], log: Path,
               start: Callable[[Job, Path, Path], Life] = Job.start) -> list[Kill]:  # fmt: skip
    """Let a run be killed at each moment and go on after it, to its end.

    Raises:
        AssertionError: it ended by itself with a mistake, or not at all.
    """
    seen, kills = Seen(out, job), []
    for number, moment in enumerate(plan):
        kill = Kill(moment)
        kills.append(kill)
        with start(job, out, log.with_name(f"{log.name}-{number}")) as life:
            came = life.wait_until(is_there(moment, seen), pause=0.001)
            time.sleep(moment.delay)
            kill.was_met = came and life.code() is None
            die(life, moment.victim)
            kill.found = state_of(moment, seen)
        _note_origin(kills[:-1], life.out)
        if not kill.was_met:
            assert life.code() == 0, f"{life.out}\n{life.err}"
            return kills
    with start(job, out, log.with_name(f"{log.name}-last")) as life:
        assert life.wait(300) == 0, f"{life.out}\n{life.err}"
    _note_origin(kills, life.out)
    return kills


def die(life: Life, victim: int | None) -> None:
    """Kill one process, after which the others have to end by themselves, or all."""
    if victim is not None and life.code() is None:
        life.kill_rank(victim)
        assert life.wait(ALL_GONE) != 0, life.out
        deadline = time.monotonic() + ALL_GONE
        while not life.is_gone():
            assert time.monotonic() < deadline, "processes are left over"
            time.sleep(0.01)
    life.kill()


def _note_origin(kills: list[Kill], said: str) -> None:
    """Fill in what the life after the kills says it goes on from; one that ended too early says nothing."""
    if found := re.search(r"Resuming from .*?((?:seed-\d+/checkpoints/)?step-\d+)\.\n", said):
        origin = found[1].replace("checkpoints/", "")
    elif "holds this run, finished" in said:
        origin = "the end"
    elif re.search("^(Training|Fine-tuning) ", said, re.MULTILINE):
        origin = "the beginning"
    else:
        return
    for kill in kills:
        kill.went_on_from = kill.went_on_from or origin


def table(kills: list[Kill]) -> str:
    lines = [f"{'kill':>4}  {'moment':<12}{'from step':>9}  {'killed':<8}{'left behind':<40}went on from"]
    for number, kill in enumerate(kills, 1):
        victim = "all" if kill.moment.victim is None else f"rank {kill.moment.victim}"
        state = kill.found if kill.was_met else "(had ended before)"
        where = f"{number:>4}  {kill.moment.kind:<12}{kill.moment.step:>9}  {victim:<8}{state or '(just over)':<40}"
        lines.append(where + kill.went_on_from)
    return "\n".join(lines)


def make_job(options: argparse.Namespace, folder: Path) -> tuple[Job, bool]:
    """The run to be killed, and whether it begins with a preparation."""
    source = f"--prepared={options.prepared}"
    if not options.prepared:
        write_corpus(folder / "made_up.txt")
        source = f"--corpus={folder / 'made_up.txt'}"
    job = pretraining(source, steps=75, evaluations=9).changed("--preset=mini", processes=options.processes)
    if not options.prepared:
        job = job.changed("--workers=1")
    if not options.finetune:
        return job, not options.prepared
    short = replace(job.changed("--preset=tiny"), steps=4, evaluations=1, processes=1)
    finish(short, folder / "encoder")
    for name, count in (("train", 240), ("validation", 60)):
        write_rows(folder / f"{name}.jsonl", count, seed=count)
    model = folder / "encoder" / "final"
    return finetuning(model, folder, steps=40, evaluations=8, processes=options.processes), False


def finish(job: Job, out: Path, start: Callable[[Job, Path, Path], Life] = Job.start) -> Path:
    """A run undisturbed; returns its folder."""
    with start(job, out, out.with_name(f"{out.name}-log")) as life:
        assert life.wait(600) == 0, f"{life.out}\n{life.err}"
    return out


def drive(options: argparse.Namespace, folder: Path) -> bool:
    """The whole story in a folder; whether all is well."""
    job, prepares = make_job(options, folder)
    steps = job.steps * (2 if options.finetune else 1)
    finish(job, folder / "undisturbed" / "out")
    plan = moments(options.kills, options.seed, job, steps, prepares, slowness=2.0 if job.processes > 1 else 1.0)
    kills = killed_run(job, folder / "killed" / "out", plan, folder / "killed" / "log")
    print(table(kills))
    met = [kill for kill in kills if kill.was_met]
    inside = Counter(kill.moment.kind for kill in met if kill.found)
    print(f"{len(met)} of {options.kills} kills; hit {dict(inside)}")
    found = differences(folder / "undisturbed" / "out", folder / "killed" / "out")
    for difference in found:
        print(f"differs: {difference}")
    print(f"equal: {not found}")
    return not found and len(met) == options.kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="started by torchrun")
    parser.add_argument("--prepared", type=Path, help="a prepared corpus; without it one is made up and prepared")
    parser.add_argument("--finetune", action="store_true", help="kill a fine-tuning")
    parser.add_argument("--keep", type=Path, help="a new folder to work in, which stays")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True)
        folders = [options.keep / name for name in ("undisturbed", "killed")]
        for folder in folders:
            folder.mkdir()
        return 0 if drive(options, options.keep.resolve()) else 1
    with tempfile.TemporaryDirectory() as name:
        for folder in ("undisturbed", "killed"):
            (Path(name) / folder).mkdir()
        return 0 if drive(options, Path(name)) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
