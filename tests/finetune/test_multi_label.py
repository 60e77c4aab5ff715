"""Several labels a text: scores against scikit-learn, thresholds against brute force, a run from rows to answers."""

import csv
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import sklearn
import sklearn.metrics as reference
from hypothesis import given
from hypothesis import strategies as st

from finetune.dataset import read_dataset
from finetune.label_metrics import multi_label_scores, per_label
from finetune.operating_point import OTHER, OperatingPoint, best_threshold, label_thresholds, rates, threshold_for
from finetune.predict import main as predict
from finetune.predictor import Predictor
from finetune.rows import BadRows, Columns, Example, read_rows
from finetune.run import main
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks import HeldOut
from finetune.tasks.multi_label import MICRO, MultiLabel
from finetune.tasks.selection import kind_of_labels
from finetune.tasks.sequences import last_layer


def random_case(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """1 to 40 texts and 2 to 6 labels, some without a text: gold, probabilities with ties, and what is given."""
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 41)), int(rng.integers(2, 7))
    gold = (rng.random(shape) < rng.random(shape[1])).astype(np.float32)
    probabilities = (rng.integers(0, 11, shape) / 10).astype(np.float32)
    return gold, probabilities, probabilities >= rng.random(shape[1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 240, 3), marks=pytest.mark.slow)])
def test_scores_are_those_of_scikit_learn(seeds):
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        for seed in seeds:
            check_scores(seed)


def check_scores(seed: int) -> None:
    gold, probabilities, given_ = random_case(seed)
    found = multi_label_scores(gold, probabilities, given_)
    rows = per_label(gold, probabilities, given_, [str(i) for i in range(gold.shape[1])])
    of_all, of_each = (
        reference.precision_recall_fscore_support(gold, given_, average=average, zero_division=0)
        for average in ("micro", None)
    )
    for place, name in enumerate(("precision", "recall", "f1")):
        assert (found[f"micro_{name}"] or 0) == pytest.approx(of_all[place])
        assert [row[name] for row in rows] == pytest.approx(of_each[place])
    each = of_each[2][(gold.sum(0) + given_.sum(0)) > 0]
    assert found["macro_f1"] == (pytest.approx(each.mean()) if len(each) else None)
    assert found["exact_match"] == pytest.approx(reference.accuracy_score(gold, given_))
    some = gold.sum(0) > 0
    ranked = gold[:, some], probabilities[:, some]
    wanted = reference.average_precision_score(*ranked, average="macro") if some.any() else None
    assert found["map"] == (wanted if wanted is None else pytest.approx(wanted))
    both = [label for label in range(gold.shape[1]) if 0 < gold[:, label].sum() < len(gold)]
    areas = np.atleast_1d(reference.roc_auc_score(gold[:, both], probabilities[:, both], average=None)) if both else []
    assert found["auroc"] == (pytest.approx(np.mean(areas)) if both else None)
    assert found["calibration_error"] == pytest.approx(
        np.mean([gap_of_bins(has, p) for has, p in zip(gold.T, probabilities.T, strict=True)])
    )
    matrices = reference.multilabel_confusion_matrix(gold, given_)  # [labels, 2, 2]
    right = matrices[:, 0, 0]
    for name, beside in (("specificity", matrices[:, 0, 1]), ("npv", matrices[:, 1, 0])):
        wanted = [*right / (right + beside), right.sum() / (right.sum() + beside.sum())]
        told = [*(row[name] for row in rows), found[f"micro_{name}"]]
        assert [np.nan if share is None else share for share in told] == pytest.approx(wanted, nan_ok=True)
    assert [row["auroc"] for row in rows if row["auroc"] is not None] == pytest.approx(areas)
    has_label = gold.any(1)
    ranked = gold[has_label], probabilities[has_label]
    wanted = reference.label_ranking_average_precision_score(*ranked) if has_label.any() else None
    assert found["lrap"] == (wanted if wanted is None else pytest.approx(wanted))
    # A share of nothing, which is 0 there, is not defined.
    has = {"precision": given_.any(), "recall": gold.any(), "f1": given_.any() or gold.any()}
    assert {name: found[f"micro_{name}"] is not None for name in has} == has
    smallest = np.finfo(np.float32).eps
    clipped = np.clip(probabilities.astype(np.float64), smallest, 1 - smallest)
    # The mean over the labels, which have as many texts each.
    assert found["loss"] == pytest.approx(reference.log_loss(gold.ravel(), clipped.ravel(), labels=[0, 1]), rel=1e-6)


