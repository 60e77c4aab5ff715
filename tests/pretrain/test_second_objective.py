"""Sentence order (Lan et al. 2020, section 3.1) beside masked words, handed in: no file of the product knows of it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from data_prep.settings import ExampleSettings
from model import BertForPreTraining
from pretrain.batches import BatchMaker
from pretrain.engine.settings import PretrainError
from pretrain.masked_words import MaskedWords
from pretrain.objective import Part, PretrainingObjective, Row
from pretrain.pretraining import pretrain
from pretrain.settings import PretrainSettings


class SentenceOrder(Part):
    """SOP: whether two segments that follow each other in the text stand in the other order."""

    name, learned, needs_pairs = "sop", "the order of sentences (SOP)", True
    metrics, baselines = ("sop_loss", "sop_accuracy", "sop_majority"), {"accuracy": "sop_majority"}

    def logits(self, scores):
        return scores.pair

    def targets(self, batch):
        return batch.pair_targets

    def modules(self, model):
        return [model.bert.pooler, model.nsp_head]

    def baseline_sums(self, batch):
        return {"sop_exchanged": int((batch.pair_targets == 1).sum())}

    def results(self, sums):
        exchanged = sums["sop_exchanged"] / max(1, sums["sop"])
        return {**super().results(sums), "sop_majority": max(exchanged, 1 - exchanged)}

    def summary(self, results):
        return f"SOP accuracy {results['sop_accuracy']:.1%}"

    def rows(self, results):
        return [Row("SOP accuracy", results["sop_accuracy"], "share", results["sop_majority"], "always one answer")]

    def warnings(self, rows, share):
        return {"order": "Warning: orders are guessed."} if rows[-1]["validation"]["sop_accuracy"] < 2 else {}


class OrderMaker(BatchMaker):
    """Exchanges the segments of half of the pairs that follow each other; other pairs have no label."""

    def packed(self, examples):
        follows, exchanged = examples.label == 0, (examples.label == 0) & (examples.key % 2 == 0)
        columns = ("a_start", "b_start"), ("b_start", "a_start"), ("a_length", "b_length"), ("b_length", "a_length")
        segments = {a: np.where(exchanged, getattr(examples, b), getattr(examples, a)) for a, b in columns}
        label = np.where(follows, exchanged, -100).astype(np.int64)
        return super().packed(replace(examples, **segments, label=label))


def masked_words_and_order(settings, prepared):
    return PretrainingObjective([MaskedWords(prepared.unigram_counts), SentenceOrder()], batch_maker=OrderMaker)


def settings_of(prepared, out):
    return PretrainSettings(
        prepared=str(prepared.folder), out=str(out), budget="24steps", preset="tiny", batch_size=8, log_every=4,
        evaluations=2, device="cpu", precision="fp32", checkpoint_every="8steps", keep_checkpoints=9,
        examples=ExampleSettings(sequence_length=48),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(prepared):
    """Trains with the objective handed in; returns the folder."""
    return lambda out: pretrain(settings_of(prepared, out), masked_words_and_order)


@pytest.fixture(scope="module")
def finished(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("order") / "run")


def test_it_trains_and_is_evaluated_beside_its_baselines(finished, prepared):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert all({"mlm_loss", "sop_loss"} < row.keys() for row in rows if "learning_rate" in row)
    found = json.loads((finished / "results.json").read_text())["validation"]
    assert set(found) == {*MaskedWords.metrics, *SentenceOrder.metrics}
    assert 0.5 <= found["sop_majority"] < 0.7 and found["sop_loss"] == pytest.approx(0.69, abs=0.1)
    # The pair head has learned: it is not where it was drawn.
    model = BertForPreTraining.from_pretrained(finished / "final")
    assert model.nsp_head.bias.abs().min() > 0


def test_it_is_said_drawn_and_written_on_the_card(run, tmp_path, capsys):
    out = run(tmp_path / "run")
    printed = capsys.readouterr().out
    assert "SOP accuracy" in printed and "  always one answer" in printed and "NSP" not in printed
    assert printed.count("orders are guessed") == 1
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    card = (out / "final" / "README.md").read_text()
    assert "masked words (MLM) and the order of sentences (SOP)" in card and "| SOP accuracy |" in card


def test_it_goes_on_to_the_bit(finished, run, tmp_path):
    stopped = tmp_path / "stopped"
    shutil.copytree(finished, stopped)
    shutil.rmtree(stopped / "final")
    (stopped / "results.json").unlink()
    for checkpoint in (stopped / "checkpoints").iterdir():
        if checkpoint.name > "step-00000008":
            shutil.rmtree(checkpoint)
    run(stopped)
    ours, theirs = (load_file(out / "final" / "model.safetensors") for out in (stopped, finished))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_does_not_go_on_with_another_objective(is_finished, finished, tmp_path, prepared):
    out = shutil.copytree(finished, tmp_path / "run")
    if not is_finished:
        (out / "results.json").unlink()
    before = sorted(path.relative_to(out) for path in out.rglob("*"))
    with pytest.raises(PretrainError, match=r"learned mlm\+sop, not mlm\+nsp: give another --out"):
        pretrain(settings_of(prepared, out))
    assert sorted(path.relative_to(out) for path in out.rglob("*")) == before
