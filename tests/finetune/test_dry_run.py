"""The plan of a fine-tuning: it says what the run will do, and leaves nothing behind."""

import json
import re

import pytest

from finetune.finetuning import introduce
from finetune.resolve import resolve
from finetune.run import main
from finetune.settings import FinetuneSettings


def test_the_plan_is_that_of_the_run_and_nothing_is_left(encoder, make_rows, write_rows, tmp_path, capsys):
    train = write_rows(make_rows(60))
    given = [
        f"--model={encoder}",
        f"--train={train}",
        "--batch-size=8",
        "--budget=2epochs",
        "--seeds=2",
        "--device=cpu",
    ]
    assert main([*given, f"--out={tmp_path / 'run'}", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert main([*given, f"--out={tmp_path / 'run'}"]) == 0
    results = json.loads((tmp_path / "run" / "seed-1" / "results.json").read_text())
    assert int(re.search(r"steps +about (\d+) of 8 texts \(2\.0 epochs\)", printed)[1]) == results["steps"]
    assert "2epochs for each of 2 runs" in printed and "nearest run measured" in printed
    assert re.search(r"Example 1 \((heart|mask|number)\): \[CLS\] .* \[SEP\]", printed)


def test_a_budget_in_tokens_is_planned_in_steps(encoder, make_rows, write_rows, tmp_path, capsys):
    given = [f"--model={encoder}", f"--train={write_rows(make_rows(60))}", "--batch-size=8", "--budget=2000tokens"]
    given += ["--device=cpu", "--seeds=1", f"--out={tmp_path / 'run'}"]
    assert main([*given, "--dry-run"]) == 0
    planned = int(re.search(r"steps +about ([\d,]+) of 8 texts", capsys.readouterr().out)[1])
    assert main(given) == 0
    results = json.loads((tmp_path / "run" / "seed-1" / "results.json").read_text())
    assert 5 < results["steps"] < 50 and planned == pytest.approx(results["steps"], abs=2)


def test_no_text_is_in_the_plan_where_it_is_forbidden(encoder, make_rows, write_rows, tmp_path, capsys):
    train = write_rows(make_rows(60))
    assert main([f"--model={encoder}", f"--train={train}", "--dry-run", "--show-text=no", "--device=cpu"]) == 0
    printed = capsys.readouterr().out
    assert "Example" not in printed and "[CLS]" not in printed and "The plan" in printed


def test_cores_that_others_use_are_said(encoder, make_rows, write_rows, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pretrain.engine.threads.IdleCores", lambda: lambda: 0.2)
    given = [f"--model={encoder}", f"--train={write_rows(make_rows(60))}", "--batch-size=8", "--budget=2steps"]
    given += ["--device=cpu", "--threads=2", "--seeds=1", f"--out={tmp_path / 'run'}"]
    for more in ("--dry-run", "--evaluations=1"):
        assert main([*given, more]) == 0
        assert capsys.readouterr().out.count("2 of them may be half as fast as 1") == 1
    introduce(resolve(FinetuneSettings(model=str(encoder), grid="paper", device="cpu", threads=2, seeds=1)))
    assert "2 of them may be half as fast as 1" in capsys.readouterr().out
