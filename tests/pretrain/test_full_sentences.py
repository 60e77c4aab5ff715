"""Runs on full sentences: they resume, are evaluated and open as any other, and are refused where pairs are learned."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import BertForMaskedLM, BertForPreTraining

from data_prep.examples.full_sentences import FullShardExamples
from data_prep.settings import ExampleSettings
from pretrain.engine.settings import PretrainError
from pretrain.objectives import bert_objective
from pretrain.pretraining import pretrain
from pretrain.run import main
from pretrain.settings import PretrainSettings

VOLATILE = ("seconds", "tokens_per_second")


def arguments(prepared, out, *more):
    given = {"prepared": prepared.folder, "out": out, "budget": "16steps", "preset": "tiny", "device": "cpu",
             "sequence-length": 48, "batch-size": 8, "log-every": 1, "evaluations": 4, "checkpoint-every": "3steps",
             "keep-checkpoints": 20, "objective": "mlm", "packing": "full-sentences"}  # fmt: skip
    return [*(f"--{name}={value}" for name, value in given.items()), *more]


def rows(out):
    """metrics.jsonl without what the clock decides."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in VOLATILE} for row in found]


def results(out):
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("full") / "run"
    assert main(arguments(prepared, out)) == 0
    return out


@pytest.fixture(scope="module")
def windows(prepared, tmp_path_factory):
    """The same run on windows."""
    out = tmp_path_factory.mktemp("windows") / "run"
    assert main(arguments(prepared, out, "--packing=windows")) == 0
    return out


def test_the_steps_are_made_of_full_examples(finished, windows, prepared):
    lengths = FullShardExamples.of(prepared, "train", 48, 1, next_sentence=False)(0).lengths()
    tokens = [row["tokens"] for row in rows(finished) if "learning_rate" in row]
    # Of all examples of the epoch, in an order of its own.
    assert tokens[-1] / 16 / 8 == pytest.approx(lengths.mean(), rel=0.05)
    assert tokens[-1] > 1.05 * [row["tokens"] for row in rows(windows) if "learning_rate" in row][-1]


def test_held_out_text_is_that_of_other_runs_without_pairs(finished, windows):
    ours, theirs = (results(out)["validation"] for out in (finished, windows))
    for name in ("unigram_entropy", "most_frequent_accuracy", "unigram_entropy_without_copies", "mlm_copied"):
        assert ours[name] == theirs[name]
    assert ours["mlm_loss"] != theirs["mlm_loss"]


@pytest.mark.parametrize("step", [3, 8])
def test_it_goes_on_to_the_bit(step, finished, prepared, stopped_at, capsys):
    out = stopped_at(finished, step)
    assert main(arguments(prepared, out)) == 0
    assert f"Resuming from {out}/checkpoints/step-{step:08d}." in capsys.readouterr().out
    before, after = (load_file(folder / "final" / "model.safetensors") for folder in (finished, out))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert rows(out) == rows(finished)


def test_a_run_does_not_go_on_with_other_examples(finished, prepared, tmp_path, capsys):
    out = shutil.copytree(finished, tmp_path / "run")
    assert main(arguments(prepared, out, "--packing=windows")) == 2
    assert "packing: full-sentences before, windows now" in capsys.readouterr().err


@pytest.mark.parametrize("theirs", [BertForPreTraining, BertForMaskedLM])
def test_transformers_opens_it_and_its_card_says_what_was_not_trained(theirs, finished):
    _, loading = theirs.from_pretrained(finished / "final", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["mismatched_keys"]
    card = " ".join((finished / "final" / "README.md").read_text().split())
    assert "| packing | full-sentences |" in card and "| adam_beta2 | 0.999 |" in card
    assert "The weights that only next sentences (NSP) would train are those that it began with." in card


def test_auto_chooses_steps_of_as_many_tokens_as_of_windows(prepared, tmp_path):
    tokens = []
    for packing in ("windows", "full-sentences"):
        out = tmp_path / packing
        given = [word for word in arguments(prepared, out, "--budget=2steps") if not word.startswith("--batch-size")]
        assert main([*given, f"--packing={packing}"]) == 0
        assert yaml.safe_load((out / "settings.yaml").read_text())["packing"] == packing
        tokens.append(results(out)["tokens"])
    assert tokens[0] == pytest.approx(tokens[1], rel=0.1)


def test_several_lengths_have_full_examples_each(prepared, tmp_path):
    out = tmp_path / "run"
    given = ("--sequence-length=24,48", "--length-shares=0.5,0.5", "--batch-size=16,8")
    assert main(arguments(prepared, out, *given)) == 0
    tokens = [0, *(row["tokens"] for row in rows(out) if "learning_rate" in row)]
    assert 16 * 15 < (tokens[8] - tokens[0]) / 8 <= 16 * 24
    assert 8 * 36 < (tokens[16] - tokens[8]) / 8 <= 8 * 48


def test_a_plan_knows_how_many_there_are(prepared, tmp_path, capsys):
    assert main(arguments(prepared, tmp_path / "run", "--dry-run")) == 0
    steps = len(FullShardExamples.of(prepared, "train", 48, 1, next_sentence=False)(0)) / 8
    said = capsys.readouterr().out
    planned = float(said.split(" steps an epoch")[0].split()[-1])
    assert planned == pytest.approx(steps, rel=0.1) and not (tmp_path / "run").exists()


def test_pairs_are_refused_by_the_name_of_their_objective(prepared, tmp_path, capsys):
    assert main(arguments(prepared, tmp_path / "run", "--objective=mlm+nsp")) == 2
    said = capsys.readouterr().err
    assert said == (
        "error: --packing full-sentences makes no pairs, which --objective mlm+nsp learns from: give --objective mlm "
        "too\n"
    )
    assert not (tmp_path / "run").exists()


def test_pairs_are_refused_of_an_objective_that_is_handed_in(prepared, tmp_path):
    settings = PretrainSettings(
        prepared=str(prepared.folder), out=str(tmp_path / "run"), budget="2steps", preset="tiny", device="cpu",
        objective="mlm", packing="full-sentences", examples=ExampleSettings(sequence_length=48),
    )  # fmt: skip
    with pytest.raises(PretrainError, match=r"full-sentences makes no pairs, which mlm\+nsp learns from: drop it"):
        pretrain(settings, lambda settings, prepared: bert_objective(prepared.unigram_counts))
    assert {path.name for path in tmp_path.rglob("*")} <= {"run", ".lock"}


@pytest.mark.parametrize("given", ["--adam-beta2=1", "--adam-beta2=0.2", "--packing=full"])
def test_what_is_out_of_range_is_refused(given, prepared, tmp_path, capsys):
    assert main(arguments(prepared, tmp_path / "run", given)) == 2
    assert given.split("=")[0] in capsys.readouterr().err and not (tmp_path / "run").exists()
