import csv
import io
import json
import os
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from data_prep.text import lines
from finetune import predict as module
from finetune.predict import main
from finetune.predictor import Facts
from finetune.rows import table_rows
from finetune.settings import FinetuneSettings
from finetune.tasks.classification import Classification
from finetune.tokenizer import open_tokenizer
from model import BertForPreTraining
from model.families import read_config
from pretrain.engine.checkpoint import save_model_folder

ROOT = Path(__file__).parents[2]
LABELS = ["heart", "mask", "a, b"]


def classifier_folder(encoder, folder, columns, labels=LABELS):
    """A classifier that was never trained: its answers are arbitrary, and that is enough."""
    model = Classification(labels).build_model(FinetuneSettings(model=str(encoder)), seed=0)
    save_model_folder(model, open_tokenizer(encoder), folder)
    Facts(columns, 48, "head").write(folder)
    return folder


@pytest.fixture(scope="module")
def model(encoder, tmp_path_factory):
    return classifier_folder(encoder, tmp_path_factory.mktemp("predict") / "single", ("text",))


@pytest.fixture(scope="module")
def pair_model(encoder, tmp_path_factory):
    return classifier_folder(encoder, tmp_path_factory.mktemp("predict") / "pairs", ("question", "answer"))


@pytest.fixture
def ask(model, capsys):
    """(arguments) -> (standard output, standard error) of a prediction that goes well, or ends with another code."""

    def run(*given, model=model, code=0):
        assert main([f"--model={model}", "--device=cpu", *map(str, given)]) == code
        return capsys.readouterr()

    return run


def parsed(output):
    return [json.loads(line) for line in output.splitlines()]


def answers(rows):
    return [(row["predicted_label"], row["probabilities"]) for row in rows]


@contextmanager
def standard_input(content: bytes):
    """The process' own standard input is a pipe with this content; it has to fit into the pipe."""
    kept = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_row_keeps_its_columns_and_gets_label_and_probabilities(ask, write_rows):
    rows = [
        {"id": 7, "text": "heart rate", "note": None, "nested": {"a": [1, "é"]}, "label": "kept as it is"},
        {"text": "the patient", "id": 8},
    ]
    found = parsed(ask(write_rows(rows)).out)
    for row, answer in zip(rows, found, strict=True):
        assert list(answer) == [*row, "predicted_label", "probabilities"]
        assert {name: answer[name] for name in row} == row
        assert list(answer["probabilities"]) == LABELS
        assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=3e-6)
        assert answer["predicted_label"] == max(answer["probabilities"], key=answer["probabilities"].get)


