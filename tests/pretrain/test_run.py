import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from matplotlib.figure import Figure
from safetensors.torch import load_file, save_file

from data_prep.examples.packing import ShardExamples
from data_prep.text.corpus import Corpus
from pretrain import pretraining
from pretrain.engine.checkpoint import read_state
from pretrain.engine.folder import claimed
from pretrain.engine.settings import PretrainError
from pretrain.engine.stage import as_before
from pretrain.fill_mask import MaskFiller
from pretrain.objective import PretrainingObjective
from pretrain.objectives import bert_objective
from pretrain.report import draw_curves
from pretrain.run import main
from pretrain.settings import PretrainSettings

VOLATILE = ("seconds", "tokens_per_second")


def arguments(prepared, out, budget="24steps", **options):
    given = {"prepared": prepared.folder, "out": out, "budget": budget, "preset": "tiny", "sequence-length": 48}
    given |= {"batch-size": 8, "log-every": 4, "evaluations": 4, "device": "cpu"} | options
    return [f"--{name}={value}" for name, value in given.items()]


def rows(out):
    """metrics.jsonl without what the clock decides."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in VOLATILE} for row in found]


def same_weights(one, other):
    a, b = (load_file(out / "final" / "model.safetensors") for out in (one, other))
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "first"
    assert main(arguments(prepared, out)) == 0
    return out


def test_files_have_the_permissions_of_new_files(finished, tmp_path):
    (tmp_path / "new").touch()
    assert {path.stat().st_mode for path in finished.rglob("*.*") if path.is_file()} == {
        (tmp_path / "new").stat().st_mode
    }


def test_the_folder_holds_what_is_promised(finished):
    names = {path.name for path in finished.iterdir()} - {".lock"}
    assert names == {"settings.yaml", "checkpoints", "final", "metrics.jsonl", "curves.png", "results.json"}
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    # A picture that fails costs no model.
    model, curves = (finished / name for name in ("final/model.safetensors", "curves.png"))
    assert model.stat().st_mtime_ns < curves.stat().st_mtime_ns
    results = json.loads((finished / "results.json").read_text())
    assert set(results["validation"]) == {
        "mlm_loss", "mlm_perplexity", "mlm_accuracy", "unigram_entropy", "most_frequent_accuracy",
        "mlm_copied", "mlm_loss_without_copies", "mlm_accuracy_without_copies", "unigram_entropy_without_copies",
        "nsp_loss", "nsp_accuracy", "nsp_majority",
    }  # fmt: skip
    assert results["steps"] == 24 and results["tokens"] > 24 * 8 * 10 and results["seconds"] > 0


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ((None, None, None, None), ["MLM", "MLM, more text"]),
        ((128, 128, 128, 512), ["MLM", "MLM, 512 tokens"]),
        ((128, 128, 512, 512), ["MLM", "MLM, 512 tokens", "MLM, more text"]),
        ((128, 512, 512, 512), ["MLM", "MLM, 512 tokens", "MLM, more text"]),
    ],
)
def test_lines_of_the_curves_are_named_by_what_was_evaluated(lengths, named, tmp_path, monkeypatch):
    """The last evaluation takes more text, and examples may get longer on the way."""
    figures, rows = [], []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figures.append(figure), path.touch()))
    for number, length in enumerate(lengths):
        level = 6.0 + (length or 0) / 1000 + (number == 3)
        found = {"mlm_loss": 5.0, "unigram_entropy": level, "mlm_accuracy": 0.1, "most_frequent_accuracy": 0.05}
        rows.append({"tokens": number, "validation": found} | ({"sequence_length": length} if length else {}))
    draw_curves(rows, bert_objective(np.ones(1)), tmp_path / "curves.png")
    assert [line.get_label() for line in figures[0].axes[1].lines if line.get_label().startswith("MLM")] == named


def test_curves_leave_out_what_an_evaluation_has_no_result_of(tmp_path, monkeypatch):
    """The first examples may hold no labelled pair."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figures.append(figure), path.touch()))
    words = {"mlm_loss": 5.0, "unigram_entropy": 6.0, "mlm_accuracy": 0.1, "most_frequent_accuracy": 0.05}
    pairs = {"nsp_loss": 0.7, "nsp_accuracy": 0.6, "nsp_majority": 0.5}
    found = [{"tokens": n, "validation": words | (pairs if n > 1 else {})} for n in (1, 2, 3)]
    draw_curves(found, bert_objective(np.ones(1)), tmp_path / "curves.png")
    lines = [line for axes in figures[0].axes for line in axes.lines if line.get_label().startswith("NSP")]
    points = [value for line in lines for value in line.get_ydata() if np.isfinite(value)]
    assert points == [0.7, 0.7, 60.0, 60.0]


