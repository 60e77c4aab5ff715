"""A number a text: scores against definitions, the user's scale, and a run from rows to answers."""

import json
import math
import random
import re
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from finetune.metrics import regression_scores, spread
from finetune.predictor import Predictor
from finetune.report import score
from finetune.rows import BadRows, Columns, Example, read_rows
from finetune.run import main
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks.regression import Regression, SquaredError
from finetune.tasks.sequences import last_layer

pytestmark = pytest.mark.usefixtures("pictures")

NUMBERS = st.integers(-50, 50).map(lambda n: n / 4)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=30))
def test_scores_are_those_of_their_definitions(pairs):
    gold, predicted = np.array(pairs, np.float64).T
    found = regression_scores(gold, predicted)
    assert found["mae"] == pytest.approx(sum(abs(g - p) for g, p in pairs) / len(pairs))
    assert found["loss"] == pytest.approx(sum((g - p) ** 2 for g, p in pairs) / len(pairs))
    assert found["rmse"] == pytest.approx(math.sqrt(sum((g - p) ** 2 for g, p in pairs) / len(pairs)))
    if len(set(gold)) == 1 or len(set(predicted)) == 1:
        assert found["pearson"] is None and found["spearman"] is None
        return

    def ranks(values):
        return np.array([sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values])

    assert found["pearson"] == pytest.approx(np.corrcoef(gold, predicted)[0, 1])
    assert found["spearman"] == pytest.approx(np.corrcoef(ranks(gold), ranks(predicted))[0, 1])


def test_what_is_not_defined_is_said_and_is_no_number():
    found = spread([0.5, None])
    assert found == {"mean": None, "std": None, "seeds": [0.5, None]} and score(found) == "undefined"
    task = Regression()
    undefined, poor = ({"pearson": value, "loss": 1.0} for value in (None, -0.9))
    assert task.judge(poor, "pearson") < task.judge(undefined, "pearson")


HOSTILE = [
    ({"score": 1}, 'has no "text"'),
    ({"text": "", "score": 1}, 'has an empty "text"'),
    ({"text": 7, "score": 1}, "is not text"),
    ({"text": "x"}, 'has no "score"'),
    ({"text": "x", "score": None}, 'has no "score"'),
    ({"text": "x", "score": ""}, 'has no "score"'),
    ({"text": "x", "score": float("nan")}, 'has no "score"'),
    ({"text": "x", "score": "nan"}, 'has no "score"'),
    ({"text": "x", "score": "much"}, "is not a number"),
    ({"text": "x", "score": "0,5"}, "is not a number"),
    ({"text": "x", "score": [1.0]}, "is not a number"),
    ({"text": "x", "score": True}, "is not a number"),
    ({"text": "x", "score": "inf"}, 'has an infinite "score"'),
    ({"text": "x", "score": float("-inf")}, 'has an infinite "score"'),
    ({"text": "x", "score": 10**400}, 'has an infinite "score"'),
    ({"text": "x", "score": 1e200}, 'has a "score" that does not fit into float32'),
    ({"text": "x", "score": -1e39}, 'has a "score" that does not fit into float32'),
]


@pytest.mark.parametrize(("row", "problem"), HOSTILE)
def test_a_bad_row_is_refused_with_its_place_or_skipped(write_rows, row, problem):
    path = write_rows([{"text": "one", "score": 1}, row, {"text": "\u200b\u0301", "score": " 2.5 "}])
    with pytest.raises(FinetuneError) as error:
        list(read_rows(Regression(), path, "utf-8", Columns(("text",), "score"), BadRows(skip=False)))
    message = str(error.value)
    assert message.startswith("train.jsonl:2 ") and problem in message and "--skip-bad-rows" in message
    rows = read_rows(Regression(), path, "utf-8", Columns(("text",), "score"), BadRows(skip=True))
    assert [(each.place, each.label) for each in rows] == [("train.jsonl:1", 1.0), ("train.jsonl:3", 2.5)]


def test_equal_numbers_teach_nothing():
    rows = [Example("1", "a", label=2.0), Example("2", "b", label=2.0)]
    with pytest.raises(FinetuneError, match="no two different numbers"):
        Regression().fitted(rows, Columns(("text",), "score"), FinetuneSettings())


@pytest.mark.parametrize(
    "numbers", [(1e-200, 2e-200, 3e-200), (-1e37, -1e37 + 1e30, -1e37), (1.7e9, 1.7e9 + 20, 1.7e9 + 50)]
)
def test_numbers_that_float32_does_not_hold_are_refused(numbers):
    rows = [Example(str(value), "a", label=value) for value in numbers]
    with pytest.raises(FinetuneError, match="do not fit into float32 .* another unit"):
        Regression().fitted(rows, Columns(("text",), "score"), FinetuneSettings())


def test_small_numbers_are_predicted_with_their_digits():
    example = Example("1", "a")
    assert Regression().prediction(np.array([3.456789e-7], np.float32), example) == {"predicted_score": 3.456789e-7}


def test_a_stratum_is_a_fifth_of_the_numbers():
    numbers = NormalDist(700, 90)
    tenths = [numbers.inv_cdf(share) for share in np.arange(0.05, 1, 0.1)]
    strata = [Regression(700, 90).stratum(Example("1", "a", label=number)) for number in tenths]
    assert len(set(strata)) == 5 and strata[::2] == strata[1::2], "two tenths each"
    far = [Regression(700, 90).stratum(Example("1", "a", label=700 + 90 * z)) for z in (-10, 10)]
    assert far == [strata[0], strata[-1]]


