"""What is computed of a GPU's memory; tests/test_trace_gpu.py holds it against traced steps."""

from dataclasses import replace

import pytest
import torch

from model import PRESETS, BertConfig
from model.families import FAMILIES
from pretrain.engine.device import tokens_at_once
from pretrain.engine.optimizer import Optimizer
from pretrain.gpu_memory import GpuMemory
from pretrain.resolve import MASK_SHARE

PRECISIONS = ("bf16", "fp16", "fp32")


def memory(
    preset: str, optimizer: str = "muon", precision: str = "bf16", vocab_size: int = 30_522, family: str = "bert"
) -> GpuMemory:
    return GpuMemory(FAMILIES[family].config.from_preset(preset, vocab_size), optimizer, precision, max(MASK_SHARE))


@pytest.mark.parametrize("family", ["bert", "albert"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weights_gradients_and_state_are_those_of_a_model_that_has_taken_a_step(optimizer, family):
    computed = memory("tiny", optimizer, "fp32", vocab_size=500, family=family)
    model = FAMILIES[family].pretraining(computed.config)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made = Optimizer(model, optimizer, 1e-3, 0.1)
    made.step()
    tensors = [*model.parameters(), *model.parameters(), *(t for t in made.state_tensors().values() if t.dim())]
    counted = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    # Muon's step has copies of its matrices beside them.
    matrices = sum(p.numel() for name, p in model.named_parameters() if "layers" in name and p.dim() == 2)
    assert computed.peak(0) == counted + (5 * 4 * matrices if optimizer == "muon" else 0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_of_the_tokens_that_fit_fits_and_one_of_many_more_does_not(precision):
    for size in (16, 24, 40):
        computed = memory("large", precision=precision)
        tokens = computed.fitting(size, 128)
        assert computed.peak(tokens) <= 0.9 * size * 1e9 < computed.peak(tokens + 3_000)


def test_no_more_than_the_default_is_advised_and_a_gpu_may_be_too_small():
    assert memory("tiny").fitting(16, 512) == tokens_at_once("cuda")
    assert memory("large").fitting(4, 512) is None
    assert memory("large").fitting(16, 512) < memory("large").fitting(24, 512) < memory("base").fitting(24, 512)


def test_a_plan_says_that_it_is_computed():
    assert memory("base").of_gpus(512) == (
        "16 GB: 32,000, 24 GB: 51,000, 80 GB: 65,536 (--micro-batch-tokens that fit in bf16; computed, not measured)"
    )
    assert (
        GpuMemory(BertConfig.from_preset("large", 30_522, num_hidden_layers=96), "adamw", "fp32", 0.15)
        .of_gpus(512)
        .startswith("16 GB: too small, 24 GB: ")
    )


def test_wider_and_deeper_models_need_more_and_16_bits_less():
    peaks = [memory(preset).peak(8_192) for preset in PRESETS]
    assert peaks == sorted(peaks)
    of_base = [memory("base", precision=precision).peak(8_192) for precision in PRECISIONS]
    assert of_base == sorted(of_base)


def test_a_second_head_that_scores_the_vocabulary_needs_its_scores_and_their_gradient():
    one = memory("base")
    two, entries = replace(one, heads=2), 0.4 * 8_192 * 30_522
    assert two.peak(8_192) - one.peak(8_192) == pytest.approx(2 * 2 * entries)
