"""`--help` of every command: all options, their defaults, in two screens, of training in three."""

import dataclasses
import re
import typing

import pytest

from data_prep.run import main as prepare
from data_prep.settings import PrepCommand
from finetune.choose import ChooseSettings
from finetune.choose import main as choose
from finetune.embed import EmbedSettings
from finetune.embed import main as embed
from finetune.predict import PredictSettings
from finetune.predict import main as predict
from finetune.run import main as finetune
from finetune.search import SearchSettings
from finetune.search import main as search
from finetune.settings import FinetuneSettings
from pretrain.exposure import ExposureSettings
from pretrain.exposure import main as exposure
from pretrain.fill_mask import FillMaskSettings
from pretrain.fill_mask import main as fill_mask
from pretrain.run import main as pretrain
from pretrain.settings import PretrainSettings

COMMANDS = [
    (prepare, PrepCommand),
    (pretrain, PretrainSettings),
    (finetune, FinetuneSettings),
    (predict, PredictSettings),
    (choose, ChooseSettings),
    (embed, EmbedSettings),
    (search, SearchSettings),
    (fill_mask, FillMaskSettings),
    (exposure, ExposureSettings),
]
SCREEN = 42
SCREENS = {PretrainSettings: 3, FinetuneSettings: 3}


def flat(settings_class) -> list[dataclasses.Field]:
    hints = typing.get_type_hints(settings_class)
    return [
        inner
        for field in dataclasses.fields(settings_class)
        for inner in (flat(hints[field.name]) if dataclasses.is_dataclass(hints[field.name]) else [field])
    ]


@pytest.mark.parametrize(("main", "settings_class"), COMMANDS, ids=lambda value: getattr(value, "__name__", None))
def test_every_option_has_its_words_and_its_default_in_few_screens(main, settings_class, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert len(page.splitlines()) <= SCREENS.get(settings_class, 2) * SCREEN and max(map(len, page.splitlines())) <= 120
    options, examples = page.split("\nexamples:\n")
    assert examples.strip().startswith("python -m ")
    entry = r"^ (?:--(?:\[no-\])?)?([\w-]+)(?: (?:N|X|TEXT|PATH|WORD)(?: \.\.\.)?)?(?:  +|\n +)(\S.*(?:\n {10,}.*)*)"
    entries = dict(re.findall(entry, options, re.MULTILINE))
    fields = flat(settings_class)
    names = {field.name.replace("_", "-") for field in fields}
    assert set(name.lower() for name in entries) == names | {"config", "print-config"}
    for field in fields:
        default = field.default
        if type(default) in (int, float, str) and not hasattr(field.type, "__metadata__"):
            text = " ".join(entries[field.name.replace("_", "-")].split())
            assert text.replace(" ", "").endswith(f"[{default}]"), text


def test_a_narrow_terminal_gets_a_narrow_page(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    assert pretrain(["--help"]) == 0
    options = capsys.readouterr().out.split("\nexamples:\n")[0]
    assert max(map(len, options.splitlines())) <= 70
