"""Every mistake gets one clear sentence and exit code 2, and leaves nothing half-written."""

import json
import os
import shutil

import pytest

from finetune.predict import main as predict
from finetune.run import main as finetune

ROWS = [
    {"text": f"{text} {number}", "label": label}
    for number in range(12)
    for label, text in (("a", "heart rate"), ("b", "mask of the patient"))
]


def rows_file(folder, name="train.jsonl", rows=ROWS, insert=None, at=2):
    """A file of rows with one more before row number `at` (from 0); returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [*rows[:at], insert, *rows[at:]] if insert else rows
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / name


def renamed(**names):
    return [{names.get(key, key): value for key, value in row.items()} for row in ROWS]


def train(folder, **options):
    return [f"--train={rows_file(folder, **options)}"]


def held_out(folder, part, **options):
    return [*train(folder), f"--{part}={rows_file(folder, f'{part}.jsonl', **options)}"]


def text_file(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)
    return folder / name


def with_third_text(rows):
    return [row | {"note": "another column of text"} for row in rows]


STRANGE = {"text": "the rate", "label": "new"}
MISTAKES = {
    "missing file": (
        lambda f: [f"--train={rows_file(f).with_name('trian.jsonl')}"],
        ["trian.jsonl", "nearest name", "train.jsonl"],
    ),
    "plain text": (lambda f: [f"--train={text_file(f, 'notes.txt', 'one line')}"], ["notes.txt", ".jsonl"]),
    "unknown ending": (lambda f: [f"--train={text_file(f, 'notes.docx', 'x')}"], ["notes.docx", ".jsonl"]),
    "missing text": (lambda f: train(f, insert={"label": "a"}), ["train.jsonl:3", '"text"', "--skip-bad-rows"]),
    "missing label": (lambda f: train(f, insert={"text": "x"}), ["train.jsonl:3", '"label"']),
    "empty text": (lambda f: train(f, insert={"text": " ", "label": "a"}), ["train.jsonl:3", "empty"]),
    "text is a number": (lambda f: train(f, insert={"text": 1.5, "label": "a"}), ["train.jsonl:3", "a number"]),
    "label is a fraction": (lambda f: train(f, insert={"text": "x", "label": 0.5}), ["train.jsonl:3", "a fraction"]),
    "label is a list": (lambda f: train(f, insert={"text": "x", "label": ["a"]}), ["train.jsonl:3", "not a class"]),
    "new label in validation": (
        lambda f: held_out(f, "validation", insert=STRANGE, at=1),
        ["validation.jsonl:2", "'new'", "(a, b)"],
    ),
    "new label in test": (lambda f: held_out(f, "test", insert=STRANGE, at=1), ["test.jsonl:2", "'new'"]),
    "no known label": (
        lambda f: [*held_out(f, "test", rows=[STRANGE] * 3), "--skip-bad-rows"],
        ["test.jsonl", "no usable row"],
    ),
    "one class": (lambda f: train(f, rows=ROWS[::2]), ["only one label, 'a'"]),
    "empty file": (lambda f: train(f, rows=[]), ["train.jsonl", "no rows"]),
    "empty csv": (lambda f: [f"--train={text_file(f, 'train.csv', '')}"], ["train.csv", "no rows"]),
    "a header alone": (lambda f: [f"--train={text_file(f, 'train.csv', 'text,label')}"], ["train.csv", "no rows"]),
    "a csv row too long": (
        lambda f: [f"--train={text_file(f, 'train.csv', 'text,label' + chr(10) + 'x,a,b' + chr(10))}"],
        ["train.csv:2", "3 fields"],
    ),
    "unknown label column": (
        lambda f: [*train(f), "--label-column=lable"],
        ['"lable"', "--label-column label", "text, label"],
    ),
    "unknown text column": (lambda f: [*train(f), "--text-column=texts"], ['"texts"', "--text-column text"]),
    "no usual label column": (lambda f: train(f, rows=renamed(label="verdict")), ["verdict", "--label-column"]),
    "two columns of text": (
        lambda f: train(f, rows=with_third_text(renamed(text="essay"))),
        ["essay, label, note", "--text-column"],
    ),
    "text and label in one column": (lambda f: [*train(f), "--text-column=label"], ['"label"', "--label-column"]),
    "muon with nothing for it": (
        lambda f: [*train(f), "--freeze-encoder", "--optimizer=muon"],
        ["muon", "--freeze-encoder"],
    ),
    "a frozen model that never learned": (
        lambda f: [*train(f), "--freeze-encoder", "--compare", "scratch"],
        ["--freeze-encoder", "take scratch out of --compare"],
    ),
    "one model twice": (lambda f: [*train(f), "--compare", "scratch", "scratch"], ["twice"]),
    "three columns of text": (lambda f: [*train(f), "--text-column", "a", "b", "c"], ["--text-column", "two"]),
    "other columns in test": (lambda f: held_out(f, "test", rows=renamed(text="texts")), ["test.jsonl", "texts"]),
    "broken JSON": (lambda f: train(f, insert='{"text": "x", "label": ', at=4), ["train.jsonl:5", "JSON"]),
    "JSON that is no row": (lambda f: train(f, insert='["x", "a"]', at=4), ["train.jsonl:5", "object"]),
    "unknown encoding": (lambda f: [*train(f), "--encoding=utf8x"], ["utf8x", "--encoding"]),
    "built-in texts beside others": (lambda f: [*train(f), "--test=builtin"], ["--test builtin"]),
    "too few texts": (
        lambda f: train(f, rows=[ROWS[0], ROWS[1]]),
        ["train.jsonl", "too few", "--validation"],
    ),
    "longer than the model": (lambda f: [*train(f), "--sequence-length=64"], ["--sequence-length 64", "up to 48"]),
    "unknown option": (lambda f: [*train(f), "--patiense=2"], ["--patience"]),
    "no seed": (lambda f: [*train(f), "--seeds=0"], ["--seeds 0"]),
    "no patience": (lambda f: [*train(f), "--patience=0"], ["--patience 0"]),
    "a metric that is none": (lambda f: [*train(f), "--metric=f1"], ["--metric", "macro_f1"]),
    "no such device": (lambda f: [*train(f), "--device=mps"], ["--device mps", "cpu"]),
    "columns of built-in texts": (lambda f: ["--text-column=text"], ["--text-column", "builtin"]),
    "from scratch beside comparison": (
        lambda f: [*train(f), "--from-scratch", "--compare=scratch"],
        ["--from-scratch", "--compare"],
    ),
    "scratch misspelt": (lambda f: [*train(f), "--compare=scrach"], ["--compare scrach", "did you mean scratch?"]),
    "no model to compare in a plan": (lambda f: [*train(f), f"--compare={f / 'no'}", "--dry-run"], ["no is not a fol"]),
    "no model to compare": (lambda f: [*train(f), f"--compare={f / 'nowhere'}"], ["nowhere"]),
}


def assert_one_sentence(err, words):
    assert err.startswith("error: ") and err.count("\n") == 1 and not err.endswith(".\n"), err
    assert "Traceback" not in err
    for word in words:
        assert word in err, err


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_in_one_sentence_and_leaves_nothing(mistake, encoder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, words = MISTAKES[mistake]
    if mistake == "no such device":
        import torch

        if torch.backends.mps.is_available():
            pytest.skip("this machine has the device that the test takes to be missing")
    given = make(tmp_path / "in")
    assert finetune([f"--model={encoder}", "--out=runs/out", *given]) == 2
    assert_one_sentence(capsys.readouterr().err, words)
    assert {path.name for path in tmp_path.iterdir()} <= {"in"}


def test_a_budget_that_only_evaluates_is_refused(encoder, tmp_path, capsys):
    assert finetune([f"--model={encoder}", f"--out={tmp_path / 'out'}", *train(tmp_path / "in"), "--budget=1s"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["--budget", "validation"])


def model_copy(encoder, folder, change):
    """A copy of the encoder with a change made to it."""
    shutil.copytree(encoder, folder / "model")
    change(folder / "model")
    return folder / "model"


def cut_short(name):
    def change(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-40])

    return change


def more_entries(folder):
    (folder / "tokenizer.json").unlink()
    with open(folder / "vocab.txt", "a") as file:
        file.writelines(f"word{number}\n" for number in range(100))


MODELS = {
    "missing": (lambda encoder, f: f / "nowhere", ["nowhere", "not a folder"]),
    "a file": (lambda encoder, f: rows_file(f, "x.jsonl"), ["x.jsonl", "not a folder"]),
    "the folder of the run": (lambda encoder, f: encoder.parent, ["is not a model folder; give", "/final"]),
    "empty": (lambda encoder, f: f, ["config.json"]),
    "weights cut short": (
        lambda encoder, f: model_copy(encoder, f, cut_short("model.safetensors")),
        ["model.safetensors"],
    ),
    "no weights": (
        lambda encoder, f: model_copy(encoder, f, lambda m: (m / "model.safetensors").unlink()),
        ["no weights"],
    ),
    "config cut short": (lambda encoder, f: model_copy(encoder, f, cut_short("config.json")), ["config.json"]),
    "no tokenizer": (
        lambda encoder, f: model_copy(
            encoder, f, lambda m: [(m / name).unlink() for name in ("tokenizer.json", "vocab.txt")]
        ),
        ["tokenizer.json", "vocab.txt"],
    ),
    "a larger vocabulary": (lambda encoder, f: model_copy(encoder, f, more_entries), ["vocabulary entries"]),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_cannot_be_used_is_refused_and_nothing_is_left(model, encoder, tmp_path, capsys):
    make, words = MODELS[model]
    (tmp_path / "in").mkdir()
    folder = make(encoder, tmp_path / "in")
    given = [*train(tmp_path / "texts"), "--device=cpu", f"--out={tmp_path / 'out'}"]
    assert finetune([f"--model={folder}", *given]) == 2
    assert_one_sentence(capsys.readouterr().err, words)
    assert not (tmp_path / "out").exists()


def test_where_nothing_was_pretrained_the_way_there_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert finetune([]) == 2
    assert_one_sentence(capsys.readouterr().err, ["runs/builtin/final", "python -m pretrain.run"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("extra", [[], ["--compare=scratch"]])
def test_an_output_folder_of_something_else_is_left_alone(extra, encoder, tmp_path, capsys):
    given = [f"--model={encoder}", *train(tmp_path / "in"), *extra]
    file = text_file(tmp_path, "thesis.txt", "chapter")
    assert finetune([*given, f"--out={file}"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["thesis.txt", "--out"])
    assert file.read_text() == "chapter"
    text_file(tmp_path / "thesis", "chapter.txt", "one")
    assert finetune([*given, f"--out={tmp_path / 'thesis'}"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["thesis", "--out"])
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


@pytest.fixture(scope="module")
def run_folder(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    given = [f"--model={encoder}", *train(folder), "--budget=1steps", "--device=cpu", "--precision=fp32"]
    assert finetune([*given, f"--out={folder / 'run'}"]) == 0
    return folder / "run"


DAMAGE = {
    "probabilities of a seed": ("seed-1/probabilities.npz", ["seed-1", "probabilities.npz", "damaged"]),
    "results of a seed": ("seed-1/results.json", ["seed-1", "results.json", "damaged"]),
    "settings": ("settings.yaml", ["settings.yaml"]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_of_a_run_is_named(damage, run_folder, encoder, tmp_path, capsys):
    name, words = DAMAGE[damage]
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()  # else the run is finished, and its parts are not looked at
    (tmp_path / "run" / name).write_text('{"data')
    given = [f"--model={encoder}", *train(run_folder.parent), "--budget=1steps", "--device=cpu", "--precision=fp32"]
    capsys.readouterr()
    assert finetune([*given, f"--out={tmp_path / 'run'}"]) == 2
    assert_one_sentence(capsys.readouterr().err, words)


def predict_from(run_folder, *given):
    return predict([f"--model={run_folder / 'final'}", "--device=cpu", *map(str, given)])


PREDICT_MISTAKES = {
    "missing file": (lambda f: [rows_file(f).with_name("trian.jsonl")], ["trian.jsonl", "train.jsonl"]),
    "unknown ending": (lambda f: [text_file(f, "notes.docx", "x")], ["notes.docx"]),
    "empty text": (lambda f: [rows_file(f, insert={"text": ""}, at=4)], ["train.jsonl:5", "empty", "--skip-bad-rows"]),
    "empty line": (lambda f: [text_file(f, "notes.txt", "one\n\nthree\n")], ["notes.txt:2", "empty"]),
    "no text column": (
        lambda f: [rows_file(f, rows=with_third_text(renamed(text="essay")))],
        ["train.jsonl", "essay, label, note", "--text-column"],
    ),
    "unknown text column": (lambda f: [rows_file(f), "--text-column=txt"], ["--text-column text"]),
    "pairs for a model of single texts": (
        lambda f: [rows_file(f, rows=[{"question": "x", "answer": "y"}])],
        ["single texts", "--text-column with one name"],
    ),
    "broken JSON": (lambda f: [rows_file(f, insert='{"text": ', at=4)], ["train.jsonl:5", "JSON"]),
    "two files": (lambda f: [rows_file(f), rows_file(f, "b.jsonl")], ["2 files", "a pattern in quotes"]),
    "output is the input": (lambda f: [rows_file(f), f"--out={f / 'train.jsonl'}"], ["--out", "another name"]),
    "column is taken": (
        lambda f: [rows_file(f, rows=[{"text": "x", "predicted_label": "a"}])],
        ['"predicted_label"', "rename"],
    ),
    "unknown format": (lambda f: [rows_file(f), "--format=xlsx"], ["--format", "csv"]),
    "unknown option": (lambda f: [rows_file(f), "--modle=x"], ["--model"]),
    "output is there already": (
        lambda f: [rows_file(f), f"--out={rows_file(f, 'b.jsonl')}"],
        ["b.jsonl", "there already", "another name"],
    ),
    "output of another kind": (lambda f: [rows_file(f), f"--out={f / 'x.xlsx'}"], ["x.xlsx", ".csv", "--format"]),
    "a wrong path with a space": (lambda f: [rows_file(f) and str(f / "my trian.jsonl")], ["my trian.jsonl", "train"]),
    "text instead of a file": (lambda f: [rows_file(f) and "the secret rate"], ["no file", "pipe a text"]),
    "file behind an option": (lambda f: ["--file", rows_file(f)], ["--file", "without an option"]),
    "file behind another program's option": (lambda f: ["--input", rows_file(f)], ["--input", "without an option"]),
    "unknown encoding": (lambda f: [rows_file(f), "--encoding=utf8x"], ["utf8x"]),
    "output folder missing": (lambda f: [rows_file(f), f"--out={f / 'no' / 'x.csv'}"], ["--out", "no/x.csv", "folder"]),
    "output is a folder": (lambda f: [rows_file(f), f"--out={f}"], ["--out", "folder"]),
    "file after the columns": (lambda f: ["--text-column", "text", rows_file(f)], ["put the file before"]),
    "columns of plain text": (lambda f: [text_file(f, "notes.txt", "x"), "--text-column=text"], ["notes.txt", "plain"]),
    "form of a file": (lambda f: [rows_file(f), "--input-format=csv"], ["--input-format", "standard input"]),
    "built-in texts": (lambda f: [rows_file(f) and "builtin"], ["builtin", "give a file"]),
}


@pytest.mark.parametrize("mistake", PREDICT_MISTAKES)
def test_a_mistake_in_predicting_is_refused(mistake, run_folder, tmp_path, capsys):
    make, words = PREDICT_MISTAKES[mistake]
    given = make(tmp_path / "in")
    before = {path: path.read_bytes() for path in (tmp_path / "in").iterdir()}
    assert predict_from(run_folder, f"--out={tmp_path / 'predicted.jsonl'}", *given) == 2
    assert_one_sentence(capsys.readouterr().err, words)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert {path: path.read_bytes() for path in (tmp_path / "in").iterdir()} == before


def test_a_device_or_a_link_is_not_replaced_by_predictions(run_folder, tmp_path, capsys):
    """As /dev/null and /dev/stdout are."""
    pipe, link = tmp_path / "pipe.jsonl", tmp_path / "link.jsonl"
    os.mkfifo(pipe)
    link.symlink_to("gone")
    for out in (pipe, link):
        assert predict_from(run_folder, rows_file(tmp_path / "in"), f"--out={out}") == 2
        assert_one_sentence(capsys.readouterr().err, [out.name, "no file", "new file"])
    assert pipe.is_fifo() and link.is_symlink() and not (tmp_path / "gone").exists()


def test_the_file_to_predict_may_stand_in_a_settings_file(run_folder, tmp_path, capsys):
    given = [f"--out={tmp_path / 'predicted.jsonl'}", f"--model={run_folder / 'final'}", "--device=cpu"]
    assert predict([str(rows_file(tmp_path / "in")), *given, "--print-config"]) == 0
    (tmp_path / "predict.yaml").write_text(capsys.readouterr().out)
    assert predict([f"--config={tmp_path / 'predict.yaml'}"]) == 0
    assert len((tmp_path / "predicted.jsonl").read_text().splitlines()) == len(ROWS)


def test_predicting_before_anything_was_fine_tuned_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert predict([str(rows_file(tmp_path / "in"))]) == 2
    assert_one_sentence(capsys.readouterr().err, ["runs/builtin-packages/final", "python -m finetune.run", "--model"])


def test_predicting_with_what_is_no_classifier_is_refused(run_folder, encoder, tmp_path, capsys):
    given = [str(rows_file(tmp_path)), "--device=cpu"]
    shutil.copytree(run_folder / "final", tmp_path / "damaged")
    (tmp_path / "damaged" / "finetune.json").write_text('{"text_col')
    for model, words in (
        (encoder, ["no classifier", "finetune.run"]),
        (run_folder, ["is not a model folder; give", "/final"]),
        (tmp_path / "nowhere", ["nowhere"]),
        (tmp_path / "damaged", ["finetune.json", "damaged"]),
    ):
        assert predict([f"--model={model}", *given]) == 2
        assert_one_sentence(capsys.readouterr().err, words)


def test_a_single_text_for_a_model_of_pairs_is_refused(encoder, tmp_path, capsys):
    pairs = [{"question": row["text"], "answer": "the rate", "label": row["label"]} for row in ROWS]
    given = [*train(tmp_path / "in", rows=pairs), "--budget=1steps", "--device=cpu", "--precision=fp32"]
    assert finetune([f"--model={encoder}", *given, f"--out={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    lines = text_file(tmp_path, "pairs.txt", "one\ttwo\nthree\n")
    for file, words in (
        (rows_file(tmp_path, "single.jsonl"), ["pairs of texts", "--text-column with two names"]),
        (lines, ["pairs.txt:2", '"text_pair"']),
    ):
        assert predict_from(tmp_path / "run", file, f"--out={tmp_path / 'predicted.jsonl'}") == 2
        assert_one_sentence(capsys.readouterr().err, words)
    assert not (tmp_path / "predicted.jsonl").exists()
