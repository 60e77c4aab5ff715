"""The tables of README and docs, made of the results of published.py, and the numbers that plans show."""

import json
import re
import statistics
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product

from experiments import (
    CONFIRMED,
    CONTINUED,
    EPOCHS,
    NORMAL,
    RATES,
    REGULARISED,
    RELATED_SETS,
    RELATIVES,
    RUNS,
    SEEDS,
    SETS,
    SIZES,
    STUDENTS,
    THIRD_STEPS,
    TRIED_ON,
    VOCABULARIES,
    WEIGHED,
    confirming,
    models_behind,
    normal_run,
)
from published_results import Results

NOT_MEASURED = "not measured"
# Among the baselines of a fine-tuning.
WITH_A_BERT = ("not fine-tuned",)
Rows = Iterator[list[str]]

PRETRAINED = {
    ("built-in, 2.4 M tokens", "4 minutes"): ["built_in"],
    ("2,008 clinical-trial articles, 10.9 M tokens", "10 minutes"): [f"articles_10m_{seed}" for seed in SEEDS],
    ("the same", "an hour"): ["articles_60m"],
    ("the same", "a night (318 M tokens)"): ["articles_night"],
    ("20 novels, 4.1 M tokens", "10 minutes"): [f"novels_10m_{seed}" for seed in SEEDS],
    ("the same novels", "an hour"): ["novels_60m"],
    ("the same novels", "a night (318 M tokens)"): ["novels_night"],
    ("50,000 Korean film reviews, 0.8 M tokens", "12 minutes"): ["reviews_12m"],
    ("the built-in corpus, without bf16 instructions", "4 minutes"): ["built_in_avx2"],
    ("the articles, without them", "10 minutes"): [f"articles_10m_{seed}_avx2" for seed in SEEDS],
    ("the novels, without them", "10 minutes"): [f"novels_10m_{seed}_avx2" for seed in SEEDS],
}
# Columns, each of one model for a set; reviews and docstrings are of models of their own.
COMPARED = {
    "ours, an hour on the articles": ("articles_60m", "reviews_12m", "built_in"),
    "ours, an hour on novels and Wikipedia": ("general_60m",),
    "the public BERT, an hour more on the articles": ("public_60m",),
    "the public BERT as it is": ("public",),
    "ours, not pretrained": ("scratch",),
}


def with_tables(page: str, results: Results) -> str:
    """The text of a page with all its tables replaced."""

    def table(mark: re.Match) -> str:
        _, make = TABLES[mark[2]]
        results.used.clear()
        header, *rows = make(results)
        lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)] if rows else ["Not measured yet."]
        if rows:
            lines.insert(1, "|---" * len(header) + "|")
        text, machines = with_letters("\n".join(lines))
        below = " ".join([*machines, *earlier_defaults(line["run"] for line in results.used)])
        return "\n".join([mark[1], "", text, "", *([below, ""] if below else []), mark[3]])

    return MARKED.sub(table, page)


def on_its_machine(cell: str, *found: dict) -> str:
    """A cell of a table, with the machines of the runs that it is made of, for `with_letters`."""
    machines = sorted({machine for each in found for machine in each.get("machines", [])})
    return f"{cell}[on {' and '.join(machines)}]" if machines else cell


def with_letters(table: str) -> tuple[str, list[str]]:
    """A table with a letter at each cell that is not of the machine of most cells, and the sentences that name the
    machines. Commits, and how many cores were seen, are in the log."""
    cells_on = Counter(ON_MACHINE.findall(table)).most_common()
    marks = ["", *(f"<sup>{letter}</sup>" for letter in string.ascii_lowercase)]
    letters = {machine: mark for (machine, _), mark in zip(cells_on, marks, strict=False)}
    said = [f"{letter} {machine}.".strip() for machine, letter in letters.items()]
    return ON_MACHINE.sub(lambda mark: letters[mark[1]], table), said


def earlier_defaults(names: Iterable[str]) -> Iterator[str]:
    """The sentences that say which runs of a table had other defaults than those of today, and which."""
    runs = {name for name in names if name in RUNS}
    models = {model for name in runs for model in models_behind(name)}
    yield from with_earlier_defaults(models, "all of ours")
    yield from with_earlier_defaults(runs - models, "all")


