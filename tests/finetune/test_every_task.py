"""What holds for each task: interruptions, several processes, private texts, bad rows, plans, streams."""

import json

import pytest
from safetensors.torch import load_file

from finetune.choose import main as choose
from finetune.entities import taggers
from finetune.predict import main as predict
from finetune.run import main
from pretrain.engine import loop

MARK = "xyzzy"
"""A word of every text that is not in the vocabulary."""


def label_of(task, number):
    """A label that the words tell."""
    kind = number % 3
    return {
        "classification": ["heart", "mask", "number"][kind],
        "multi-label": [["heart"], ["heart", "mask"], []][kind],
        "regression": 700.5 + kind,
        "tagging": ["O", "O", ["B-a", "B-b", "O"][kind], "O"],
        "multiple-choice": kind,
        "question-answering": [{"text": ["heart", "mask"][kind], "answer_start": 10}] if kind < 2 else [],
        "similarity": [4.5, 1.0, 2.0][kind],
    }[task]


def rows_of(task, count, first=0):
    """A quarter of the texts alike, so that they can be told apart by one word."""
    rows = []
    for number in range(first, first + count):
        words = [MARK, "the", ["heart", "mask", "7"][number % 3], str(number)]
        text = {"tokens": words} if task == "tagging" else {"text": " ".join(words)}
        if task == "multiple-choice":
            # The right one is mostly the heart, wherever it stands; some rows have fewer choices.
            right, *wrong = ("heart", "mask", "7") if number % 5 else ("7", "heart", "mask")
            choices = [f"{word} {MARK}" for word in wrong]
            choices.insert(label_of(task, number), f"{right} {MARK}")
            text["choices"] = choices[: 3 - (number % 4 == 0 and number % 3 < 2)]
        if task == "question-answering":
            text = {"question": f"{MARK} which {number} ?", "context": " ".join(words)}
        if task == "similarity":
            text = {"text_a": " ".join(words), "text_b": f"{MARK} heart {number}"}
        rows.append(text | {LABELS.get(task, "label"): label_of(task, number)})
    return rows


LABELS = {"tagging": "tags", "question-answering": "answers", "similarity": "score"}
TASKS = (
    "classification", "multi-label", "regression", "tagging", "multiple-choice", "question-answering", "similarity",
)  # fmt: skip


@pytest.fixture(params=TASKS)
def task(request):
    return request.param


@pytest.fixture
def given(task, encoder, write_rows, tmp_path, one_thread):
    """(name of the folder, options) -> the arguments of a run."""
    train = write_rows(rows_of(task, 60))
    test = write_rows(rows_of(task, 15, first=300), "test.jsonl")

    def arguments(name, *options):
        named = {"model": encoder, "task": task, "train": train, "test": test, "out": tmp_path / name}
        fixed = ["--device=cpu", "--precision=fp32", "--threads=1", "--seeds=2", "--dropout=0", "--learning-rate=1e-3"]
        return [*(f"--{key}={value}" for key, value in named.items()), *fixed, "--batch-size=8", "--budget=8steps",
                "--evaluations=2", "--log-every=1", *options]  # fmt: skip

    return arguments


def results_of(folder):
    found = json.loads((folder / "results.json").read_text())
    return {key: value for key, value in found.items() if key != "seconds"}


@pytest.mark.slow
def test_an_interrupted_run_ends_as_one_that_was_not(given, tmp_path, monkeypatch):
    assert main(given("whole")) == 0
    step, calls = loop.step, []

    def interrupted(learner, batches):
        calls.append(1)
        if len(calls) in (6, 12):
            raise KeyboardInterrupt
        return step(learner, batches)

    monkeypatch.setattr(loop, "step", interrupted)
    codes = [main(given("parts", "--checkpoint-every=3steps")) for _ in range(3)]
    assert codes == [130, 130, 0]
    # Had it started over each time, it would have done more.
    assert len(calls) < 6 + 6 + 16
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert results_of(parts) == results_of(whole)
    assert (parts / "final/model.safetensors").read_bytes() == (whole / "final/model.safetensors").read_bytes()


