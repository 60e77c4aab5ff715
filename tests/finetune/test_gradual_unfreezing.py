"""ULMFiT's third step (Howard and Ruder 2018, section 3): which weights moved in which epoch, at which rates."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from finetune.run import main
from finetune.training import SeedTraining
from pretrain.engine import loop
from pretrain.engine.step import Learner

LAYERS, EPOCHS, PEAK = 2, 6, 1e-3
# From the top down: when each begins to learn, and at which share of the rate.
EXPECTED = {"head": (0, 1.0), "layer 1": (1, 1 / 2.6), "layer 0": (2, 1 / 2.6**2), "embeddings": (3, 1 / 2.6**3)}


def part_of(name: str) -> str:
    """Where a parameter stands."""
    if found := re.search(r"layers\.(\d)", name):
        return f"layer {found[1]}"
    return "embeddings" if "embeddings" in name else "head"


@dataclass
class Seen:
    """What a run did, seen from outside: the rates of every step, and the weights at the end of every epoch."""

    rates: list[dict[str, float]] = field(default_factory=list)
    """Of each step, by the name of the parameter."""
    weights: list[dict[str, Tensor]] = field(default_factory=list)

    def step(self, timed_step: Callable) -> Callable:
        def watched(learner: Learner, *more):
            if not self.weights:
                self.weights.append(weights(learner.model))
            names = {id(parameter): name for name, parameter in learner.model.named_parameters()}
            groups = [group for part in learner.optimizer.parts for group in part.param_groups]
            self.rates.append({names[id(p)]: group["lr"] for group in groups for p in group["params"]})
            return timed_step(learner, *more)

        return watched

    def evaluation(self, evaluate: Callable) -> Callable:
        def watched(training: SeedTraining, model: nn.Module):
            self.weights.append(weights(model))
            return evaluate(training, model)

        return watched


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def seen(encoder, make_rows, tmp_path_factory, one_thread) -> Seen:
    """A run of six epochs in which one more part begins to learn in each of the first four."""
    folder, found = tmp_path_factory.mktemp("unfreezing"), Seen()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows(54)))
    given = [f"--model={encoder}", f"--train={folder / 'train.jsonl'}", f"--out={folder / 'run'}", "--seeds=1",
             f"--budget={EPOCHS}epochs", f"--learning-rate={PEAK}", "--batch-size=8", "--device=cpu", "--threads=1",
             "--precision=fp32", f"--layer-decay={1 / 2.6}", f"--unfreeze={(LAYERS + 1) / EPOCHS}"]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "timed_step", found.step(loop.timed_step))
        patch.setattr(SeedTraining, "_evaluate", found.evaluation(SeedTraining._evaluate))
        assert main(given) == 0
    return found


def test_one_more_layer_moves_in_each_epoch_from_the_top(seen):
    assert len(seen.weights) == EPOCHS + 1
    for epoch, (before, after) in enumerate(zip(seen.weights, seen.weights[1:], strict=False)):
        for name, weight in after.items():
            begins, _ = EXPECTED[part_of(name)]
            assert torch.equal(weight, before[name]) == (epoch < begins), (epoch, name)


def test_the_table_of_the_rates_is_that_of_the_paper(seen):
    """In every step each layer has 1/2.6 of the rate of the one above it, or 0 before its epoch."""
    steps = len(seen.rates)
    assert steps % EPOCHS == 0
    for step, rates in enumerate(seen.rates):
        epoch, (top,) = step * EPOCHS // steps, {rate for name, rate in rates.items() if part_of(name) == "head"}
        for name, rate in rates.items():
            begins, share = EXPECTED[part_of(name)]
            assert rate == pytest.approx(top * share if epoch >= begins else 0.0), (step, name)


def slanted_triangle(step: float, steps: int, cut_share: float = 0.1, ratio: float = 32) -> float:
    """The share of the peak in a step (Howard and Ruder 2018, equation 3)."""
    cut = steps * cut_share
    p = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / cut_share - 1))
    return (1 + p * (ratio - 1)) / ratio


def test_the_rate_is_a_slanted_triangle_but_for_its_feet(seen):
    """It begins at a hundredth and ends at nothing, where that of the paper does at 1/32."""
    steps = len(seen.rates)
    for step, rates in enumerate(seen.rates):
        assert max(rates.values()) / PEAK == pytest.approx(slanted_triangle(step, steps), abs=1 / 32)
