"""Training in fp16, on the CPU: the loss scale, and the one verdict that all parts of the optimizer obey."""

import copy

import pytest
import torch

from data_prep.settings import ExampleSettings
from pretrain.build import make_data, make_model
from pretrain.engine.batches import Batches, Position
from pretrain.engine.counters import LossScale
from pretrain.engine.distributed import World
from pretrain.engine.step import Learner, step
from pretrain.objectives import make_objective
from pretrain.resolve import resolve
from pretrain.settings import PretrainSettings


def learner_and_batches(prepared, precision="fp16", **changes):
    given = {"preset": "tiny", "budget": "100steps", "batch_size": 8, "device": "cpu", "learning_rate": 0.005}
    examples = ExampleSettings(sequence_length=48)
    settings = resolve(
        PretrainSettings(prepared=str(prepared.folder), precision=precision, examples=examples, **given | changes)
    )
    objective = make_objective(settings, prepared)
    stream, maker, _ = make_data(settings, prepared, objective, World())
    learner = Learner(settings, make_model(settings, prepared, objective), objective, seed=1)
    return learner, Batches(stream, maker, settings.batch_size, Position(), World())


def taken(learner, batches):
    batches.draw()
    outcome = step(learner, batches)
    learner.counters.count(outcome)
    return outcome


@pytest.mark.slow
def test_fp16_with_overflows_learns_what_float32_learns_in_as_many_steps(prepared):
    losses = {}
    for precision in ("fp32", "fp16"):
        learner, batches = learner_and_batches(prepared, precision)
        learner.model.mlm_head.bias.data.zero_()
        found = []
        for number in range(40):
            if precision == "fp16" and number in (8, 16):
                # No gradient fits into fp16 under these, until the scale has been halved three or four times.
                learner.loss_scale = LossScale(True, value=float(learner.loss_scale.value) * 2**3)
            found.append(taken(learner, batches).losses["mlm"])
        losses[precision] = sum(found[-12:]) / 12
        assert found[0] - losses[precision] > 1
    assert learner.counters.overflows >= 1 and learner.counters.skipped == 0
    assert losses["fp16"] == pytest.approx(losses["fp32"], abs=0.05)


@pytest.mark.parametrize("name", ["bert.layers.0.qkv.weight", "bert.embeddings.word.weight", "nsp_head.bias"])
def test_an_overflow_in_one_part_changes_no_weight_in_any(prepared, name):
    learner, batches = learner_and_batches(prepared)
    for _ in range(20):
        if not taken(learner, batches).overflowed:
            break
    before = copy.deepcopy(learner.model.state_dict())
    state = {key: value.clone() for key, value in learner.optimizer.state_tensors().items()}
    scale, overflows = float(learner.loss_scale.value), learner.counters.overflows
    hook = learner.model.get_parameter(name).register_hook(lambda gradient: gradient * float("inf"))
    assert taken(learner, batches).overflowed
    assert all(torch.equal(value, before[key]) for key, value in learner.model.state_dict().items())
    assert all(torch.equal(value, state[key]) for key, value in learner.optimizer.state_tensors().items())
    assert learner.counters.overflows == overflows + 1 and learner.counters.skipped == 0
    assert float(learner.loss_scale.value) == scale / 2
    hook.remove()
    assert not taken(learner, batches).overflowed
    assert not any(torch.equal(p, before[key]) for key, p in learner.model.named_parameters() if "weight" in key)


def test_a_loss_that_is_not_finite_is_no_overflow(prepared):
    learner, batches = learner_and_batches(prepared)
    with torch.no_grad():
        learner.model.mlm_head.bias[5] = float("nan")
    outcome = taken(learner, batches)
    assert outcome.is_skipped and not outcome.overflowed
    assert learner.counters.skipped == 1 and learner.counters.overflows == 0


def test_at_a_scale_of_one_an_overflow_is_a_skipped_step(prepared):
    learner, batches = learner_and_batches(prepared)
    learner.loss_scale = LossScale(True, value=1.0)
    learner.model.bert.layers[0].qkv.weight.register_hook(lambda gradient: gradient * float("inf"))
    outcome = taken(learner, batches)
    assert outcome.is_skipped and not outcome.overflowed and float(learner.loss_scale.value) == 1.0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_in_other_arithmetic_there_is_no_loss_scale(prepared, precision):
    learner, batches = learner_and_batches(prepared, precision)
    assert float(learner.loss_scale.value) == 1.0
    learner.model.nsp_head.bias.register_hook(lambda gradient: gradient * float("inf"))
    assert taken(learner, batches).is_skipped and learner.counters.overflows == 0


def test_the_gradient_and_its_norm_do_not_depend_on_the_scale(prepared):
    found = []
    for value in (1.0, 256.0):
        learner, batches = learner_and_batches(prepared, "fp32", clip_norm=0.01)
        learner.loss_scale = LossScale(True, value=value)
        outcome = taken(learner, batches)
        found.append((outcome.norm, copy.deepcopy(learner.model.state_dict())))
    (norm, weights), (scaled_norm, scaled) = found
    assert scaled_norm == pytest.approx(norm, rel=1e-6) and norm > 0.01
    for name, value in weights.items():
        torch.testing.assert_close(scaled[name], value, rtol=1e-6, atol=1e-7)
