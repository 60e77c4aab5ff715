"""Which of two segments is the longer one, beside masked words, handed in: no file of the product knows of it."""

import contextlib
import io
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


class LongerSegment(Part):
    """Whether the second segment of a pair has more tokens than the first."""

    name, learned, needs_pairs = "longer", "the longer of two segments", True
    metrics, baselines = ("longer_loss", "longer_accuracy", "longer_majority"), {"accuracy": "longer_majority"}

    def logits(self, scores):
        return scores.pair

    def targets(self, batch):
        return batch.pair_targets

    def modules(self, model):
        return [model.bert.pooler, model.nsp_head]

    def baseline_sums(self, batch):
        return {"second_longer": int((batch.pair_targets == 1).sum())}

    def results(self, sums):
        second = sums["second_longer"] / max(1, sums["longer"])
        return {**super().results(sums), "longer_majority": max(second, 1 - second)}

    def summary(self, results):
        return f"accuracy of lengths {results['longer_accuracy']:.1%}"

    def rows(self, results):
        found = results["longer_accuracy"], "share", results["longer_majority"]
        return [Row("accuracy of lengths", *found, "always one answer")]

    def warnings(self, rows, share):
        return {"length": "Warning: lengths are guessed."} if rows[-1]["validation"]["longer_accuracy"] < 2 else {}


class LengthMaker(BatchMaker):
    """Labels pairs by their lengths; an example of one segment has no label."""

    def packed(self, examples):
        longer = np.where(examples.b_length > 0, examples.b_length > examples.a_length, -100)
        return super().packed(replace(examples, label=longer.astype(np.int64)))


def masked_words_and_lengths(settings, prepared):
    return PretrainingObjective([MaskedWords(prepared.unigram_counts), LongerSegment()], batch_maker=LengthMaker)


def settings_of(prepared, out):
    return PretrainSettings(
        prepared=str(prepared.folder), out=str(out), budget="24steps", preset="tiny", batch_size=8, log_every=4,
        evaluations=2, device="cpu", precision="fp32", checkpoint_every="8steps", keep_checkpoints=9,
        examples=ExampleSettings(sequence_length=48), pair_weight=2.0,  # which is for next sentences
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(prepared):
    """Trains with the objective handed in; returns the folder."""
    return lambda out: pretrain(settings_of(prepared, out), masked_words_and_lengths)


@pytest.fixture(scope="module")
def finished_and_printed(run, tmp_path_factory):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        return run(tmp_path_factory.mktemp("lengths") / "run"), printed.getvalue()


@pytest.fixture(scope="module")
def finished(finished_and_printed):
    return finished_and_printed[0]


def test_it_trains_and_is_evaluated_beside_its_baselines(finished, prepared):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert all({"mlm_loss", "longer_loss"} < row.keys() for row in rows if "learning_rate" in row)
    found = json.loads((finished / "results.json").read_text())["validation"]
    assert set(found) == {*MaskedWords.metrics, *LongerSegment.metrics}
    assert 0.5 <= found["longer_majority"] < 0.7 and 0 < found["longer_loss"] < 0.8
    # The pair head has learned: it is not where it was drawn.
    model = BertForPreTraining.from_pretrained(finished / "final")
    assert model.nsp_head.bias.abs().min() > 0


def test_it_is_said_drawn_and_written_on_the_card(finished_and_printed):
    out, printed = finished_and_printed
    assert "accuracy of lengths" in printed and "  always one answer" in printed and "NSP" not in printed
    assert printed.count("lengths are guessed") == 1
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    card = (out / "final" / "README.md").read_text()
    assert "masked words (MLM) and the longer of two segments" in card and "| accuracy of lengths |" in card
    # What its own part has.
    assert "| pair_weight | 1.0 |" in card and "| pair_rate | 1.0 |" in card


def test_it_goes_on_to_the_bit(finished, run, stopped_at, capsys):
    stopped = stopped_at(finished, 8)
    run(stopped)
    assert f"Resuming from {stopped}/checkpoints/step-00000008." in capsys.readouterr().out
    ours, theirs = (load_file(out / "final" / "model.safetensors") for out in (stopped, finished))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_does_not_go_on_with_another_objective(is_finished, finished, tmp_path, prepared):
    out = shutil.copytree(finished, tmp_path / "run")
    if not is_finished:
        (out / "results.json").unlink()
    before = sorted(path.relative_to(out) for path in out.rglob("*"))
    with pytest.raises(PretrainError, match=r"learned mlm\+longer, not mlm\+nsp: give another --out"):
        pretrain(settings_of(prepared, out))
    assert sorted(path.relative_to(out) for path in out.rglob("*")) == before