def with_earlier_defaults(runs: Iterable[str], all_of_them: str) -> Iterator[str]:
    """What to say of pretrainings, or of fine-tunings, that were measured with other defaults than those of today."""
    names = sorted(runs)
    for options in sorted({RUNS[name].earlier_defaults for name in names} - {""}):
        such = [name for name in names if RUNS[name].earlier_defaults == options]
        alike = _listed(map(_without_twins, such))
        yield f"With `{options}`, the defaults at the time: {all_of_them if such == names else alike}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(f"`{name}`" for name in names))


def _without_twins(name: str) -> str:
    """Seeds of a run are alike, and so are fine-tunings for a set."""
    sets = (texts for texts, made in SETS.items() if made.epochs and name.startswith(f"{texts}_"))
    return next(sets, _without_seed(name))


def _without_seed(name: str) -> str:
    return re.sub("_[1-3](?=$|_avx2$)", "", name)


ON_MACHINE = re.compile(r"\[on ([^]]+)\]")
MARKED = re.compile(r"(<!-- (\w+), by benchmarks/published\.py -->).*?(<!-- end -->)", re.DOTALL)


def pretrained(results: Results) -> Rows:
    """Held-out results of pretraining, a corpus and a budget a row; means where there are several seeds."""
    yield ["corpus", "budget", "MLM loss (word frequencies alone)", "MLM accuracy", "NSP accuracy (majority)"]
    for (corpus, budget), names in PRETRAINED.items():
        found = [results.of(name) for name in names]
        yield [corpus, budget, *(pretrained_cells(found) if all(found) else [NOT_MEASURED] * 3)]


def measured(rows: Rows) -> Rows:
    """The header, and the rows that have a number."""
    yield next(rows)
    yield from (row for row in rows if not {*row[2:]} <= {NOT_MEASURED, ""})


def reached(results: Results) -> Rows:
    """Held-out results of pretraining, as far as they were measured."""
    return measured(pretrained(results))


def pretrained_cells(found: list[dict]) -> list[str]:
    """Means over the seeds; the next-sentence accuracy is empty where there are no pairs."""
    spread = f" ± {statistics.stdev(each['validation']['mlm_loss'] for each in found):.2f}" if found[1:] else ""
    has_pairs = all(each["validation"]["nsp_accuracy"] is not None for each in found)
    pairs = f"{mean_of(found, 'nsp_accuracy'):.1%} ({mean_of(found, 'nsp_majority'):.1%})" if has_pairs else ""
    return [
        on_its_machine(f"{mean_of(found, 'mlm_loss'):.2f}{spread} ({mean_of(found, 'unigram_entropy'):.2f})", *found),
        *(cell.replace("%", " %") for cell in (f"{mean_of(found, 'mlm_accuracy'):.1%}", pairs)),
    ]


def fine_tuned(results: Results) -> Rows:
    """Test scores of models on each labelled set, a set a row, and of the best simple tool."""
    return scores_of_sets(results, list(COMPARED), interval)


def helped(results: Results) -> Rows:
    """The same in short, as far as it was measured."""
    shown = [title for title, models in COMPARED.items() if {"articles_60m", "public", "scratch"} & {*models}]
    return measured(scores_of_sets(results, shown, interval))


def scores_of_sets(results: Results, columns: list[str], shown: Callable[[dict | None, str], str]) -> Rows:
    """A labelled set a row: a cell for each column, empty where the set has no such model, and the best simple tool."""
    yield ["test texts", "score", *columns, "the best without a BERT"]
    for name, texts in SETS.items():
        of_columns = [next((model for model in COMPARED[title] if model in texts.models), None) for title in columns]
        found = {model: results.of(f"{name}_{model}") for model in of_columns if model}
        metric, title = texts.score
        simple = next((each["baselines"] for each in found.values() if each), {})
        cells = [shown(found[model], metric) if model else "" for model in of_columns]
        yield [texts.words, title, *cells, best_of(simple, metric)]


def interval(found: dict | None, metric: str) -> str:
    """The score with the interval that this many test texts allow the model that is kept (see `finetune.intervals`)."""
    if not found:
        return NOT_MEASURED
    ends = found.get("intervals", {}).get("test", {}).get(metric)
    of_texts = f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else ""
    return on_its_machine(mean_and_spread(found, metric) + of_texts, found)