def test_metrics_have_a_row_every_few_steps_and_an_evaluation_a_quarter(finished):
    found = rows(finished)
    training = [row["step"] for row in found if "validation" not in row]
    held_out = [row["step"] for row in found if "validation" in row]
    assert training == list(range(4, 25, 4))
    assert held_out == [6, 12, 18, 24]
    assert all(row["nsp_loss"] > 0 and row["learning_rate"] > 0 for row in found if "validation" not in row)


def test_a_model_whose_checkpoints_are_gone_is_not_replaced(prepared, finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    shutil.rmtree(out / "checkpoints")
    kept = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file() and path.name != ".lock"}
    assert main(arguments(prepared, out, "32steps")) == 2
    assert "holds a finished model and no checkpoint to go on from" in capsys.readouterr().err
    assert same_weights(out, finished) and all((out / name).read_bytes() == kept[name] for name in kept)
    assert main(arguments(prepared, out)) == 0
    assert "holds this run, finished" in capsys.readouterr().out


def test_a_model_that_is_gone_is_made_of_the_last_checkpoint(prepared, finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    shutil.rmtree(out / "final")
    assert main(arguments(prepared, out)) == 0
    assert "Resuming from" in capsys.readouterr().out and same_weights(out, finished)


def test_the_latest_checkpoints_and_the_best_are_kept(finished):
    kept = {path.name for path in (finished / "checkpoints").iterdir()}
    losses = {
        row["step"]: row["validation"]["mlm_loss"] + row["validation"]["nsp_loss"]
        for row in rows(finished)[:-1]
        if "validation" in row
    }
    best = min(losses, key=losses.get)
    assert kept == {f"step-{step:08d}" for step in {18, 24, best}}


def test_the_best_checkpoint_outlives_the_latest(prepared, tmp_path):
    from model import BertConfig, BertForPreTraining
    from pretrain.engine.checkpoint import Checkpoints
    from pretrain.engine.optimizer import Optimizer

    model = BertForPreTraining(BertConfig.from_preset("tiny", vocab_size=prepared.tokenizer.vocab_size))
    checkpoints = Checkpoints(tmp_path, prepared.tokenizer, keep=2)
    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2)):
        checkpoints.save(step, model, Optimizer(model, "adamw", 1e-3, 0.0), {"needs": [best]})
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000002", "step-00000004", "step-00000005"]


def test_the_same_command_says_that_it_is_done(finished, prepared, capsys):
    before = (finished / "results.json").stat().st_mtime_ns
    assert main(arguments(prepared, finished)) == 0
    assert "finished" in capsys.readouterr().out
    assert (finished / "results.json").stat().st_mtime_ns == before


def test_the_same_seed_gives_the_same_run_and_another_seed_another(finished, prepared, tmp_path):
    assert main(arguments(prepared, tmp_path / "again")) == 0
    assert rows(tmp_path / "again") == rows(finished)
    assert same_weights(tmp_path / "again", finished)
    few = {"budget": "4steps", "evaluations": 1}
    assert main(arguments(prepared, tmp_path / "few", **few)) == 0
    for name, change in (("seed", {"seed": 2}), ("rate", {"learning-rate": 0.001}), ("beta2", {"adam-beta2": 0.9})):
        assert main(arguments(prepared, tmp_path / name, **few, **change)) == 0
        assert not same_weights(tmp_path / name, tmp_path / "few")