def test_order_and_count_do_not_depend_on_how_many_rows_are_held(ask, write_rows, make_rows, monkeypatch):
    rows = make_rows(50)
    for index, row in enumerate(rows):
        row["text"] = row["text"] * (1 + index % 3)
    file = write_rows(rows)
    whole = parsed(ask(file).out)
    assert [row["text"] for row in whole] == [row["text"] for row in rows]
    assert len({str(row["probabilities"]) for row in whole}) > 25
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    parts = parsed(ask(file).out)
    assert [row["text"] for row in parts] == [row["text"] for row in rows]
    for one, other in zip(whole, parts, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(ask, write_rows, make_rows, tmp_path, monkeypatch):
    # All that is held at once is less than the smaller file.
    monkeypatch.setattr(lines, "_SMALL_CHUNK", 1 << 12)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 256)
    peaks = []
    # The first one imports what is needed, which takes long while it is traced.
    for count in (10, 1_000, 3_000):
        file = write_rows(make_rows(count))
        if count > 10:
            tracemalloc.start()
        ask(file, f"--out={tmp_path / str(count)}.jsonl")
        if count > 10:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_all_forms_of_input_give_the_same_answers(ask, write_rows, make_rows, tmp_path):
    rows = make_rows(12)
    texts = [row["text"] for row in rows]
    expected = answers(parsed(ask(write_rows(rows)).out))
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerows([["text"], *([text] for text in texts)])
    contents = {"a.txt": "\n".join(texts), "a.csv": table.getvalue(), "a.tsv": "text\n" + "\n".join(texts) + "\n"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        found = ask(tmp_path / name)
        assert answers(parsed(found.out)) == expected
        assert found.err.startswith("12 rows, ")


def test_a_byte_order_mark_and_line_breaks_of_windows_are_no_part_of_a_text(ask, tmp_path):
    (tmp_path / "plain.txt").write_text("heart rate\nthe patient\n")
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfheart rate\r\nthe patient\r\n")
    assert ask(tmp_path / "windows.txt").out == ask(tmp_path / "plain.txt").out
    (tmp_path / "windows.csv").write_bytes(b"\xef\xbb\xbftext;id\r\nheart rate;1\r\nthe patient;2\r\n")
    found = parsed(ask(tmp_path / "windows.csv").out)
    assert [(row["text"], row["id"]) for row in found] == [("heart rate", "1"), ("the patient", "2")]


def test_csv_is_read_back_by_the_csv_module(ask, write_rows, tmp_path):
    rows = [
        {"text": 'said "heart", then\nwent on', "id": 1, "note": "a,b"},
        {"text": "심장 박동", "id": 2, "note": ""},
        {"text": "one\rtwo", "id": 3, "note": ""},
        {"text": "the heart", "id": 4, "note": "  moved by two"},
    ]
    file, out = write_rows(rows), tmp_path / "predicted.csv"
    expected = parsed(ask(file).out)
    assert ask(file, f"--out={out}").out == ""
    with open(out, encoding="utf-8", newline="") as stored:
        found = list(csv.DictReader(stored))
    assert [row["note"] for _, row in table_rows(str(out), "utf-8")] == [row["note"] for row in rows]
    assert list(found[0]) == ["text", "id", "note", "predicted_label", *(f"probability_{name}" for name in LABELS)]
    for row, answer in zip(found, expected, strict=True):
        assert (row["text"], row["id"], row["note"]) == (answer["text"], str(answer["id"]), answer["note"])
        assert row["predicted_label"] == answer["predicted_label"]
        assert {name: float(row[f"probability_{name}"]) for name in LABELS} == answer["probabilities"]


def test_the_form_of_the_output_is_as_asked(ask, write_rows, tmp_path):
    file = write_rows([{"text": "heart rate"}])
    as_csv = ask(file, "--format=csv").out
    assert as_csv.splitlines()[0].startswith("text,predicted_label,")
    ask(file, f"--out={tmp_path / 'x.csv'}", "--format=jsonl")
    assert "heart" in json.loads((tmp_path / "x.csv").read_text())["text"]
    ask(file, f"--out={tmp_path / 'x.dat'}", "--format=jsonl")
    assert (tmp_path / "x.dat").read_text() == ask(file).out


def test_a_bad_row_gets_no_label_when_that_is_asked_for(ask, write_rows, tmp_path):
    rows = [{"text": "heart rate"}, {"text": " "}, {"id": 3}, {"text": "the patient"}, {"text": 5}]
    file = write_rows(rows)
    found = ask(file, "--skip-bad-rows")
    assert "5 rows, 3 of them without a usable text" in found.err
    answered = parsed(found.out)
    assert [row["predicted_label"] is None for row in answered] == [False, True, True, False, True]
    assert [row["probabilities"] is None for row in answered] == [False, True, True, False, True]
    alone = parsed(ask(write_rows([rows[0], rows[3]], "alone.jsonl")).out)
    assert [answered[0], answered[3]] == alone
    (tmp_path / "lines.txt").write_text("heart rate\n\nthe patient\n")
    as_csv = ask(tmp_path / "lines.txt", "--skip-bad-rows", "--format=csv").out
    assert [row["predicted_label"] == "" for row in csv.DictReader(io.StringIO(as_csv))] == [False, True, False]


def test_nothing_but_bad_rows_is_no_error_when_they_are_skipped(ask, write_rows):
    found = parsed(ask(write_rows([{"text": ""}] * 3), "--skip-bad-rows").out)
    assert [row["predicted_label"] for row in found] == [None] * 3


def test_texts_that_are_cut_are_counted(ask, write_rows):
    file = write_rows([{"text": "heart rate " * 60}, {"text": "heart"}, {"text": "stable " * 90}])
    assert "3 rows, 2 longer than 48 tokens (their beginning was read)," in ask(file).err


def test_an_empty_input_gives_an_empty_output(ask, tmp_path):
    (tmp_path / "empty.txt").touch()
    found = ask(tmp_path / "empty.txt", f"--out={tmp_path / 'x.jsonl'}")
    assert found.err.startswith("0 rows") and (tmp_path / "x.jsonl").read_text() == ""
    (tmp_path / "empty.csv").write_text("id,text\n")
    ask(tmp_path / "empty.csv", f"--out={tmp_path / 'x.csv'}")
    assert (tmp_path / "x.csv").read_text().startswith("predicted_label,probability_")


def test_columns_with_long_names_and_without_are_kept(ask, tmp_path):
    question = "What is the main reason for your visit to the clinic today?"
    (tmp_path / "a.csv").write_text(f",{question},,note\n0,pain,7,heart rate\n1,pain,8,the patient\n")
    assert "holds texts where" in ask(tmp_path / "a.csv", code=2).err
    answered = parsed(ask(tmp_path / "a.csv", "--text-column=note").out)
    kept = [{name: row[name] for name in ("", question, "Unnamed: 2", "note")} for row in answered]
    assert [list(row.values()) for row in kept] == [["0", "pain", "7", "heart rate"], ["1", "pain", "8", "the patient"]]
    (tmp_path / "a.csv").write_text(",Unnamed: 2,\n0,1,heart rate\n")
    assert "two columns of the same name" in ask(tmp_path / "a.csv", code=2).err


def test_an_error_late_in_the_input_leaves_what_stood_there(model, write_rows, make_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)
    file = write_rows([*make_rows(10), {"text": ""}])
    out = tmp_path / "predicted.jsonl"
    out.write_text("an earlier result")
    assert main([f"--model={model}", "--device=cpu", file, f"--out={out}"]) == 2
    assert out.read_text() == "an earlier result"
    assert {path.name for path in tmp_path.iterdir()} == {"train.jsonl", "predicted.jsonl"}


def test_pairs_in_every_form(pair_model, ask, write_rows, tmp_path):
    pairs = [("heart rate", "the patient"), ("the patient", "heart rate"), ("mask", "stable")]
    rows = [{"question": a, "answer": b, "id": i} for i, (a, b) in enumerate(pairs)]
    expected = answers(parsed(ask(write_rows(rows), model=pair_model).out))
    assert expected[0] != expected[1]
    (tmp_path / "pairs.txt").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    found = parsed(ask(tmp_path / "pairs.txt", model=pair_model).out)
    assert [(row["text"], row["text_pair"]) for row in found] == pairs and answers(found) == expected
    with standard_input("".join(f"{a}\t{b}\n" for a, b in pairs).encode()):
        assert answers(parsed(ask(model=pair_model).out)) == expected
    other = write_rows([{"x": a, "y": b} for a, b in pairs], "other.jsonl")
    assert answers(parsed(ask(other, "--text-column", "x", "y", model=pair_model).out)) == expected
    # Beside other texts a sum may end in another digit.
    (label, probabilities), *_ = answers(parsed(ask(other, "--text-column", "y", "x", model=pair_model).out))
    assert label == expected[1][0] and probabilities == pytest.approx(expected[1][1], abs=1e-5)


def test_pairs_for_a_model_without_a_second_segment(encoder, small_tokenizer, ask, write_rows, tmp_path):
    config = replace(read_config(encoder), type_vocab_size=1)
    save_model_folder(BertForPreTraining(config), small_tokenizer, tmp_path / "encoder")
    model = classifier_folder(tmp_path / "encoder", tmp_path / "model", ("question", "answer"))
    (row,) = parsed(ask(write_rows([{"question": "heart rate", "answer": "stable"}]), model=model).out)
    encoded = AutoTokenizer.from_pretrained(model)("heart rate", "stable", return_tensors="pt")
    with torch.no_grad():
        logits = AutoModelForSequenceClassification.from_pretrained(model).eval()(**encoded).logits
    expected = logits.softmax(-1)[0].tolist()
    assert list(row["probabilities"].values()) == pytest.approx(expected, abs=1e-3)


def test_columns_are_those_of_training_then_those_with_a_usual_name(encoder, ask, write_rows, tmp_path):
    folder = classifier_folder(encoder, tmp_path / "model", ("abstract",))
    both = write_rows([{"text": "mask 1 2 3", "abstract": "heart rate of the patient"}], "both.jsonl")
    usual = write_rows([{"text": "heart rate of the patient"}], "usual.jsonl")
    named = write_rows([{"text": "mask 1 2 3", "z": "heart rate of the patient"}], "named.jsonl")
    expected = answers(parsed(ask(usual, model=folder).out))
    assert answers(parsed(ask(both, model=folder).out)) == expected
    assert answers(parsed(ask(named, "--text-column=z", model=folder).out)) == expected
    assert answers(parsed(ask(named, model=folder).out)) != expected


@pytest.mark.parametrize("form", ["txt", "jsonl", "csv", "tsv"])
def test_standard_input_is_read_in_every_form(form, ask, make_rows, write_rows):
    rows = make_rows(5)
    expected = answers(parsed(ask(write_rows(rows)).out))
    texts = [row["text"] for row in rows]
    quoted = [f'"{text}"' for text in texts]
    content = {
        "txt": "\n".join(texts),
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "csv": "\n".join(["text", *quoted]),
        "tsv": "\n".join(["text", *texts]),
    }[form]
    with standard_input(content.encode()):
        given = [] if form == "txt" else [f"--input-format={form}"]
        assert answers(parsed(ask(*given).out)) == expected


def test_the_place_in_standard_input_is_named(model, capsys):
    with standard_input(b"one\n\nthree\n"):
        assert main([f"--model={model}", "--device=cpu"]) == 2
    assert "standard input:2" in capsys.readouterr().err


def test_a_reader_that_has_had_enough_ends_it_quietly(model, make_rows, write_rows, tmp_path):
    file = write_rows(make_rows(5))
    command = [sys.executable, "-m", "finetune.predict", f"--model={model}", "--device=cpu", "--input-format=jsonl"]
    # With a buffer, as usual, Python tries to write what is left in it at exit.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open(file, "rb") as reading, open(tmp_path / "err", "w") as errors:
        streams = {"stdin": reading, "stdout": subprocess.PIPE, "stderr": errors}
        process = subprocess.Popen(command, cwd=ROOT, env=buffered, **streams)
        process.stdout.close()
        # As of every command (see `command_line.main`).
        assert process.wait(timeout=120) == 141
    said = (tmp_path / "err").read_text()
    assert "Traceback" not in said and "Exception" not in said and "error" not in said


def test_half_a_character_comes_back_as_it_was_spelled(ask, tmp_path):
    # JSON can spell half of a surrogate pair, which no file can hold.
    (tmp_path / "half.jsonl").write_text('{"text": "heart \\ud83d rate"}\n')
    for given in ([], [f"--out={tmp_path / 'out.jsonl'}"], ["--format=csv"]):
        printed = ask(tmp_path / "half.jsonl", *given).out or (tmp_path / "out.jsonl").read_text()
        is_csv = "--format=csv" in given
        (row,) = csv.DictReader(io.StringIO(printed)) if is_csv else [json.loads(printed)]
        assert row["text"] == ("heart \\ud83d rate" if is_csv else "heart \ud83d rate")


def test_bf16_changes_little(ask, write_rows, make_rows):
    file = write_rows(make_rows(6))
    exact, rough = parsed(ask(file).out), parsed(ask(file, "--precision=bf16").out)
    assert answers(exact) != answers(rough)
    for one, other in zip(exact, rough, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=0.05)