def score(found: dict | None, metric: str) -> str:
    """The cell of a fine-tuning."""
    return on_its_machine(mean_and_spread(found, metric), found) if found else NOT_MEASURED


def mean_and_spread(found: dict, metric: str) -> str:
    """Of the test texts, over the seeds, or the folds."""
    of_test = found["test"][metric]
    return f"{of_test['mean']:.3f}" + (f" ± {of_test['std']:.3f}" if of_test["std"] is not None else "")


def best_of(models: dict[str, dict], metric: str) -> str:
    """The score of the best model without a BERT, and its name."""
    models = {name: found for name, found in models.items() if name not in WITH_A_BERT}
    if not models:
        return NOT_MEASURED
    name = max(models, key=lambda model: models[model]["test"][metric]["mean"] or 0.0)
    return f"{mean_and_spread(models[name], metric)} ({name})"


def relatives(results: Results) -> Rows:
    """BERT and its relatives: how each was pretrained, and what its first seed reaches fine-tuned."""
    seeds = common_seeds(results, RELATIVES)
    yield ["pretrained with", *relative_columns(seeds)]
    for name, (words, _) in RELATIVES.items():
        yield [words, *ten_minutes(results, name, seeds)]


def students(results: Results) -> Rows:
    """A teacher, and students of half its layers; nothing before there is a student."""
    seeds = common_seeds(results, STUDENTS)
    yield ["model", *relative_columns(seeds)]
    if not seeds:
        return
    yield ["the teacher, an hour (4x256), one seed", *relative_cells(results, ["articles_60m"], "articles_60m")]
    for name, (words, _) in STUDENTS.items():
        yield [words, *ten_minutes(results, name, seeds)]


def third_steps(results: Results) -> Rows:
    """One model, fine-tuned in several ways."""
    yield ["fine-tuned with", *score_columns()]
    yield [
        "the earlier defaults: all layers at one rate for 3 epochs, diseases for 4",
        *scores_of(results, "articles_10m"),
    ]
    for name, (words, _) in THIRD_STEPS.items():
        yield [words, *scores_of(results, name)]


def common_seeds(results: Results, names: Iterable[str]) -> list[int]:
    """Of a table's rows that were pretrained at all, the seeds that all of them were pretrained with."""
    of_rows = [{seed for seed in SEEDS if results.knows(f"{name}_10m_{seed}")} for name in names]
    return sorted(set(SEEDS).intersection(*filter(None, of_rows))) if any(of_rows) else []


def relative_columns(seeds: list[int]) -> list[str]:
    number = {0: "", 1: ", one seed"}.get(len(seeds), f", mean of {len(seeds)} seeds")
    return [f"held-out MLM loss{number}", "pairs (majority)", "parameters", "tokens/s", *score_columns()]


def score_columns() -> list[str]:
    return [f"{SETS[texts].words}: {SETS[texts].score[1]}" for texts in RELATED_SETS]


def scores_of(results: Results, model: str) -> list[str]:
    return [score(results.of(f"{texts}_{model}"), SETS[texts].score[0]) for texts in RELATED_SETS]


def ten_minutes(results: Results, name: str, seeds: list[int]) -> list[str]:
    """Of the seeds of a relative or a student."""
    return relative_cells(results, [f"{name}_10m_{seed}" for seed in seeds], f"{name}_10m")


def relative_cells(results: Results, runs: list[str], model: str) -> list[str]:
    """Of the pretrainings, and of the fine-tunings of a model."""
    found = [results.of(name) for name in runs]
    cells = pretraining_cells(found) if found and all(found) else [NOT_MEASURED] * 4
    return cells + scores_of(results, model)


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
        on_its_machine(f"{mean_of(found, 'mlm_loss'):.2f}{spread}{of}", *found),
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
    return on_its_machine(f"{found['validation']['mlm_loss']:.2f}", found) if found else NOT_MEASURED


def epochs(results: Results) -> Rows:
    """Held-out MLM losses of little text read many times, as far as they were measured."""
    return measured(read_often(results))


def read_often(results: Results) -> Rows:
    yield ["text", "epochs", *(f"`{arguments}`" for arguments in REGULARISED.values())]
    for size, counts in EPOCHS.items():
        for count in counts:
            yield [f"{size} MB", str(count), *(loss(results.of(f"{size}mb_{count}_{name}")) for name in REGULARISED)]


