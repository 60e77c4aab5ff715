"""The functions behind the commands, called as the pages show and as a program might; what they leave behind."""

import importlib.util
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
import yaml

from data_prep import PreparedCorpus, UserError, prepare
from data_prep.text import builtin
from finetune import Classifier, finetune
from pretrain import Interrupted, pretrain

ROOT = Path(__file__).parents[1]
SMALL = {"preset": "tiny", "sequence_length": 32, "batch_size": 8, "device": "cpu", "evaluations": 1, "workers": 1}
# What the pages print -> what is run in its place. Nothing else is changed.
SHORTER = {
    'budget="2h"': 'budget="2steps", preset="tiny", evaluations=1',
    'budget="4m"': 'budget="2steps", preset="tiny", evaluations=1',
    'corpus="builtin"': 'corpus="notes"',
    'train="builtin"': 'train="labels.csv", test="test.csv", budget="2steps", seeds=1',
    'test="test.csv", out': 'test="test.csv", budget="2steps", seeds=1, out',
    'Client("tcp://scheduler:8786")': "Client(n_workers=1, threads_per_worker=1)",
    'corpus="/shared/notes", out="/shared/prepared", workers=100': 'corpus="notes", out="shared/prepared", workers=1',
}
# Not installed for the tests.
OTHERS = ("dask", "fastapi", "onnxruntime")


def shorter(source: str) -> str:
    for printed, run in SHORTER.items():
        source = source.replace(printed, run)
    return source


def blocks(page: str) -> list[str]:
    """The Python that a page shows."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def write_owner(folder: Path) -> None:
    """The files that the pages speak of: notes/, labels.csv and test.csv."""
    (folder / "notes").mkdir()
    for number, (_, text) in enumerate(islice(builtin.documents(), 40)):
        (folder / "notes" / f"{number}.txt").write_text(text, encoding="utf-8")
    rng = random.Random(0)
    for name in ("labels.csv", "test.csv"):
        rows = [f"{' '.join(rng.choices(['heart', 'rate', 'dose'], k=6))} {n},{'ab'[n % 2]}" for n in range(60)]
        (folder / name).write_text("\n".join(["text,label", *rows]) + "\n")


@pytest.fixture(scope="module")
def owner(tmp_path_factory) -> Path:
    """The owner's folder after the Python of README.md, block by block as in a notebook."""
    folder = tmp_path_factory.mktemp("owner")
    write_owner(folder)
    source = blocks("README.md")
    assert sum(shorter(block) != block for block in source) == 1
    names: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in source:
            exec(shorter(block), names)
    return folder


def test_the_python_of_the_readme_leaves_what_it_says(owner):
    assert json.loads((owner / "runs/notes/results.json").read_text())["steps"] == 2
    assert json.loads((owner / "runs/labels/results.json").read_text())["rows"]["test"] == 60
    assert Classifier.load(owner / "runs/labels/final").task.labels == ["a", "b"]


PAGES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(("page", "number"), [(page, number) for page in PAGES for number in range(len(blocks(page)))])
def test_the_python_of_a_page_runs(page, number, owner, monkeypatch, capsys):
    source = blocks(page)[number]
    for package in OTHERS:
        if re.search(rf"^(import|from) {package}\b", source, re.MULTILINE) and not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(owner)
    exec(shorter(source), {})
    for said in re.findall(r"print\(mistake\)  # (.*)", source):
        assert said in capsys.readouterr().out


@pytest.mark.slow
def test_a_script_of_cells_runs_from_another_folder(tmp_path):
    """recipes/from_python.py in a new process; its worker processes must not run it again."""
    write_owner(tmp_path)
    script = tmp_path / "elsewhere" / "cells.py"
    script.parent.mkdir()
    source = (ROOT / "recipes" / "from_python.py").read_text()
    script.write_text(shorter(source))
    assert "__main__" not in source and 'prepared", workers' not in source
    found = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("tokens to learn from\n") == 1
    assert re.search(r"^[ab]: Draw a line", found.stdout, re.MULTILINE)


