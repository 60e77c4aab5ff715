"""Regression, handed in as a task: from rows to predictions, and no file of the product knows of it."""

import csv
import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch.nn.functional as F

from finetune.compare import compare
from finetune.dry_run import dry_run
from finetune.finetuning import finetune
from finetune.predict import Writer
from finetune.predictor import Predictor
from finetune.rows import Example
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks import Card, Task
from model import BertForSequenceClassification


class SquaredError:
    """The squared error of a number for each text."""

    def counts(self, batch):
        return {"score": float(batch.weights.sum())}

    def loss_sums(self, model, batch):
        error = F.mse_loss(model(batch).logits.float()[:, 0], batch.labels.float(), reduction="none")
        return {"score": (error * batch.weights).sum()}


class Regression(Task):
    """A number for each text."""

    name, label_columns, default_metric = "amount", ("score",), "loss"
    shown, metrics = {"mean absolute error": "mae", "squared error": "loss"}, ("mae", "loss")
    lower_is_better = frozenset({"mae", "loss"})
    num_outputs, baseline_names = 1, ("mean",)

    def label_of(self, row, column):
        try:
            return float(row[column])
        except (TypeError, ValueError) as error:
            raise ValueError(f'has no number in "{column}"') from error

    def fitted(self, train, columns, settings):
        return self

    def of_model(self, config):
        return self

    def facts(self):
        return ["regression"]

    def targets(self, examples):
        return np.array([example.label or 0.0 for example in examples], dtype=np.float64)

    def build_model(self, settings, seed):
        changes = {"num_labels": 1, "problem_type": "regression", "hidden_dropout_prob": settings.dropout}
        return BertForSequenceClassification.from_pretrained(settings.model, new_head=True, **changes)

    def open_model(self, folder):
        return BertForSequenceClassification.from_pretrained(folder)

    def objective(self, train, settings):
        return SquaredError()

    def outputs(self, logits):
        return logits.float()

    def scores(self, targets, outputs):
        error = outputs[:, 0] - targets
        return {"mae": float(abs(error).mean()), "loss": float((error**2).mean())}

    def baselines(self, train, held_out, settings):
        mean = self.targets(train).mean()
        return {"mean": {part: np.full((len(rows), 1), mean, np.float32) for part, rows in held_out.items()}}

    def results(self, train, held_out, shown):
        return {"range": [float(shown.targets.min()), float(shown.targets.max())]}

    def tell(self, out, results, best, shown, seeds):
        return [f"numbers from {results['range'][0]} to {results['range'][1]}"]

    def card(self, config, results, part, is_pair):
        return Card("text-classification", "a regression", "A number for each text", "Low is good.", ("mae",), "")

    def prediction(self, output, example):
        return {"predicted_score": round(float(output[0]), 4)}

    def shown_targets(self, targets):
        return f"{targets[0]:g}"


WORDS = {"the": 0.0, "cell": -1.0, "heart": 1.0}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Files of texts whose score is the mean of their words'."""
    rng, folder, paths = random.Random(1), tmp_path_factory.mktemp("rows"), []
    for name, count in (("train", 160), ("test", 40)):
        paths.append(folder / f"{name}.csv")
        with open(paths[-1], "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "score"])
            for _ in range(count):
                words = rng.choices(list(WORDS), k=6)
                writer.writerow([" ".join(words), sum(map(WORDS.get, words)) / 6])
    return paths


@pytest.fixture(scope="module")
def settings(encoder, rows):
    train, test = map(str, rows)
    return FinetuneSettings(
        model=str(encoder), train=train, test=test, budget="12epochs", learning_rate=2e-3, dropout=0.0, seeds=2,
        metric="loss", batch_size=8, evaluations=4, device="cpu", precision="fp32", threads=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    return finetune(replace(settings, out=str(tmp_path_factory.mktemp("regression") / "run")), Regression())


def test_it_learns_and_is_judged_by_its_own_scores(finished):
    results = json.loads((finished / "results.json").read_text())
    assert set(results["test"]) == {"mae", "loss"} and len(results["test"]["mae"]["seeds"]) == 2
    # The mean of the training scores is about 0.3 away.
    assert results["test"]["mae"]["mean"] < 0.2
    # Of two seeds the one with the lower loss stays.
    assert results["best_seed"] == 1 + int(np.argmin(results["validation"]["loss"]["seeds"]))
    assert results["range"][0] < 0 < results["range"][1]
    card = (finished / "final" / "README.md").read_text()
    assert "# A number for each text" in card and "| mean absolute error |" in card and "Low is good." in card


def test_the_folder_predicts_and_is_of_no_other_task(finished, tmp_path):
    predictor = Predictor(finished / "final", task=Regression())
    heart, cell = Example("1", "heart heart heart"), Example("2", "cell cell cell")
    outputs = predictor.outputs([heart, cell])
    assert outputs.shape == (2, 1) and outputs[0, 0] > 0.2 > -0.2 > outputs[1, 0]
    with open(tmp_path / "out.csv", "w") as file:
        Writer(file, "csv", predictor.task).write([({"text": "a"}, heart, outputs[0]), ({"text": ""}, None, None)])
    first, second = csv.DictReader(open(tmp_path / "out.csv"))
    assert float(first["predicted_score"]) == pytest.approx(outputs[0, 0], abs=1e-4) and not second["predicted_score"]
    with pytest.raises(FinetuneError, match="classifier"):
        Predictor(finished / "final")


def test_it_is_compared_and_planned(settings, tmp_path, capsys):
    few = replace(settings, budget="2epochs", seeds=1, compare=("scratch",), out=str(tmp_path / "compared"))
    dry_run(few, Regression())
    assert "texts/s" in capsys.readouterr().out
    compare(few, Regression())
    table = (tmp_path / "compared" / "comparison.md").read_text()
    assert "| mean |" in table and "mean absolute error" in table


def test_bad_scores_are_bad_rows(settings, rows, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text(rows[0].read_text() + "a text,much\n")
    with pytest.raises(FinetuneError, match='has no number in "score"'):
        finetune(replace(settings, train=str(bad), out=str(tmp_path / "run")), Regression())
