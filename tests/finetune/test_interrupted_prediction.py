"""A prediction that was interrupted goes on with what it has written."""

import errno
import json
import os
import shutil
import sys
from functools import partial

import pytest
import torch

from data_prep import durable
from data_prep.text import lines as reading
from finetune import output as writing
from finetune import predict as predicting
from finetune.inputs import input_sources
from finetune.output import Output, Written, asked_of
from finetune.predict import PredictSettings
from finetune.predict import main as predict
from finetune.predictor import Facts, Predictor
from finetune.settings import FinetuneError
from finetune.tasks.tagging import Tagging
from model import BertConfig, BertForTokenClassification
from pretrain.engine.checkpoint import save_model_folder

ROWS = 35


@pytest.fixture(scope="module")
def tagger(small_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagger") / "final"
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(
        vocab_size=small_tokenizer.vocab_size, max_position_embeddings=48, initializer_range=0.5,
        id2label={0: "O", 1: "B-x", 2: "I-x"}, num_labels=3, **sizes,
    )  # fmt: skip
    save_model_folder(BertForTokenClassification(config), small_tokenizer, folder)
    Facts(("text",), 48, "windows", "tagging").write(folder)
    return folder


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"text": f"the heart rate {number}" if number != 17 else "", "n": number} for number in range(ROWS)]
    lines[3]["text"] = lines[25]["text"] = "the heart " * 60
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class Interrupted(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("form", ["jsonl", "csv", "conll", "doccano", "label-studio"])
def test_the_same_command_goes_on_and_the_file_is_the_same(tagger, rows, tmp_path, monkeypatch, capsys, form):
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 10)
    whole, out = tmp_path / "whole", tmp_path / "out"

    def given(path):
        return [str(rows), f"--model={tagger}", f"--format={form}", f"--out={path}", "--device=cpu", "--skip-bad-rows"]

    assert predict(given(whole)) == 0
    assert "35 rows, 1 of them without a usable text, 2 longer than 48 tokens" in capsys.readouterr().err
    asked, outputs = [], Predictor.outputs

    def counted(self, examples):
        asked.append(len(examples))
        if len(asked) == 3:
            raise Interrupted
        return outputs(self, examples)

    monkeypatch.setattr(Predictor, "outputs", counted)
    assert predict(given(out)) == 130
    assert not out.exists() and (tmp_path / "out.part").exists()
    assert predict(given(out)) == 0
    said = capsys.readouterr().err
    assert "going on after row 20" in said
    assert "35 rows, 1 of them without a usable text, 2 longer than 48 tokens" in said
    assert out.read_bytes() == whole.read_bytes() and sum(asked[3:]) == ROWS - 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rows.jsonl", "whole"]


@pytest.mark.parametrize("kind", [Interrupted, OSError])
@pytest.mark.parametrize("options", [{}, {"finish": shutil.copyfile}], ids=["as it is", "made of it"])
def test_what_ends_while_the_file_gets_its_name_is_not_lost(tmp_path, monkeypatch, kind, options):
    """Before and after the renaming."""
    flush, path, lines = durable.flush_to_disk, tmp_path / "out.jsonl", "1\n" * 1000
    for failing in (1, 2):
        path.unlink(missing_ok=True)
        calls = []

        def fails(written, calls=calls, failing=failing):
            calls.append(written)
            if len(calls) == failing:
                raise kind
            flush(written)

        with pytest.raises(kind), Output(str(path), {"model": "a"}, **options) as output:
            output.file.write(lines)
            output.flush(Written(rows=1000))
            monkeypatch.setattr(durable, "flush_to_disk", fails)
            monkeypatch.setattr(writing, "flush_to_disk", fails, raising=False)
        monkeypatch.undo()
        left = {each.name for each in tmp_path.iterdir()}
        assert len(calls) == failing
        if failing == 1:
            assert left == {"out.jsonl.part", "out.jsonl.part.json"}
            with Output(str(path), {"model": "a"}, **options) as output:
                assert output.written.rows == 1000
            left = {each.name for each in tmp_path.iterdir()}
        assert "out.jsonl" in left and path.read_text() == lines


def test_outputs_in_the_folder_of_the_model_do_not_hinder_each_other(tagger, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 10)
    folder, outputs = shutil.copytree(tagger, tmp_path / "model"), Predictor.outputs
    given = [str(rows), f"--model={folder}", "--device=cpu", "--skip-bad-rows"]
    for name in ("a", "b"):
        calls = []

        def interrupted(self, examples, calls=calls):
            calls.append(None)
            if len(calls) == 2:
                raise Interrupted
            return outputs(self, examples)

        monkeypatch.setattr(Predictor, "outputs", interrupted)
        assert predict([*given, f"--out={folder / name}.jsonl"]) == 130
    assert {"a.jsonl.part.json", "b.jsonl.part.json"} <= {path.name for path in folder.iterdir()}
    monkeypatch.setattr(Predictor, "outputs", outputs)
    for name in ("a", "b"):
        assert predict([*given, f"--out={folder / name}.jsonl"]) == 0


