"""The first moments of every command: Ctrl-C in them, and files of the user that have the names of our packages."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from data_prep.start import SCRIPTS

ROOT = Path(__file__).parents[1]
# Python imports it by itself. Ctrl-C comes when the module that AT names is looked for, also in the background of a
# shell, where it is ignored.
SITE = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == os.environ["AT"]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
"""

PROGRAM = """
import signal
before = signal.getsignal(signal.SIGINT)
import finetune, pretrain
assert signal.getsignal(signal.SIGINT) is before
"""


def run(folder: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of Python in a folder."""
    paths = os.pathsep.join([environment.pop("FIRST", ""), str(ROOT)]).removeprefix(os.pathsep)
    known = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=known, capture_output=True, text=True, timeout=120
    )


def script(folder: Path, module: str) -> str:
    """A console script, as pip writes it, in a folder of its own."""
    (folder / "bin").mkdir()
    path = folder / "bin" / SCRIPTS[module]
    path.write_text(f"import sys\nfrom {module} import main\nsys.exit(main())\n")
    return str(path)


def test_the_scripts_are_those_that_are_installed():
    with open(ROOT / "pyproject.toml", "rb") as file:
        installed = tomllib.load(file)["project"]["scripts"]
    assert installed == {name: f"{module}:main" for module, name in SCRIPTS.items()}


@pytest.mark.parametrize("module, file", [
    ("pretrain.run", "data_prep/__init__.py"),
    ("pretrain.fill_mask", "model.py"),
    ("finetune.run", "pretrain.py"),
    ("finetune.predict", "model/__init__.py"),
    ("finetune.predict", "data_prep.py"),
])  # fmt: skip
def test_a_file_with_the_name_of_a_package_is_said_and_the_script_works_beside_it(module, file, tmp_path):
    path = tmp_path / "work" / file
    path.parent.mkdir(parents=True)
    path.write_text("raise SystemExit('not ours')\n")
    found = run(tmp_path / "work", ["-m", module, "--help"])
    assert found.returncode == 2 and not found.stdout
    place = path.parent if path.name == "__init__.py" else path
    assert found.stderr.startswith(f"error: {place} hides the package") and found.stderr.count("\n") == 1
    assert f"{SCRIPTS[module]}, which works here" in found.stderr
    found = run(tmp_path / "work", [script(tmp_path, module), "--help"])
    assert found.returncode == 0 and found.stdout.startswith("usage:"), found.stderr


def test_a_script_names_the_commands_as_it_was_started(tmp_path):
    path = script(tmp_path, "finetune.run")
    (tmp_path / "data_prep.py").touch()
    found = run(tmp_path, [path, "--help"])
    assert found.stdout.startswith("usage: domain-bert-finetune [OPTIONS]")
    assert "\n  domain-bert-finetune --model runs/notes/final" in found.stdout and "python -m" not in found.stdout
    found = run(tmp_path, [path, "--train=nothere.csv"])
    assert found.returncode == 2 and "which domain-bert-pretrain makes" in found.stderr


def test_files_that_hide_nothing_are_of_no_concern(tmp_path):
    (tmp_path / "finetune.py").touch()
    (tmp_path / "data_prep").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").touch()
    assert run(tmp_path, ["-m", "pretrain.run", "--help"]).returncode == 0
    (tmp_path / "model.py").touch()
    assert run(tmp_path, ["-m", "data_prep.run", "--help"]).returncode == 0


def test_a_program_that_imports_the_packages_is_left_alone(tmp_path):
    (tmp_path / "model.py").touch()
    found = run(tmp_path, ["-c", PROGRAM])
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("at", ["data_prep.console.options", "dataclasses", "yaml", "torch", "torch.nn", "model.bert"])
def test_ctrl_c_during_any_import_is_one_word_and_130(at, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    found = run(tmp_path, ["-m", "pretrain.run", "--prepared=nowhere"], AT=at, FIRST=str(tmp_path))
    assert (found.returncode, found.stderr, found.stdout) == (130, "interrupted\n", "")


@pytest.mark.parametrize("module", SCRIPTS)
def test_ctrl_c_while_a_console_script_starts_is_one_word_and_130(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    found = run(tmp_path, [script(tmp_path, module)], AT="data_prep.console.command_line", FIRST=str(tmp_path))
    assert (found.returncode, found.stderr, found.stdout) == (130, "interrupted\n", "")


def test_of_several_processes_one_says_that_it_was_interrupted(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    found = run(tmp_path, ["-m", "pretrain.run"], AT="data_prep.console.options", FIRST=str(tmp_path), RANK="1")
    assert (found.returncode, found.stderr) == (130, "")