def gap_of_bins(has: np.ndarray, probabilities: np.ndarray) -> float:
    """Of the texts in each fifteenth of the probabilities: the mean probability beside the share that has the label."""
    gap, edges = 0.0, np.linspace(0, 1, 16)
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = ((probabilities > low) | (low == 0)) & (probabilities <= high)
        if inside.any():
            gap += inside.mean() * abs(probabilities[inside].mean(dtype=np.float64) - has[inside].mean())
    return gap


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=1, max_size=12))
def test_no_threshold_has_a_better_f1(rows):
    targets = np.array([has for has, _ in rows], np.float32)
    probabilities = np.array([p for _, p in rows], np.float32) / 8

    thresholds = [best_threshold(targets, probabilities), *(np.arange(-0.5, 9) / 8)]
    # Each threshold as if it were a label of its own.
    given = probabilities[:, None] >= np.array(thresholds, np.float32)
    right = (given & (targets[:, None] == 1)).sum(0)
    of_found, *others = 2 * right / np.maximum(1, given.sum(0) + targets.sum())
    assert of_found == pytest.approx(max(others))


def test_a_label_of_many_texts_has_a_threshold_of_its_own_and_the_others_share_one():
    rng = np.random.default_rng(1)
    targets = (rng.permuted(np.tile(np.arange(400), (4, 1)), axis=1).T < (200, 50, 49, 15)).astype(np.float32)
    # The labels are as well told apart at 0.7, 0.4, 0.2 and 0.2.
    middle = np.array([0.7, 0.4, 0.2, 0.2])
    outputs = np.clip(middle + (targets - 0.5) * 0.1 + rng.normal(0, 0.01, targets.shape), 0, 1)
    found = label_thresholds(targets, outputs)
    assert found[:2] == pytest.approx([0.7, 0.4], abs=0.05), "at least 50 texts"
    assert found[2] == found[3] == best_threshold(targets.ravel(), outputs.ravel()) != pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("name", OTHER)
def test_labels_are_given_from_where_they_reach_what_is_wished_for(name):
    rng = np.random.default_rng(2)
    targets = (rng.random((400, 3)) < (0.5, 0.3, 0.04)).astype(np.float32)
    outputs = np.clip(targets * 0.3 + rng.random(targets.shape) * 0.7, 0, 1).astype(np.float32)
    wish = OperatingPoint(name, 0.9)
    task = MultiLabel(["a", "b", "c"], wish).tuned(targets, outputs)
    for label in range(2):
        assert task.thresholds[label] == threshold_for(wish, targets[:, label] == 1, outputs[:, label])
        found = rates(targets[:, label] == 1, outputs[:, label] >= task.thresholds[label])
        assert found[name] >= 0.9
    assert task.thresholds[2] == threshold_for(wish, targets.ravel() == 1, outputs.ravel())
    scores = task.scores(targets, outputs)
    over_all = rates(targets.ravel() == 1, (outputs >= task.thresholds).ravel())
    assert scores[MICRO[name]] == pytest.approx(over_all[name])
    assert f"thresholds, for {name}=0.9 on the validation texts" in task._tell_decision(scores)[0]
    assert "which is less" in task._tell_decision(dict.fromkeys(MICRO.values(), 0.89))[0]


