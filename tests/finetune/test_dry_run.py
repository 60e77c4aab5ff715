"""The plan of a fine-tuning: it says what the run will do, and leaves nothing behind."""

import json
import re
from contextlib import contextmanager
from dataclasses import replace

import pytest

from finetune import dry_run
from finetune.candidates import candidate_rates
from finetune.finetuning import introduce
from finetune.resolve import resolve, with_budget
from finetune.run import main
from finetune.settings import FinetuneSettings
from model import BertForPreTraining
from model.families import read_config
from pretrain.engine import checkpoint
from pretrain.engine.checkpoint import save_model_folder


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
    assert main([*given, f"--out={tmp_path / 'run'}", "--dry-run"]) == 0
    assert f"{tmp_path / 'run'} holds this run already" in capsys.readouterr().out
    for more in (["--budget=1epochs"], ["--folds=2"], [f"--out={tmp_path}"]):
        found = []
        for dry in ([], ["--dry-run"]):
            assert main([*given, f"--out={tmp_path / 'run'}", *more, *dry]) == 2
            found.append(capsys.readouterr().err)
        assert found[0] == found[1] and "holds" in found[0]


def test_each_model_of_a_comparison_has_a_plan_of_its_own(
    encoder, small_tokenizer, write_rows, make_rows, tmp_path, capsys
):
    """A wide model trains for fewer epochs, at lower rates."""
    config = replace(read_config(encoder), hidden_size=256, num_attention_heads=4)
    save_model_folder(BertForPreTraining(config), small_tokenizer, tmp_path / "wide")
    given = [f"--model={encoder}", f"--compare={tmp_path / 'wide'}", f"--train={write_rows(make_rows(1500))}"]
    given += ["--device=cpu", "--seeds=2", f"--out={tmp_path / 'run'}"]
    assert main([*given, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    first, second, whole = re.split(r"^=== |^All 2 models", printed, flags=re.MULTILINE)[1:]
    found = [
        (int(re.search(r"budget +(\d+)epochs for each of 4 runs", plan)[1]),
         [float(rate) for rate in re.search(r"learning rate +(.+)", plan)[1].split(" or ")])
        for plan in (first, second)
    ]  # fmt: skip
    expected = []
    for model in (encoder, tmp_path / "wide"):
        settings = resolve(FinetuneSettings(model=str(model), learning_rate="search", device="cpu"))
        budget = with_budget(settings, 1350).budget
        expected.append((int(budget.removesuffix("epochs")), candidate_rates(settings)))
    assert found == expected and found[0] != found[1]
    assert "Example 1" in first and "Example 1" not in second and "GB on disk" in whole


@pytest.mark.parametrize(
    ("more", "schedule"), [(("--folds=3",), "linear"), (("--learning-curve",), "linear"), ((), "warmup-stable-decay")]
)
def test_the_disk_is_that_of_all_models_and_checkpoints(
    more, schedule, encoder, make_rows, write_rows, tmp_path, capsys, monkeypatch
):
    """As many as the run has at once."""
    takes, at_once, whole = [], [0], checkpoint.whole_folder

    @contextmanager
    def counted(final, size):
        with whole(final, size) as folder:
            yield folder
        if final.parent.name == "checkpoints":
            at_once.append(len(list(final.parent.glob("step-*"))))

    monkeypatch.setattr(checkpoint, "whole_folder", counted)
    printed = dry_run._print_plan
    monkeypatch.setattr(dry_run, "_print_plan", lambda *facts: takes.append(printed(*facts)) or takes[-1])
    given = [f"--model={encoder}", f"--train={write_rows(make_rows(240))}", "--batch-size=8", "--budget=20steps"]
    given += ["--device=cpu", "--seeds=1", f"--out={tmp_path / 'run'}", "--evaluations=4", f"--schedule={schedule}"]
    given += ["--checkpoint-every=1steps", "--learning-rate=1e-4", *more]
    assert main([*given, "--dry-run"]) == 0 and main(given) == 0
    models = list((tmp_path / "run").glob("**/model.safetensors"))
    size = models[0].stat().st_size
    assert takes[0].models == pytest.approx(len(models) * size, rel=0.05)
    assert max(at_once) == (5 if schedule == "warmup-stable-decay" else 4) == round(takes[0].checkpoints / (3 * size))


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
