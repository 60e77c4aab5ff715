"""What comes with a result: baselines, parts, operating points, temperatures, folds, the curve over the rows."""

import csv
import json
import math
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finetune.choose import chosen
from finetune.choose import main as choose
from finetune.dataset import describe, read_dataset, read_training_rows
from finetune.entities.tags import TagScheme
from finetune.folds import folds, parts_of
from finetune.learning_curve import growing
from finetune.operating_point import OperatingPoint, rates
from finetune.predict import main as predict
from finetune.predictor import Ensemble, Predictor
from finetune.questions.best_answers import row_of
from finetune.results import Results, finished_results, kept_seed, presented
from finetune.rows import BadRows, Example
from finetune.run import main
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks import Task
from finetune.tasks.classification import Classification
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.multiple_choice import MultipleChoice
from finetune.tasks.question_answering import QuestionAnswering
from finetune.tasks.regression import Regression
from finetune.tasks.selection import TASKS
from finetune.tasks.similarity import PAIRS, SCORES, Similarity
from finetune.tasks.tagging import Tagging

OPTIONS = [
    "--device=cpu",
    "--precision=fp32",
    "--threads=1",
    "--batch-size=8",
    "--learning-rate=3e-3",
    "--evaluations=1",
]


def results_of(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())


def rows_of(count: int, seed: int) -> list[dict]:
    """Texts of two classes, of which a fifth has the wrong label, of three sites and ten patients."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        label = "sick" if rng.random() < 0.3 else "well"
        shown = label if rng.random() < 0.8 else "well"
        words = "heart rate was stable" if shown == "sick" else "the patient was 7"
        patient = number % 10
        rows.append({"text": f"{words} {number}", "label": label, "site": "abc"[patient % 3], "patient": patient})
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("rows")
    for number, (name, count) in enumerate((("train", 160), ("validation", 150), ("test", 80))):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(count, number)))
    return {name: str(folder / f"{name}.jsonl") for name in ("train", "validation", "test")}


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory, one_thread) -> Path:
    out = tmp_path_factory.mktemp("evaluation") / "run"
    given = [f"--model={encoder}", f"--out={out}", "--budget=4epochs", *OPTIONS, "--report-by=site"]
    given += [f"--{name}={path}" for name, path in files.items()]
    given += ["--group-column=patient", "--operating-point=sensitivity=0.9", "--calibrate"]
    assert main(given) == 0
    return out


def test_simple_tools_stand_beside_every_run(finished, files):
    found = results_of(finished)["baselines"]
    assert list(found) == ["TF-IDF + logistic regression", "most frequent class"]
    # The threshold of the tool is found as the model's, for the sensitivity that was asked for.
    assert found["TF-IDF + logistic regression"]["validation"]["sensitivity"]["mean"] >= 0.9
    assert 0.5 < found["TF-IDF + logistic regression"]["test"]["auroc"]["mean"] < 1
    card = (finished / "final" / "README.md").read_text()
    assert "TF-IDF + logistic regression" in card
    assert "answers `sick` from a probability of" in card and "gives probabilities the temperature" in card


def test_intervals_hold_the_score(finished):
    results, held = results_of(finished), []
    for name, ends in results["intervals"]["test"].items():
        score = results["test"][name]["mean"]
        if score is not None and ends is not None:
            held.append(name)
            assert ends[0] - 1e-9 <= score <= ends[1] + 1e-9 or name == "calibration_error", name
    assert {"accuracy", "macro_f1", "auroc", "loss"} <= set(held)


def test_every_part_has_the_scores_of_its_texts(finished, files):
    results = results_of(finished)
    sites = [json.loads(line)["site"] for line in open(files["test"])]
    found = results["by"]["test"]
    assert {site: part["texts"] for site, part in found.items()} == {site: sites.count(site) for site in "abc"}
    whole = sum(part["texts"] * part["scores"]["accuracy"] for part in found.values()) / 80
    assert whole == pytest.approx(results["test"]["accuracy"]["mean"])


def test_the_threshold_reaches_on_validation_what_was_asked_for(finished, files, tmp_path):
    results, facts = results_of(finished), json.loads((finished / "final" / "finetune.json").read_text())
    threshold = facts["decision"]["threshold"]
    assert results["validation"]["sensitivity"]["mean"] >= 0.9 and facts["decision"]["positive"] == "sick"
    rows = [json.loads(line) for line in open(files["validation"])]
    predictor = Predictor(finished / "final")
    probabilities = np.array([row["probabilities"]["sick"] for row in predictor.predict([r["text"] for r in rows])])
    positive = np.array([row["label"] == "sick" for row in rows])
    found = rates(positive, probabilities >= threshold)
    for name in ("sensitivity", "specificity", "ppv", "npv"):
        assert results["validation"][name]["mean"] == pytest.approx(found[name], abs=1e-6), name
    assert predict([files["test"], f"--model={finished / 'final'}", f"--out={tmp_path / 'a.csv'}", "--device=cpu"]) == 0
    for row in csv.DictReader(open(tmp_path / "a.csv")):
        probability = float(row["probability_sick"])
        # Six digits are written.
        assert abs(probability - threshold) < 2e-6 or (row["predicted_label"] == "sick") == (probability >= threshold)


def test_probabilities_are_calibrated_where_that_is_asked_for(finished, encoder, files, tmp_path, one_thread):
    decision = json.loads((finished / "final" / "finetune.json").read_text())["decision"]
    assert decision["calibrated"] is True and decision["temperature"] > 0
    settings = FinetuneSettings(**files, operating_point="sensitivity=0.9", calibrate=True)
    dataset = read_dataset(settings)
    task, outputs = kept_seed(finished, results_of(finished), dataset.task, "validation")
    targets = task.targets(dataset.validation)
    # What was written is at the temperature, so none would fit better.
    assert type(task)(task.labels, task.positive).tuned(targets, outputs).temperature == pytest.approx(1, abs=0.02)
    out = tmp_path / "plain"
    given = [f"--model={encoder}", f"--out={out}", "--budget=4epochs", *OPTIONS]
    assert main([*given, *(f"--{name}={path}" for name, path in files.items())]) == 0
    plain = json.loads((out / "final" / "finetune.json").read_text())["decision"]
    assert plain["temperature"] == pytest.approx(decision["temperature"], rel=0.05) and "calibrated" not in plain
    assert "threshold" not in plain


def test_the_most_frequent_class_is_the_answer_of_its_row_whatever_is_wished_for(finished, files):
    found = results_of(finished)["baselines"]["most frequent class"]
    dataset = read_dataset(FinetuneSettings(**files))
    for split, examples in (("validation", dataset.validation), ("test", dataset.test)):
        counts = Counter(example.label for example in examples)
        (most, _), *_ = Counter(example.label for example in dataset.train).most_common()
        assert found[split]["accuracy"]["mean"] == pytest.approx(counts[most] / len(examples))


def test_another_column_to_report_by_trains_nothing_anew(finished, encoder, files, tmp_path, capsys):
    out = shutil.copytree(finished, tmp_path / "run")
    given = [f"--model={encoder}", f"--out={out}", "--budget=4epochs", *OPTIONS, "--report-by=patient"]
    given += [f"--{name}={path}" for name, path in files.items()]
    given += ["--group-column=patient", "--operating-point=sensitivity=0.9", "--calibrate"]
    before = (out / "seed-1" / "results.json").read_bytes()
    assert main(given) == 0
    assert "test, by patient" in capsys.readouterr().out and len(results_of(out)["by"]["test"]) == 10
    shown, results = (out / "mistakes.md").read_text(), results_of(out)
    assert "the patient was 7" in shown
    # Texts that are no longer to be shown go, also where nothing else has changed.
    assert main([*given, "--show-text=no"]) == 0
    hidden = (out / "mistakes.md").read_text()
    assert "test.jsonl:" in hidden and "text:" not in hidden and "the patient" not in hidden
    assert results_of(out) == results | {"show_text": "no"}
    assert (out / "seed-1" / "results.json").read_bytes() == before
    assert main([*given, "--show-text=no"]) == 0
    assert "holds this run, finished" in capsys.readouterr().out


def test_groups_or_parts_that_were_corrected_are_noticed(finished, files):
    """They are no part of what is learned; intervals and the scores of parts change."""
    results = results_of(finished)
    settings = FinetuneSettings(**files, group_column="patient", report_by=results["report_by"],
                                show_text=results["show_text"])  # fmt: skip
    dataset = read_dataset(settings)
    first, *rest = dataset.test

    def found(dataset):
        return finished_results(
            finished, range(1, 2), results["data"], presented(settings, dataset), dataset.task.shown.values()
        )

    assert found(dataset) == results
    assert found(replace(dataset, test=[replace(first, group="x"), *rest])) is None
    assert found(replace(dataset, test=[replace(first, part="x"), *rest])) is None
    # An earlier release did not write them down.
    content = (finished / "results.json").read_text()
    del results["groups_and_parts"]
    (finished / "results.json").write_text(json.dumps(results))
    assert found(dataset) == results
    (finished / "results.json").write_text(content)


def good_and_bad() -> Iterator[tuple[Task, np.ndarray, np.ndarray, np.ndarray]]:
    """Every task with targets, outputs that are nearly right, and outputs at random."""
    rng = np.random.default_rng(5)
    gold = rng.integers(0, 2, 120)
    each = np.where(gold == 1, 0.95, 0.05), rng.random(120)
    of_two = [np.stack([1 - p, p], axis=1).astype(np.float32) for p in each]
    yield Classification(["a", "b"], positive=1), gold, *of_two
    yield MultiLabel("abc"), *(p.reshape(40, 3).astype(np.float32) for p in (gold, *each))
    yield Regression(), gold.astype(np.float64), *(p[:, None] for p in each)
    words = np.stack([np.arange(120) // 10, gold], axis=1)
    yield Tagging(["O", "B-x"]), words, *of_two
    yield Tagging(["a", "b"], TagScheme("names")), words, *of_two
    choices = np.stack([np.arange(240) // 2, np.stack([gold, 1 - gold], axis=1).ravel()], axis=1)
    yield MultipleChoice(), choices, *(np.stack([p, 1 - p], axis=1).reshape(-1, 1) for p in each)
    questions = [Example("", "What?", "heart rate 70", ((11, 13),) * label) for label in gold]
    answers = ([row_of(10 * (1 - p), np.array([[11, 13], [0, 5]]), np.array([10 * p, 5])) for p in of] for of in each)
    yield (task := QuestionAnswering(0.0)), task.targets(questions), *map(np.stack, answers)
    # Cosine, place, loss, and cosine of others.
    pairs = [np.stack([p, 1 + 20 * off, off, off], axis=1) for p, off in zip(each, (0 * gold, each[1]), strict=True)]
    for kind, scores in ((SCORES, gold.astype(np.float64)), (PAIRS, np.full(120, np.nan))):
        yield Similarity(judged_by=[kind]), scores, *pairs


def test_a_score_is_better_in_the_direction_that_it_is_chosen_by():
    cases = list(good_and_bad())
    assert {task.name for task, *_ in cases} == set(TASKS)
    for task, targets, good, bad in cases:
        better, worse = task.scores(targets, good), task.scores(targets, bad)
        assert set(better) == set(task.metrics)
        for metric in task.metrics:
            assert task.judge(better, metric) < task.judge(worse, metric), (task.name, metric)
            # Outputs that are no numbers may look right: nothing is greater than NaN.
            assert task.judge(worse, metric) < task.judge(better | {"loss": math.nan}, metric)


def test_a_wish_that_is_not_reached_is_said():
    """Of the one positive validation text another text is the surer; and there may be none at all."""
    outputs = np.array([[0.1, 0.9], [0.8, 0.2], [0.9, 0.1]], np.float32)
    for gold, sentence in (
        ([0, 1, 0], "ppv 0.500 on the validation texts, where 0.99 was asked for"),
        ([0, 0, 0], "ppv 0.000 on the validation texts, where 0.99 was asked for"),
        ([1, 0, 0], "ppv 1.000 on the validation texts"),
    ):
        task = Classification(["a", "b"], 1, OperatingPoint.parse("ppv=0.99")).tuned(np.array(gold), outputs)
        told = task._tell_decision(task.scores(np.array(gold), outputs))
        assert told[0].endswith(sentence), told


def test_a_temperature_is_found_of_mistakes():
    gold = np.arange(40) % 2
    right = np.eye(2, dtype=np.float32)[gold] * 0.4 + 0.3
    task = Classification(["a", "b"], calibrates=True)
    assert task.tuned(gold, right).temperature is None
    assert task.tuned(gold, right).finished(right) is right
    assert "fewer than 5 validation texts are answered wrongly" in task.tuned(gold, right)._tell_decision({})[0]
    wrong = np.where(np.arange(40)[:, None] < 5, 1 - right, right)
    assert task.tuned(gold, wrong).temperature is not None


def test_a_temperature_leaves_the_answers_of_a_wish_as_they_were():
    rng = np.random.default_rng(6)
    logits = rng.normal(-1, 2, 500)
    gold = (rng.random(500) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    sure = 1 / (1 + np.exp(-3 * logits))
    outputs, wish = np.stack([1 - sure, sure], axis=1).astype(np.float32), OperatingPoint("sensitivity", 0.9)
    plain, task = (Classification(["a", "b"], 1, wish, calibrates).tuned(gold, outputs) for calibrates in (False, True))
    assert task.temperature == plain.temperature > 2 and task.threshold != pytest.approx(plain.threshold, abs=0.01)
    assert task.answers(task.finished(outputs)).tolist() == plain.answers(outputs).tolist()


def test_a_probability_at_the_threshold_is_a_yes():
    outputs = np.array([[0.75, 0.25], [0.76, 0.24], [0.7, 0.3]], np.float32)
    assert Classification(["a", "b"], 1, threshold=0.25).answers(outputs).tolist() == [1, 0, 1]
    assert Classification(["a", "b"], 0, threshold=0.75).answers(outputs).tolist() == [0, 0, 1]


def test_a_run_of_an_older_release_gets_another_seed(encoder, files, tmp_path, one_thread):
    out = tmp_path / "run"
    given = [f"--model={encoder}", f"--out={out}", "--budget=4steps", *OPTIONS]
    given += [f"--{name}={path}" for name, path in files.items()]
    assert main([*given, "--seeds=1"]) == 0
    found = results_of(out / "seed-1")
    old = ("accuracy", "macro_f1", "loss")
    for split in ("validation", "test"):
        found[split] = {name: found[split][name] for name in old}
    del found["decision"]
    (out / "seed-1" / "results.json").write_text(json.dumps(found))
    (out / "results.json").unlink()
    assert main([*given, "--seeds=2"]) == 0
    assert len(results_of(out)["test"]["sensitivity"]["seeds"]) == 2


def test_texts_are_not_shown_as_parts(encoder, write_rows, tmp_path, capsys):
    note = "Mr Smith was seen on Monday in the outpatient clinic, and was well."
    rows = write_rows([{**row, "note": note} for row in rows_of(60, 1)])
    given = [f"--model={encoder}", f"--train={rows}", f"--out={tmp_path / 'x'}", "--text-column=text", *OPTIONS]
    assert main([*given, "--report-by=note", "--show-text=no", "--dry-run"]) == 2
    assert "has texts as values, which would be shown" in capsys.readouterr().err


MISTAKES = {
    "--operating-point=recall=0.9": "give one of sensitivity",
    "--positive=ill": "--positive ill is no class of",
    "--report-by=sit": 'has no column "sit"',
    "--folds=1": "--folds 1: give 2 to 50",
    "--folds=groups": "name their column with --group-column",
}


@pytest.mark.parametrize(("option", "sentence"), MISTAKES.items())
def test_mistakes_are_one_sentence(encoder, files, tmp_path, capsys, option, sentence):
    given = [f"--model={encoder}", f"--train={files['train']}", f"--out={tmp_path / 'x'}", "--device=cpu", option]
    assert main(given) == 2
    assert sentence in capsys.readouterr().err


def test_three_classes_have_no_positive_one(encoder, make_rows, write_rows, tmp_path, capsys):
    given = [f"--model={encoder}", f"--train={write_rows(make_rows(30))}", f"--out={tmp_path / 'x'}", "--device=cpu"]
    assert main([*given, "--positive=heart"]) == 2
    assert "--positive is for two classes, and" in capsys.readouterr().err


def test_compared_models_have_paired_intervals(encoder, files, tmp_path, one_thread):
    out = tmp_path / "compared"
    given = [f"--model={encoder}", f"--out={out}", "--budget=4steps", *OPTIONS, "--compare=scratch", "--seeds=2"]
    assert main([*given, *(f"--{name}={path}" for name, path in files.items())]) == 0
    results = results_of(out)
    for name, found in results["paired"].items():
        low, high = found["loss"]["interval"]
        first, other = (results["models"][model]["test"]["loss"]["mean"] for model in (results["reference"], name))
        assert found["loss"]["difference"] == pytest.approx(first - other)
        assert low <= found["loss"]["difference"] <= high and 0 < found["loss"]["p"] <= 1
    assert "its 95 % interval" in (out / "comparison.md").read_text()


def test_the_mean_of_the_seeds_is_measured_and_predicts(encoder, files, tmp_path, one_thread):
    out = tmp_path / "run"
    given = [f"--model={encoder}", f"--out={out}", "--budget=1epochs", *OPTIONS, "--seeds=3"]
    assert main([*given, *(f"--{name}={path}" for name, path in files.items())]) == 0
    results, predicted = results_of(out), tmp_path / "a.jsonl"
    asked = [files["test"], f"--model={out}", f"--out={predicted}", "--device=cpu"]
    assert predict([*asked, "--ensemble"]) == 0
    found = [json.loads(line) for line in open(predicted)]
    accuracy = np.mean([row["predicted_label"] == row["label"] for row in found])
    assert accuracy == pytest.approx(results["ensemble"]["test"]["accuracy"])
    rows = [row["text"] for row in found]
    each = [Predictor(out / f"seed-{seed}" / "model").predict(rows) for seed in (1, 2, 3)]
    mean = np.mean([[row["probabilities"]["sick"] for row in seed] for seed in each], axis=0)
    assert [row["probabilities"]["sick"] for row in found] == pytest.approx(mean, abs=1e-5)
    # While a run is given more seeds, they are not asked with what was decided without them.
    shutil.copytree(out / "seed-3", out / "seed-4")
    assert len(Ensemble(out).seeds) == 3
    shutil.rmtree(out / "seed-4")
    # What was removed is trained again where that is asked for.
    whole = (out / "seed-1" / "model" / "model.safetensors").read_bytes()
    for folder in (out / "seed-1" / "model", out / "seed-2"):
        shutil.rmtree(folder)
    with pytest.raises(FinetuneError, match="seed-1 is not there, or not whole: remove .*run/results.json, and give"):
        Ensemble(out)
    (out / "results.json").unlink()
    assert main([*given, *(f"--{name}={path}" for name, path in files.items())]) == 0
    assert (out / "seed-1" / "model" / "model.safetensors").read_bytes() == whole
    predicted.unlink()
    assert predict([*asked, "--ensemble"]) == 0 and [json.loads(line) for line in open(predicted)] == found
    (out / "ensemble.json").write_text('{"decision": {}}')
    assert len(Ensemble(out).seeds) == 3
    with pytest.raises(FinetuneError, match="no finished run of several seeds"):
        Ensemble(out / "final")


def test_rows_are_chosen_that_are_uncertain_and_differ(encoder, files, tmp_path, one_thread, capsys):
    out, next_rows = tmp_path / "run", tmp_path / "next.jsonl"
    given = [f"--model={encoder}", f"--out={out}", "--budget=1epochs", *OPTIONS, "--seeds=2"]
    given += ["--calibrate", "--operating-point=sensitivity=0.9"]
    assert main([*given, *(f"--{name}={path}" for name, path in files.items())]) == 0
    assert choose([files["test"], f"--model={out}", "--rows=8", f"--out={next_rows}", "--device=cpu"]) == 0
    found = [json.loads(line) for line in open(next_rows)]
    assert len({row["text"] for row in found}) == 8 and "8 of 80 rows" in capsys.readouterr().err
    texts = [row["text"] for row in found]
    seeds = [Predictor(out / f"seed-{number}" / "model").predict(texts) for number in (1, 2)]
    means = np.mean([[list(row["probabilities"].values()) for row in seed] for seed in seeds], axis=0)
    for row, p, together in zip(found, means, Ensemble(out).predict(texts), strict=True):
        # With the temperature and the threshold of the mean.
        assert row["probabilities"] == pytest.approx(together["probabilities"], abs=2e-6)
        assert row["predicted_label"] == together["predicted_label"]
        assert row["uncertainty"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
        assert 0 <= row["disagreement"] <= row["uncertainty"] + 1e-6
    assert found[0]["uncertainty"] == max(row["uncertainty"] for row in found)
    assert choose([files["test"], f"--model={tmp_path / 'none'}", f"--out={tmp_path / 'x'}", "--device=cpu"]) == 2
    assert choose([f"--model={out}", "--text-column", "text", files["test"]]) == 2
    assert "--text-column took" in capsys.readouterr().err
    assert choose([f"--model={out}"]) == 2
    capsys.readouterr()
    assert choose([files["test"], f"--model={out}", f"--out={tmp_path / 'x.csv'}"]) == 2
    assert "is no .jsonl file" in capsys.readouterr().err
    assert choose([str(next_rows), f"--model={out}", f"--out={tmp_path / 'x.jsonl'}", "--device=cpu"]) == 2
    assert 'the input has a column "uncertainty" already' in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert choose([str(tmp_path / "pipe.jsonl"), f"--model={out}", f"--out={tmp_path / 'x.jsonl'}"]) == 2
    assert "pipe.jsonl can be read only once: save it as a file" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["next.jsonl", "pipe.jsonl", "run"]


def test_equal_texts_are_not_chosen_twice_while_others_are_there():
    examples = [Example("", text) for text in ["heart rate"] * 5 + ["the patient", "seven eight"]]
    unsure = np.array([0.9] * 5 + [0.2, 0.1])
    assert chosen(unsure, examples, 3) == [0, 5, 6]
    assert chosen(unsure, [Example("", "...")] * 7, 2) == [0, 1]
    # However many copies of the most uncertain one there are.
    many = [Example("", "the same letter")] * 200 + [Example("", text) for text in ("the heart", "a rate", "no mask")]
    assert set(chosen(np.linspace(1, 0.5, 203), many, 4)) == {0, 200, 201, 202}
    assert len(set(chosen(np.linspace(1, 0.5, 203), many, 9))) == 9


@pytest.mark.slow
def test_labels_that_are_wrong_are_among_the_doubtful_rows(encoder, make_rows, tmp_path, one_thread):
    rows = make_rows(120)
    wrong = random.Random(1).sample(range(120), 8)
    for number in wrong:
        rows[number]["label"] = {"heart": "mask", "mask": "number", "number": "heart"}[rows[number]["label"]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "folds"
    given = [f"--model={encoder}", f"--train={tmp_path / 'rows.jsonl'}", f"--out={out}", "--budget=6epochs", *OPTIONS]
    assert main([*given, "--folds=3"]) == 0
    found = [json.loads(line) for line in open(out / "doubtful.jsonl")]
    first = {int(row["place"].split(":")[1]) - 1 for row in found[:8]}
    assert len(first & set(wrong)) >= 6 and found[0]["doubt"] >= found[-1]["doubt"]


@pytest.mark.parametrize("number", ["5", "groups"])
def test_every_row_is_a_test_text_once_and_no_group_leaks(files, number):
    found = list(folds(FinetuneSettings(train=files["train"], group_column="patient", folds=number), None))
    assert len(found) == (5 if number == "5" else 10)
    places = [int(row.place.split(":")[1]) for dataset in found for row in dataset.test]
    assert sorted(places) == list(range(1, 161))
    for dataset in found:
        groups = [{row.group for row in part} for part in (dataset.train, dataset.validation, dataset.test)]
        assert all(groups) and sum(map(len, groups)) == len(set().union(*groups)) == 10


def test_of_two_groups_each_is_a_test_part(write_rows, capsys):
    train = write_rows([{"text": f"text {n}", "label": "ab"[n % 2], "site": "mn"[n > 30]} for n in range(60)])
    settings = FinetuneSettings(train=train, group_column="site", folds="groups")
    found = list(folds(settings, None))
    assert [{row.group for row in each.test} for each in found] == [{"m"}, {"n"}]
    # Of the one that is left texts are held back, which is said.
    assert [len(each.validation) for each in found] == [3, 4] and found[0].validation[0].group == "n"
    describe(found[0], settings)
    assert 'validation texts are of a "site" that occurs in training too' in capsys.readouterr().out
    describe(read_dataset(replace(settings, folds=None)), replace(settings, folds=None))
    assert "give --validation with a few groups of your choice, or rows of more groups." in capsys.readouterr().out
    third = write_rows([{"text": f"text {n}", "label": "ab"[n % 2], "site": "mno"[n % 3]} for n in range(60)])
    describe(next(folds(replace(settings, train=third), None)), settings)
    assert '20 of 40 texts are held back, as those of one "site" stay together: give rows' in capsys.readouterr().out


def test_folds_of_groups_that_each_have_a_class_of_their_own_hold_texts_back(write_rows):
    rows = [{"text": f"text {n}", "label": f"only {n % 4}" if n < 8 else "ab"[n % 2], "site": n % 4} for n in range(80)]
    settings = FinetuneSettings(train=write_rows(rows), folds="groups", group_column="site")
    for dataset in folds(settings, None):
        assert len({row.group for row in dataset.test}) == 1 and len(dataset.test) == 20
        assert 6 <= len(dataset.validation) <= 9 and len(dataset.train) + len(dataset.validation) == 60


def test_a_fold_knows_nothing_of_its_test_texts(write_rows):
    numbers = write_rows([{"text": f"text {number}", "score": number**2 / 7} for number in range(30)])
    found = list(folds(FinetuneSettings(train=numbers, task="regression", folds="3"), None))
    for dataset in found:
        own = [row.label for row in (*dataset.train, *dataset.validation)]
        assert (dataset.task.mean, dataset.task.std) == pytest.approx((np.mean(own), np.std(own)))
    lists = write_rows([{"text": f"text {number}", "labels": ["a"] * (number % 3 == 0) + ["b"] * (number == 4)}
                        for number in range(30)])  # fmt: skip
    for dataset in folds(FinetuneSettings(train=lists, task="multi-label", folds="3"), None):
        own = [row.label for row in (*dataset.train, *dataset.validation)]
        assert dataset.task.labels == ["a", "b"]
        assert dataset.task.shares == pytest.approx(
            {name: (sum(name in labels for labels in own) + 0.5) / (len(own) + 1) for name in "ab"}
        )


@pytest.mark.parametrize("count", [3, 5, 12])
def test_folds_of_hardly_any_rows_are_made_or_refused(write_rows, count, recwarn):
    rows = write_rows([{"text": f"text {number}", "label": "ab"[number == 0]} for number in range(count)])
    numbers = write_rows([{"text": f"text {number}", "score": number / 7} for number in range(count)], "n.jsonl")
    for train, task in ((rows, "classification"), (numbers, "regression")):
        settings = FinetuneSettings(train=train, task=task, folds="5")
        if count < 5:
            with pytest.raises(FinetuneError, match="3 different texts, too few for --folds 5"):
                list(folds(settings, None))
        else:
            try:
                found = list(folds(settings, None))
            except FinetuneError as error:
                assert "too few" in str(error) and count == 5
            else:
                assert sum(len(dataset.test) for dataset in found) == count and all(d.test for d in found)
    assert not recwarn.list


def test_folds_of_rows_without_groups_keep_copies_together_and_have_alike_classes(tmp_path):
    rows = [{"text": f"text {number // 2}", "label": "ab"[number // 2 % 5 == 0]} for number in range(200)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = FinetuneSettings(train=str(tmp_path / "rows.jsonl"), folds="5")
    task, columns, found = read_training_rows(settings, None, BadRows(skip=False))
    for part in parts_of(found, task, "5", None):
        texts = [found[number].text for number in part]
        assert all(texts.count(text) == 2 for text in texts)
        assert sum(found[number].label == "b" for number in part) == pytest.approx(8, abs=2)
    with pytest.raises(FinetuneError, match="100 different texts, and a fold each takes"):
        parts_of(found, task, "groups", None)
    with pytest.raises(FinetuneError, match="too few for --folds 50"):
        parts_of(found[:20], task, "50", None)


def test_folds_of_unequal_size_have_as_many_seeds(encoder, write_rows, tmp_path, one_thread, monkeypatch, capsys):
    """Of two groups one leaves so few rows to learn from that it gets five."""
    monkeypatch.setattr("finetune.resolve._MOST_EPOCHS", 1)
    monkeypatch.setattr("finetune.resolve._FEW_STEPS", 3)
    rows = [
        {"text": f"the rate {n}", "label": "ab"[n % 2], "site": "large" if n < 100 else "small"} for n in range(160)
    ]
    given = [f"--model={encoder}", f"--train={write_rows(rows)}", f"--out={tmp_path / 'folds'}", "--group-column=site"]
    given += ["--folds=groups", "--device=cpu", "--threads=1", "--precision=fp32"]
    assert main([*given, "--dry-run"]) == 0
    assert "for each of 10 runs" in capsys.readouterr().out
    assert main(given) == 0
    for fold in (1, 2):
        assert len(list((tmp_path / "folds" / f"fold-{fold}").glob("seed-*"))) == 5


def test_folds_give_mean_and_spread_and_go_on(encoder, files, tmp_path, one_thread, capsys):
    out = tmp_path / "folds"
    given = [f"--model={encoder}", f"--train={files['train']}", f"--out={out}", "--budget=2epochs", *OPTIONS]
    given += ["--group-column=patient", "--folds=3", "--report-by=site"]
    assert main([*given, "--dry-run"]) == 0
    assert "for each of 3 runs" in capsys.readouterr().out
    assert main([*given, "--metric=ratio"]) == 2 and "--metric ratio is no score" in capsys.readouterr().err
    assert main(given) == 0
    results = results_of(out)
    each = [results_of(out / f"fold-{number}") for number in (1, 2, 3)]
    assert results["test"]["auroc"]["seeds"] == [fold["test"]["auroc"]["mean"] for fold in each]
    assert sum(fold["rows"]["test"] for fold in each) == 160 and results["folds"] == 3
    assert results["baselines"]["most frequent class"]["test"]["accuracy"]["std"] is not None
    for site, part in results["by"].items():
        accuracies = [fold["by"]["test"][site]["scores"]["accuracy"] for fold in each if site in fold["by"]["test"]]
        assert part["scores"]["accuracy"]["mean"] == pytest.approx(np.mean(accuracies))
    assert sum(part["texts"] for part in results["by"].values()) == 160
    rows, doubtful = (
        [json.loads(line) for line in open(out / f"{name}.jsonl")] for name in ("out_of_fold", "doubtful")
    )
    numbers = [int(row["place"].rpartition(":")[2]) for row in rows]
    assert sorted(numbers) == list(range(1, 161))
    assert [row["doubt"] for row in doubtful] == sorted((row["doubt"] for row in rows), reverse=True)[:16]
    texts = [row["text"] for row in map(json.loads, open(files["train"]))]
    for number, fold in enumerate(each, 1):
        own = [row for row in rows if row["fold"] == number]
        asked = [texts[n - 1] for n, row in zip(numbers, rows, strict=True) if row["fold"] == number]
        answers = Predictor(out / f"fold-{number}" / "final").predict(asked)
        assert [row["predicted_label"] for row in own] == [answer["predicted_label"] for answer in answers]
        right = np.mean([row["predicted_label"] == row["label"] for row in own])
        assert right == pytest.approx(fold["test"]["accuracy"]["mean"]) and len(own) == fold["rows"]["test"]
        assert not {row["group"] for row in own} & {row["group"] for row in rows if row["fold"] != number}
    # One whose file of outputs is damaged is trained again, as the message says.
    (out / "results.json").unlink()
    (out / "fold-1" / "seed-1" / "probabilities.npz").write_bytes(b"")
    capsys.readouterr()
    assert main(given) == 2 and f"remove {out / 'fold-1' / 'seed-1'} to train" in capsys.readouterr().err
    shutil.rmtree(out / "fold-1" / "seed-1")
    assert main(given) == 0
    assert capsys.readouterr().out.count("holds this run, finished") == 2 and results_of(out) == results


def test_the_curve_grows_with_the_rows(encoder, files, tmp_path, one_thread, pictures):
    dataset = read_dataset(FinetuneSettings(train=files["train"], validation=files["validation"]))
    parts = growing(dataset)
    texts = [{row.text for row in part.train} for part in parts]
    assert [len(each) for each in texts] == [80, 160] and texts[0] < texts[1]
    in_groups = [replace(row, group="one") for row in dataset.train]
    with pytest.raises(FinetuneError, match="no half of them can be left out"):
        growing(replace(dataset, train=in_groups))
    with pytest.raises(FinetuneError, match="100 training rows are too few"):
        growing(type(dataset)(dataset.task, dataset.columns, dataset.train[:100], dataset.validation, []))
    out = tmp_path / "curve"
    given = [f"--model={encoder}", f"--out={out}", "--budget=1epochs", *OPTIONS, "--learning-curve"]
    assert main([*given, *(f"--{name}={path}" for name, path in files.items())]) == 0
    results = results_of(out)
    assert [point["rows"] for point in results["points"]] == [80, 160] and results["shown"] == "test"
    assert (out / "learning_curve.png").stat().st_size > 1000
    assert (out / "learning_curve.md").read_text().count("\n|") == 7


def test_each_part_of_the_curve_holds_the_smaller_ones_and_has_its_own_scale(write_rows):
    rows = write_rows([{"text": f"text {number}", "score": number**2 / 7} for number in range(600)])
    dataset = read_dataset(FinetuneSettings(train=rows, task="regression"))
    parts = growing(dataset)
    assert [len(part.train) for part in parts] == pytest.approx([len(dataset.train) / n for n in (8, 4, 2, 1)], abs=5)
    texts = [{row.text for row in part.train} for part in parts]
    assert all(few < more for few, more in zip(texts, texts[1:], strict=False))
    assert all(part.validation == dataset.validation for part in parts)
    for part in parts[:-1]:
        own = [row.label for row in part.train]
        assert (part.task.mean, part.task.std) == pytest.approx((np.mean(own), np.std(own)))


def test_the_mean_of_the_seeds_is_decided_on_by_the_validation_texts(files, tmp_path):
    settings = FinetuneSettings(**files, operating_point="sensitivity=0.9", calibrate=True)
    dataset, draw, seeds = read_dataset(settings), np.random.default_rng(2), []
    held_out, task = dataset.held_out(), dataset.task
    for number in (1, 2):
        seeds.append({split: draw.dirichlet([1, 1], len(rows)).astype(np.float32) for split, rows in held_out.items()})
        (tmp_path / f"seed-{number}").mkdir()
        np.savez(tmp_path / f"seed-{number}" / "probabilities.npz", **seeds[-1])
    found = [{"seed": 1}, {"seed": 2}]
    reached = Results(settings, tmp_path, dataset, found, found[0], {})._ensemble()
    means = {split: (seeds[0][split] + seeds[1][split]) / 2 for split in held_out}
    decided = task.tuned(task.targets(dataset.validation), means["validation"])
    assert json.loads((tmp_path / "ensemble.json").read_text())["decision"] == decided.decision()
    assert 0.9 <= reached["validation"]["sensitivity"] < 1
    for split, rows in held_out.items():
        assert reached[split] == decided.scores(task.targets(rows), decided.finished(means[split]))


def test_a_sure_text_goes_before_one_like_those_chosen():
    """A text of which the model is sure still goes before one that is like those chosen."""
    rows = [Example("", text) for text in ("heart rate", "rate heart", "mask number")]
    assert chosen(np.array([0.5, 0.0, 0.0]), rows, 2) == [0, 2]


def test_of_many_uncertain_texts_those_that_differ_are_chosen():
    """Of many uncertain texts those are chosen that differ."""
    rows = [Example("", text) for text in ("heart rate", "rate heart", "mask number")]
    assert chosen(np.array([0.5, 0.49, 0.4]), rows, 2) == [0, 2]
    assert chosen(np.array([0.5, 0.49, 0.4]), rows, 1) == [0]
