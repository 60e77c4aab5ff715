"""The weight decay that a run chooses by itself."""

import re
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
from pretrain.resolve import automatic_weight_decay, may_decay_more, resolve
from pretrain.run import main
from pretrain.settings import PretrainSettings


@given(tokens=st.integers(1_000, 10**8), epochs=st.floats(0, 400))
def test_a_fresh_model_gets_more_where_it_reads_little_text_often(tokens, epochs):
    fresh = PretrainSettings(optimizer="muon")
    assert may_decay_more(fresh, tokens) == (tokens <= 1_500_000)
    assert automatic_weight_decay(epochs) == (0.4 if epochs >= 29.5 else 0.1)
    for other in (replace(fresh, optimizer="adamw"), replace(fresh, init_from="a-bert")):
        assert not may_decay_more(other, tokens)


@pytest.mark.parametrize(
    ("budget", "given", "expected"),
    [
        ("30epochs", {}, 0.4),
        ("29epochs", {}, 0.1),
        ("30epochs", {"weight_decay": 0.2}, 0.2),
        ("30epochs", {"examples": ExampleSettings(sequence_length=(24, 48))}, 0.4),
        ("29epochs", {"examples": ExampleSettings(sequence_length=(24, 48))}, 0.1),
        # 14,173 tokens are about 51 steps of examples of up to 24 tokens, and 22 of those of up to 48.
        ("1800steps", {"examples": ExampleSettings(sequence_length=(24, 48))}, 0.4),
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
    tokens = prepared.manifest["train"]["tokens"]
    chosen = with_weight_decay(with_batch_size(settings, phases, model), phases, model, tokens)
    assert chosen.weight_decay == expected
    groups = [
        group for part in Learner(chosen, model, objective, seed=1).optimizer.parts for group in part.param_groups
    ]
    assert {group["weight_decay"] for group in groups} == {0.0, expected}


@pytest.mark.parametrize(("times", "expected"), [(1, 0.4), (3, 0.1)])
def test_of_a_sample_the_size_of_the_whole_text_decides(times, expected, prepared):
    """A dry run prepares a part of the text: as many steps read the whole less often."""
    examples = ExampleSettings(sequence_length=24)
    given = PretrainSettings(prepared=str(prepared.folder), preset="tiny", budget="2000steps", device="cpu",
                             batch_size=16, examples=examples)  # fmt: skip
    settings = resolve(given)
    objective = make_objective(settings, prepared)
    phases, model = make_phases(settings, prepared, objective, World()), make_model(settings, prepared, objective)
    tokens = times * prepared.manifest["train"]["tokens"]
    assert with_weight_decay(settings, phases, model, tokens).weight_decay == expected


@pytest.mark.parametrize(("budget", "is_said"), [("2000steps", False), ("24000steps", True)])
def test_a_dry_run_counts_how_often_the_whole_text_is_read(budget, is_said, corpus_file, tmp_path, monkeypatch, capsys):
    """Not its sample, one file in six or two, which 2,000 steps read more than 30 times."""
    folder, text = tmp_path / "corpus", corpus_file.read_text()
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text(text.replace("the", f"the {number}"))
    monkeypatch.setattr("pretrain.dry_run.SAMPLE_BYTES", len(text) // 2)
    words = [f"--corpus={folder}", f"--out={tmp_path / 'run'}", "--preset=tiny", "--batch-size=16", "--device=cpu"]
    assert main([*words, "--sequence-length=24", f"--budget={budget}", "--dry-run", "--workers=1"]) == 0
    said = capsys.readouterr().out
    assert ("The weight decay is 0.4" in said) == is_said
    assert (float(re.search(r"\(([\d.]+) epochs\)", said)[1]) >= 30) == is_said


def test_a_run_writes_it_down_and_goes_on_with_it(prepared, tmp_path, capsys):
    """A budget that grows beyond the threshold changes nothing: one run has one weight decay."""
    out = tmp_path / "run"
    words = [f"--prepared={prepared.folder}", f"--out={out}", "--preset=tiny", "--batch-size=64", "--device=cpu",
             "--sequence-length=24"]  # fmt: skip
    assert main([*words, "--budget=2steps"]) == 0
    for folder, is_chosen in ((tmp_path / "fresh", True), (out, False)):
        assert main([*words, "--budget=600steps", "--dry-run", f"--out={folder}"]) == 0
        said = "The weight decay is 0.4, as so little text is read about" in capsys.readouterr().out
        assert said is is_chosen
    assert main([*words, "--budget=3steps"]) == 0
    assert yaml.safe_load((out / "settings.yaml").read_text())["weight_decay"] == 0.1