def weights_of(folder):
    """Those of an encoder, under one name with a head and without."""
    return {name.removeprefix("bert."): value for name, value in load_file(folder / "model.safetensors").items()}


@pytest.mark.slow
def test_two_processes_are_one_run(given, encoder, two_processes, tmp_path):
    options = ("--mlm-weight=0.5", "--seeds=1")
    assert main(given("one", *options)) == 0
    printed = two_processes("finetune.run", given("two", *options))
    one, two = (weights_of(tmp_path / name / "final") for name in ("one", "two"))
    before = weights_of(encoder)
    learned = "encoder.layer.1.output.dense.weight"
    assert (one[learned] - before[learned]).abs().max() > 1e-3
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 2e-5
    # Each stream of words is said once.
    assert printed.count("The model is in") == 1


def test_no_text_is_shown_or_kept_where_that_is_asked_for(given, tmp_path, capsys):
    assert main(given("run", "--show-text=no", "--budget=2steps", "--evaluations=1")) == 0
    printed = capsys.readouterr()
    assert MARK not in printed.out + printed.err
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 10 and not [path for path in files if MARK.encode() in path.read_bytes()]
    assert main(given("run2", "--seeds=1", "--budget=2steps", "--evaluations=1")) == 0
    shown = capsys.readouterr().out + "".join(
        path.read_text(encoding="utf-8") for path in (tmp_path / "run2").rglob("*.md")
    )
    assert MARK in shown, "nothing is ever shown: the test above proves nothing"


@pytest.mark.slow
def test_folds_answer_each_row_and_keep_no_text_where_that_is_asked_for(given, task, tmp_path):
    def folds(name, *options):
        words = given(name, "--folds=2", "--seeds=1", "--budget=2steps", "--evaluations=1", *options)
        assert main([word for word in words if not word.startswith("--test=")]) == 0
        return [json.loads(line) for line in (tmp_path / name / "out_of_fold.jsonl").read_text().splitlines()]

    private, open_ = folds("private", "--show-text=no"), folds("open")
    files = [path for path in (tmp_path / "private").rglob("*") if path.is_file()]
    assert not [path for path in files if MARK.encode() in path.read_bytes()]
    answers = set(open_[0]) - {"place", "fold", "label", "doubt"}
    assert answers and len({row["place"] for row in open_}) == 60
    has_text = any(MARK in json.dumps([row[name] for name in answers]) for row in open_)
    kept = {"place", "fold", "label", "doubt"} | (set() if has_text else answers)
    assert private == [{name: value for name, value in row.items() if name in kept} for row in open_]
    assert MARK in (tmp_path / "open" / "doubtful.jsonl").read_text()


def test_rows_without_a_label_are_named_or_left_out_and_listed(given, task, write_rows, tmp_path, capsys):
    rows = rows_of(task, 60)
    for number in (17, 31):
        del rows[number][LABELS.get(task, "label")]
    train = write_rows(rows, "bad.jsonl")
    arguments = [f"--train={train}" if word.startswith("--train=") else word for word in given("run")]
    assert main(arguments) == 2
    assert "bad.jsonl:18" in capsys.readouterr().err
    assert main([*arguments, "--skip-bad-rows", "--dry-run"]) == 0
    assert "Bad rows skipped: 2 (the first: bad.jsonl:18" in capsys.readouterr().out
    assert main([*arguments, "--skip-bad-rows", "--seeds=1", "--budget=1steps", "--evaluations=1"]) == 0
    listed = [json.loads(line) for line in (tmp_path / "run" / "bad_rows.jsonl").read_text().splitlines()]
    assert [row["place"] for row in listed] == ["bad.jsonl:18", "bad.jsonl:32"]
    assert all(row["problem"].startswith("has no ") for row in listed)


