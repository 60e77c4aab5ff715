import json
import shutil
import signal

import numpy as np
import pytest

from finetune import training
from finetune.candidates import candidate_rates
from finetune.resolve import resolve
from finetune.run import main
from finetune.settings import FinetuneSettings
from pretrain.engine import loop


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def weights(seed_folder):
    return (seed_folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def given(encoder, make_rows, tmp_path_factory):
    """(out, more, options) -> the arguments of a run on texts of which some have a wrong label."""
    folder = tmp_path_factory.mktemp("texts")
    files = {}
    for name, first in (("train", 0), ("validation", 100), ("test", 200)):
        rows = make_rows(30, first)
        for row in rows[:4]:
            row["label"] = "number" if row["label"] != "number" else "heart"
        files[name] = folder / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    fixed = {"model": encoder, **files, "budget": "12steps", "batch-size": 8, "evaluations": 2, "metric": "loss"}
    fixed |= {"learning-rate": "search", "precision": "fp32", "device": "cpu"}
    # Calibrated, so that something is decided on the validation texts that acts on the test texts.
    return lambda out, *more, **options: [
        *(f"--{k}={v}" for k, v in (fixed | {"out": out} | options).items()),
        "--calibrate",
        *more,
    ]


@pytest.fixture(scope="module")
def searched(given, tmp_path_factory):
    out = tmp_path_factory.mktemp("searched") / "out"
    assert main(given(out, seeds=2)) == 0
    return out


def test_the_best_rate_on_the_validation_texts_is_that_of_all_seeds(searched, encoder):
    found = results_of(searched)
    tried = {rate: scores["loss"] for rate, scores in found["learning_rates_tried"].items()}
    assert [float(rate) for rate in tried] == candidate_rates(FinetuneSettings(model=str(encoder)))
    best = min(tried, key=tried.get)
    assert found["learning_rate"] == float(best) and len(set(tried.values())) == 3
    assert found["validation"]["loss"]["seeds"][0] == tried[best]
    assert {results_of(searched / seed)["learning_rate"] for seed in ("seed-1", "seed-2")} == {float(best)}
    assert {path.name for path in searched.iterdir()} >= {"rates.json", "seed-1", "seed-2", "final"}
    assert not (searched / "rates").exists()
    of_seeds = sum(results_of(searched / seed)["seconds"] for seed in ("seed-1", "seed-2"))
    assert found["search_seconds"] > 0 and found["seconds"] == pytest.approx(of_seeds + found["search_seconds"])


def test_the_seed_of_a_search_is_trained_again_as_it_was(searched, given, tmp_path, monkeypatch):
    """Once, whether it learned something or not."""
    out = tmp_path / "out"
    shutil.copytree(searched, out)
    shutil.rmtree(out / "seed-1")
    (out / "results.json").unlink()
    most, made = {}, training.SeedTraining.__init__

    def noted(self, settings, seed, *facts, **more):
        made(self, settings, seed, *facts, **more)
        most[seed] = self.most_restarts

    monkeypatch.setattr(training.SeedTraining, "__init__", noted)
    assert main(given(out, seeds=2)) == 0 and most == {1: 0, 2: 2}
    assert weights(out / "seed-1") == weights(searched / "seed-1")


def test_what_was_found_is_what_a_run_at_that_rate_gives(searched, given, tmp_path):
    rate = results_of(searched)["learning_rate"]
    assert main(given(tmp_path / "run", seeds=2, **{"learning-rate": rate})) == 0
    for seed in ("seed-1", "seed-2"):
        assert weights(tmp_path / "run" / seed) == weights(searched / seed)
        one, two = (folder / seed for folder in (tmp_path / "run", searched))
        timing = {"seconds": 0, "saving_seconds": 0}
        assert results_of(one) | timing == results_of(two) | timing
        for part in ("validation", "test"):
            assert np.array_equal(training.outputs_of(one, part), training.outputs_of(two, part))
    assert results_of(tmp_path / "run")["learning_rates_tried"] is None


def test_what_is_tried_is_not_asked_about_the_test_texts(given, tmp_path, monkeypatch):
    asked, outputs = [], training.Predictor.outputs

    def noted(predictor, examples):
        asked.append(examples[0].place.partition(".")[0])
        return outputs(predictor, examples)

    monkeypatch.setattr(training.Predictor, "outputs", noted)
    assert main(given(tmp_path / "out", seeds=1, budget="2steps")) == 0
    assert asked == ["validation"] * 3 + ["test"]


def test_candidates_are_spread_around_the_usual_rate_of_a_model(encoder):
    settings = FinetuneSettings(model=str(encoder))
    tried, usual = candidate_rates(settings), resolve(settings).learning_rate
    assert tried == sorted(tried) and len(tried) == 3
    assert tried[0] < usual < tried[2]


@pytest.mark.parametrize("number", [0, 3])
def test_a_search_that_is_interrupted_goes_on(number, searched, given, tmp_path, monkeypatch):
    """In the first training, or in that of the second seed."""
    out, step, trained = tmp_path / "out", loop.step, []
    train = training.train

    def counted(run, batches, evaluate):
        trained.append(run.counters.step)
        train(run, batches, evaluate)

    def interrupted(run, batches):
        outcome = step(run, batches)
        if len(trained) == number + 1 and run.counters.step == 5:
            signal.raise_signal(signal.SIGTERM)
        return outcome

    monkeypatch.setattr(training, "train", counted)
    monkeypatch.setattr(loop, "step", interrupted)
    assert main(given(out, seeds=2)) == 75
    monkeypatch.setattr(loop, "step", step)
    assert main(given(out, seeds=2)) == 0
    # Four trainings, one of them in two parts.
    assert trained == [0] * (number + 1) + [5] + [0] * (3 - number)
    for seed in ("seed-1", "seed-2"):
        assert weights(out / seed) == weights(searched / seed)
    assert results_of(out)["learning_rates_tried"] == results_of(searched)["learning_rates_tried"]


def test_a_search_that_ended_right_after_its_choice_keeps_what_it_trained(searched, given, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(searched, out)
    rate = f"{results_of(out)['learning_rate']:g}"
    (out / "results.json").unlink()
    (out / "rates").mkdir()
    (out / "seed-1").rename(out / "rates" / rate)
    before = (out / "rates" / rate / "results.json").stat().st_mtime_ns
    assert main(given(out, seeds=2)) == 0
    assert (out / "seed-1" / "results.json").stat().st_mtime_ns == before and not (out / "rates").exists()
    assert results_of(out)["validation"] == results_of(searched)["validation"]


def test_more_seeds_take_the_rate_that_was_found(searched, given, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(searched, out)
    assert main(given(out, seeds=3)) == 0
    assert results_of(out / "seed-3")["learning_rate"] == results_of(searched)["learning_rate"]
    assert weights(out / "seed-2") == weights(searched / "seed-2")


@pytest.mark.slow
def test_a_comparison_finds_a_rate_for_each_model_among_as_many(given, tmp_path):
    out = tmp_path / "out"
    assert main(given(out, "--compare", "scratch", **{"learning-rate": "auto"})) == 0
    models = {name: found for name, found in results_of(out)["models"].items() if found["learning_rate"]}
    assert list(models) == ["run", "run, not pretrained"]
    table = (out / "comparison.md").read_text()
    for name, found in models.items():
        rate, tried = f"{found['learning_rate']:g}", list(found["learning_rates_tried"])
        assert len(tried) == 3 and rate in tried
        row = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
        assert row.endswith(f"| {rate} ({', '.join(tried)}) |")
    assert "that was best for it on the validation texts" in table


def test_a_rate_that_is_given_is_that_of_every_model_compared(given, tmp_path):
    out = tmp_path / "out"
    assert main(given(out, "--compare", "scratch", budget="2steps", **{"learning-rate": 0.002})) == 0
    models = results_of(out)["models"]
    assert [found["learning_rate"] for found in models.values()] == [0.002, 0.002, None, None]
    assert not any(found["learning_rates_tried"] for found in models.values())


def test_the_plan_counts_the_trainings_of_a_search(given, tmp_path, capsys):
    assert main(given(tmp_path / "out", "--compare", "scratch", "--dry-run", seeds=2)) == 0
    # Of each model the first seed at three rates, the second at one.
    assert capsys.readouterr().out.count("for each of 4 runs") == 2
