"""Commands in the documents and settings in the recipes are understood by the program they are for."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import yaml

from data_prep import command_line
from pretrain.run import main as pretrain
from pretrain.settings import PretrainSettings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "recipes").glob("*.yaml"))]
LAUNCHER = r"(?:python|torchrun --nproc-per-node \d)"
COMMAND = re.compile(LAUNCHER + r" -m ((?:data_prep|pretrain|finetune)\.\w+)((?: [^\n#`&|]+)?)")


def commands():
    for page in PAGES:
        for module, arguments in COMMAND.findall(page.read_text()):
            yield pytest.param(module, arguments, id=f"{page.name}: {module}{arguments}")


@pytest.mark.parametrize(("module", "arguments"), commands())
def test_a_printed_command_is_understood(module, arguments, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = importlib.import_module(module).main([*shlex.split(arguments), "--print-config"])
    assert code == 0, capsys.readouterr().err


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