@pytest.mark.parametrize("change", ["file", "option"])
def test_the_work_of_another_command_is_not_lost(tagger, rows, tmp_path, monkeypatch, capsys, change):
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 10)
    out, calls, outputs = tmp_path / "out.jsonl", [], Predictor.outputs

    def interrupted(self, examples):
        calls.append(None)
        if len(calls) == 2:
            raise Interrupted
        return outputs(self, examples)

    given = [str(rows), f"--model={tagger}", f"--out={out}", "--device=cpu", "--skip-bad-rows"]
    monkeypatch.setattr(Predictor, "outputs", interrupted)
    assert predict(given) == 130
    part = tmp_path / "out.jsonl.part"
    before = part.read_bytes()
    if change == "file":
        with open(rows, "a") as file:
            file.write(json.dumps({"text": "the patient", "n": ROWS}) + "\n")
    changed = given if change == "file" else [*given, "--precision=bf16"]
    assert predict(changed) == 2
    assert f"{part} was left by another command: remove it" in capsys.readouterr().err
    assert part.read_bytes() == before and before
    part.unlink()
    assert predict(changed) == 0
    assert len(open(out).readlines()) == ROWS + (change == "file") and not part.exists()


def test_what_was_written_stays_where_the_rows_could_not_be_read_on(tagger, rows, tmp_path, monkeypatch, capsys):
    """As on a disk of another machine."""
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(reading, "_SMALL_CHUNK", 64)
    calls, check = [], reading.check_unchanged

    def fails(source, found):
        calls.append(None)
        if len(calls) == 30:
            raise OSError(errno.EIO, "Input/output error")
        check(source, found)

    monkeypatch.setattr(reading, "check_unchanged", fails)
    given = [str(rows), f"--model={tagger}", f"--out={tmp_path / 'out.jsonl'}", "--device=cpu", "--skip-bad-rows"]
    assert predict(given) == 2
    assert "rows.jsonl cannot be read (Input/output error)" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl.part").stat().st_size > 0
    assert predict(given) == 0
    assert "going on after row" in capsys.readouterr().err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == ROWS


def test_what_was_written_stays_where_a_gpu_has_too_little_memory(tagger, rows, tmp_path, monkeypatch, capsys):
    """And the same command goes on with another device."""
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 10)
    calls, logits = [], Tagging.logits

    def scarce(self, model, batch):
        calls.append(None)
        if len(calls) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logits(self, model, batch)

    given = [str(rows), f"--model={tagger}", f"--out={tmp_path / 'out.jsonl'}", "--device=cpu", "--skip-bad-rows"]
    with monkeypatch.context() as patch:
        patch.setattr(Tagging, "logits", scarce)
        assert predict(given) == 2
    assert "too small for" in (said := capsys.readouterr().err) and "--device cpu" in said
    assert predict(given) == 0
    assert "going on after row 20" in capsys.readouterr().err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == ROWS


def test_one_that_was_killed_before_it_kept_anything_begins_again(tmp_path):
    path = tmp_path / "out.jsonl"
    killed = Output(str(path), {"model": "a"}).__enter__()
    killed.file.write("half a ro")
    killed.file.flush()
    killed._lock.release()
    with Output(str(path), {"model": "a"}) as output:
        assert output.written.rows == 0
        output.file.write("a row\n")
        output.flush(Written(rows=1))
    assert path.read_text() == "a row\n"
    # Another one has finished it since the command began.
    with pytest.raises(FinetuneError, match="is there already"), Output(str(path), {"model": "a"}):
        pass
    assert path.read_text() == "a row\n" and {each.name for each in tmp_path.iterdir()} == {"out.jsonl"}


def test_names_that_are_no_text_and_numbers_that_json_lacks(tagger, tmp_path):
    texts, out = os.fsencode(tmp_path) + b"/caf\xe9.jsonl", tmp_path / "out.jsonl"
    try:
        file = open(texts, "w")
    except OSError:
        pytest.skip("the file system has names of text alone")
    with file:
        file.write('{"text": "the heart rate", "n": NaN, "more": [1.5, {"m": Infinity}]}\n')
    assert predict([os.fsdecode(texts), f"--model={tagger}", f"--out={out}", "--device=cpu"]) == 0
    (row,) = map(partial(json.loads, parse_constant=pytest.fail), out.read_text().splitlines())
    assert (row["n"], row["more"]) == (None, [1.5, {"m": None}])


