import json
import os
import sys

import pytest
import torch

from pretrain.engine.counters import Counters, Outcome
from pretrain.engine.device import Arriving
from pretrain.engine.progress import MetricsFile, Progress


def test_losses_are_written_down_without_their_weights(tmp_path, capsys):
    """Each as it is, but what has no weight; what they add up to is with them."""
    progress = Progress(MetricsFile(tmp_path / "metrics.jsonl"), 2, None, None, {"nsp": 0.25, "soft": 0.0})
    counters = Counters()
    for number in (1, 2):
        arrived = Arriving(torch.tensor([4.0 * number, 0.5, 0.0, 1.0, 0.0, 0.0]))
        outcome = Outcome(number, 0.0, 0, 0.1, 1, ("mlm", "nsp", "soft"), arrived, list)
        progress.step(counters, outcome, 1.0, 0.1)
    progress.spike(counters, outcome)
    progress.close()
    row, found = map(json.loads, open(tmp_path / "metrics.jsonl"))
    assert {name: loss for name, loss in row.items() if name.endswith("_loss")} == {"mlm_loss": 6.0, "nsp_loss": 2.0}
    assert found["spike"] == {"mlm_loss": 8.0, "nsp_loss": 2.0, "loss": 8.5}
    printed = capsys.readouterr().out
    assert "mlm 6.000  nsp 2.000  lr" in printed and "the loss is 8.500" in printed


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_run_goes_on_where_nothing_can_be_printed(tmp_path, monkeypatch):
    """A full disk of the log, a terminal that is gone."""
    progress = Progress(MetricsFile(tmp_path / "metrics.jsonl"), 1, lambda results: "a line", lambda rows: None)
    with open("/dev/full", "w") as out, open("/dev/full", "w") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        arrived = Arriving(torch.tensor([4.0, 1.0, 0.0, 0.0]))
        outcome = Outcome(1, 0.0, 0, 0.1, 1, ("mlm",), arrived, list)
        progress.step(Counters(), outcome, 1.0, 0.5)
        progress.spike(Counters(), outcome)
        progress.evaluation(Counters(), {"mlm_loss": 4.0})
        progress.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_rows_stay_json_where_a_loss_is_not_a_number(tmp_path):
    progress = Progress(MetricsFile(tmp_path / "metrics.jsonl"), 2, None, None)
    counters = Counters()
    nan = float("nan")
    for number, loss in enumerate([nan, 2.0, nan, nan], 1):
        arrived = Arriving(torch.tensor([loss, nan, 1.0, 0.0]))
        progress.step(counters, Outcome(number, 0.0, 0, 0.1, 1, ("mlm",), arrived, list), 1.0, 0.1)
    progress.close()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in open(tmp_path / "metrics.jsonl")]
    assert [row.get("mlm_loss") for row in rows] == [2.0, None]
    assert all(row["grad_norm"] is None for row in rows)


def test_a_loss_without_a_target_is_no_loss(tmp_path):
    """Few examples are pairs: steps without one say nothing about next sentences."""
    progress, counters = Progress(MetricsFile(tmp_path / "metrics.jsonl"), 2, None, None), Counters()
    for number, nsp in enumerate([0.7, None, None, None, 0.6, 0.8], 1):
        arrived = Arriving(torch.tensor([4.0, nsp or 0.0, 1.0, 0.0, 0.0]))
        without = frozenset(() if nsp else ("nsp",))
        outcome = Outcome(number, 0.0, 0, 0.1, 1, ("mlm", "nsp"), arrived, list, without)
        progress.step(counters, outcome, 1.0, 0.1)
    progress.close()
    rows = [json.loads(line) for line in open(tmp_path / "metrics.jsonl")]
    assert [row.get("nsp_loss") for row in rows] == [pytest.approx(0.7), None, pytest.approx(0.7)]
    assert [row["mlm_loss"] for row in rows] == [4.0, 4.0, 4.0]


def test_counters_of_an_older_version_are_taken_over():
    assert Counters(losses={"mlm": 9.0, "nsp": 1.5, "steps": 3}).losses == {"mlm": [9.0, 3], "nsp": [1.5, 3]}


def test_the_time_left_follows_the_pace_of_this_process(tmp_path, capsys):
    """The run began on another machine and took 990 seconds there for a twentieth of its budget."""
    progress = Progress(MetricsFile(tmp_path / "metrics.jsonl"), 1, None, None)
    progress.begin(0, 990.0, 0.05)
    for number, (seconds, used) in enumerate([(1000.0, 0.1), (1010.0, 0.2), (1020.0, 0.3)], 1):
        arrived = Arriving(torch.tensor([4.0, 1.0, 0.0]))
        progress.step(Counters(), Outcome(number, 0.0, 100 * number, 0.1, 1, ("mlm",), arrived, list), seconds, used)
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("10 tokens/s  3 min 00 s left")
    assert lines[1].endswith("10 tokens/s  1 min 20 s left") and lines[2].endswith("10 tokens/s  1 min 10 s left")
