"""A run that can be repeated bit for bit, its folder seen from outside, and what two such folders differ in."""

import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from lives import Forked, Life

# What the clock decides.
_CLOCK = {"seconds", "saving_seconds", "search_seconds", "tokens_per_second", "metrics_bytes"}
# Of no importance for the result, made of the bytes of files that are compared without the clock, or not always drawn.
_NOT_COMPARED = {".lock", "prep.log", "manifest.json", "curves.png", "confusion.png"}
_STEP = re.compile(r"checkpoints/step-\d+")
_WORDS = (
    "the a cell tissue patient trial dose group heart blood liver kidney study effect risk rate level change test drug "
    "was is were had gave showed found raised lowered treated measured observed in of with after before under high low"
).split()


def write_corpus(path: Path, documents: int = 80, sentences: int = 12) -> None:
    """Made-up documents: each favours words of its own."""
    rng = random.Random(0)
    blocks = []
    for _ in range(documents):
        words = rng.sample(_WORDS, 8) + _WORDS
        blocks.append("\n".join(" ".join(rng.choices(words, k=rng.randint(4, 14))) + " ." for _ in range(sentences)))
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def write_rows(path: Path, count: int, seed: int = 0) -> None:
    """Labelled texts of three classes that share their words."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count):
            label = number % 3
            words = rng.choices(_WORDS + _WORDS[label * 8 : label * 8 + 8] * 4, k=rng.randint(4, 20))
            file.write(json.dumps({"text": f"{' '.join(words)} {number}", "label": f"class {label}"}) + "\n")


@dataclass(frozen=True)
class Job:
    """A command but for its output folder.

    Args:
        steps: of its budget.
        evaluations: held-out evaluations over the budget.
    """

    module: str
    arguments: tuple[str, ...]
    steps: int
    evaluations: int
    processes: int = 1

    def given(self, out: Path) -> list[str]:
        return [*self.arguments, f"--budget={self.steps}steps", f"--evaluations={self.evaluations}", f"--out={out}"]

    def start(self, out: Path, log: Path, restarts: int = 0) -> Life:
        """As a person types it."""
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        launcher += [f"--max-restarts={restarts}", "-m"]
        command = [sys.executable, "-m", *(launcher if self.processes > 1 else []), self.module, *self.given(out)]
        return Life(command, log)

    def fork(self, out: Path, log: Path, before: Callable[[], None] | None = None, torchrun: bool = True) -> Forked:
        """Without the seconds that imports take; see `Forked`."""
        return Forked(self.module, self.given(out), log, self.processes, before, torchrun)

    def changed(self, *more: str, **fields) -> "Job":
        """With further arguments, the last of a kind wins, and other fields."""
        return Job(**{**vars(self), "arguments": (*self.arguments, *more), **fields})


def pretraining(source: str, **fields) -> Job:
    """A small pretraining with all that a resume could get wrong: accumulation, dropout, two schedules of saving.

    Args:
        source: "--corpus=..." or "--prepared=...".
    """
    fixed = "--preset=tiny --sequence-length=48 --batch-size=8 --micro-batch-tokens=150 --log-every=1 --device=cpu"
    more = "--precision=fp32 --dropout=0.1 --checkpoint-every=3steps --optimizer=muon"
    defaults = {"steps": 14, "evaluations": 2, "arguments": (source, *fixed.split(), *more.split())}
    return Job("pretrain.run", **defaults | fields)


def finetuning(model: Path, texts: Path, **fields) -> Job:
    """A small fine-tuning of two seeds, on train.jsonl and validation.jsonl of a folder."""
    files = (f"--model={model}", f"--train={texts}/train.jsonl", f"--validation={texts}/validation.jsonl")
    fixed = "--seeds=2 --batch-size=8 --micro-batch-tokens=100 --log-every=1 --device=cpu --precision=fp32"
    more = "--dropout=0.1 --checkpoint-every=3steps --learning-rate=0.001 --metric=loss"
    arguments = (*files, *fixed.split(), *more.split())
    return Job("finetune.run", **{"steps": 12, "evaluations": 3, "arguments": arguments} | fields)


def complete_rows(metrics: Path) -> list[dict]:
    """The rows of a metrics.jsonl; none where it is not there yet."""
    try:
        text = metrics.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


class Seen:
    """The folder of a run of a job, seen from outside while the run is under way."""

    def __init__(self, out: Path, job: Job):
        self.out, self.job = out, job

    @property
    def _current(self) -> tuple[Path, int]:
        """The folder that metrics are written to, and the steps that were done in others before."""
        seeds = sorted(self.out.glob("seed-*"))
        return (seeds[-1], (len(seeds) - 1) * self.job.steps) if seeds else (self.out, 0)

    @property
    def metrics(self) -> Path:
        return self._current[0] / "metrics.jsonl"

    def last(self) -> tuple[int, bool]:
        """The step of the last row, over all, and whether it is an evaluation's; (0, False) before the first."""
        # Asked once: the next seed may begin at any time.
        folder, before = self._current
        rows = complete_rows(folder / "metrics.jsonl")
        return (before + rows[-1]["step"], "validation" in rows[-1]) if rows else (0, False)

    def evaluates(self) -> bool:
        """Whether an evaluation is under way: its step has been written down, its results have not."""
        rows = complete_rows(self.metrics)
        done, is_evaluation = (rows[-1]["step"], "validation" in rows[-1]) if rows else (0, False)
        every = self.job.evaluations / self.job.steps
        return not is_evaluation and done > 0 and int(done * every + 1e-9) > int((done - 1) * every + 1e-9)

    def writing(self) -> Path | None:
        """The hidden folder of a checkpoint that is being written."""
        return next(iter(_matches(self._current[0] / "checkpoints", ".step-????????.tmp")), None)

    def newest(self) -> int:
        """The step of the newest whole checkpoint, over all."""
        folder, before = self._current
        names = [path.name for path in _matches(folder / "checkpoints", "step-????????")]
        return before + int(max(names, default="step-0").removeprefix("step-"))

    def writing_final(self) -> bool:
        """Whether everything is trained and results.json, the last file, is not there yet."""
        return (self.out / ".final.tmp").exists() or (self.out / "final").exists() != (
            self.out / "results.json"
        ).exists()