def test_the_temperature_of_labels_takes_back_what_made_them_too_sure():
    rng = np.random.default_rng(3)
    logits = np.minimum(rng.normal(-1, 2, (3000, 4)), 3)
    targets = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    sure = (1 / (1 + np.exp(-2.5 * logits))).astype(np.float32)
    task = MultiLabel("abcd", calibrates=True).tuned(targets, sure)
    assert task.temperature == pytest.approx(2.5, rel=0.05)
    back, plain = task.finished(sure), MultiLabel("abcd").tuned(targets, sure)
    np.testing.assert_allclose(back, 1 / (1 + np.exp(-2.5 * logits / task.temperature)), atol=1e-4)
    surest = np.array([[1, np.nextafter(np.float32(1), np.float32(0)), 1e-30, 0]], np.float32)
    assert (np.diff(task.finished(surest)[0]) <= 0).all() and np.isfinite(task.finished(surest)).all()
    before, after = plain.scores(targets, sure), task.scores(targets, back)
    assert after["calibration_error"] < before["calibration_error"] / 2 and after["loss"] < before["loss"]
    # Only what is asked for acts; and what was decided is what a folder says.
    assert plain.finished(sure) is sure and plain.temperature == task.temperature
    again = MultiLabel("abcd").with_decision(json.loads(json.dumps(task.decision())))
    np.testing.assert_array_equal(again.finished(sure), back)
    assert again.thresholds.tolist() == task.thresholds.tolist()
    # Hardly a mistake is too little to go by.
    right = np.where(targets == 1, 0.9, 0.1).astype(np.float32)
    assert MultiLabel("abcd", calibrates=True).tuned(targets, right).finished(right) is right
    with pytest.raises(FinetuneError, match="temperature in finetune.json is no positive number"):
        MultiLabel("abcd").with_decision({"temperature": "1"})


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["a", "b", "a"], "classification"),
        ([1, 2, 3], "classification"),
        (["1", "2"], "classification"),
        ([1.0, 2.0], "classification"),
        ([0.5, 2], "regression"),
        (["0.5", "2", ""], "regression"),
        ([0.5, float("nan"), 2], "regression"),
        (["1.5", "NA", "2"], "regression"),
        ([["a"], [], ["a", "b"]], "multi-label"),
        (["a;b", "a", "b", ""], "multi-label"),
        (["[]", '["a"]', '["a", "b"]', ""], "multi-label"),
        (["[]", "['a']", "['a' 'b']"], "multi-label"),
        (["[a", "a]", "[b]"], "classification"),
        (["of a; b", "of c; d"], "classification"),
        ([None, ""], "classification"),
    ],
)
def test_the_task_is_told_by_the_labels(values, task):
    assert kind_of_labels(values)[0] == task


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a", "b"], 'classification, as "label" holds one class a row'),
        ([1, 2], 'classification, as "label" holds one class a row'),
        ([["a"], ["b", "a"]], 'multi-label, as "label" holds lists'),
        (["a;b", "b;c"], 'multi-label, as "label" holds names joined by semicolons'),
        ([0.5, 2], 'regression, as "label" holds numbers with fractions'),
    ],
)
def test_the_task_that_was_found_is_said(write_rows, capsys, labels, said):
    rows = [{"text": f"the heart {number}", "label": labels[number % 2]} for number in range(40)]
    read_dataset(FinetuneSettings(train=write_rows(rows)))
    assert f"Task: {said} (--task names another).\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "thresholds", [[0.3, 0.4], {"a": None, "b": 0.5}, {"a": 0.3}, "0.3", {"a": math.nan, "b": 0.5}, {"a": 0.5, "b": 3}]
)
def test_thresholds_that_are_no_numbers_are_refused(thresholds):
    with pytest.raises(FinetuneError, match=r"the thresholds in finetune.json are no probabilities"):
        MultiLabel(["a", "b"]).with_decision({"thresholds": thresholds})
    assert MultiLabel(["a", "b"]).with_decision({}).thresholds.tolist() == [0.5, 0.5]