def test_a_row_that_cannot_be_written_is_told(tagger, tmp_path, capsys):
    texts, out = tmp_path / "deep.jsonl", tmp_path / "out.jsonl"
    # json reads it, but it is too deep for calls; before Python 3.12, comprehensions are calls too.
    deep = 1100 if sys.version_info >= (3, 12) else 900
    texts.write_text('{"text": "the heart rate", "n": ' + "[" * deep + "NaN" + "]" * deep + "}\n")
    assert predict([str(texts), f"--model={tagger}", f"--out={out}", "--device=cpu"]) == 2
    assert "lists in lists, hundreds deep" in capsys.readouterr().err and not out.exists()


def test_a_file_that_only_looks_like_a_beginning_stays(tagger, rows, tmp_path, capsys):
    (tmp_path / "out.jsonl.part").write_text("mine\n")
    given = [str(rows), f"--model={tagger}", f"--out={tmp_path / 'out.jsonl'}", "--device=cpu", "--skip-bad-rows"]
    assert predict(given) == 2
    assert "remove it" in capsys.readouterr().err and (tmp_path / "out.jsonl.part").read_text() == "mine\n"


def test_files_of_somebody_else_beside_the_output_stay_and_are_not_written_into(tagger, rows, tmp_path):
    (tmp_path / "out.jsonl.lock").write_text("mine\n")
    (tmp_path / "out.jsonl.part").symlink_to(tmp_path / "elsewhere")
    given = [str(rows), f"--model={tagger}", f"--out={tmp_path / 'out.jsonl'}", "--device=cpu", "--skip-bad-rows"]
    assert predict(given) == 0
    assert (tmp_path / "out.jsonl.lock").read_text() == "mine\n" and not (tmp_path / "out.jsonl").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"out.jsonl", "out.jsonl.lock", "rows.jsonl"}


def test_an_empty_beginning_of_somebody_else_is_not_written_into(tagger, rows, tmp_path):
    part = tmp_path / "out.jsonl.part"
    part.touch()
    theirs = os.open(part, os.O_RDONLY)
    given = [str(rows), f"--model={tagger}", f"--out={tmp_path / 'out.jsonl'}", "--device=cpu", "--skip-bad-rows"]
    assert predict(given) == 0 and len((tmp_path / "out.jsonl").read_text().splitlines()) == ROWS
    assert os.fstat(theirs).st_size == 0
    os.close(theirs)


def test_two_commands_do_not_write_one_file(tagger, rows, tmp_path, monkeypatch, capsys):
    given = [str(rows), f"--model={tagger}", f"--out={tmp_path / 'out.jsonl'}", "--device=cpu", "--skip-bad-rows"]
    outputs, codes = Predictor.outputs, []

    def with_another(self, examples):
        if not codes:
            codes.append(None)
            codes.append(predict(given))
        return outputs(self, examples)

    monkeypatch.setattr(Predictor, "outputs", with_another)
    assert predict(given) == 0 and codes[1] == 2
    assert "another process is writing" in capsys.readouterr().err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == ROWS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]


def test_a_prediction_beside_the_model_goes_on(tagger, rows, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 10)
    model = tmp_path / "model"
    shutil.copytree(tagger, model)
    calls, outputs = [], Predictor.outputs

    def interrupted(self, examples):
        calls.append(None)
        if len(calls) == 2:
            raise Interrupted
        return outputs(self, examples)

    monkeypatch.setattr(Predictor, "outputs", interrupted)
    given = [str(rows), f"--model={model}", f"--out={model / 'out.jsonl'}", "--device=cpu", "--skip-bad-rows"]
    assert predict(given) == 130 and predict(given) == 0
    assert "going on after row 10" in capsys.readouterr().err


def test_a_mistake_in_a_row_leaves_nothing(tagger, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 10)
    out = tmp_path / "out.jsonl"
    assert predict([str(rows), f"--model={tagger}", f"--out={out}", "--device=cpu"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "spm.model", "sentencepiece.bpe.model"])
def test_another_model_or_tokenizer_is_another_question(tmp_path, rows, name):
    """By the size and the time of the files that decide what is computed."""
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / name
    file.write_text("one")
    settings = PredictSettings((str(rows),), str(tmp_path / "model"))
    before = asked_of(settings, input_sources(settings))
    assert asked_of(settings, input_sources(settings)) == before
    file.write_text("another")
    assert asked_of(settings, input_sources(settings)) != before