@pytest.mark.slow
def test_the_three_steps_follow_each_other_and_go_on(owner, tmp_path, capsys, monkeypatch):
    """recipes/three_steps.py: each model begins with the one before, with words of the domain added to it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("three_steps", ROOT / "recipes" / "three_steps.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    given = {"general": owner / "notes", "domain": owner / "notes", "train": owner / "labels.csv",
             "test": owner / "test.csv", "out": tmp_path / "run", "general-budget": "2steps", "domain-budget": "2steps",
             "preset": "tiny", "extend-vocab": 20}  # fmt: skip
    assert recipe.main([f"--{name}={value}" for name, value in given.items()]) == 0
    general, domain, task = (tmp_path / "run" / name for name in ("1-general", "2-domain", "3-task"))
    sizes = [len((step / "final" / "vocab.txt").read_text().splitlines()) for step in (general, domain, task)]
    assert sizes[1] == sizes[2] == sizes[0] + 20
    settings = yaml.safe_load((task / "settings.yaml").read_text())
    # Two layers: the head, the layers, the embeddings, and three epochs of all.
    assert settings["budget"] == "6epochs" and settings["unfreeze"] == pytest.approx(3 / 6)
    assert settings["layer_decay"] == pytest.approx(1 / 2.6) and settings["warmup"] == 0.1
    assert settings["model"] == str(domain / "final")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors")}
    capsys.readouterr()
    assert recipe.main([f"--{name}={value}" for name, value in given.items()]) == 0
    assert capsys.readouterr().out.count("finished") == 3
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors")} == before
    for name in ("general", "domain", "train", "test"):
        wrong = given | {name: "nowhere", "out": tmp_path / "other"}
        assert recipe.main([f"--{option}={value}" for option, value in wrong.items()]) == 2
        assert "nowhere does not exist" in capsys.readouterr().err and not (tmp_path / "other").exists()


# --- what a call takes


def test_a_single_value_a_list_a_path_and_none_are_understood(owner, tmp_path):
    paths = [owner / "notes" / f"{number}.txt" for number in range(12)]
    given = {"exclude": "11.txt", "text_column": None, "workers": None, "min_documents": np.int64(1)}
    found = prepare(corpus=(path for path in paths), out=tmp_path / "a", **given)
    assert found == tmp_path / "a"
    asked = (tmp_path / "a" / "prep_report.md").read_text()
    assert "| documents read | 11 |" in asked
    with ThreadPoolExecutor(1) as executor:
        other = prepare(corpus=list(map(str, paths[:11])), out=str(tmp_path / "b"), executor=executor)
    assert PreparedCorpus(found).digest == PreparedCorpus(other).digest


@pytest.mark.parametrize(("call", "options", "sentence"), [
    (prepare, {"corpsu": "notes"}, "prepare(): unknown setting corpsu: did you mean corpus?"),
    (pretrain, {"epochs": 3}, "pretrain(): unknown setting epochs: did you mean budget 3epochs?"),
    (pretrain, {"threads": "many"}, "pretrain(): threads: 'many' is not a whole number or auto"),
    (finetune, {"seeds": 0}, "--seeds 0 is out of range: give 1 to 10,000"),
    (prepare, {"corpus": {"a.txt"}}, "prepare(): corpus is a set: give a text, a path or a number, or a list of them"),
    (finetune, {"train": np.array(["a", "b"])}, "finetune(): train is a ndarray: give a text, a path or a number, or a "
                                                "list of them"),
])  # fmt: skip
def test_a_mistake_is_the_sentence_of_the_command(call, options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        call(**options)
    assert str(error.value) == sentence
    assert not list(tmp_path.iterdir())


def test_a_plan_writes_nothing_and_names_the_folder(owner, tmp_path, capsys):
    out = tmp_path / "run"
    assert pretrain(corpus=owner / "notes", out=out, budget="2steps", dry_run=True, **SMALL) == out
    assert "nothing was kept" in capsys.readouterr().out and not out.exists()


# --- what a call leaves behind


def state() -> dict:
    """What a program shares with the functions that it calls."""
    return {
        "environment": dict(os.environ),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)},
        "threads": torch.get_num_threads(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "numbers": torch.get_default_dtype(),
        "random": (torch.get_rng_state().tolist(), str(np.random.get_state())),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "main": sys.modules["__main__"],
        "warnings": list(warnings.filters),
        "matplotlib": dict(matplotlib.rcParams),
        "processes": multiprocessing.active_children(),
        "streams": (sys.stdout, sys.stderr),
    }


@pytest.mark.slow
def test_calls_leave_the_process_as_they_found_it_and_may_be_repeated(owner, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(owner)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    before_all = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = state()
        prepared = prepare(corpus="notes", out=tmp_path / "prepared", workers=2)
        run = pretrain(prepared=prepared, out=tmp_path / "run", budget="2steps", preset="tiny", threads=1)
        plan = finetune(model=run / "final", train="labels.csv", dry_run=True, threads=1)
        labels = finetune(model=run / "final", train="labels.csv", out=tmp_path / "labels", budget="2steps", seeds=1)
        assert state() == before
        assert not plan.exists()
        weights = [(folder / "final" / "model.safetensors").read_bytes() for folder in (run, labels)]
        capsys.readouterr()
        assert prepare(corpus="notes", out=tmp_path / "prepared", workers=2) == prepared
        assert pretrain(prepared=prepared, out=run, budget="2steps", preset="tiny", threads=1) == run
        again = finetune(model=run / "final", train="labels.csv", out=labels, budget="2steps", seeds=1)
        said = capsys.readouterr().out
        assert "nothing to do" in said and said.count("holds this run, finished") == 2
        other = pretrain(prepared=prepared, out=tmp_path / "other", budget="2steps", preset="tiny", threads=1)
        assert [(folder / "final" / "model.safetensors").read_bytes() for folder in (other, again)] == weights
        assert state() == before
    finally:
        torch.set_num_threads(before_all)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("precision", "modes"), [("fp32", [*MODES]), ("bf16", ["autocast"])])
def test_modes_of_torch_around_a_call_change_nothing_in_it(precision, modes, owner, tmp_path):
    """A notebook may have switched one on long before."""
    options = {"corpus": owner / "notes", "budget": "3steps", "precision": precision, **SMALL}
    plain = pretrain(out=tmp_path / "plain", **options)
    expected = (plain / "final" / "model.safetensors").read_bytes()
    for name in modes:
        with MODES[name]():
            before = state()
            run = pretrain(out=tmp_path / name, **options)
            assert state() == before
        assert (run / "final" / "model.safetensors").read_bytes() == expected, name


def test_calls_work_in_a_thread_that_is_not_the_main_one(owner, tmp_path):
    options = {"corpus": owner / "notes", "budget": "2steps", **SMALL}
    with ThreadPoolExecutor(1) as executor:
        run = executor.submit(pretrain, out=tmp_path / "run", **options).result()
        executor.submit(pretrain, out=tmp_path / "plan", dry_run=True, **options).result()
    assert (run / "results.json").exists()


@pytest.mark.slow
def test_the_stop_button_saves_and_the_same_call_goes_on(owner, tmp_path):
    out = tmp_path / "run"
    options = {"corpus": owner / "notes", "out": out, "budget": "60steps", "log_every": 1, **SMALL}

    has_ended = threading.Event()

    def press() -> None:
        metrics = out / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            if has_ended.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    button = threading.Thread(target=press)
    button.start()
    try:
        with pytest.raises(Interrupted):
            pretrain(**options)
    finally:
        has_ended.set()
        button.join()
    assert signal.getsignal(signal.SIGINT) is handler
    assert list((out / "checkpoints").iterdir()) and not (out / "final").exists()
    assert json.loads((pretrain(**options) / "results.json").read_text())["steps"] == 60


# --- what an import costs


def test_the_packages_are_imported_without_what_is_heavy_and_offer_their_names():
    program = """
import sys
import data_prep, finetune, pretrain
assert not {"torch", "numpy", "yaml", "pyarrow"} & sys.modules.keys()
# The commands, whose --help is to answer at once.
import data_prep.run, finetune.embed, finetune.predict, finetune.run, finetune.search
import pretrain.exposure, pretrain.fill_mask, pretrain.run
assert not {"torch", "datasets"} & sys.modules.keys()
for package in (data_prep, pretrain, finetune):
    assert dir(package) == package.__all__ == sorted(package.__all__), package
    assert all(getattr(package, name) for name in package.__all__)
    assert not hasattr(package, "another")
assert data_prep.UserError is pretrain.UserError is finetune.UserError
from finetune import *
assert Classifier and finetune
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_a_module_whose_package_imports_ours_keeps_its_signals(tmp_path):
    """Python looks for `python -m theirs.task` while the package is imported, as for one of our commands."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text("import finetune, pretrain\n")
    task = "import signal\nassert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    (tmp_path / "theirs" / "task.py").write_text(task)
    shutil.copytree(tmp_path / "theirs", tmp_path / "model")
    found = subprocess.run(
        [sys.executable, "-m", "theirs.task"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
