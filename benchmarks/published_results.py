"""The log of the runs behind the tables, results.jsonl, and what a line of it says."""

import hashlib
import json
import re
import subprocess
from dataclasses import fields
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Any

from experiments import RUNS, models_behind, whole_command

ROOT = Path(__file__).parents[1]
PLANNED = ROOT / "pretrain" / "engine" / "measured.json"
# What is kept of a run's results.json.
KEPT = ("validation", "test", "intervals", "learning_rate", "baselines", "rows", "steps", "tokens", "seconds",
        "parameters")  # fmt: skip


class Results:
    """The lines of results.jsonl; the last one of a run with the same commands, and with its recipe of today, counts.

    Attributes:
        used: the lines that a table was made of.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
        self.used: list[dict] = []
        self._writes = Lock()

    def of(self, name: str) -> dict | None:
        """What a run found, for a table, and on which machine: its processors, but not how many cores were seen."""
        line = self._line(name)
        if not line:
            return None
        self.used.append(line)
        # A run may have moved from one to another.
        machines = re.sub(r" on \d+ cores?", "", line["machine"]).split("; ")
        return line["found"] | {"machines": machines}

    def knows(self, name: str) -> bool:
        """Whether a run has a result."""
        return self._line(name) is not None

    def _line(self, name: str) -> dict | None:
        run = RUNS[name]
        same = {"recipe": run.recipe, "command": whole_command(name), "only_on": run.only_on}
        lines = (line for line in reversed(self.lines) if same.items() <= ({"only_on": ""} | line).items())
        return next((line for line in lines if self._is_of_its_models(line)), None)

    def _is_of_its_models(self, line: dict) -> bool:
        """Whether the models that a run started from are those of the tables. A line that does not say is of models of
        the first recipe."""
        name = line["run"]
        if "made_from" not in line and name in RUNS:
            return all(RUNS[model].recipe == 1 for model in models_behind(name) - {name})
        models = line.get("made_from", {}).items()
        return all(self.knows(need) and self.holds(need, digest) for need, digest in models if need in RUNS)

    def holds(self, name: str, digest: str | None) -> bool:
        """Whether a model with these weights is that of the tables, as far as this is known."""
        line = self._line(name)
        return line is None or line.get("weights", digest) == digest

    def add(self, name: str, found: dict, machine: str, commit: str, **models: Any) -> None:
        """Keep what a run found.

        Args:
            models: "weights", the digest of its model, and "made_from", those of the models that it started from.
        """
        run = RUNS[name]
        line = {"run": name, "recipe": run.recipe, "command": whole_command(name), "reads_test": run.reads_test,
                "commit": commit, "date": str(date.today()), "machine": machine, **models, "found": found}  # fmt: skip
        if run.only_on:
            line["only_on"] = run.only_on
        with self._writes, self.path.open("a", encoding="utf-8") as file:
            self.lines.append(line)
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def commit() -> str:
    """The commit that is checked out; with a plus where the packages differ from it; "unknown" without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    own = f":!{PLANNED.relative_to(ROOT)}"  # which this program writes itself
    try:
        changed = git("status", "--porcelain", "data_prep", "model", "pretrain", "finetune", own)
        return git("rev-parse", "--short=7", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def found_by(out: Path) -> dict:
    """What is kept of a run."""
    results = json.loads((out / "results.json").read_text("utf-8"))
    return {key: results[key] for key in KEPT if key in results} | curve(out / "metrics.jsonl")


def curve(metrics: Path) -> dict:
    """The held-out results while a model was pretrained: a list for each, as long as that of the tokens seen."""
    if not metrics.exists():
        return {}
    rows = [row for line in metrics.read_text("utf-8").splitlines() if (row := json.loads(line)).get("validation")]
    names = [name for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy") if rows and name in rows[0]["validation"]]
    found = {name: [row["validation"][name] for row in rows] for name in names}
    return {"curve": {"tokens": [row["tokens"] for row in rows], **found}}


def weights(folder: Path) -> str | None:
    """A digest of the weights of a model folder, or of the one in a run's folder; None where there is none."""
    files = [path for path in (folder / "model.safetensors", folder / "final" / "model.safetensors") if path.exists()]
    return hashlib.blake2b(files[0].read_bytes(), digest_size=8).hexdigest() if files else None


def machines(out: Path) -> str:
    """The processor, its arithmetic and its cores, as the run has written them down for itself or for its seeds."""
    from pretrain.engine.device import Machine

    names = [field.name for field in fields(Machine)]
    results = (json.loads(path.read_text("utf-8")) for path in sorted(out.rglob("results.json")))
    facts = (each for found in results for each in found.get("machines", []))
    told = dict.fromkeys(str(Machine(**{name: each[name] for name in names})) for each in facts)
    return "; ".join(told) or this_machine()


def this_machine() -> str:
    """The same of the CPU of this process."""
    from pretrain.engine.device import Machine

    return str(Machine.here("cpu"))
