"""A number for each text or pair of texts: a score, a grade, how alike two texts are (Devlin et al. 2019, STS-B)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from data_prep.durable import write_text
from model import BertConfig, BertForSequenceClassification
from pretrain.engine.step import Objective

from ..batches import Encoded, LabelledBatch
from ..collapse import Collapse, where_no_better
from ..metrics import regression_scores
from ..mistakes import errors_markdown, largest_errors
from ..pictures import draw_numbers
from ..rows import Columns, Example
from ..settings import FinetuneError, FinetuneSettings
from ..simple_models import tfidf_regression
from . import Card, HeldOut, Task
from .sequences import fine_tuned, last_layer, new_model, number, pipeline_example

TFIDF, MEAN = "TF-IDF + ridge regression", "mean"
SCORE = "predicted_score"
# The smallest float32 with all digits is 1.2e-38, and neighbours are 6e-8 to 1.2e-7 of a number apart.
_LEAST_SPREAD, _LEAST_SHARE = 1e-37, 1e-5


class Regression(Task):
    """A number for each text, in the user's scale.

    Inside, numbers are standardised: the model learns (number - mean) / standard deviation of the training rows.

    Args:
        mean, std: of the training numbers, once they are known.
    """

    name = "regression"
    label_columns = ("score", "label", "target", "rating", "value", "similarity", "relatedness")
    shown = {"Pearson": "pearson", "Spearman": "spearman", "MAE": "mae", "RMSE": "rmse"}
    metrics = ("pearson", "spearman", "mae", "rmse", "loss")
    default_metric = "loss"
    lower_is_better = frozenset({"mae", "rmse", "loss"})
    baseline_names = (TFIDF, MEAN)
    needs_seeds = True
    num_outputs = 1

    def __init__(self, mean: float = 0.0, std: float = 1.0):
        self.mean, self.std = mean, std

    # --- rows

    def label_of(self, row: Mapping[str, Any], column: str) -> float:
        """The number of a row; raises ValueError with what is wrong with it."""
        return number(row, column)

    def fitted(self, train: Sequence[Example], columns: Columns, settings: FinetuneSettings) -> "Regression":
        """Raises FinetuneError where all numbers are the same, or too close together for float32."""
        numbers = np.array([example.label for example in train], dtype=np.float64)
        if len(numbers) < 2 or numbers.min() == numbers.max():
            raise FinetuneError(
                f'"{columns.label}" of {settings.train} has no two different numbers: give --label-column'
            )
        if numbers.std() < max(_LEAST_SPREAD, _LEAST_SHARE * np.abs(numbers).max()):
            raise FinetuneError(
                f'the numbers in "{columns.label}" of {settings.train} do not fit into float32 (from '
                f"{numbers.min():.12g} to {numbers.max():.12g}): write them in another unit, or count from another zero"
            )
        return self.fitted_to(train)

    def fitted_to(self, train: Sequence[Example]) -> "Regression":
        """The scale of these rows; that of all where they are equal."""
        numbers = np.array([example.label for example in train], dtype=np.float64)
        return Regression(float(numbers.mean()), float(numbers.std())) if np.ptp(numbers) else self

    def of_model(self, config: BertConfig) -> "Regression":
        """A model that is kept answers in the user's scale."""
        return Regression()

    def facts(self) -> list[str]:
        """The scale."""
        return [self.name, repr(self.mean), repr(self.std)]

    def stratum(self, example: Example) -> str:
        """Its fifth of a normal distribution of these numbers."""
        z = (example.label - self.mean) / self.std
        return str(min(4, int(5 * 0.5 * (1 + math.erf(z / math.sqrt(2))))))

    def describe(self, train: Sequence[Example]) -> list[str]:
        """The range of the numbers."""
        numbers = [example.label for example in train]
        return [
            f"Numbers from {min(numbers):g} to {max(numbers):g}, mean {self.mean:.4g}, standard deviation "
            f"{self.std:.4g}."
        ]

    # --- learning

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """The numbers: float64 [n]; the mean for one without."""
        return np.array([self.mean if example.label is None else example.label for example in examples], np.float64)

    def build_model(self, settings: FinetuneSettings, seed: int) -> BertForSequenceClassification:
        """The encoder under a new head of one output (see `Task.build_model`)."""
        return new_model("sequence_classification", settings, seed, id2label={0: "SCORE"}, problem_type="regression")

    def open_model(self, folder: Path) -> BertForSequenceClassification:
        """Raises FinetuneError where the folder is damaged, or gives no single number."""
        model = fine_tuned("sequence_classification", folder)
        if model.config.num_labels != 1:
            raise FinetuneError(f"{folder} gives no single number for a text: give a model for regression")
        return model

    def kept(self, model: BertForSequenceClassification) -> BertForSequenceClassification:
        """Its last layer in the user's scale, so that whoever opens the folder gets it."""
        linear = last_layer(model)
        linear.weight.data.mul_(self.std)
        linear.bias.data.mul_(self.std).add_(self.mean)
        return model

    def objective(self, train: Encoded, settings: FinetuneSettings) -> "SquaredError":
        """The squared error of standardised numbers."""
        return SquaredError(self.mean, self.std)

    def collapse(self, train: Encoded, outputs: np.ndarray, objective: Objective, rate: float) -> Collapse | None:
        """A squared error at the variance of the numbers; both of standardised ones."""
        numbers = train.targets
        error = float(np.mean((numbers - outputs[:, 0]) ** 2)) / self.std**2
        return where_no_better(Collapse(rate, error, float(numbers.var()) / self.std**2))

    # --- judging

    def outputs(self, logits: Tensor) -> Tensor:
        """The number in the user's scale: [N, 1]."""
        return logits.float() * self.std + self.mean

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """See `finetune.metrics.regression_scores`; the loss is the squared error in the user's scale."""
        return regression_scores(targets, outputs[:, 0].astype(np.float64))

    def baselines(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], settings: FinetuneSettings
    ) -> dict[str, dict[str, np.ndarray]]:
        """Word counts with a linear model, and the mean of the training numbers."""
        numbers = self.targets(train)
        mean = [np.full((len(rows), 1), numbers.mean(), np.float32) for rows in held_out.values()]
        found = {TFIDF: tfidf_regression(train, numbers, list(held_out.values())), MEAN: mean}
        return {name: dict(zip(held_out, outputs, strict=True)) for name, outputs in found.items()}

    def uncertainty(self, outputs: np.ndarray) -> tuple[float, float]:
        """The standard deviation of the models' numbers, all of which is disagreement."""
        found = float(outputs[:, 0].std())
        return found, found

    def doubt(self, target: np.ndarray, output: np.ndarray) -> float:
        """How far it is off, in the scale of the rows."""
        return float(abs(target - output[0]))

    # --- telling

    def results(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], shown: HeldOut
    ) -> dict[str, Any]:
        """The scale of the training numbers."""
        numbers = self.targets(train)
        found = {"mean": numbers.mean(), "std": numbers.std(), "min": numbers.min(), "max": numbers.max()}
        return {"scale": {name: float(value) for name, value in found.items()}}

    def write_files(self, out: Path, shown: HeldOut, settings: FinetuneSettings) -> None:
        """predicted.png, and mistakes.md: the numbers that are farthest off."""
        predicted = shown.outputs[:, 0]
        draw_numbers(shown.targets, predicted, out / "predicted.png", f"{shown.split} texts, seed {shown.seed}")
        farthest = largest_errors(shown.examples, shown.targets, predicted)
        write_text(out / "mistakes.md", errors_markdown(farthest, settings.show_text == "yes"))

    def tell(self, out: Path, results: Mapping[str, Any], best: Mapping[str, Any], shown: HeldOut,
             seeds: int) -> list[str]:  # fmt: skip
        """What always answering the mean reaches, and where the rest is."""
        error = float(np.abs(shown.targets - results["scale"]["mean"]).mean())
        sentences = [f"always the mean of the training numbers: {shown.split} MAE {error:.4g}"]
        if results[shown.split]["pearson"]["mean"] is None:
            sentences.append("A correlation is undefined where all predictions, or all numbers, are the same.")
        sentences.append(f"\nThe largest errors are in {out / 'mistakes.md'}, all numbers in {out / 'predicted.png'}.")
        return sentences

    def card(self, config: BertConfig, results: Mapping[str, Any], split: str, is_pair: bool) -> Card:
        """The scale stands below the scores."""
        scale = results["scale"]
        example = pipeline_example("score", 'function_to_apply="none"', is_pair)
        return Card(
            kind="text-classification",
            name="a regression of a domain",
            title=f"A number for {'pairs of texts' if is_pair else 'texts'}",
            findings=f"Training numbers from {scale['min']:g} to {scale['max']:g}, mean {scale['mean']:.4g}, standard "
            f"deviation {scale['std']:.4g}.",
            metrics=("pearson", "spearman", "mae"),
            example="" if config.classifier_hidden_layers else example,
        )

    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The number, in the user's scale, with as many digits as float32 has."""
        return {SCORE: float(f"{output[0]:.7g}")}

    def shown_targets(self, targets: np.ndarray) -> str:
        """The number as it is."""
        return f"{float(targets[0]):g}"


class SquaredError:
    """The squared error of standardised numbers; see `Objective` of the engine.

    Args:
        mean, std: of the training numbers.
    """

    def __init__(self, mean: float, std: float):
        self.mean, self.std = mean, std

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Number of texts; a window counts as its share of its text."""
        return {"label": float(batch.weights.sum())}

    def loss_sums(self, model: BertForSequenceClassification, batch: LabelledBatch) -> dict[str, Tensor]:
        """Sum of the squared errors (fp32): a scalar with gradient."""
        wanted = (batch.labels - self.mean) / self.std
        errors = F.mse_loss(model(batch).logits.float()[:, 0], wanted, reduction="none")
        return {"label": (errors * batch.weights).sum()}