def test_other_settings_in_a_used_folder_are_refused_with_the_differences(finished, prepared, capsys):
    assert main(arguments(prepared, finished, **{"batch-size": 16})) == 2
    assert "batch_size: 8 before, 16 now" in capsys.readouterr().err
    assert main(arguments(prepared, finished, budget="12steps")) == 2
    assert "may only grow" in capsys.readouterr().err
    assert main(arguments(prepared, finished, resume="never")) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_larger_budget_goes_on_and_is_evaluated_on_the_way(prepared, tmp_path, capsys, monkeypatch):
    out, shares = tmp_path / "run", []
    monkeypatch.setattr(PretrainingObjective, "warnings", lambda self, rows, share: shares.append(share) or {})
    assert main(arguments(prepared, out, budget="8steps")) == 0
    assert main(arguments(prepared, out, budget="16steps")) == 0
    printed = capsys.readouterr().out
    # Half of the way from 0.4 to 0.15.
    assert "The budget has grown" in printed and "at once that of the larger budget: 27.5%" in printed
    assert json.loads((out / "results.json").read_text())["steps"] == 16
    assert [row["step"] for row in rows(out) if "validation" not in row] == [4, 8, 12, 16]
    # The final evaluation of the shorter run came after its last checkpoint, and is kept.
    assert [row["step"] for row in rows(out) if "validation" in row] == [2, 4, 6, 8, 12, 16]
    assert shares == [0.25, 0.5, 0.75, 1.0, 0.75, 1.0]


@pytest.mark.slow
def test_a_loss_that_stands_out_is_recorded_with_its_examples_and_ends_nothing(prepared, tmp_path, capsys):
    out = tmp_path / "run"
    every = {"evaluations": 1, "log-every": 1, "checkpoint-every": "10steps", "precision": "fp32"}
    assert main(arguments(prepared, out, "80steps", **every)) == 0
    newest = out / "checkpoints" / "step-00000080"
    state = json.loads((newest / "training_state" / "state.json").read_text())
    assert state["counters"]["usual_loss"]["steps"] == 80 and state["counters"]["spikes"] == 0
    # Weights that are wrong from one moment on: the usual loss is known from the steps before.
    from data_prep.durable import file_facts, read_sealed, write_sealed

    weights = load_file(newest / "model.safetensors")
    weights["bert.pooler.dense.bias"].fill_(100)
    weights["cls.seq_relationship.bias"][0] = 100
    save_file(weights, newest / "model.safetensors", {"format": "pt"})
    manifest = newest / "training_state" / "manifest.json"
    write_sealed(manifest, {"files": file_facts(newest, read_sealed(manifest)["files"])})
    assert main(arguments(prepared, out, "100steps", **every)) == 0
    assert "metrics.jsonl names the examples" in capsys.readouterr().out
    spikes = [row for row in rows(out) if "spike" in row]
    assert spikes[0]["step"] == 81 and spikes[0]["spike"]["nsp_loss"] > 10 > spikes[0]["usual_loss"]
    assert len(spikes[0]["examples"]) == 8
    for shard, first in spikes[0]["examples"]:
        assert first in prepared.train[shard].sentence_starts
    assert json.loads((out / "results.json").read_text())["loss_spikes"] == len(spikes)


@pytest.mark.parametrize("damage", [lambda rows: rows[0], lambda rows: rows[0] + rows[1][:-30],
                                    lambda rows: rows[0] + b"\0" * len(rows[1]) + b"".join(rows[2:])])  # fmt: skip
def test_rows_that_were_lost_are_said_and_the_run_goes_on(prepared, tmp_path, capsys, damage):
    out = tmp_path / "run"
    path = out / "metrics.jsonl"
    assert main(arguments(prepared, out, "2steps", **{"log-every": 1})) == 0
    path.write_bytes(damage(path.read_bytes().splitlines(keepends=True)))
    capsys.readouterr()
    assert main(arguments(prepared, out, "4steps", **{"log-every": 1})) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if str(path) in line]
    assert said == [f"{path} is not as it was when the checkpoint was written: rows are missing."]
    assert [row["step"] for row in training_rows(out)] == [1, 3, 4]


