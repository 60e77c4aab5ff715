"""The size of model that a run chooses by itself."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_prep.settings import ExampleSettings
from model import PRESETS, BertConfig, BertForPreTraining
from pretrain.engine.distributed import World
from pretrain.pretraining import Pretraining
from pretrain.resolve import PARAMETERS_A_TOKEN, resolve, with_preset
from pretrain.settings import PretrainSettings


@cache
def parameters(preset: str, vocab_size: int) -> int:
    with torch.device("meta"):
        model = BertForPreTraining(BertConfig.from_preset(preset, vocab_size))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def gpu(monkeypatch):
    """A torch that says it has one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")


@pytest.mark.parametrize(("budget", "preset"), [("10m", "micro"), ("601s", "mini"), ("9epochs", "mini")])
def test_on_a_cpu_the_budget_decides(budget, preset):
    chosen = resolve(PretrainSettings(device="cpu", budget=budget))
    assert chosen.preset == preset
    assert with_preset(chosen, 10**12, 30_522) == chosen


@given(tokens=st.integers(1, 10**9), vocab_size=st.sampled_from([512, 8_192, 30_522]))
def test_on_a_gpu_the_text_decides(tokens, vocab_size):
    chosen = with_preset(PretrainSettings(device="cpu"), tokens, vocab_size)
    names = list(PRESETS)
    larger = names[names.index(chosen.preset) + 1]
    assert chosen.preset not in ("tiny", "large")
    assert chosen.preset == "micro" or parameters(chosen.preset, vocab_size) <= PARAMETERS_A_TOKEN * tokens
    assert chosen.preset == "base" or parameters(larger, vocab_size) > PARAMETERS_A_TOKEN * tokens
    assert chosen.learning_rate == resolve(PretrainSettings(device="cpu", preset=chosen.preset)).learning_rate


def test_a_run_on_a_gpu_chooses_when_its_text_is_there(gpu, random_prepared, tmp_path):
    asked = PretrainSettings(prepared=str(random_prepared), examples=ExampleSettings(sequence_length=32))
    settings = resolve(asked)
    assert (settings.device, settings.preset, settings.learning_rate) == ("cuda", "auto", "auto")
    assert {settings.optimizer, settings.precision, settings.budget} == {"muon", "bf16", "30m"}
    run = Pretraining(settings, tmp_path, World(), SimpleNamespace())
    assert run.settings == resolve(replace(asked, preset="micro"))


def test_a_preset_that_was_asked_for_stays(gpu):
    settings = resolve(PretrainSettings(preset="base", learning_rate=1e-4))
    assert (settings.preset, settings.learning_rate) == ("base", 1e-4)
    assert with_preset(settings, 1, 512) == settings


def test_a_rate_that_was_asked_for_stays(gpu):
    settings = with_preset(resolve(PretrainSettings(learning_rate=1e-4)), 10**6, 512)
    assert (settings.preset, settings.learning_rate) == ("mini", 1e-4)
