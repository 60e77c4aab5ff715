"""What pip installs: the wheel and the source archive, built from the files of the repository and used elsewhere."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from data_prep.start import SCRIPTS

ROOT = Path(__file__).parents[1]
pytest.importorskip("setuptools", minversion="77")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git, no list of files")]
PACKAGES = ("data_prep", "finetune", "model", "pretrain")
# The hooks that every builder calls (PEP 517).
BUILD = "from setuptools import build_meta; build_meta.build_{}('dist')"


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """What a command prints; it must succeed."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    found = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def sources() -> set[str]:
    """The files that git tracks, or would."""
    return set(run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines())


@pytest.fixture(scope="module")
def archives(sources, tmp_path_factory) -> tuple[Path, Path]:
    """The source archive, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("archives")
    for name in sources:
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "clone" / name).write_bytes((ROOT / name).read_bytes())
    run(folder / "clone", sys.executable, "-c", BUILD.format("sdist"))
    (sdist,) = (folder / "clone" / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(unpacked, sys.executable, "-c", BUILD.format("wheel"))
    (wheel,) = (unpacked / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory) -> Path:
    """A folder with the packages and scripts of the wheel, without what they depend on."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(folder, *pip, "--target", folder, archives[1])
    return folder


def test_the_source_archive_holds_every_file_of_the_repository(archives, sources):
    with tarfile.open(archives[0]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "tests/conftest.py", "tests/public_names.txt"} <= held
    assert not {name for name in sources if not name.startswith(".git")} - held
    assert not [name for name in held if "__pycache__" in name]


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(archives, sources):
    with zipfile.ZipFile(archives[1]) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        names = [name.partition(".dist-info/")[2] for name in archive.namelist()]
    assert held == {name for name in sources if name.split("/")[0] in PACKAGES}
    assert "licenses/LICENSE" in names


@pytest.mark.parametrize("module", SCRIPTS)
def test_an_installed_command_answers_in_any_folder(module, installed, tmp_path):
    for command in ((sys.executable, "-m", module), (installed / "bin" / SCRIPTS[module],)):
        assert run(tmp_path, *command, "--help", PYTHONPATH=str(installed)).startswith("usage:")


def test_the_installed_packages_prepare_a_corpus(installed, tmp_path):
    (tmp_path / "notes.txt").write_text("\n\n".join(f"The heart rate was {n}.\nIt fell to {n - 9}." for n in range(99)))
    program = """
import data_prep, finetune, model, pretrain
print(*(module.__file__ for module in (data_prep, finetune, model, pretrain)))
print(finetune.finetune, finetune.Classifier, pretrain.pretrain, model.BertModel)
print(data_prep.prepare(corpus="notes.txt", out="prepared"))
"""
    places, *_, last = run(tmp_path, sys.executable, "-c", program, PYTHONPATH=str(installed)).splitlines()
    assert places.split() == [str(installed / package / "__init__.py") for package in PACKAGES]
    assert last == "prepared" and (tmp_path / "prepared" / "prepared.json").exists()