def normal(results: Results) -> Rows:
    """Held-out losses and accuracies of the presets by the length of the text, as far as they were measured."""
    return measured(of_presets(results))


def of_presets(results: Results) -> Rows:
    yield ["text", "epochs", *(f"`{preset}`" for preset in SIZES)]
    for size, count in NORMAL.items():
        yield [
            f"{size} MB",
            str(count),
            *(loss_and_accuracy(results.of(normal_run(size, count, preset))) for preset in SIZES),
        ]


def loss_and_accuracy(found: dict | None) -> str:
    if not found:
        return NOT_MEASURED
    of_words = found["validation"]
    shown = f"{of_words['mlm_loss']:.2f} ({of_words['mlm_accuracy']:.1%})"
    return on_its_machine(shown.replace("%", " %"), found)


def confirmed(results: Results) -> Rows:
    """Held-out losses of a megabyte with several weight decays, means over the seeds."""
    yield [
        "text",
        "epochs",
        *(f"`--weight-decay {decay}`" for decay in WEIGHED.values()),
        *(f"from {before} to {after}, seed by seed" for before, after in pairwise(WEIGHED.values())),
    ]
    for corpus, count in product(("", "novels_"), CONFIRMED):
        found = [[results.of(confirming(corpus, count, name, seed)) for seed in SEEDS] for name in WEIGHED]
        if all(map(all, found)):
            losses = [[each["validation"]["mlm_loss"] for each in of_one] for of_one in found]
            shown = [f"{statistics.mean(of_one):.2f} ± {statistics.stdev(of_one):.2f}" for of_one in losses]
            cells = [on_its_machine(cell, *of_one) for cell, of_one in zip(shown, found, strict=True)]
            gains = [[after - before for before, after in zip(*two, strict=True)] for two in pairwise(losses)]
            text = "1 MB of the novels" if corpus else "1 MB of the articles"
            yield [text, str(count), *cells, *(", ".join(f"{gain:+.2f}" for gain in each) for each in gains)]


def vocabularies(results: Results) -> Rows:
    """Models of other vocabularies, and one without next sentences, by fine-tuning."""
    yield [
        "pretrained with",
        "held-out MLM loss, nats",
        *(f"{SETS[texts].words}: {SETS[texts].score[1]}" for texts in TRIED_ON),
    ]
    names = {f"vocabulary_{size}": f"a vocabulary of {size:,}" for size in VOCABULARIES}
    for name, words in (names | {"no_next_sentences": "8,192, masked words alone"}).items():
        yield [
            words,
            loss(results.of(name)),
            *(score(results.of(f"{texts}_{name}"), SETS[texts].score[0]) for texts in TRIED_ON),
        ]


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
            row["read"] = round(statistics.mean(each["tokens"] for each in found))
            row["parameters"] = found[0]["parameters"]
            names = {"loss": "mlm_loss", "unigram_entropy": "unigram_entropy", "accuracy": "mlm_accuracy"}
            # Six digits, as plans and pages round once more: both to the same two.
            row |= {name: round(mean_of(found, key), 6) for name, key in names.items()}
    for row in stages["fine-tuning"]:
        first = next(iter(SETS[row["set"]].models))
        ours, scratch = (results.of(f"{row['set']}_{model}") for model in (first, "scratch"))
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
    # Of a run that is no more, the first.
    metric = RUNS[run].score if run in RUNS else next(iter(found.get("test") or ()), None)
    return f"{metric} {mean_and_spread(found, metric)}" if metric else f"MLM loss {found['validation']['mlm_loss']:.3f}"


TABLES: dict[str, tuple[str, Callable[[Results], Rows]]] = {
    "helped": ("README.md", helped),
    "reached": ("README.md", reached),
    "pretrained": ("docs/performance.md", pretrained),
    "fine_tuned": ("docs/how_much.md", fine_tuned),
    "relatives": ("docs/relatives.md", relatives),
    "students": ("docs/relatives.md", students),
    "third_steps": ("docs/relatives.md", third_steps),
    "rates": ("docs/how_much.md", rates),
    "epochs": ("docs/how_much.md", epochs),
    "confirmed": ("docs/how_much.md", confirmed),
    "normal": ("docs/how_much.md", normal),
    "vocabularies": ("docs/how_much.md", vocabularies),
    "readings": ("docs/data_sets.md", readings),
}