def test_labels_are_lists_or_joined_and_none_is_no_label():
    def labels(value):
        return MultiLabel().label_of({"labels": value}, "labels")

    assert labels(["b", "a", "b"]) == labels("b; a ;b") == ("a", "b")
    assert labels([]) == labels("") == labels("[]") == labels(" [ ] ") == ()
    for cell in ('["b", "a"]', "['b', 'a']", "['a' 'b']", "['a'\n \"b\"]", '["a", "b", "a"]'):
        assert labels(cell) == ("a", "b"), cell
    assert labels(str(["it's", 'a "b"', "c; d"])) == ('a "b"', "c; d", "it's")
    assert labels(str(np.array(["a\\b", "it's"], dtype=object))) == ("a\\b", "it's")
    assert labels("[3 -1\n 12]") == ("-1", "12", "3") and labels("['\\d']") == ("\\d",)
    assert labels("[a]") == ("[a]",) and labels("[b] 'a' [c]") == ("[b] 'a' [c]",)
    assert labels([1, "x"]) == ("1", "x") and labels([0, 1]) == ("0", "1")
    for value in ([0, 0, 1], "[0 1 0 0]", [0.0, 1.0, 1.0], [False, False, True]):
        with pytest.raises(ValueError, match='has a 0 or 1 for each label in "labels"'):
            labels(value)
    for value in (None, [None], ["a", ""], ["a", " "], [["a"]], {"a": 1}, [0.5]):
        with pytest.raises(ValueError, match="labels"):
            labels(value)


HOSTILE = [
    ({"labels": ["a"]}, 'has no "text"'),
    ({"text": None, "labels": ["a"]}, 'has no "text"'),
    ({"text": " \n", "labels": ["a"]}, 'has an empty "text"'),
    ({"text": ["x"], "labels": ["a"]}, "is not text"),
    ({"text": "x"}, 'has no "labels"'),
    ({"text": "x", "labels": None}, 'has no "labels"'),
    ({"text": "x", "labels": ["a", ""]}, '"labels"'),
    ({"text": "x", "labels": ["a", " "]}, '"labels"'),
    ({"text": "x", "labels": [None]}, '"labels"'),
    ({"text": "x", "labels": [["a"]]}, '"labels"'),
    ({"text": "x", "labels": {"a": 1}}, '"labels"'),
    ({"text": "x", "labels": [0.5]}, '"labels"'),
    ({"text": "x", "labels": float("nan")}, '"labels"'),
]


@pytest.mark.parametrize(("row", "problem"), HOSTILE)
def test_a_bad_row_is_refused_with_its_place_or_skipped(write_rows, row, problem):
    path = write_rows([{"text": "one", "labels": []}, row, {"text": "\u200b\u0301", "labels": "a"}])
    with pytest.raises(FinetuneError) as error:
        list(read_rows(MultiLabel(), path, "utf-8", Columns(("text",), "labels"), BadRows(skip=False)))
    message = str(error.value)
    assert message.startswith("train.jsonl:2 ") and problem in message and "--skip-bad-rows" in message
    rows = read_rows(MultiLabel(), path, "utf-8", Columns(("text",), "labels"), BadRows(skip=True))
    assert [(each.place, each.label) for each in rows] == [("train.jsonl:1", ()), ("train.jsonl:3", ("a",))]


def test_a_row_with_an_unknown_label_beside_known_ones_is_refused_or_skipped():
    labels = [("a", "b"), ("a", "new"), (), ("new",)]
    rows = [Example(f"test.jsonl:{number}", "x", label=each) for number, each in enumerate(labels, 1)]
    with pytest.raises(FinetuneError, match="test.jsonl:2 has the label 'new', which does not occur in training"):
        list(MultiLabel(["a", "b"]).usable(rows, BadRows(skip=False), show_text=True))
    kept = MultiLabel(["a", "b"]).usable(rows, BadRows(skip=True), show_text=True)
    assert [row.place for row in kept] == ["test.jsonl:1", "test.jsonl:3"]


@pytest.mark.parametrize("from_scratch", [False, True])
def test_a_new_head_gives_each_label_the_share_it_has(encoder, from_scratch):
    settings = FinetuneSettings(model=str(encoder), from_scratch=from_scratch)
    rows = [Example("", "", label=("b",) * (number < 70)) for number in range(98)]
    model = MultiLabel(["a", "b"]).fitted_to(rows).build_model(settings, 1)
    np.testing.assert_allclose(last_layer(model).bias.detach().sigmoid(), [0.5 / 99, 70.5 / 99], rtol=1e-5)
    assert model.config.problem_type == "multi_label_classification"