def test_a_picture_that_cannot_be_drawn_ends_no_run(prepared, tmp_path, monkeypatch, capsys):
    def failed(*given, **named):
        raise RuntimeError("no font\nis there")

    monkeypatch.setattr("matplotlib.figure.Figure.subplots", failed)
    out = tmp_path / "run"
    assert main(arguments(prepared, out, "4steps")) == 0
    assert f"{out / 'curves.png'} could not be drawn (no font)." in capsys.readouterr().out
    assert (out / "results.json").exists() and (out / "final").exists()


def test_a_run_goes_on_where_nobody_reads_its_output(prepared, tmp_path, unread):
    with unread() as stream:
        assert main(arguments(prepared, tmp_path / "run", "4steps")) == 0
        assert os.fstat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    assert (tmp_path / "run" / "results.json").exists()
    # Behind it, the end of a reader ends commands again.
    with unread():
        assert main(["--help"]) == 141


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    """What Finder leaves there is nothing."""
    (tmp_path / ".DS_Store").touch()
    assert as_before(PretrainSettings(), tmp_path, set()) is None
    (tmp_path / "letter.docx").touch()
    with pytest.raises(PretrainError, match="is not empty and holds no run of this tool"):
        as_before(PretrainSettings(), tmp_path, set())


def test_who_finds_a_folder_held_leaves_it_to_the_holder(tmp_path, monkeypatch):
    """The other process has made it in the meantime."""
    out, held, exists = tmp_path / "run", [], Path.exists

    def found(path):
        is_there = exists(path)
        if path == out and not held:
            out.mkdir()
            held.append(FileLock(out / ".lock", is_singleton=False))
            held[0].acquire()
        return is_there

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", found)
        with pytest.raises(PretrainError, match="another process is writing"), claimed(out):
            raise AssertionError
    assert (out / ".lock").exists()
    held[0].release()


def test_settings_that_are_not_in_the_file_are_the_defaults(prepared, tmp_path):
    out = tmp_path / "run"
    assert main(arguments(prepared, out, "2steps")) == 0
    lines = (out / "settings.yaml").read_text().splitlines(keepends=True)
    left_out = ("precision:", "threads:")
    assert sum(line.startswith(left_out) for line in lines) == 2
    (out / "settings.yaml").write_text("".join(line for line in lines if not line.startswith(left_out)))
    assert main(arguments(prepared, out, "4steps")) == 0
    assert [row["step"] for row in training_rows(out)][-1] == 4


@pytest.mark.parametrize("name", ["settings.yaml.tmp", ".settings.yaml.tmp"])
def test_a_folder_in_which_a_run_was_killed_before_it_began_is_free(name, prepared, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / name).write_text("half")
    assert main(arguments(prepared, out, "2steps")) == 0


def training_rows(out):
    return [row for row in rows(out) if "learning_rate" in row]


@pytest.mark.slow
def test_a_stable_schedule_is_extended_as_if_the_budget_had_been_larger_from_the_start(prepared, tmp_path, capsys):
    stable = {"schedule": "warmup-stable-decay"}
    out, expected = tmp_path / "extended", tmp_path / "expected"
    assert main(arguments(prepared, out, "20steps", warmup=0.1, **stable)) == 0
    # 2 steps of warm-up, 18 after it, of which the last fifth decays.
    assert (out / "checkpoints" / "step-00000017").exists()
    assert main(arguments(prepared, out, "40steps", warmup=0.1, **stable)) == 0
    assert "so the run goes back to step-" in capsys.readouterr().out
    assert main(arguments(prepared, expected, "40steps", warmup=0.05, **stable)) == 0
    assert same_weights(out, expected) and training_rows(out) == training_rows(expected)
    # The new checkpoint before the decay has taken the place of the old one.
    assert {"step-00000033", "step-00000040"} <= {path.name for path in (out / "checkpoints").iterdir()}
    assert main(arguments(prepared, out, "60steps", warmup=0.1, **stable)) == 0
    assert "step-00000040 had decayed" in capsys.readouterr().out