def test_a_model_is_kept_in_the_scale_of_the_user(encoder):
    task = Regression(700, 90)
    model = task.build_model(FinetuneSettings(model=str(encoder), from_scratch=True), 1)
    last_layer(model).bias.data.fill_(0.5)
    states = torch.randn(8, last_layer(model).in_features, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        answers = 700 + 90 * last_layer(model)(states)
        torch.testing.assert_close(last_layer(task.kept(model))(states), answers)


def test_without_words_the_mean_of_the_training_numbers_is_all_that_tools_know():
    train = [Example("1", "...", label=number) for number in (0.0, 0.0, 9.0)]
    held_out = {split: [Example("2", "?", label=number)] for split, number in (("validation", 5.0), ("test", 6.0))}
    found = Regression().baselines(train, held_out, FinetuneSettings())
    assert {name: {split: each.tolist() for split, each in outputs.items()} for name, outputs in found.items()} == {
        name: {"validation": [[3.0]], "test": [[3.0]]} for name in ("TF-IDF + ridge regression", "mean")
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    """Texts whose score, in hundreds, is the mean of their words'."""
    rng, folder, words = random.Random(1), tmp_path_factory.mktemp("rows"), {"the": 0.0, "cell": -1.0, "heart": 1.0}
    for name, count in (("train", 160), ("test", 40)):
        with open(folder / f"{name}.jsonl", "w") as file:
            for _ in range(count):
                chosen = rng.choices(list(words), k=6)
                score_ = 700 + 100 * sum(map(words.get, chosen)) / 6
                file.write(json.dumps({"text": " ".join(chosen), "score": round(score_, 2)}) + "\n")
    return str(folder / "train.jsonl"), str(folder / "test.jsonl")


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory, one_thread) -> Path:
    out = tmp_path_factory.mktemp("regression") / "run"
    given_ = [f"--model={encoder}", f"--train={files[0]}", f"--test={files[1]}", f"--out={out}", "--budget=12epochs"]
    given_ += ["--learning-rate=2e-3", "--dropout=0", "--seeds=2", "--device=cpu", "--precision=fp32", "--threads=1"]
    assert main([*given_, "--batch-size=8", "--evaluations=4"]) == 0
    return out


def test_it_learns_in_the_scale_of_the_user(finished):
    results = json.loads((finished / "results.json").read_text())
    assert results["test"]["pearson"]["mean"] > 0.9 and results["test"]["mae"]["mean"] < 15
    assert 650 < results["scale"]["mean"] < 750 and results["chosen_by"] == "loss"
    assert (finished / "predicted.png").stat().st_size > 1000
    assert "predicted" in (finished / "mistakes.md").read_text()


def test_the_mean_and_words_stand_beside_it(finished):
    baselines = json.loads((finished / "results.json").read_text())["baselines"]
    words, mean = (baselines[name]["test"] for name in ("TF-IDF + ridge regression", "mean"))
    assert words["pearson"]["mean"] > 0.9 and words["mae"]["mean"] < mean["mae"]["mean"]
    assert mean["pearson"]["mean"] is mean["spearman"]["mean"] is None, "undefined"


def test_the_pipeline_of_transformers_and_the_card_give_our_numbers(finished, files, capsys):
    from transformers import pipeline

    final, texts = finished / "final", [json.loads(line)["text"] for line in open(files[1])][:8]
    ask = pipeline("text-classification", model=str(final), function_to_apply="none", device="cpu")
    ours = [row["predicted_score"] for row in Predictor(final).predict(texts)]
    assert [row["score"] for row in ask(texts)] == pytest.approx(ours, rel=1e-5)
    assert json.loads((final / "config.json").read_text())["problem_type"] == "regression"
    code = re.search(r"```python\n(.*?)```", (final / "README.md").read_text(), re.DOTALL)[1]
    capsys.readouterr()
    exec(code.replace("path/to/this/folder", str(final)).replace("One text.", texts[0]), {})
    assert float(re.search(r"\d+\.\d+", capsys.readouterr().out)[0]) == pytest.approx(ours[0], rel=1e-5)


def test_transformers_gets_the_same_numbers(finished, files):
    from transformers import AutoModelForSequenceClassification

    texts = [json.loads(line)["text"] for line in open(files[1])][:8]
    ours = Predictor(finished / "final").outputs([Example("", text) for text in texts])
    model = AutoModelForSequenceClassification.from_pretrained(finished / "final").eval()
    tokenizer = Predictor(finished / "final").tokenizer
    for text, number in zip(texts, ours, strict=True):
        ids = [tokenizer.cls_id, *tokenizer.encode([text])[0], tokenizer.sep_id]
        with torch.no_grad():
            assert model(torch.tensor([ids])).logits.item() == pytest.approx(number.item(), rel=1e-4)
    assert 500 < ours.min() and ours.max() < 900


@given(NUMBERS, NUMBERS)
def test_a_number_is_doubted_by_how_far_off_it_is_whichever_is_larger(one, other):
    doubts = [Regression().doubt(np.float64(gold), np.array([p])) for gold, p in ((one, other), (other, one))]
    assert doubts == [max(one, other) - min(one, other)] * 2


def test_the_windows_of_a_text_count_as_one_text_together():
    """The windows of a text count as one text together."""
    batch = SimpleNamespace(labels=torch.tensor([1.0, 3.0, 3.0]), weights=torch.tensor([1.0, 0.5, 0.5]))
    loss = SquaredError(1.0, 2.0).loss_sums(lambda _: SimpleNamespace(logits=torch.zeros(3, 1)), batch)["label"]
    assert float(loss) == 1


def rows_of(labels):
    return [Example("", "text", label=label) for label in labels]


def test_rows_of_one_number_keep_the_scale_of_all():
    """Rows of one number have no scale of their own: that of all stays."""
    same = Regression(1.0, 2.0).fitted_to(rows_of([3.0, 3.0]))
    assert (same.mean, same.std) == (1, 2)