def _matches(folder: Path, pattern: str) -> list[Path]:
    """Of a folder that the run may remove at any moment."""
    try:
        return list(folder.glob(pattern))
    except FileNotFoundError:
        return []


def rows_of(out: Path) -> list[dict]:
    """metrics.jsonl without what the clock decides."""
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [_without_clock(json.loads(line)) for line in lines]


def differences(one: Path, other: Path, same_checkpoints: bool = True) -> list[str]:
    """Files that are in one folder only, or differ in a bit that the clock does not decide.

    Args:
        same_checkpoints: whether the checkpoints before the newest have to be of the same steps; a run that was stopped
            by a signal has saved besides, and counts from there until it saves again.
    """
    a, b = (
        {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.name not in _NOT_COMPARED}
        for out in (one, other)
    )
    if not same_checkpoints:
        newest = max((name for name in a if _STEP.fullmatch(name)), default="none")
        a, b = ({name: path for name, path in found.items() if not _STEP.match(name) or name.startswith(newest)}
                for found in (a, b))  # fmt: skip
    found = [f"only in one: {name}" for name in sorted(a.keys() ^ b.keys())]
    common = sorted(name for name in a.keys() & b.keys() if a[name].is_file())
    return found + [name for name in common if _content(a[name]) != _content(b[name])]


def _content(path: Path) -> object:
    content = path.read_bytes()
    if path.suffix == ".json":
        return _without_clock(json.loads(content))
    if path.suffix == ".jsonl":
        return [_without_clock(json.loads(line)) for line in content.splitlines()]
    return yaml.safe_load(content) | {"out": None} if path.suffix == ".yaml" else content


def _without_clock(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_clock(entry) for name, entry in value.items() if name not in _CLOCK}
    return [_without_clock(entry) for entry in value] if isinstance(value, list) else value