def test_the_last_evaluation_takes_as_much_as_a_larger_budget_allows(prepared, tmp_path):
    planned = []
    for budget in ("4steps", "12steps"):
        assert main(arguments(prepared, tmp_path / "run", budget, **{"batch-size": 64, "evaluations": 1})) == 0
        newest = max((tmp_path / "run" / "checkpoints").iterdir())
        planned.append(read_state(newest, ())["evaluation"])
    held_out = len(ShardExamples.of(prepared, "validation", 48)(0))
    assert planned[0] == {"during": 64, "final": 64, "reserve": 0.0} and held_out > 64
    assert planned[1] == {"during": 64, "final": held_out, "reserve": 0.0}


def test_a_decayed_schedule_rises_again_where_the_budget_has_grown(prepared, tmp_path):
    out = tmp_path / "run"
    every_step = {"log-every": 1, "learning-rate": 0.01}
    assert main(arguments(prepared, out, "10steps", **every_step)) == 0
    assert main(arguments(prepared, out, "30steps", **every_step)) == 0
    rates = [row["learning_rate"] / 0.01 for row in training_rows(out)]
    assert rates[9] == pytest.approx(1 / 9)
    # The longer schedule has (30 - used) / 29 there; it is reached within 20 / 30 of a warm-up, which is one step.
    assert rates[10] == 0 and rates[11] == pytest.approx(19 / 29) and rates[-1] == pytest.approx(1 / 29)


def test_a_finished_folder_is_not_taken_for_another_corpus(prepared, corpus_file, tmp_path, capsys):
    out = tmp_path / "run"
    other = tmp_path / "other.txt"
    other.write_text(corpus_file.read_text().upper().replace("THE", "these"))
    given = ["--preset=tiny", "--sequence-length=48", "--budget=2steps", "--device=cpu", "--workers=1", f"--out={out}"]
    assert main([f"--corpus={corpus_file}", *given]) == 0
    assert main([f"--corpus={corpus_file}", *given]) == 0
    assert "finished" in capsys.readouterr().out
    assert main([f"--corpus={other}", *given]) == 2
    assert "the text is another" in capsys.readouterr().err


def test_the_folder_says_the_length_that_was_trained(prepared, tmp_path):
    out = tmp_path / "run"
    assert main(arguments(prepared, out, budget="1steps", **{"sequence-length": 32})) == 0
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        assert json.loads((out / "final" / name).read_text())[key] == 32


def test_options_of_the_preparation_that_a_run_does_not_take_are_said(prepared, tmp_path, capsys):
    given = arguments(prepared, tmp_path / "run", budget="1steps")
    without = [each for each in given if not each.startswith("--sequence-length")]
    said = (
        f"{prepared.folder} was prepared with --sequence-length 48, and this run takes 128: give --sequence-length 48"
    )
    for more, expected in (([], False), (["--dry-run"], False), (["--sequence-length=32"], False)):
        assert main([*given, *more, f"--out={tmp_path / str(len(more))}{more[-1:]}"]) == 0
        assert (said in capsys.readouterr().out) is expected
    for more in ([], ["--dry-run"]):
        assert main([*without, *more]) == 0
        found = capsys.readouterr().out
        assert found.count("was prepared with") == 1 and said in found


def test_the_model_folder_opens_in_transformers_and_fills_masks_alike(finished):
    import torch
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer, pipeline

    folder = finished / "final"
    text = "the patient [MASK] treated with the [MASK] dose ."
    AutoModelForPreTraining.from_pretrained(folder)
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), AutoModelForMaskedLM.from_pretrained(folder)
    ours = MaskFiller(folder)
    encoded = tokenizer(text, return_tensors="pt")
    assert encoded["input_ids"][0].tolist() == ours._encode(text)
    with torch.no_grad():
        logits = theirs(**encoded).logits
        torch.testing.assert_close(ours.model(**encoded).logits, logits, rtol=1e-4, atol=1e-5)
    expected = pipeline("fill-mask", model=str(folder), top_k=3)(text)
    for mask, words in zip(expected, ours([text], top_k=3)[0], strict=True):
        assert [(w["token_str"], round(w["score"], 4)) for w in mask] == [(w, round(p, 4)) for w, p in words]


