import json

import pytest
import torch

from pretrain.engine.counters import Counters, Outcome
from pretrain.engine.device import Arriving
from pretrain.engine.progress import MetricsFile, Progress


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
