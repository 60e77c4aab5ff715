"""What earlier versions wrote is opened and gone on with: the folders under formats/, each made by its version."""

import csv
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertForPreTraining, BertForSequenceClassification

import data_prep.run
import finetune.predict
import finetune.run
import pretrain.run

FORMATS = Path(__file__).parent / "formats"
VERSIONS = sorted(path.name for path in FORMATS.iterdir() if path.is_dir() and path.name[0].isdigit())
_spec = importlib.util.spec_from_file_location("make_formats", FORMATS / "make.py")
made = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made)


@pytest.fixture(params=VERSIONS)
def version(request, tmp_path, monkeypatch) -> Path:
    """A copy of what a version made, to work in."""
    folder = tmp_path / request.param
    shutil.copytree(FORMATS / request.param, folder)
    monkeypatch.chdir(folder)
    return folder


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def test_there_is_a_version_to_open():
    assert VERSIONS


def test_a_prepared_corpus_is_taken_as_it_is(version, capsys):
    before = content(version / "prepared")
    assert data_prep.run.main(made.PREPARE) == 0, capsys.readouterr().err
    assert content(version / "prepared") == before


def test_a_finished_run_is_known(version, capsys):
    before = content(version / "run")
    assert pretrain.run.main([*made.PRETRAIN, made.BUDGET]) == 0, capsys.readouterr().err
    assert "holds this run, finished" in capsys.readouterr().out
    assert content(version / "run") == before


def test_a_run_goes_on_with_its_optimizer_and_its_rows(version, capsys):
    rows = (version / "run" / "metrics.jsonl").read_text().splitlines()
    assert pretrain.run.main([*made.PRETRAIN, "--budget=30steps"]) == 0, capsys.readouterr().err
    # The schedule had decayed from step 17 on, and is extended from there.
    assert f"Resuming from {Path('run/checkpoints/step-00000017')}." in capsys.readouterr().out
    now = [json.loads(line) for line in (version / "run" / "metrics.jsonl").read_text().splitlines()]
    assert now[:2] == [json.loads(line) for line in rows[:2]] and now[-1]["step"] == 30
    assert json.loads((version / "run" / "results.json").read_text())["steps"] == 30


def test_a_damaged_byte_in_a_checkpoint_is_noticed(version, capsys):
    path = version / "run" / "checkpoints" / "step-00000020" / "training_state" / "optimizer.safetensors"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    pretrain.run.main([*made.PRETRAIN, "--budget=30steps"])
    printed = capsys.readouterr()
    assert "step-00000020" in printed.out + printed.err and "damaged" in printed.out + printed.err


def test_a_fine_tuning_is_known_and_gets_another_seed(version, capsys):
    assert finetune.run.main(made.FINETUNE) == 0, capsys.readouterr().err
    # What the results of that version lack is written at first.
    assert finetune.run.main(made.FINETUNE) == 0, capsys.readouterr().err
    assert "holds this run, finished" in capsys.readouterr().out
    before = content(version / "labels" / "seed-1")
    assert finetune.run.main([*made.FINETUNE, "--seeds=2"]) == 0, capsys.readouterr().err
    assert content(version / "labels" / "seed-1") == before


def test_a_fine_tuned_folder_predicts_what_it_did(version, capsys):
    before = list(csv.reader(open("predicted.csv")))
    Path("predicted.csv").unlink()
    assert finetune.predict.main(made.PREDICT) == 0, capsys.readouterr().err
    now = list(csv.reader(open("predicted.csv")))
    assert now[0] == before[0] and len(now) == len(before) == 61
    assert len({row[2] for row in now[1:]}) == 2, "of one class only: nothing is compared"
    for row, expected in zip(now[1:], before[1:], strict=True):
        assert row[:3] == expected[:3]
        assert list(map(float, row[3:])) == pytest.approx(list(map(float, expected[3:])), abs=1e-3)


def test_transformers_opens_the_folders(version):
    for folder in ("bert", "run/final", "run/checkpoints/step-00000020"):
        BertForPreTraining.from_pretrained(version / folder)
        assert AutoTokenizer.from_pretrained(version / folder)("pain")["input_ids"]
    BertForSequenceClassification.from_pretrained(version / "labels" / "final")