def test_rows_that_teach_nothing_are_refused():
    columns, settings = Columns(("text",), "labels"), FinetuneSettings()
    none = [Example("1", "a", label=()), Example("2", "b", label=())]
    with pytest.raises(FinetuneError, match="no row of builtin has a label"):
        MultiLabel().fitted(none, columns, settings)
    numbers = [Example(str(i), "a", label=(str(i),)) for i in range(200)]
    with pytest.raises(FinetuneError, match="200 different labels"):
        MultiLabel().fitted(numbers, columns, settings)


WORDS = {"heart": "the heart", "mask": "a [mask]", "number": "7 8 9"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    """Texts with none to three of the words' labels."""
    rng, folder = random.Random(1), tmp_path_factory.mktemp("rows")
    for name, count in (("train", 240), ("test", 60)):
        with open(folder / f"{name}.jsonl", "w") as file:
            for number in range(count):
                labels = [label for label in WORDS if rng.random() < 0.4]
                words = " ".join(WORDS[label] for label in rng.sample(labels, len(labels)))
                file.write(json.dumps({"text": f"patient {number} {words}", "labels": labels}) + "\n")
    return str(folder / "train.jsonl"), str(folder / "test.jsonl")


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory, one_thread) -> Path:
    out = tmp_path_factory.mktemp("multi") / "run"
    given = [f"--model={encoder}", f"--train={files[0]}", f"--test={files[1]}", f"--out={out}", "--budget=12epochs"]
    given += ["--learning-rate=2e-3", "--dropout=0", "--seeds=2", "--device=cpu", "--precision=fp32", "--threads=1"]
    assert main([*given, "--batch-size=8", "--evaluations=4"]) == 0
    return out


def test_it_learns_and_its_thresholds_are_kept(finished, files):
    results = json.loads((finished / "results.json").read_text())
    assert results["test"]["micro_f1"]["mean"] > 0.9 and results["chosen_by"] == "micro_f1"
    assert results["labels"] == sorted(WORDS) and len(results["per_label"]["test"]) == 3
    kept = json.loads((finished / "final" / "finetune.json").read_text())
    assert kept["task"] == "multi-label" and list(kept["decision"]["thresholds"]) == sorted(WORDS)
    # Without being told, the folder knows its task and its thresholds.
    predictor = Predictor(finished / "final")
    rows = [json.loads(line) for line in open(files[1])]
    outputs = predictor.outputs([Example("", row["text"]) for row in rows])
    found = predictor.task.scores(
        predictor.task.targets([Example("", "", label=tuple(r["labels"])) for r in rows]), outputs
    )
    best = results["best_seed"] - 1
    assert found["micro_f1"] == pytest.approx(results["test"]["micro_f1"]["seeds"][best], abs=1e-6)


def test_the_pipeline_of_transformers_and_the_card_give_our_probabilities(finished, files, capsys):
    from transformers import pipeline

    final, texts = finished / "final", [json.loads(line)["text"] for line in open(files[1])][:10]
    ask = pipeline("text-classification", model=str(final), top_k=None, device="cpu")
    for ours, theirs in zip(Predictor(final).predict(texts), ask(texts), strict=True):
        assert {each["label"]: each["score"] for each in theirs} == pytest.approx(ours["probabilities"], abs=1e-5)
    code = re.search(r"```python\n(.*?)```", (final / "README.md").read_text(), re.DOTALL)[1]
    capsys.readouterr()
    exec(code.replace("path/to/this/folder", str(final)).replace("One text.", texts[0]), {})
    assert "heart" in capsys.readouterr().out