def test_a_time_budget_is_kept_to_and_spends_it_on_steps(prepared, tmp_path):
    out = tmp_path / "timed"
    assert main(arguments(prepared, out, budget="3s", **{"log-every": 1})) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["steps"] > 1 and 1 < results["seconds"] < 30
    rates = [row["learning_rate"] for row in rows(out) if "validation" not in row]
    falling = rates[rates.index(max(rates)) :]
    assert falling == sorted(falling, reverse=True)
    # On a machine that is busy with other things a step or two may use the budget up.
    assert rates[-1] < max(rates) or len(rates) < 4


def test_a_time_budget_that_is_over_before_the_first_step_is_refused(prepared, tmp_path, capsys):
    """A model that has learned nothing is not called finished. A second is kept for the last checkpoint."""
    out = tmp_path / "run"
    assert main(arguments(prepared, out, budget="1s")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--budget 1s is used up before the first step" in said and "--preset" in said
    # The folder is free, also for other settings.
    assert not out.exists()


@pytest.mark.parametrize("budget", ["1epochs", "4ktokens"])
def test_epochs_and_tokens_are_counted(prepared, tmp_path, budget):
    out = tmp_path / "run"
    assert main(arguments(prepared, out, budget=budget, evaluations=1)) == 0
    results = json.loads((out / "results.json").read_text())
    last = [row for row in rows(out) if "validation" not in row][-1]
    if budget == "1epochs":
        assert 0.8 < last["epoch"] < 1.2
    else:
        assert 4_000 <= results["tokens"] < 4_000 + 8 * 48


def test_other_choices_run(prepared, tmp_path):
    out = tmp_path / "run"
    options = {"objective": "mlm", "masking": "whole-word", "optimizer": "adamw", "precision": "fp32", "dropout": 0.1}
    assert main(arguments(prepared, out, budget="4steps", schedule="cosine", **options)) == 0
    assert json.loads((out / "results.json").read_text())["validation"]["nsp_accuracy"] is None


def test_continuing_from_a_model_of_transformers(prepared, tmp_path, capsys):
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    size = prepared.tokenizer.vocab_size
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(vocab_size=size, max_position_embeddings=64, hidden_dropout_prob=0.2, **sizes)
    BertForMaskedLM(config).save_pretrained(tmp_path / "hf")
    prepared.tokenizer.save(tmp_path / "hf", 64)
    out = tmp_path / "run"
    options = [a for a in arguments(prepared, out, budget="2steps") if "preset" not in a]
    assert main([*options, f"--init-from={tmp_path / 'hf'}"]) == 0
    assert "initialised at random" in capsys.readouterr().out
    config = json.loads((out / "final" / "config.json").read_text())
    assert (config["hidden_size"], config["max_position_embeddings"]) == (64, 64)
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (0.2, 0.1)
    assert main([*options, f"--init-from={tmp_path}/./hf/"]) == 0
    assert "holds this run, finished" in capsys.readouterr().out
    assert main([*arguments(prepared, tmp_path / "x"), f"--init-from={tmp_path / 'hf'}"]) == 2
    assert "--preset cannot be combined with --init-from" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["init-from", "teacher"])
def test_a_model_that_knows_no_pairs_is_asked_for_words_alone(prepared, tmp_path, capsys, option):
    from transformers import AutoTokenizer, BertConfig, BertForPreTraining

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    sizes |= {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 64, "type_vocab_size": 1}
    BertForPreTraining(BertConfig(**sizes)).save_pretrained(tmp_path / "hf")
    prepared.tokenizer.save(tmp_path / "hf", 64)
    options = [a for a in arguments(prepared, tmp_path / "run", budget="2steps") if "preset" not in a]
    assert main([*options, f"--{option}={tmp_path / 'hf'}"]) == 2
    said = capsys.readouterr().err
    assert "knows no second text of a pair" in said and "give --objective mlm" in said
    assert not (tmp_path / "run").exists()
    assert main([*options, f"--{option}={tmp_path / 'hf'}", "--objective=mlm"]) == 0
    # transformers sends it no types of tokens.
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(tmp_path / "run" / "final")("a patient", "the heart")


