"""The benchmarks start, and commands that documents print for them name options that they have."""

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SCRIPTS = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if "parse_args()" in path.read_text()]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *SCRIPTS]
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
        module, *arguments = run.command.split()
        if module.endswith(".py"):
            assert (ROOT / module).exists()
            continue
        main = importlib.import_module(module).main
        assert main([*arguments, "--out", str(tmp_path), "--print-config"]) == 0, capsys.readouterr().err


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
    for module in (published, experiments):
        monkeypatch.setattr(module, "RUNS", small)
    results = published.Results(tmp_path / "results.jsonl")
    published.Runner(text.parent, tmp_path / "runs", results).run("model")
    found = published.Results(results.path).of("model")
    assert found == results.of("model") and found["steps"] == 2 and len(found["curve"]["tokens"])
    assert (tmp_path / "runs" / "few" / "text.txt").stat().st_size < 50_001
    # Another corpus is another run, and so is another recipe.
    monkeypatch.setattr(published, "RECIPE", published.RECIPE + 1)
    assert not results.of("model")
    monkeypatch.undo()
    monkeypatch.setitem(small, "few", experiments.Run("benchmarks/beginning.py --corpus {data}/text.txt --megabytes 1"))
    monkeypatch.setattr(experiments, "RUNS", small)
    monkeypatch.setattr(published, "RUNS", small)
    assert not results.of("model")


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


def test_the_table_of_relatives_has_means_over_seeds_that_all_rows_have(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    published, experiments = map(importlib.import_module, ("published", "experiments"))
    results = published.Results(tmp_path / "results.jsonl")
    for seed, loss in zip(experiments.SEEDS, (3.0, 3.2, 3.4), strict=True):
        validation = {"mlm_loss": loss, "nsp_accuracy": None, "sop_accuracy": 0.8, "sop_majority": 0.505}
        found = {"validation": validation, "tokens": 1000 * seed, "seconds": 0.5, "parameters": 12_345_678}
        results.add(f"articles_mlm_10m_{seed}", found, "a machine")
    header, *rows = published.relatives(results)
    assert len(rows) == len(experiments.RELATIVES) and all(len(row) == len(header) for row in rows)
    (measured,) = (row for row in rows if row[1] != published.NOT_MEASURED)
    assert measured[0].startswith("masked words alone")
    assert measured[1:5] == ["3.20 ± 0.20", "SOP 80.0 % (50.5 %)", "12.3 M", "4,000"]
    assert set(measured[5:]) == {published.NOT_MEASURED}
    assert header[1] == "held-out MLM loss, mean of 3 seeds"
    # Another row with fewer seeds: both are shown with those.
    results.add("articles_10m_2", found, "a machine")
    header, *rows = published.relatives(results)
    assert header[1] == "held-out MLM loss, one seed"
    assert [row[1] for row in rows if row[1] != published.NOT_MEASURED] == ["3.40", "3.20"]