def test_simple_tools_stand_beside_it(finished):
    """Of the test words each tells its label; the frequencies of the labels rank nothing."""
    baselines = json.loads((finished / "results.json").read_text())["baselines"]
    words, frequencies = (baselines[name]["test"] for name in ("TF-IDF + logistic regression", "label frequencies"))
    assert words["map"]["mean"] > 0.7 > 0.5 > frequencies["map"]["mean"]
    assert words["lrap"]["mean"] > 0.9 > 0.8 > frequencies["lrap"]["mean"]


def test_predictions_are_the_labels_at_their_thresholds(finished, files, tmp_path):
    out = tmp_path / "out.csv"
    assert predict([files[1], f"--model={finished / 'final'}", f"--out={out}", "--device=cpu"]) == 0
    limits = json.loads((finished / "final" / "finetune.json").read_text())["decision"]["thresholds"]
    for row in csv.DictReader(open(out)):
        given_ = [name for name in sorted(WORDS) if float(row[f"probability_{name}"]) >= limits[name]]
        assert row["predicted_labels"] == ";".join(given_)
    assert "# Most confident mistakes" in (finished / "mistakes.md").read_text()


def test_a_label_with_a_semicolon_is_not_joined_with_others(encoder, tmp_path, one_thread, capsys):
    rows = [{"text": f"the heart {i}", "labels": ["food; drink", "heart"][: i % 3]} for i in range(60)]
    file, run = tmp_path / "rows.jsonl", tmp_path / "run"
    file.write_text("\n".join(map(json.dumps, rows)))
    given = [f"--model={encoder}", f"--train={file}", f"--out={run}", "--seeds=1", "--budget=2steps", "--evaluations=1"]
    assert main([*given, "--device=cpu", "--precision=fp32", "--threads=1"]) == 0
    ask = [str(file), f"--model={run / 'final'}", "--device=cpu"]
    capsys.readouterr()
    assert predict([*ask, f"--out={tmp_path / 'out.csv'}"]) == 2
    said = "the label 'food; drink' has a semicolon, which stands between labels in a CSV: use --format jsonl"
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("out.csv*"))
    assert predict([*ask, f"--out={tmp_path / 'out.jsonl'}"]) == 0
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert list(first["probabilities"]) == ["food; drink", "heart"]


def test_scores_that_an_earlier_release_did_not_have_are_written(encoder, files, tmp_path, one_thread):
    given = [f"--model={encoder}", f"--train={files[0]}", f"--test={files[1]}", f"--out={tmp_path}/run", "--seeds=1"]
    given += ["--budget=2steps", "--evaluations=1", "--device=cpu", "--precision=fp32", "--threads=1"]
    assert main(given) == 0
    path = tmp_path / "run" / "results.json"
    before = json.loads(path.read_text())
    own = tmp_path / "run" / "seed-1" / "results.json"
    for file in (path, own):
        earlier = json.loads(file.read_text())
        for split in ("validation", "test"):
            for name in ("lrap", "auroc", "micro_specificity", "micro_npv", "calibration_error"):
                earlier[split].pop(name)
        earlier.get("decision", {}).pop("temperature", None)
        file.write_text(json.dumps(earlier))
    assert main(given) == 0
    assert json.loads(path.read_text()) == before