def test_a_model_without_an_mlm_head_gets_one_that_knows_word_frequencies(prepared, tmp_path):
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    # More rows than the tokenizer has entries, as where they were rounded up.
    config = BertConfig(vocab_size=prepared.tokenizer.vocab_size + 30, max_position_embeddings=64, **sizes)
    BertModel(config).save_pretrained(tmp_path / "hf")
    prepared.tokenizer.save(tmp_path / "hf", 64)
    out = tmp_path / "run"
    options = [a for a in arguments(prepared, out, budget="1steps") if "preset" not in a]
    assert main([*options, f"--init-from={tmp_path / 'hf'}", "--learning-rate=1e-9"]) == 0
    found = json.loads((out / "results.json").read_text())["validation"]
    assert found["mlm_loss"] == pytest.approx(found["unigram_entropy"], abs=0.1)


def test_a_model_that_has_learned_goes_on_at_a_share_of_the_rate_and_says_so(finished, prepared, tmp_path, capsys):
    """A smaller one where it has its MLM head."""
    from transformers import BertModel

    def rate(name, *given):
        options = [a for a in arguments(prepared, tmp_path / name, budget="2steps") if "preset" not in a]
        assert main([*options, *given]) == 0
        settings = yaml.safe_load((tmp_path / name / "settings.yaml").read_text())
        said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("The learning rate is ")]
        return settings["learning_rate"], "".join(said)

    BertModel.from_pretrained(finished / "final").save_pretrained(tmp_path / "encoder")
    prepared.tokenizer.save(tmp_path / "encoder", 64)
    going_on = f"--init-from={finished / 'final'}"
    (fresh, fresh_says), (found, says) = rate("fresh", "--preset=tiny"), rate("trained", going_on)
    assert found == pytest.approx(fresh / 10, rel=0.05) and "0.1 of that of a fresh model" in says and not fresh_says
    found, says = rate("headless", f"--init-from={tmp_path / 'encoder'}")
    assert found == pytest.approx(0.4 * fresh, rel=0.05) and "0.4 of that of a fresh model, as its MLM head is" in says
    found, says = rate("adamw", f"--init-from={tmp_path / 'encoder'}", "--optimizer=adamw")
    assert found == rate("fresh-adamw", "--preset=tiny", "--optimizer=adamw")[0] and "is that of a fresh model" in says
    assert rate("given", going_on, "--learning-rate=0.004") == (0.004, "")


