"""The grid of the paper: every candidate is trained once, the best one stays."""

import json

import pytest

from finetune import candidates
from finetune.candidates import RATE_SHARES, candidate_rates, paper_grid, ways
from finetune.compare import named_runs
from finetune.run import main
from finetune.settings import FinetuneSettings
from pretrain.engine import loop
from pretrain.engine.distributed import World

OPTIONS = ["--device=cpu", "--precision=fp32", "--threads=1"]


def results_of(out):
    return json.loads((out / "results.json").read_text())


def test_the_grid_is_that_of_the_paper_at_the_rates_of_the_model(encoder):
    found = paper_grid(FinetuneSettings(model=str(encoder)))
    assert len(found) == 18 and {c["batch_size"] for c in found.values()} == {16, 32}
    assert {c["budget"] for c in found.values()} == {"2epochs", "3epochs", "4epochs"}
    assert all(c["budget"] == f"{c['evaluations']}epochs" for c in found.values())
    rates = sorted({c["learning_rate"] for c in found.values()}, reverse=True)
    assert [rate / rates[0] for rate in rates] == pytest.approx([1, 0.6, 0.4], rel=0.05)


def test_every_model_of_a_comparison_has_the_grid(encoder, tmp_path):
    settings = FinetuneSettings(model=str(encoder), out=str(tmp_path / "both"), grid="paper", compare=("scratch",))
    assert [len(ways(run)) for run in named_runs(settings, World()).values()] == [18, 18]


@pytest.mark.slow
def test_the_best_of_the_grid_stays_and_the_run_goes_on(encoder, make_rows, write_rows, tmp_path, one_thread, capsys):
    out = tmp_path / "run"
    given = [f"--model={encoder}", f"--train={write_rows(make_rows(48))}", f"--out={out}", *OPTIONS]
    given += ["--grid=paper", "--seeds=2", "--metric=loss"]
    assert main(given) == 0
    results, grid = results_of(out), json.loads((out / "grid.json").read_text())
    assert len(grid["tried"]) == 18
    assert grid["chosen"] == min(grid["tried"], key=lambda name: grid["tried"][name]["loss"])
    first = results_of(out / "seed-1")
    assert first["validation"] == grid["tried"][grid["chosen"]] and not (out / "grid").exists()
    assert results["learning_rate"] == paper_grid(FinetuneSettings(model=str(encoder)))[grid["chosen"]]["learning_rate"]
    # What was found is taken up, not searched again.
    assert results["grid"] == {"chosen": grid["chosen"], "tried": grid["tried"]}
    (out / "results.json").unlink()
    capsys.readouterr()
    # By the settings that it has written down, too.
    assert main([f"--config={out / 'settings.yaml'}"]) == 0
    assert "is the best" not in capsys.readouterr().out and results_of(out) == results


@pytest.mark.slow
def test_an_interrupted_grid_ends_as_one_that_was_not(
    encoder, make_rows, write_rows, tmp_path, one_thread, monkeypatch
):
    rows = write_rows(make_rows(48))

    def given(name):
        return [f"--model={encoder}", f"--train={rows}", f"--out={tmp_path / name}", *OPTIONS, "--grid=paper",
                "--seeds=2", "--checkpoint-every=2steps"]  # fmt: skip

    step, calls = loop.step, []

    def counted(learner, batches):
        calls.append(1)
        if len(calls) in ends:
            raise KeyboardInterrupt
        return step(learner, batches)

    monkeypatch.setattr(loop, "step", counted)
    # Both sizes, all rates and all numbers of epochs are among them.
    whole_grid = candidates.paper_grid
    monkeypatch.setattr(candidates, "paper_grid", lambda settings: dict(list(whole_grid(settings).items())[::4]))
    ends = ()
    assert main(given("whole")) == 0
    steps = len(calls)
    calls.clear()
    # Inside candidates (of 4 to 12 steps), and inside the second seed.
    ends = (5, 20, 21, steps - 1)
    assert [main(given("parts")) for _ in range(5)] == [130] * 4 + [0]
    # At most the step that did not end and the one since the last checkpoint are taken again.
    assert len(calls) <= steps + 2 * 4
    whole, parts = ({**results_of(tmp_path / name), "seconds": 0, "search_seconds": 0} for name in ("whole", "parts"))
    assert parts == whole
    grids = [json.loads((tmp_path / name / "grid.json").read_text()) | {"seconds": 0} for name in ("whole", "parts")]
    weights = [(tmp_path / name / "final" / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert grids[0] == grids[1] and weights[0] == weights[1]


@pytest.mark.parametrize("option", ["--learning-rate=1e-3", "--budget=2epochs", "--batch-size=8", "--evaluations=7"])
def test_what_the_grid_chooses_is_not_given(encoder, make_rows, write_rows, tmp_path, capsys, option):
    given = [f"--model={encoder}", f"--train={write_rows(make_rows(48))}", f"--out={tmp_path / 'x'}", *OPTIONS]
    assert main([*given, "--grid=paper", option]) == 2
    assert "--grid paper chooses" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--layer-decay=0", "--layer-decay=1.5", "--unfreeze=1"])
def test_shares_out_of_range_are_refused(encoder, tmp_path, capsys, option):
    assert main([f"--model={encoder}", f"--out={tmp_path / 'x'}", option]) == 2
    assert option.split("=")[0] in capsys.readouterr().err


def test_rates_by_depth_act_on_a_run(encoder, make_rows, write_rows, tmp_path, one_thread):
    train, weights = write_rows(make_rows(48)), {}
    for name, options in {"plain": [], "decay": ["--layer-decay=0.5"], "late": ["--unfreeze=0.9"]}.items():
        given = [f"--model={encoder}", f"--train={train}", f"--out={tmp_path / name}", *OPTIONS, "--seeds=1"]
        assert main([*given, "--budget=6steps", "--evaluations=1", *options]) == 0
        weights[name] = (tmp_path / name / "final" / "model.safetensors").read_bytes()
    assert len(set(weights.values())) == 3


def test_the_highest_rate_of_the_grid_is_the_usual_one(encoder):
    """5e-5 of 2e-5, 3e-5 and 5e-5, which is what a BERT of 768 units takes."""
    settings = FinetuneSettings(model=str(encoder))
    usual = candidate_rates(settings)[RATE_SHARES.index(1.0)]
    rates = sorted({way["learning_rate"] for way in paper_grid(settings).values()})
    assert rates == pytest.approx([0.4 * usual, 0.6 * usual, usual], rel=0.05)
