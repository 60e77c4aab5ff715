"""The weight decay that a run chooses by itself."""

from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from data_prep.settings import ExampleSettings
from pretrain.build import make_model
from pretrain.engine.distributed import World
from pretrain.engine.step import Learner
from pretrain.objectives import make_objective
from pretrain.phases import make_phases, with_batch_size, with_weight_decay
from pretrain.resolve import automatic_weight_decay, resolve
from pretrain.run import main
from pretrain.settings import PretrainSettings


@given(tokens=st.integers(1_000, 10**8), epochs=st.floats(0, 400))
def test_a_fresh_model_gets_more_where_it_reads_little_text_often(tokens, epochs):
    fresh = PretrainSettings(optimizer="muon")
    is_little = tokens <= 1_500_000 and epochs >= 29.5
    assert automatic_weight_decay(fresh, tokens, epochs) == (0.4 if is_little else 0.1)
    for other in (replace(fresh, optimizer="adamw"), replace(fresh, init_from="a-bert")):
        assert automatic_weight_decay(other, tokens, epochs) == 0.1


@pytest.mark.parametrize(
    ("budget", "given", "expected"),
    [
        ("30epochs", {}, 0.4),
        ("29epochs", {}, 0.1),
        ("30epochs", {"weight_decay": 0.2}, 0.2),
        ("30epochs", {"examples": ExampleSettings(sequence_length=(24, 48))}, 0.4),
        ("29epochs", {"examples": ExampleSettings(sequence_length=(24, 48))}, 0.1),
        # 14,173 tokens are about 40 steps at 24 tokens an example and 20 at 48, so 38 in the mean.
        ("1300steps", {"examples": ExampleSettings(sequence_length=(24, 48))}, 0.4),
        ("900steps", {"examples": ExampleSettings(sequence_length=(24, 48))}, 0.1),
        ("600ktokens", {}, 0.4),
        ("300ktokens", {}, 0.1),
        ("1000h", {}, 0.4),
        ("0.01s", {}, 0.1),
    ],
)
def test_it_is_chosen_by_how_often_a_budget_reads_the_text(budget, given, expected, prepared):
    given = {"examples": ExampleSettings(sequence_length=24)} | given
    settings = resolve(
        PretrainSettings(
            prepared=str(prepared.folder), preset="tiny", budget=budget, batch_size=16, device="cpu", **given
        )
    )
    objective = make_objective(settings, prepared)
    phases, model = make_phases(settings, prepared, objective, World()), make_model(settings, prepared, objective)
    chosen = with_weight_decay(with_batch_size(settings, phases, model), phases, model)
    assert chosen.weight_decay == expected
    groups = [
        group for part in Learner(chosen, model, objective, seed=1).optimizer.parts for group in part.param_groups
    ]
    assert {group["weight_decay"] for group in groups} == {0.0, expected}


def test_a_run_writes_it_down_and_goes_on_with_it(prepared, tmp_path, capsys):
    """A budget that grows beyond the threshold changes nothing: one run has one weight decay."""
    out = tmp_path / "run"
    words = [f"--prepared={prepared.folder}", f"--out={out}", "--preset=tiny", "--batch-size=512", "--device=cpu"]
    assert main([*words, "--budget=2steps"]) == 0
    assert main([*words, "--budget=60steps", "--dry-run"]) == 0
    assert "The weight decay is 0.4, as so little text is read about" in capsys.readouterr().out
    assert main([*words, "--budget=3steps"]) == 0
    assert yaml.safe_load((out / "settings.yaml").read_text())["weight_decay"] == 0.1