def test_a_corpus_around_the_run_does_not_read_it(corpus_file, tmp_path, monkeypatch):
    """Neither the metrics nor a vocabulary, and the same command goes on with the same text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text(Path(corpus_file).read_text())
    given = ["--corpus=.", "--preset=tiny", "--sequence-length=48", "--batch-size=8", "--device=cpu", "--workers=1"]
    given += ["--budget=6steps", "--out=runs/all"]
    assert main(given) == 0
    first = json.loads(Path("runs/all/results.json").read_text())["prepared"]
    assert main([*given[:-2], "--budget=8steps", given[-1]]) == 0
    assert Corpus(["."]).introduction()[0].startswith("Left out: runs/all/ (a run or a model)")
    assert json.loads(Path("runs/all/results.json").read_text())["prepared"] == first


def test_a_run_shows_no_text_any_more_where_its_prepared_corpus_was_removed(corpus_file, tmp_path, capsys):
    """What is prepared holds a report with text until then."""
    out = tmp_path / "run"
    given = [f"--corpus={corpus_file}", "--preset=tiny", "--sequence-length=48", "--batch-size=8", "--device=cpu"]
    given += ["--workers=1", f"--out={out}"]
    assert main([*given, "--budget=2steps"]) == 0
    capsys.readouterr()
    assert main([*given, "--budget=3steps", "--show-text=no"]) == 2
    assert "was prepared with --show-text yes, so its report and log show text: remove that" in capsys.readouterr().err
    shutil.rmtree(out / "prepared")
    assert main([*given, "--budget=3steps", "--show-text=no"]) == 0
    assert "Resuming from" in capsys.readouterr().out
    assert yaml.safe_load((out / "settings.yaml").read_text())["show_text"] == "no"
    # What shows less than it may is no obstacle.
    assert main([*given, "--budget=4steps"]) == 0


def test_a_dry_run_prints_the_plan_and_leaves_nothing(corpus_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [f"--corpus={corpus_file}", "--preset=tiny", "--sequence-length=48", "--batch-size=8", "--device=cpu"]
    assert main([*given, "--dry-run", "--budget=1000steps", "--workers=1"]) == 0
    printed = capsys.readouterr().out
    for word in ("parameters", "steps", "tokens", "memory", "time"):
        assert word in printed
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_what_the_run_refuses_and_says_what_is_there(prepared, finished, tmp_path, capsys):
    (tmp_path / "letter.docx").touch()
    for more in ([f"--out={tmp_path}"], ["--objective=mlm"], ["--budget=3steps"], ["--resume=never"]):
        found = []
        for dry in ([], ["--dry-run"]):
            assert main([*arguments(prepared, finished), *more, *dry]) == 2
            found.append(capsys.readouterr().err)
        assert found[0] == found[1] and "holds" in found[0]
    before = sorted(finished.rglob("*"))
    for out, is_there in ((finished, True), (tmp_path / "new", False)):
        assert main([*arguments(prepared, out, "30steps"), "--dry-run"]) == 0
        printed = capsys.readouterr().out
        assert (f"{out} holds this run already" in printed) is is_there and "about 30 of 8 examples" in printed
    assert sorted(finished.rglob("*")) == before and not (tmp_path / "new").exists()


def test_the_plan_compares_with_measured_runs_of_the_same_kind_alone(prepared, finished, tmp_path, capsys):
    start = [f"--init-from={finished / 'final'}"]
    for more, is_known in (
        ([], True), (["--objective=mlm"], True), (["--objective=electra"], False), (["--family=albert"], False),
    ):  # fmt: skip
        assert main([*arguments(prepared, tmp_path / "run"), *more, "--dry-run"]) == 0
        assert bool(re.search(r"measured +none of this kind", capsys.readouterr().out)) is not is_known
    given = [each for each in arguments(prepared, tmp_path / "run") if not each.startswith("--preset")]
    assert main([*given, *start, "--dry-run"]) == 0
    assert re.search(r"measured +none of this kind", capsys.readouterr().out)


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm+sop", "electra"])
def test_the_dropout_is_that_of_the_run_and_the_folder_keeps_the_usual_one(objective, prepared, tmp_path, monkeypatch):
    """Whoever fine-tunes the folder with transformers gets dropout, as with any BERT."""
    import transformers

    seen = []

    class Watched(pretraining.Learner):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            seen.append({module.p for module in self.model.modules() if isinstance(module, torch.nn.Dropout)})

    monkeypatch.setattr(pretraining, "Learner", Watched)
    for dropout in (0.0, 0.3):
        out = tmp_path / str(dropout)
        for steps in (1, 2):
            assert main(arguments(prepared, out, f"{steps}steps", objective=objective, dropout=dropout)) == 0
        assert seen[-2:] == [{dropout}, {dropout}]
        config = transformers.AutoConfig.from_pretrained(out / "final")
        usual = type(config)()
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            assert getattr(config, name) == getattr(usual, name)


def test_the_seed_decides_the_first_weights_and_the_dropout(prepared, tmp_path, monkeypatch):
    begun = []

    class Watched(pretraining.Learner):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            begun.append((self.seed, self.model.bert.embeddings.word.weight.detach().clone()))

    monkeypatch.setattr(pretraining, "Learner", Watched)
    for run, seed in enumerate((1, 1, 2)):
        assert main(arguments(prepared, tmp_path / str(run), "1steps", seed=seed)) == 0
    (one, first), (same, again), (other, last) = begun
    assert (one, same, other) == (1, 1, 2)
    assert first.equal(again) and not first.equal(last)
