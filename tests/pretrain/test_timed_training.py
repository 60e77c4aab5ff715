"""The trainings that the benchmark of learning compares are those of the product."""

import importlib
from dataclasses import replace
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_timed_training_learns_and_is_judged(prepared, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    timed = importlib.import_module("timed_training")
    terms = timed.Terms(seconds=2.0, device="cpu", sequence_length=48, points=2, examples_a_point=8, examples=16)
    row = timed.ours(replace(terms.settings(prepared.folder), preset="tiny"), terms)
    assert row["steps"] > 0 and 0 < row["mlm_loss"] < 20
