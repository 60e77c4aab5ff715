"""Whole runs that start from a model that transformers computes: trained, stopped, asked, opened elsewhere, refused."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from finetune.embed import main as embed
from finetune.predict import main as predict
from finetune.predictor import Predictor
from finetune.rows import Columns
from finetune.run import main
from model.families import FAMILIES
from model.wrapped_config import WRAPPED_TYPES
from pretrain.engine import loop
from pretrain.fill_mask import main as fill_mask
from pretrain.run import main as pretrain


def _later(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture(autouse=True)
def computed_by_transformers(monkeypatch, one_thread):
    """Also those that have classes of this project."""
    for kind in WRAPPED_TYPES:
        monkeypatch.delitem(FAMILIES, kind, raising=False)


def rows_of(task, count, first=0):
    """Labels that the words tell."""
    rows = []
    for number in range(first, first + count):
        word = ["heart", "mask", "rate"][number % 3]
        row = {"text": f"the {word} of {number}, don't stop"}
        if task == "pairs":
            row = {"text_a": f"the {word}", "text_b": f"of {number}", "label": word}
        elif task == "multi-label":
            row["labels"] = [[word], [], [word, "heart"]][number % 3]
        elif task == "regression":
            row["score"] = number % 3 + 0.5
        elif task == "tagging":
            row = {"tokens": ["The", word, "of", f"{number}."], "tags": ["O", f"B-{word}", "O", "O"]}
        elif task == "multiple-choice":
            row = {"question": f"{word} {number}?", "label": number % 3,
                   "choices": [f"heart {number}", f"mask {number}", f"rate {number}"]}  # fmt: skip
        elif task == "question-answering":
            row = {"question": f"what {number}?", "context": row["text"], "answers": {"text": [word],
                   "answer_start": [4]}}  # fmt: skip
        else:
            row["label"] = word
        rows.append(row)
    return rows


@pytest.fixture
def given(write_rows, tmp_path):
    """(task, model, name of the folder, options) -> the arguments of a run."""

    def arguments(task, model, name, *options):
        train = write_rows(rows_of(task, 48), f"{task}.jsonl")
        test = write_rows(rows_of(task, 12, first=300), f"{task}-test.jsonl")
        named = {"model": model, "train": train, "test": test, "out": tmp_path / name}
        fixed = ["--device=cpu", "--precision=fp32", "--threads=1", "--seeds=1", "--learning-rate=2e-3"]
        return [*(f"--{key}={value}" for key, value in named.items()), *fixed, "--batch-size=8", "--budget=6steps",
                "--evaluations=1", "--log-every=1", *options]  # fmt: skip

    return arguments


def asked(folder, rows, tmp_path):
    """What `finetune.predict` writes for rows."""
    path, out = tmp_path / "asked.jsonl", tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out.unlink(missing_ok=True)
    assert predict([f"--model={folder}", str(path), f"--out={out}", "--device=cpu"]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def pipeline_of(kind, folder, **options):
    from transformers import pipeline

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(kind, model=str(folder), device="cpu", **options)


@pytest.mark.parametrize(("kind", "task"), [
    ("roberta", "texts"), _later("distilbert", "pairs"), _later("albert", "pairs"), _later("deberta-v2", "texts"),
])  # fmt: skip
def test_a_classifier_is_trained_asked_and_opened_elsewhere(kind, task, other_encoder, given, tmp_path, capsys):
    model = other_encoder(kind)
    assert main(given(task, model, "run")) == 0, capsys.readouterr().err
    final = tmp_path / "run" / "final"
    config = json.loads((final / "config.json").read_text())
    assert config["model_type"] == kind and set(config["id2label"].values()) == {"heart", "mask", "rate"}
    assert config["problem_type"] == "single_label_classification"
    before = [model / name for name in TOKENIZER_FILES]
    changed = [path.name for path in before if path.read_bytes() != (final / path.name).read_bytes()]
    assert changed == (["tokenizer_config.json"] if kind == "albert" else [])
    rows = rows_of(task, 9, first=500)
    answers = asked(final, [{k: v for k, v in row.items() if k != "label"} for row in rows], tmp_path)
    classify = pipeline_of("text-classification", final, top_k=None)
    for row, answer in zip(rows, answers, strict=True):
        text = row["text"] if task == "texts" else {"text": row["text_a"], "text_pair": row["text_b"]}
        found = classify(text)
        found = {each["label"]: each["score"] for each in (found[0] if isinstance(found[0], list) else found)}
        assert found == pytest.approx(answer["probabilities"], abs=1e-5)
    card = (final / "README.md").read_text()
    assert f"tags: [{kind}, text-classification" in card and "library_name: transformers" in card
    # From there on: another training, and vectors.
    assert main(given(task, final, "again", "--budget=2steps")) == 0
    assert (tmp_path / "again" / "final" / "config.json").exists()
    assert embed([f"--model={final}", str(tmp_path / "asked.jsonl"), f"--out={tmp_path / 'v.npy'}", "--device=cpu",
                  f"--text-column={next(iter(rows[0]))}"]) == 0  # fmt: skip
    assert np.load(tmp_path / "v.npy").shape == (9, 32)


@pytest.mark.parametrize(("kind", "task"), [
    ("roberta", "tagging"), ("modernbert", "multi-label"), _later("distilbert", "regression"),
    _later("electra", "multiple-choice"), _later("xlm-roberta", "question-answering"), _later("albert", "tagging"),
])  # fmt: skip
def test_every_task_runs_and_transformers_opens_it(kind, task, other_encoder, given, tmp_path, capsys):
    import transformers

    assert main(given(task, other_encoder(kind), "run")) == 0, capsys.readouterr().err
    final = tmp_path / "run" / "final"
    heads = {"tagging": "TokenClassification", "multiple-choice": "MultipleChoice",
             "question-answering": "QuestionAnswering"}  # fmt: skip
    head = heads.get(task, "SequenceClassification")
    config = json.loads((final / "config.json").read_text())
    assert config["architectures"][0].endswith(f"For{head}")
    theirs = getattr(transformers, f"AutoModelFor{head}").from_pretrained(final)
    ours = load_file(final / "model.safetensors")
    assert {name: tensor.shape for name, tensor in theirs.state_dict().items()}.items() >= {
        name: tensor.shape for name, tensor in ours.items()
    }.items()
    names = {"tagging": ("text", "tokens"), "question-answering": ("question", "context"),
             "multiple-choice": ("question", "choices")}.get(task, ("text",))  # fmt: skip
    rows = [{name: row[name] for name in names if name in row} for row in rows_of(task, 6, first=500)]
    answers = asked(final, rows, tmp_path)
    assert len(answers) == 6
    if task == "tagging":
        # The pipeline reads words of a text, as they are here with blanks between.
        tag, predictor = pipeline_of("token-classification", final), Predictor(final, device="cpu")
        for row, answer in zip(rows, answers, strict=True):
            found = tag(" ".join(row["tokens"]), ignore_labels=[])
            example = predictor.task.example("", row, Columns(("tokens",), None))
            for (start, end), output in zip(example.words, predictor.outputs([example]), strict=True):
                first = next(each for each in found if start <= each["start"] < end or each["start"] == start)
                at = predictor.task.labels.index(first["entity"])
                assert float(output[at]) == pytest.approx(float(first["score"]), abs=1e-5)
                assert output.argmax() == at
            assert answer["predicted_words"] == row["tokens"]
    if task == "regression":
        found = pipeline_of("text-classification", final, function_to_apply="none")([row["text"] for row in rows])
        assert [each["score"] for each in found] == pytest.approx([a["predicted_score"] for a in answers], abs=1e-4)
    if task == "multi-label":
        found = pipeline_of("text-classification", final, top_k=None)([row["text"] for row in rows])
        for each, answer in zip(found, answers, strict=True):
            assert {e["label"]: e["score"] for e in each} == pytest.approx(answer["probabilities"], abs=1e-5)


@pytest.mark.parametrize(("kind", "task"), [
    ("roberta", "texts"), _later("roberta", "tagging"), _later("distilbert", "texts"), _later("modernbert", "texts"),
    _later("albert", "tagging"), _later("electra", "texts"), _later("deberta-v2", "texts"),
])  # fmt: skip
def test_an_interrupted_run_ends_as_one_that_was_not(kind, task, other_encoder, given, tmp_path, monkeypatch):
    model = other_encoder(kind)
    options = ("--layer-decay=0.9", "--unfreeze=0.3", "--checkpoint-every=2steps")
    assert main(given(task, model, "whole", *options)) == 0
    step, calls = loop.step, []

    def interrupted(learner, batches):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(learner, batches)

    monkeypatch.setattr(loop, "step", interrupted)
    assert [main(given(task, model, "parts", *options)) for _ in range(2)] == [130, 0]
    # Had it started over, it would have done 10 steps.
    assert len(calls) < 10
    whole, parts = (tmp_path / name / "final" / "model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.slow
def test_two_processes_are_one_run(other_encoder, given, two_processes, tmp_path):
    model = other_encoder("roberta")
    options = ("--dropout=0", "--layer-decay=0.9", "--unfreeze=0.3")
    assert main(given("texts", model, "one", *options)) == 0
    two_processes("finetune.run", given("texts", model, "two", *options))
    one, two = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("one", "two"))
    before = load_file(model / "model.safetensors")
    learned = [(one[name] - before[name]).abs().max() for name in before if "layer" in name and name in one]
    assert max(map(float, learned)) > 1e-3
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 2e-5


_WATCHED = """
import sys