def test_options_of_other_tasks_are_refused(encoder, files, tmp_path, capsys):
    given = [f"--model={encoder}", f"--train={files[0]}", f"--out={tmp_path / 'x'}", "--device=cpu"]
    assert main([*given, "--metric=accuracy"]) == 2
    assert "--metric accuracy is no score of multi-label" in capsys.readouterr().err
    assert main([*given, "--class-weights=balanced"]) == 2
    assert "--class-weights is for classification, not for multi-label" in capsys.readouterr().err
    assert main([*given, "--operating-point=recall=1"]) == 2
    assert "--operating-point recall=1: give one of sensitivity" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_wish_and_a_temperature_go_through_a_run(encoder, files, tmp_path, one_thread, capsys):
    rows = [json.loads(line) for line in open(files[0])]
    # A tenth is wrong, so that there are mistakes.
    rows = [row | {"labels": sorted(WORDS)} if number % 10 == 0 else row for number, row in enumerate(rows)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--model={encoder}", f"--train={tmp_path}/train.jsonl", f"--test={files[1]}", f"--out={tmp_path}/run"]
    given += ["--budget=4epochs", "--learning-rate=2e-3", "--device=cpu", "--precision=fp32", "--threads=1"]
    assert main([*given, "--seeds=1", "--operating-point=sensitivity=0.95", "--calibrate"]) == 0
    told = capsys.readouterr().out
    assert "thresholds, for sensitivity=0.95 on the validation texts" in told
    assert "probabilities are at temperature" in told
    facts = json.loads((tmp_path / "run" / "final" / "finetune.json").read_text())["decision"]
    assert facts["calibrated"] is True and facts["temperature"] > 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["validation"]["micro_recall"]["mean"] >= 0.95
    assert "finetune.predict` gives probabilities the temperature" in (tmp_path / "run/final/README.md").read_text()
    # What answers is what was measured.
    predictor, rows = Predictor(tmp_path / "run" / "final"), [json.loads(line) for line in open(files[1])]
    outputs = predictor.outputs([Example("", row["text"]) for row in rows])
    targets = predictor.task.targets([Example("", "", label=tuple(row["labels"])) for row in rows])
    for name, score in predictor.task.scores(targets, outputs).items():
        assert score == pytest.approx(results["test"][name]["mean"], abs=1e-5), name


def test_models_are_unsure_of_each_label_and_doubt_the_worst_one():
    task, coin = MultiLabel("abc"), -np.log(0.5)
    alike, apart = [[0.5, 1, 0]] * 2, [[0.5, 1, 1], [0.5, 1, 0]]
    assert task.uncertainty(np.array(alike)) == pytest.approx((coin / 3, 0), abs=1e-9)
    assert task.uncertainty(np.array(apart)) == pytest.approx((coin * 2 / 3, coin / 3), abs=1e-9)
    # That a label is there is as unsure as that it is not.
    rare = np.array([[0.1, 0.2, 0.3]])
    assert task.uncertainty(rare) == pytest.approx(task.uncertainty(1 - rare))
    assert task.doubt(np.array([1, 0, 0]), np.array([0.9, 0.2, 0.7])) == pytest.approx(0.7)
    assert task.doubt(np.array([1, 0, 0]), np.array([0.1, 0.2, 0.7])) == pytest.approx(0.9)


def rows_of(labels):
    return [Example("", "text", label=label) for label in labels]


def test_a_text_is_held_back_with_those_of_its_rarest_label():
    """A text is held back with those of its rarest label."""
    task = MultiLabel(["often", "rare"]).fitted_to(rows_of([("often",), ("often", "rare"), ("often",), ()]))
    assert [task.stratum(row) for row in rows_of([("often", "rare"), ("often",), ()])] == ["rare", "often", ""]


def test_a_label_is_given_at_its_threshold_in_predictions_as_in_scores():
    """A label is given at its threshold, in predictions as in scores."""
    task, output = MultiLabel(["a", "b"]), np.array([0.5, 0.25], np.float32)
    assert task.prediction(output, Example("", ""))["predicted_labels"] == ["a"]
    assert task.scores(np.array([[1, 0]]), output[None])["exact_match"] == 1


def test_a_wish_that_is_just_reached_is_reached():
    """A wish that is just reached is reached."""
    task = MultiLabel(["a"], OperatingPoint("sensitivity", 1.0))
    assert "which is less" not in task._tell_decision({"micro_recall": 1.0})[0]
    assert "which is less" in task._tell_decision({"micro_recall": 0.99})[0]


def test_the_scores_of_each_label_are_those_of_what_is_given_at_its_threshold():
    """The scores of each label are those of what is given at its threshold."""
    task = MultiLabel(["a"])._with(thresholds=np.array([0.2]))
    held = [Example("", "text", label=label) for label in (("a",), ("a",), ())]
    outputs = np.array([[0.9], [0.3], [0.1]], np.float32)
    (row,) = task.results([], {}, HeldOut("test", 1, held, task.targets(held), outputs))["per_label"]["test"]
    assert (row["precision"], row["recall"]) == (1, 1)
