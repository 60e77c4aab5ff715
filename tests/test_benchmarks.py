"""The benchmarks start, and commands that documents print for them name options that they have."""

import contextlib
import importlib
import io
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from data_prep.prepared import PreparedCorpus
from pretrain.build import make_model
from pretrain.engine.step import Learner
from pretrain.objectives import make_objective
from pretrain.resolve import resolve
from pretrain.settings import PretrainSettings

ROOT = Path(__file__).parents[1]
SCRIPTS = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if "parse_args()" in path.read_text()]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *SCRIPTS]
COMMAND = re.compile(r"python benchmarks/(\w+)\.py((?:[^\n`|#]|\\\n)*)")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_benchmark_knows_the_options_that_are_printed(script, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(script.stem).main()
    assert end.value.code == 0
    shown = capsys.readouterr().out
    uses = [rest for page in PAGES for name, rest in COMMAND.findall(page.read_text()) if name == script.stem]
    assert uses
    for option in re.findall(r"--[a-z-]+", " ".join(uses)):
        assert option in shown.split("options:")[1]


@pytest.mark.parametrize(("wrong", "said"), [
    (["--corpus", "nothere.txt"], "error: nothere.txt: No such file"),
    (["--min-documents", "1,x"], "--min-documents: invalid"),
    (["--canaries", "0"], "--canaries: invalid"),
    (["--megabytes", "-1"], "--megabytes: invalid"),
    (["--preset", "nano"], "--preset: invalid choice"),
    (["--budgets", "5steps,3years"], "'3years' is not understood"),
])  # fmt: skip
def test_wrong_arguments_of_what_owners_run_are_one_sentence(wrong, said, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("one line\n")
    monkeypatch.setattr(sys, "argv", ["canaries.py", "--corpus", "text.txt", *wrong])
    table, canaries = (importlib.import_module(name) for name in ("table", "canaries"))
    try:
        code = table.run(canaries.main)
    except SystemExit as end:
        code = end.code
    assert code == 2 and said in capsys.readouterr().err


def test_a_measured_row_is_known_by_sources_that_are_there(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    learning = importlib.import_module("learning")
    assert learning.sources()


def test_tables_of_the_pages_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    published = importlib.import_module("published")
    results = published.Results(ROOT / "benchmarks" / "results.jsonl")
    for name, (page, _) in published.TABLES.items():
        text = (ROOT / page).read_text()
        assert f"<!-- {name}, by benchmarks/published.py -->" in text
        assert published.with_tables(text, results) == text
    text = published.PLANNED.read_text()
    assert published.planned(text, results) == text


def test_every_run_behind_a_table_is_one_that_its_command_takes(monkeypatch, tmp_path, capsys):
    """And needs what is there, or what is run before it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    runs, known = importlib.import_module("experiments").RUNS, {"data", "public"}
    for name, run in runs.items():
        assert run.needs <= known
        known.add(name)
        module, *arguments = run.command_today.split()
        if module.endswith(".py"):
            assert (ROOT / module).exists()
            continue
        main = importlib.import_module(module).main
        assert main([*arguments, "--out", str(tmp_path), "--print-config"]) == 0, capsys.readouterr().err


def test_below_a_table_stands_which_models_had_earlier_defaults(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    experiments, tables = map(importlib.import_module, ("experiments", "published_tables"))
    earlier = experiments.Run("pretrain.run --prepared {corpus} --seed 1")
    runs = {
        "corpus": experiments.Run("data_prep.run --corpus {data}/text.txt"),
        "own_1": earlier,
        "own_2": earlier,
        "again": replace(earlier, recipe=experiments.RECIPE),
        "adamw": experiments.Run("pretrain.run --prepared {corpus} --optimizer adamw"),
        "labels_own": experiments.Run("finetune.run --model {own_1}/final"),
        "labels_more": experiments.Run("finetune.run --model {more}/final"),
        "labels_scratch": experiments.Run("finetune.run --model {own_1}/final --from-scratch"),
        "more": experiments.Run("pretrain.run --prepared {corpus} --init-from {own_2}/final"),
        "trec_again": experiments.Run("finetune.run --model {again}/final", then="--budget 4epochs"),
    }
    for module in (experiments, tables):
        monkeypatch.setattr(module, "RUNS", runs)
    assert experiments.models_behind("labels_more") == {"more", "own_2"}
    options = experiments.EARLIER_DEFAULTS[1]

    def below(*names):
        return " ".join(tables.earlier_defaults(names))

    assert below("own_1", "own_2") == f"With `{options}`, the defaults at the time: all of ours."
    assert below("labels_own", "own_2", "again") == f"With `{options}`, the defaults at the time: `own`."
    assert below("labels_more", "adamw") == f"With `{options}`, the defaults at the time: `own`."
    assert below("labels_scratch") == below("again", "adamw") == ""
    assert below("trec_again") == "With `--budget 4epochs`, the defaults at the time: all."
    assert below("trec_again", "labels_scratch") == "With `--budget 4epochs`, the defaults at the time: `trec`."
    assert runs["own_1"].command_today == f"{earlier.command} {options}"
    assert runs["again"].command_today == earlier.command


def test_the_machine_of_most_cells_stands_below_a_table_and_others_have_letters(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    published, tables = map(importlib.import_module, ("published", "published_tables"))
    results = published.Results(tmp_path / "results.jsonl")
    machines = {
        "1mb_10_plain": "one (new), 1 thread on 2 cores; one (new), 1 thread on 1 core",
        "1mb_10_decay": "other",
        "1mb_30_plain": "one (new), 1 thread on 2 cores",
        "1mb_30_decay": "other; one (new), 1 thread on 1 core",
    }
    for name, machine in machines.items():
        results.add(name, {"validation": {"mlm_loss": 3.0}}, machine, "a commit")
    page = tables.with_tables("<!-- epochs, by benchmarks/published.py --><!-- end -->", results)
    assert page == tables.with_tables(page, results)
    _, _, _, _, ten, thirty, _, below, *_ = page.splitlines()
    assert ten == "| 1 MB | 10 | 3.00 | not measured | 3.00<sup>a</sup> | not measured |"
    assert thirty == "| 1 MB | 30 | 3.00 | not measured | 3.00<sup>b</sup> | not measured |"
    assert below.startswith(
        "one (new), 1 thread. <sup>a</sup> other. <sup>b</sup> one (new), 1 thread and other. With "
    )


def test_a_result_that_does_not_name_its_models_is_of_those_of_the_first_recipe(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    log, experiments = map(importlib.import_module, ("published_results", "experiments"))
    runs = {"own": experiments.Run("pretrain.run"), "labels": experiments.Run("finetune.run --model {own}/final")}
    for module in (log, experiments):
        monkeypatch.setattr(module, "RUNS", runs)
    results = log.Results(tmp_path / "results.jsonl")
    results.add("labels", {"test": {}}, "a machine", "a commit")
    assert results.knows("labels")
    runs["own"] = replace(runs["own"], recipe=experiments.RECIPE)
    assert not results.knows("labels")


def test_a_run_of_one_kind_of_machine_has_results_of_its_own(monkeypatch, tmp_path, capsys):
    """And is neither run nor asked for on another kind."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    published, log, experiments = map(importlib.import_module, ("published", "published_results", "experiments"))
    own = experiments.Run("pretrain.run")
    runs = {"own": own, "own_there": replace(own, only_on="no such arithmetic")}
    for module in (published, log, experiments):
        monkeypatch.setattr(module, "RUNS", runs)
    results = log.Results(tmp_path / "results.jsonl")
    results.add("own_there", {"steps": 1}, "CPU (no such arithmetic)", "a commit")
    results = log.Results(results.path)
    assert results.knows("own_there") and not results.knows("own")
    results.add("own", {"steps": 2}, "CPU", "a commit")
    assert [results.of(name)["steps"] for name in ("own_there", "own")] == [1, 2]
    monkeypatch.setattr(sys, "argv", ["published", "--data", str(tmp_path), "--runs", "own", "own_there"])
    assert published.main() == 2
    assert "own_there is run where the machine says no such arithmetic, and this one is" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_made_behind_those_it_needs_and_kept_for_its_commands(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    published, experiments = map(importlib.import_module, ("published", "experiments"))
    text = tmp_path / "a folder" / "text.txt"
    text.parent.mkdir()
    text.write_text((ROOT / "CHANGELOG.md").read_text() + "".join(page.read_text() for page in PAGES[1:8]))
    small = {
        "few": experiments.Run("benchmarks/beginning.py --corpus {data}/text.txt --megabytes 0.05"),
        "corpus": experiments.Run(
            "data_prep.run --corpus {few}/text.txt --vocab-size auto --document blank-line --line paragraph"
        ),
        "model": experiments.Run("pretrain.run --prepared {corpus} --preset tiny --budget 2steps", reads_test=True),
    }
    small["more"] = experiments.Run("pretrain.run --prepared {corpus} --init-from {model}/final --budget 2steps")
    log = importlib.import_module("published_results")
    for module in (published, experiments, log):
        monkeypatch.setattr(module, "RUNS", small)
    start = subprocess.run

    def run(command, **options):
        """Without the seconds that a process takes to start."""
        if command[1] == "-m":
            return SimpleNamespace(returncode=importlib.import_module(command[2]).main(command[3:]))
        return start(command, **options)

    monkeypatch.setattr(published.subprocess, "run", run)
    results = published.Results(tmp_path / "results.jsonl")
    runner = published.Runner(text.parent, tmp_path / "runs", results)
    runner.run("model")
    found = published.Results(results.path).of("model")
    assert found == results.of("model") and found["steps"] == 2 and len(found["curve"]["tokens"])
    assert "torch" in results.lines[-1]["machine"] and len(results.lines[-1]["weights"]) == 16
    assert (tmp_path / "runs" / "1" / "few" / "text.txt").stat().st_size < 50_001
    # What was made from a model that was pretrained again is to be made again too.
    runner.run("more")
    assert results.lines[-1]["made_from"] == {"model": results.lines[0]["weights"]} and results.knows("more")
    results.add("model", found, "a machine", "a commit", weights="another")
    assert results.knows("model") and not results.knows("more")
    with pytest.raises(SystemExit, match="model is not the model of the tables: remove it"):
        runner.run("more")
    # Another recipe is another run with a folder of its own, and with other defaults.
    newest = experiments.RECIPE
    first, small["model"] = small["model"], replace(small["model"], recipe=newest)
    assert not results.knows("model")
    runner.run("model")
    assert results.knows("model") and results.lines[-1]["recipe"] == newest
    for recipe, defaults in (("1", ["layers", 1, 1]), (str(newest), ["layers+head", 0.35, 0.03])):
        made = yaml.safe_load((tmp_path / "runs" / recipe / "model" / "settings.yaml").read_text())
        assert [made[name] for name in ("muon_matrices", "pair_weight", "pair_rate")] == defaults
    # Another corpus is another run too, which does not take the folder of this one.
    small["model"] = first
    small["few"] = experiments.Run("benchmarks/beginning.py --corpus {data}/text.txt --megabytes 1")
    assert not results.knows("model")
    with pytest.raises(SystemExit, match="few is of another command or of other models: remove it, and few.json"):
        runner.run("few")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    """A folder with a text, the same prepared, and a small model of it."""
    from pretrain.run import main

    folder = tmp_path_factory.mktemp("pretrained")
    blocks = "\n\n".join(page.read_text() for page in PAGES).split("\n\n")
    (folder / "text.txt").write_text("\n\n".join(f"Block {n} .\n{block}" for n, block in enumerate(blocks)))
    given = ["--corpus", f"{folder}/text.txt", "--out", f"{folder}/run", "--preset=tiny", "--budget=2steps"]
    assert main([*given, "--device=cpu", "--threads=1", "--document=blank-line", "--line=sentence"]) == 0
    return folder


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """(script, words) -> its exit code, and what it prints."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    threads = torch.get_num_threads()

    def run(script: str, *words: str):
        module = importlib.import_module(script)
        keeps = [] if script == "threads" else [f"--results={tmp_path}"]
        monkeypatch.setattr(sys, "argv", [script, *words, *keeps])
        return module.main(), capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_what_is_learned_is_measured_on_as_many_threads_as_are_asked_for(pretrained, call, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    learning = importlib.import_module("learning")
    # A run is in a process of its own, which takes seconds to start; these are not.
    before = signal.getsignal(signal.SIGTERM)
    assert learning.alone(os.getpid) != os.getpid() and signal.getsignal(signal.SIGTERM) == before
    monkeypatch.setattr(learning, "alone", lambda train: pickle.loads(pickle.dumps(train))())
    given = ["--preset=tiny", "--steps-per-run=2", "--threads=1", "--points=1", "--examples=20", "--device=cpu"]
    code, printed = call("learning", f"--prepared={pretrained}/run/prepared", *given, "--recipes", "--peers", "1e-3")
    assert code == 0 and "transformers" in printed
    ours, peer, *recipes = (json.loads(line)["row"] for line in open(tmp_path / "learning.jsonl"))
    # Each program with the recipe of the other, and ours with all scores.
    assert len(recipes) == 3 and all(row["settings"]["threads"] == 1 and row["steps"] == 2 for row in recipes)
    assert [row["settings"]["optimizer"] for row in (ours, peer, *recipes)] == [
        "muon",
        "adamw",
        "muon",
        "muon",
        "adamw",
    ]
    assert ours["threads"] == ours["settings"]["threads"] == peer["settings"]["threads"] == 1
    assert ours["steps"] == peer["steps"] == 2 and peer["tokens"] > 2000


@pytest.mark.slow
def test_with_our_recipe_transformers_has_our_rates_and_matrices(pretrained, monkeypatch):
    """As many parameters of each optimizer at each rate."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    peer_training = importlib.import_module("peer_training")
    given = {"prepared": f"{pretrained}/run/prepared", "preset": "tiny", "device": "cpu", "softmax": "full"}
    recipe = {"muon_matrices": "layers+head", "pair_weight": 0.5, "pair_rate": 0.1}
    settings = replace(resolve(PretrainSettings(**given, **recipe)), batch_size=8)
    theirs = peer_training.PeerTraining(settings)
    objective = make_objective(settings, PreparedCorpus(settings.prepared))
    model = make_model(settings, PreparedCorpus(settings.prepared), objective)
    ours = Learner(settings, model, objective, seed=1, rates=objective.rates(model))

    def by_kind_and_rate(optimizer):
        optimizer.set_learning_rate(1.0)
        sizes = Counter()
        for part in optimizer.parts:
            for group in part.param_groups:
                sizes[type(part).__name__, round(group["lr"], 6)] += sum(p.numel() for p in group["params"])
        return sizes

    assert by_kind_and_rate(theirs._optimizer) == by_kind_and_rate(ours.optimizer)


@pytest.mark.parametrize(("best", "tried"), [
    (1e-3, []), (2e-2, [9e-3, 0.027, 0.081]), (1.1e-4, [1e-4, 3.33e-5]), (math.nan, [1e-4]),
])  # fmt: skip
def test_rates_of_the_peer_are_tried_until_the_best_is_inside(best, tried, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    learning = importlib.import_module("learning")
    assert learning.beyond_the_best({1e-3: 5.0}) is None, "a single rate is what was asked for"
    losses, found = {rate: abs(math.log(rate / best)) for rate in (3e-4, 1e-3, 3e-3)}, []
    while (rate := learning.beyond_the_best(losses)) and len(found) < len(tried):
        losses[rate] = abs(math.log(rate / best))
        found.append(rate)
    assert found == tried and (rate is None or math.isnan(best))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_of_both_programs_is_measured(optimizer, pretrained, call):
    given = ["--quick", "--minutes=0.02", "--sizes=2x128", "--lengths=48", "--tokens=400", f"--optimizer={optimizer}"]
    code, printed = call("step", f"--prepared={pretrained}/run/prepared", *given)
    assert code == 0 and re.search(r"\| 2x128, 48(, ours with Muon)? \|.*\|", printed)


@pytest.mark.slow
def test_threads_are_measured(pretrained, call, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("threads")
    monkeypatch.setattr(module, "SPINS", (0,))
    monkeypatch.setattr(module, "SECONDS", 0.1)
    given = [f"--prepared={pretrained}/run/prepared", "--preset=tiny", "--batch-size=4", "--minutes=0.01"]
    code, printed = call("threads", *given)
    assert code == 0 and all(name in printed for name in ("| 1 thread |", "spin 0 |", "| as many as are fastest |"))


@pytest.mark.slow
def test_rates_of_fine_tuning_are_measured(pretrained, call, tmp_path):
    rows = [{"text": f"{'heart' if n % 3 else 'mask'} {n}", "label": "ab"[n % 3 == 0]} for n in range(60)]
    files = [tmp_path / f"{part}.jsonl" for part in ("train", "validation", "test")]
    for number, path in enumerate(files):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[number * 20 :][:20]))
    given = [f"--model={pretrained}/run/final", "--texts", *map(str, files), "--rates", "1e-3", "auto", "--quick"]
    code, printed = call("fine_tuning_rates", *given, "--seeds=1")
    assert code == 0 and len(re.findall(r"train.jsonl \|.*\| 1 \| [01]\.\d{3} \|", printed)) == 2


@pytest.mark.slow
def test_every_planted_name_is_trained_on(pretrained, call, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    canaries = importlib.import_module("canaries")
    names, controls = canaries.made_up(5)
    text, held_out = (path.read_text() for path in canaries.write_texts(pretrained / "text.txt", 0.1, names, tmp_path))
    counts = {kind: {text.count(name) for name in of_kind} for kind, of_kind in names.items()}
    assert counts == {"never": {0}, "once": {1}, "ten times": {10}} and not any(name in text for name in controls)
    assert held_out and not any(name in held_out for name in (*names["once"], *names["ten times"]))
    assert not set(held_out.split("\n\n")) & set(text.split("\n\n"))
    given = [f"--corpus={pretrained}/text.txt", "--megabytes=0.1", "--canaries=3", "--preset=tiny", "--quick"]
    code, printed = call("canaries", *given, "--min-documents=1")
    assert code == 0 and printed.count("| ten times | 3 |") == 1


def test_roberta_s_recipe_is_measured_as_the_recipe_has_it(monkeypatch):
    """But for the size of the model and the budget, which are those of all relatives, and the corpus."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    _, measured = importlib.import_module("experiments").RELATIVES["articles_roberta"]
    pretrain = importlib.import_module("pretrain.run")
    stated = yaml.safe_load((ROOT / "recipes" / "roberta.yaml").read_text())
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert pretrain.main([*measured.split(), "--print-config"]) == 0
    found = yaml.safe_load(printed.getvalue())
    differs = {name for name, value in stated.items() if found[name] != value}
    assert differs == {"budget", "preset", "vocab_size"}


def test_the_runs_of_the_relatives_are_those_of_published(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    relatives, asked = importlib.import_module("relatives"), []
    monkeypatch.setattr(relatives, "bring_up_to_date", lambda results, runs, data, folder: asked.extend(runs))
    monkeypatch.setattr(sys, "argv", ["relatives.py"])
    assert relatives.main() == 0 and asked == relatives.runs()


def test_the_table_of_relatives_has_means_over_seeds_that_all_rows_have(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    names = ("published", "published_tables", "experiments")
    published, tables, experiments = map(importlib.import_module, names)
    results = published.Results(tmp_path / "results.jsonl")
    for seed, loss in zip(experiments.SEEDS, (3.0, 3.2, 3.4), strict=True):
        validation = {"mlm_loss": loss, "nsp_accuracy": None, "sop_accuracy": 0.8, "sop_majority": 0.505}
        found = {"validation": validation, "tokens": 1000 * seed, "seconds": 0.5, "parameters": 12_345_678}
        results.add(f"articles_mlm_10m_{seed}", found, "a machine", "a commit")
    header, *rows = tables.relatives(results)
    assert len(rows) == len(experiments.RELATIVES) and all(len(row) == len(header) for row in rows)
    (measured,) = (row for row in rows if row[1] != tables.NOT_MEASURED)
    assert measured[0].startswith("masked words alone")
    assert measured[1:5] == ["3.20 ± 0.20[on a machine]", "SOP 80.0 % (50.5 %)", "12.3 M", "4,000"]
    assert set(measured[5:]) == {tables.NOT_MEASURED}
    assert header[1] == "held-out MLM loss, mean of 3 seeds"
    # Another row with fewer seeds: both are shown with those.
    results.add("articles_10m_2", found, "a machine", "a commit")
    header, *rows = tables.relatives(results)
    assert header[1] == "held-out MLM loss, one seed"
    assert [row[1] for row in rows if row[1] != tables.NOT_MEASURED] == ["3.40[on a machine]", "3.20[on a machine]"]
