"""The trainings that the benchmark of learning compares are those of the product."""

import importlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data_prep.settings import ExampleSettings
from pretrain.engine.distributed import World
from pretrain.engine.process import Interruption
from pretrain.pretraining import Pretraining, resolved
from pretrain.settings import PretrainSettings

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_timed_training_learns_and_is_judged(prepared, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    timed = importlib.import_module("timed_training")
    terms = timed.Terms(budget="2s", device="cpu", sequence_length=48, points=2, examples_a_point=8, examples=16)
    row = timed.ours(replace(terms.settings(prepared.folder), preset="tiny"), terms)
    assert row["steps"] > 0 and 0 < row["mlm_loss"] < math.log(prepared.tokenizer.vocab_size)


@pytest.mark.parametrize(("budget", "may_change"), [("1s", True), ("2steps", False)])
def test_a_run_computes_with_the_threads_that_its_budget_allows(prepared, tmp_path, budget, may_change, monkeypatch):
    # Else it takes all of a second.
    monkeypatch.setattr("pretrain.evaluate._SAVING", 0.1)

    class Watched(Pretraining):
        def make_run(self, *given):
            self.made = super().make_run(*given)
            return self.made

    before, out = torch.get_num_threads(), tmp_path / "run"
    examples = ExampleSettings(sequence_length=48)
    settings = PretrainSettings(prepared=str(prepared.folder), budget=budget, preset="tiny", device="cpu", threads=2,
                                evaluations=1, batch_size=8, examples=examples)  # fmt: skip
    torch.set_num_threads(2)
    try:
        pretraining = Watched(resolved(settings, out), out, World(), Interruption())
        out.mkdir()
        pretraining.run()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert pretraining.made.threads is pretraining.threads and pretraining.threads.may_change == may_change