@pytest.mark.slow
def test_each_way_to_measure_and_to_choose_is_for_every_task(task, encoder, write_rows, tmp_path, one_thread, capsys):
    def file(name, count, first=0):
        rows = rows_of(task, count, first)
        # One that is far longer than a sequence.
        long = rows[0]["tokens"] if task == "tagging" else rows[0]
        if task == "tagging":
            long += ["the"] * 99
            rows[0]["tags"] += ["O"] * 99
        else:
            long[next(name for name in ("context", "text_b", "text") if name in long)] += " the" * 99
        return write_rows([{**row, "site": "ab"[n % 2]} for n, row in enumerate(rows)], name)

    named = {"model": encoder, "task": task, "train": file("train.jsonl", 160), "test": file("test.jsonl", 30, 300)}
    fixed = ["--device=cpu", "--precision=fp32", "--threads=1", "--batch-size=8", "--budget=4steps", "--evaluations=1"]
    given = [*(f"--{key}={value}" for key, value in named.items()), *fixed]
    run, curve, compared = (tmp_path / name for name in ("run", "curve", "compared"))
    assert main([*given, f"--out={run}", "--seeds=2", "--report-by=site"]) == 0
    results = json.loads((run / "results.json").read_text())
    assert {value: part["texts"] for value, part in results["by"]["test"].items()} == {"a": 15, "b": 15}
    assert len(results["baselines"]) >= 2 - (task == "tagging" and not taggers.has_crf())
    assert all(each["test"] for each in results["baselines"].values())
    assert main([*given, f"--out={curve}", "--seeds=1", "--learning-curve"]) == 0
    assert len(list(curve.glob("rows-*"))) >= 2 and (curve / "learning_curve.md").exists()
    assert main([*given, f"--out={compared}", "--seeds=1", "--compare=scratch"]) == 0
    assert "not pretrained" in (compared / "comparison.md").read_text()
    unlabelled = [{k: v for k, v in row.items() if k != LABELS.get(task, "label")} for row in rows_of(task, 40, 900)]
    texts, has_answers = write_rows(unlabelled, "unlabelled.jsonl"), task != "similarity"
    asked = [f"--model={run}", texts, "--device=cpu"]
    assert predict([*asked, "--ensemble", f"--out={tmp_path / 'together.jsonl'}"]) == (0 if has_answers else 2)
    assert choose([*asked, "--rows=5", f"--out={tmp_path / 'chosen.jsonl'}"]) == (0 if has_answers else 2)
    if has_answers:
        assert len((tmp_path / "together.jsonl").read_text().splitlines()) == 40
        chosen = [json.loads(line) for line in (tmp_path / "chosen.jsonl").read_text().splitlines()]
        assert len({json.dumps(row) for row in chosen}) == 5
        assert all(row["uncertainty"] >= row["disagreement"] >= 0 for row in chosen)


def test_the_plan_is_made_and_nothing_is_kept(given, tmp_path, capsys):
    assert main(given("run", "--dry-run", "--mlm-weight=0.5")) == 0
    assert "texts/s" in capsys.readouterr().out and not (tmp_path / "run").exists()


def test_predictions_come_in_the_order_of_the_rows(given, task, write_rows, tmp_path):
    assert main(given("run", "--budget=2steps", "--evaluations=1")) == 0
    label = LABELS.get(task, "label")
    rows = [{key: value for key, value in row.items() if key != label} for row in rows_of(task, 301)]
    texts = write_rows([{"id": number, **row} for number, row in enumerate(rows)], "many.jsonl")
    out = tmp_path / "predicted.jsonl"
    model = tmp_path / "run" / "final"
    assert predict([f"--model={model}", texts, f"--out={out}", "--device=cpu"]) == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in found] == list(range(301))
    for number in (7, 200, 300):
        one = write_rows([rows[number]], "one.jsonl")
        (tmp_path / "one").unlink(missing_ok=True)
        assert predict([f"--model={model}", one, f"--out={tmp_path / 'one'}", "--format=jsonl", "--device=cpu"]) == 0
        alone = json.loads((tmp_path / "one").read_text())
        assert alone.keys() > rows[number].keys() and is_alike({"id": number, **alone}, found[number])


def is_alike(one, other):
    """Whether rows are the same but for the last digits of their numbers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_alike, one, other))
    return one == (pytest.approx(other, abs=1e-5) if isinstance(one, float) else other)