found = []
sys.addaudithook(lambda event, _: found.append(event) if event in ("socket.getaddrinfo", "socket.connect") else None)
from finetune.run import main

code = main(sys.argv[1:])
assert not found, found
sys.exit(code)
"""


@pytest.mark.slow
def test_no_connection_is_opened_wherever_it_runs(other_encoder, given):
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    command = [sys.executable, "-c", _WATCHED, *given("texts", other_encoder("roberta"), "run", "--budget=2steps")]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_ours_and_theirs_stand_in_one_table(encoder, other_encoder, given, tmp_path, capsys):
    arguments = given("texts", encoder, "both", "--compare", str(other_encoder("roberta")), "scratch")
    assert main([*arguments, "--dry-run"]) == 0, capsys.readouterr().err
    assert "texts/s" in capsys.readouterr().out and not (tmp_path / "both").exists()
    assert main([*arguments, "--budget=2steps"]) == 0, capsys.readouterr().err
    results = json.loads((tmp_path / "both" / "results.json").read_text())
    assert {"run", "a-roberta", "run, not pretrained"} <= results["models"].keys()


@pytest.mark.slow
def test_options_of_training_act(other_encoder, given, tmp_path, capsys):
    name = "roberta.encoder.layer.1.output.dense.weight"

    def folder(*options):
        out = " ".join(("run", *options))
        assert main(given("texts", other_encoder("roberta"), out, "--budget=2steps", *options)) == 0, (
            capsys.readouterr()
        )
        return tmp_path / out

    def matrix(final):
        return load_file(final / "model.safetensors")[name]

    before, plain = matrix(other_encoder("roberta")), matrix(folder() / "final")
    assert not torch.equal(plain, before) and torch.equal(matrix(folder("--freeze-encoder") / "final"), before)
    moved = {}
    for option in ("--optimizer=muon", "--precision=bf16", "--from-scratch"):
        found = matrix(folder(option) / "final")
        assert not torch.equal(found, plain), option
        moved[option] = (found - before).abs().max()
    assert moved["--from-scratch"] > 5 * (plain - before).abs().max()
    facts = json.loads((folder("--long-text=windows", "--sequence-length=16") / "final/finetune.json").read_text())
    assert (facts["long_text"], facts["sequence_length"]) == ("windows", 16)
    results = json.loads((folder("--learning-rate=search") / "results.json").read_text())
    assert len(results["learning_rates_tried"]) > 1


@pytest.mark.parametrize(("options", "words"), [
    (["--hidden-layers=1"], "--hidden-layers is for a BERT"), (["--mlm-weight=0.5"], "--mlm-weight is for a BERT"),
    (["--sequence-length=50"], "give up to 48"),
])  # fmt: skip
def test_what_it_cannot_do_is_said_before_anything_is_written(options, words, other_encoder, given, tmp_path, capsys):
    assert main(given("texts", other_encoder("roberta"), "run", *options)) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_without_transformers_it_says_what_to_install(other_encoder, given, tmp_path, capsys, monkeypatch):
    arguments = given("texts", other_encoder("roberta"), "run")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(arguments) == 2
    assert "pip install 'domain-bert[transformers]'" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["roberta", "distilbert"])
def test_it_is_not_pretrained_and_says_so_before_a_corpus_is_read(kind, other_encoder, tmp_path, capsys):
    model = other_encoder(kind)
    assert pretrain([f"--init-from={model}", f"--out={tmp_path / 'run'}", "--corpus=nowhere/", "--device=cpu"]) == 2
    assert "not pretrained" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert fill_mask([f"--model={model}", "the [MASK]"]) == 2
    assert "masked words" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["roberta", "distilbert", "modernbert", "albert", "electra", "deberta-v2"])
def test_a_folder_for_search_gives_the_same_vectors(kind, other_encoder, tmp_path, capsys):
    model, folder = other_encoder(kind), tmp_path / "search"
    assert embed([f"--model={model}", f"--save-model={folder}", "--device=cpu"]) == 0
    texts = ["The heart rate", "don't stop"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    assert embed([f"--model={folder}", str(tmp_path / "texts.txt"), f"--out={tmp_path / 'v.npy'}", "--device=cpu"]) == 0
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.abs(np.load(tmp_path / "v.npy") - theirs).max() < 1e-5
    if kind != "electra":
        capsys.readouterr()
        assert embed([f"--model={model}", "--layer=1", f"--save-model={tmp_path / 'cut'}", "--device=cpu"]) == 2
        assert "all of its layers" in capsys.readouterr().err and not (tmp_path / "cut").exists()


def test_a_head_that_was_never_trained_is_not_asked(other_encoder, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(other_encoder("roberta"), folder)
    (tmp_path / "texts.txt").write_text("the heart\n")
    assert predict([f"--model={folder}", str(tmp_path / "texts.txt")]) == 2
    assert "fine-tune it first" in capsys.readouterr().err
