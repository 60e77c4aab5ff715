"""What the documents and recipes say of the program is so."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from data_prep.console import command_line
from pretrain.engine.plan import MEASURED
from pretrain.run import main as pretrain
from pretrain.settings import PretrainSettings

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_a_recipe_says_what_it_takes_and_sets_what_it_says(recipe, capsys):
    header = "\n".join(line for line in recipe.read_text().splitlines() if line.startswith("#"))
    for word in ("python -m pretrain.run", "Hardware:", "Time:", "Result:"):
        assert word in header
    assert pretrain(["--config", str(recipe), "--print-config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    stated = yaml.safe_load(recipe.read_text())
    assert {name: printed[name] for name in stated} == stated


def test_printed_settings_are_all_settings():
    settings = PretrainSettings()
    again = command_line.from_dict(PretrainSettings, yaml.safe_load(command_line.to_yaml(settings)))
    assert again == settings


def test_runs_that_plans_show_are_in_the_pages():
    pages = "README.md", "docs/performance.md", "docs/how_much.md"
    lines = [line for page in pages for line in (ROOT / page).read_text().splitlines()]
    for row in MEASURED["pretraining"]:
        numbers = [f"{row['loss']:.2f}"]
        if "seconds" in row:
            numbers += [f"({row['unigram_entropy']:.2f})", f"{row['accuracy']:.1%}".replace("%", " %")]
        else:
            numbers += [f"| {row['text'].partition(' of ')[0]} "]
        assert any(all(number in line for number in numbers) for line in lines), row
    for row in MEASURED["fine-tuning"]:
        numbers = f"{row['reached']:.3f}", f"{row['from_scratch']:.3f}", row["texts"].split(",")[0]
        assert any(all(number in line for number in numbers) for line in lines), row


def test_every_file_of_the_packages_that_is_no_python_is_installed():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    data = setuptools["package-data"].items()
    listed = {ROOT.joinpath(*package.split("."), name) for package, names in data for name in names}
    packages = [name.rstrip("*") for name in setuptools["packages"]["find"]["include"]]
    files = {path for name in packages for path in (ROOT / name).rglob("[!.]*") if path.is_file()}
    assert listed == {path for path in files if path.suffix != ".py" and path.parent.name != "__pycache__"}


def test_the_first_commands_of_the_readme_are_run_as_printed():
    """By .ci/run, but for --budget and time limits; after the installation and the tests, which are its first two."""
    page = (ROOT / "README.md").read_text().split("## Try it")[1].split("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    commands = [part.strip() for block in blocks for line in block.splitlines() for part in line.split("&&")]
    ci = [line.split(" --budget ")[0] for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    ci = [re.sub(r"^timeout (--\S+ )*\d+ ", "", line) for line in ci]
    assert "python -m pretrain.run" in commands and "python -m finetune.run" in commands
    for command in commands:
        if not command.startswith(("pip ", "python3 -m venv", ". .venv")):
            assert command in ci, command
    assert any("pip install" in line and "-e '.[test]'" in line for line in ci)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_remark_stands_behind_a_printed_command(page):
    """Pasted into zsh, the shell of macOS, it would be arguments."""
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        assert block.startswith("#!") or not re.search(r"(?m)(^|\s)#", block), block


def test_the_lowest_versions_that_are_tested_are_those_that_are_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    floors = dict(re.match(r"([\w-]+)>=([\d.]+)", requirement).groups() for requirement in asked)
    lines = (ROOT / "tests" / "lowest.txt").read_text().splitlines()
    assert dict(line.split("==") for line in lines if not line.startswith("#")) == floors


def test_the_map_of_the_files_is_that_of_their_docstrings():
    spec = importlib.util.spec_from_file_location("house", Path(__file__).with_name("house.py"))
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    page = (house.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert page.endswith(house.map_of_files() + "\n"), (
        "python tests/house.py --map prints the map as it should stand there"
    )
    assert all(map(house.phrase, house.MODULES))


def anchors(page):
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http:", "https:", "mailto:")):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target
