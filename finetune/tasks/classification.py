"""Classification of texts and of pairs of texts (Devlin et al. 2019, section 4.1)."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_prep.durable import write_text
from data_prep.text.cells import name_of
from data_prep.text.sources import listing
from model import BertConfig, BertForSequenceClassification
from pretrain.engine.model_card import table

from .. import report
from ..batches import Encoded, LabelledBatch
from ..collapse import Collapse, collapse_of
from ..metrics import METRICS, OF_TWO, confusion, per_class, scores, scores_of_draws
from ..mistakes import mistakes_markdown, most_confident
from ..names import cell, code_span
from ..operating_point import (
    FEWEST_MISTAKES,
    OperatingPoint,
    are_thresholds,
    at_temperature,
    tell_temperature,
    temperature,
    temperature_of,
    threshold_for,
)
from ..pictures import draw_confusion
from ..rows import BadRows, Columns, Example
from ..settings import FACTS_FILE, FinetuneError, FinetuneSettings
from ..simple_models import majority, tfidf
from . import Card, HeldOut, Task
from .sequences import class_name, fine_tuned, labels_of, new_model, pipeline_example, require_names, unknown

TFIDF, MAJORITY = "TF-IDF + logistic regression", "most frequent class"
# With more classes the scores of each are not shown.
MOST_CLASSES_SHOWN = 50
# Of the standard error of the accuracy: by how much a seed may be worse than the best one and still count as good.
_AS_GOOD = 0.5
LABEL, PROBABILITIES = "predicted_label", "probabilities"


class Classification(Task):
    """One of several classes for each text.

    Args:
        labels: the names of the classes, once they are known.
        positive: of two classes, the index of the positive one.
        wish: the operating point that the threshold on its probability must reach.
        calibrates: whether probabilities are scaled with the temperature fitted on the validation texts.
        threshold, temperature: as fitted there; the temperature is reported in any case.
    """

    name = "classification"
    label_columns = ("label", "labels", "class", "category", "target", "sentiment")
    shown, metrics, baseline_names = report.SHOWN, METRICS, (TFIDF, MAJORITY)
    default_metric = "macro_f1"
    takes = frozenset({"class_weights", "positive", "operating_point", "calibrate", "teacher"})
    lower_is_better = frozenset({"loss", "calibration_error"})

    def __init__(
        self,
        labels: Sequence[str] = (),
        positive: int | None = None,
        wish: OperatingPoint | None = None,
        calibrates: bool = False,
        threshold: float | None = None,
        temperature: float | None = None,
    ):
        self.labels, self.positive, self.wish, self.calibrates = list(labels), positive, wish, calibrates
        self.threshold, self.temperature = threshold, temperature
        if positive is not None:
            self.metrics, self.shown = (*METRICS, *OF_TWO), {**report.SHOWN, **report.SHOWN_OF_TWO}

    # --- rows

    def label_of(self, row: Mapping[str, Any], column: str) -> str:
        """The name of a row's class, from a text or a whole number; raises ValueError with what is wrong with it."""
        return class_name(row.get(column), column)

    def fitted(self, train: Sequence[Example], columns: Columns, settings: FinetuneSettings) -> "Classification":
        """Raises FinetuneError where there are not two classes, or where they are texts or numbers of the rows, or
        where no positive one can be had."""
        labels = label_names(train, settings.show_text == "yes")
        require_names(labels, train, columns, settings, "classes")
        wish = OperatingPoint.parse(settings.operating_point) if settings.operating_point else None
        positive = self._positive(labels, train, settings)
        return Classification(labels, positive, wish, settings.calibrate)

    def _positive(self, labels: list[str], train: Sequence[Example], settings: FinetuneSettings) -> int | None:
        """The place of the class that is looked for: the one that is named, else the rarer of two."""
        option = "--positive" if settings.positive else "--operating-point" if settings.operating_point else ""
        if len(labels) != 2:
            if option:
                raise FinetuneError(
                    f"{option} is for two classes, and {settings.train} has {len(labels)}: leave it out"
                )
            return None
        if settings.positive is None:
            counts = Counter(example.label for example in train)
            return min((1, 0), key=lambda place: counts[labels[place]])
        if name_of(settings.positive) not in labels:
            raise FinetuneError(f"--positive {settings.positive} is no class of {settings.train}: give "
                                f"{listing(labels, 2)}")  # fmt: skip
        return labels.index(name_of(settings.positive))

    def of_model(self, config: BertConfig) -> "Classification":
        """The classes are the label names of the model."""
        return Classification(labels_of(config))

    def facts(self) -> list[str]:
        """The names of the classes."""
        return self.labels

    def usable(self, examples: Iterable[Example], bad: BadRows, show_text: bool) -> Iterator[Example]:
        """Those of known classes; the label of the others may be a text."""
        known = set(self.labels)
        for example in examples:
            if example.label in known:
                yield example
            else:
                bad(example.place, unknown("label", example.label, self.labels, show_text))

    def stratum(self, example: Example) -> str:
        """Its class."""
        return example.label

    def describe(self, train: Sequence[Example]) -> list[str]:
        """How many texts each class has, which classes have few, and which one is looked for."""
        counts = Counter(example.label for example in train)
        shown = [f"{_short(label)} {number:,}" for label, number in counts.most_common(12)]
        more = f" and {len(self.labels) - 12} more" if len(self.labels) > 12 else ""
        sentences = [f"{len(self.labels)} classes: {', '.join(shown)}{more}."]
        rare = [_short(label) for label in self.labels if counts[label] < 8]
        if rare:
            more = f" and {len(rare) - 8} more" if len(rare) > 8 else ""
            sentences.append(
                f"Fewer than 8 training texts: {', '.join(rare[:8])}{more}. Expect little of such classes."
            )
        if self.positive is not None:
            sentences.append(f"Positive class: {_short(self.labels[self.positive])} (the other: --positive).")
        return sentences

    # --- learning

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """The place of each example's label among the classes: int64 [n]; 0 for one without a label."""
        ids = {name: index for index, name in enumerate(self.labels)} | {None: 0}
        return np.array([ids[example.label] for example in examples], dtype=np.int64)

    def build_model(self, settings: FinetuneSettings, seed: int) -> BertForSequenceClassification:
        """The encoder under a new head of a row for each class (see `Task.build_model`)."""
        names = dict(enumerate(self.labels))
        return new_model(
            "sequence_classification", settings, seed, id2label=names, problem_type="single_label_classification"
        )

    def open_model(self, folder: Path) -> BertForSequenceClassification:
        """Raises FinetuneError where the folder is damaged, is no such classifier, or its head was never trained."""
        model = fine_tuned("sequence_classification", folder)
        config = model.config
        if config.num_labels < 2 or config.problem_type in ("regression", "multi_label_classification"):
            remedy = "give a classifier of one label a text"
            if config.num_labels < 2:
                remedy += '; of a model that predicts a number, config.json has to say "problem_type": "regression"'
            raise FinetuneError(
                f"{folder} does not choose one of several classes (its problem_type or num_labels): {remedy}"
            )
        return model

    def objective(self, train: Encoded, settings: FinetuneSettings) -> "ClassificationObjective":
        """The cross entropy, rare classes counting more where that is asked for."""
        if settings.class_weights != "balanced":
            return ClassificationObjective()
        return ClassificationObjective(balanced_weights(train.targets, len(self.labels)))

    def collapse(
        self, train: Encoded, outputs: np.ndarray, objective: "ClassificationObjective", rate: float
    ) -> Collapse | None:
        """A loss at the entropy of the labels, or one class for every text."""
        weights = None if objective.class_weights is None else objective.class_weights.numpy()
        return collapse_of(train.targets, outputs, weights, rate)

    # --- judging

    def outputs(self, logits: Tensor) -> Tensor:
        """Probabilities of the classes."""
        return logits.float().softmax(-1)

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        """See `finetune.metrics.scores`."""
        return scores(targets, outputs, self.positive, self.answers(outputs))

    def scores_of_draws(
        self, targets: np.ndarray, outputs: np.ndarray, draws: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """See `finetune.metrics.scores_of_draws`."""
        return scores_of_draws(targets, outputs, draws, self.positive, self.answers(outputs))

    def answers(self, outputs: np.ndarray) -> np.ndarray:
        """The class of each text: int64 [n]; the most probable one, or by the threshold of the positive one."""
        if self.threshold is None or self.positive is None:
            return outputs.argmax(1)
        # In float64, as the threshold may lie between two neighbours of float32.
        is_positive = outputs[:, self.positive].astype(np.float64) >= self.threshold
        return np.where(is_positive, self.positive, 1 - self.positive)

    def tuned(self, targets: np.ndarray, outputs: np.ndarray) -> "Classification":
        """With the temperature that fits these texts, unless hardly any is answered wrongly, and the threshold that
        reaches what is wished for on them."""
        mistakes = int((outputs.argmax(1) != targets).sum())
        found = temperature(targets, outputs) if mistakes >= FEWEST_MISTAKES else None
        task = self._with(temperature=found, threshold=None)
        # No threshold tells apart what is answered alike: the most frequent class stays the answer.
        if self.wish is None or self.positive is None or (outputs == outputs[:1]).all():
            return task
        probabilities = task.finished(outputs)[:, self.positive]
        return task._with(threshold=threshold_for(self.wish, targets == self.positive, probabilities))

    def finished(self, outputs: np.ndarray) -> np.ndarray:
        """Probabilities at the temperature, if they are to be calibrated."""
        if self.temperature is None or not self.calibrates:
            return outputs
        return at_temperature(outputs, self.temperature)

    def decision(self) -> dict[str, Any]:
        """Of two classes the one that is looked for, and its threshold; the temperature."""
        positive = None if self.positive is None else self.labels[self.positive]
        found = {"positive": positive, "threshold": self.threshold, "temperature": self.temperature}
        found |= {"calibrated": True} if self.calibrates else {}
        return {name: value for name, value in found.items() if value is not None}

    def with_decision(self, decision: Mapping[str, Any]) -> "Classification":
        """Raises FinetuneError where the positive class is none of the model's, or a number is none."""
        positive, threshold = decision.get("positive"), decision.get("threshold")
        positive = None if positive is None else name_of(str(positive))
        if positive is not None and positive not in self.labels:
            raise FinetuneError(f"the positive class {positive!r:.42} is none of the model's: fine-tune again")
        if not are_thresholds([0.5 if threshold is None else threshold]):
            raise FinetuneError(f"the threshold in {FACTS_FILE} is no probability: copy the folder again")
        degree = temperature_of(decision)
        # A seed that an earlier release trained names none.
        place = self.positive if positive is None else self.labels.index(positive)
        calibrates = self.calibrates or decision.get("calibrated") is True
        return Classification(self.labels, place, self.wish, calibrates, threshold, degree)

    def tolerance(self, scores: Mapping[str, float], metric: str, num_texts: int) -> float:
        """Half a standard error of the accuracy (docs/fine_tuning.md; after Breiman et al. 1984, section 3.4.3), and
        nothing where the loss or the calibration error is asked for, which are no shares of right answers."""
        if metric in self.lower_is_better:
            return 0.0
        return _AS_GOOD * math.sqrt(scores["accuracy"] * (1 - scores["accuracy"]) / num_texts)

    def baselines(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], settings: FinetuneSettings
    ) -> dict[str, dict[str, np.ndarray]]:
        """Word counts with a linear model, and the frequencies of the classes."""
        targets, num = self.targets(train), len(self.labels)
        balanced = settings.class_weights == "balanced"
        found = {
            TFIDF: tfidf(train, targets, list(held_out.values()), num, balanced),
            MAJORITY: [majority(targets, len(rows), num) for rows in held_out.values()],
        }
        return {name: dict(zip(held_out, outputs, strict=True)) for name, outputs in found.items()}

    # --- telling

    def results(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], shown: HeldOut
    ) -> dict[str, Any]:
        """The classes, the scores of each, and the accuracy of the most frequent one of the training texts."""
        answer = np.bincount(self.targets(train)).argmax()
        return {
            "labels": self.labels,
            "per_class": {
                shown.split: per_class(shown.targets, shown.outputs, self.labels, self.answers(shown.outputs))
            },
            "decision": self.decision(),
            "majority": {split: float((self.targets(rows) == answer).mean()) for split, rows in held_out.items()},
        }

    def write_files(self, out: Path, shown: HeldOut, settings: FinetuneSettings) -> None:
        """confusion.csv, confusion.png and mistakes.md."""
        matrix = self._confusion(shown)
        answers = self.answers(shown.outputs)
        worst = most_confident(shown.examples, shown.targets, shown.outputs, self.labels, answers)
        report.write_confusion_csv(matrix, self.labels, out / "confusion.csv")
        title = f"{shown.split} texts, seed {shown.seed}"
        if len(self.labels) <= report.MOST_CLASSES_IN_A_TABLE:
            draw_confusion(matrix.toarray(), self.labels, out / "confusion.png", title)
        write_text(out / "mistakes.md", mistakes_markdown(worst, settings.show_text == "yes"))

    def tell(self, out: Path, results: Mapping[str, Any], best: Mapping[str, Any], shown: HeldOut,
             seeds: int) -> list[str]:  # fmt: skip
        """The majority, the scores of each class, the confusions, and where the rest is."""
        majority, split = results["majority"], shown.split
        sentences = [f"always the most frequent class: {split} accuracy {majority[split]:.3f}"]
        if best["validation"]["accuracy"] <= majority["validation"]:
            sentences.append(
                "The kept model is no more accurate on the validation texts than that: "
                f"{best['validation']['accuracy']:.3f} against {majority['validation']:.3f}."
            )
        sentences += self._tell_decision(best["validation"])
        if len(self.labels) <= MOST_CLASSES_SHOWN:
            which = f"seed {shown.seed}, which is kept" if seeds > 1 else "by class"
            sentences.append(f"\n{split} texts, {which}:\n{report.per_class_table(results['per_class'][split])}")
        sentences.append(f"\n{report.confusion_table(self._confusion(shown), self.labels)}")
        name = "confusion.png" if len(self.labels) <= report.MOST_CLASSES_IN_A_TABLE else "confusion.csv"
        sentences.append(f"\nThe most confident mistakes are in {out / 'mistakes.md'}, the confusions in {out / name}.")
        return sentences

    def _tell_decision(self, validation: Mapping[str, float | None]) -> list[str]:
        """What threshold and temperature do, and where they do not do what was asked for.

        Args:
            validation: scores of the seed that is kept.
        """
        sentences = []
        if self.wish and self.threshold is not None:
            reached, shown = validation[self.wish.name], self.labels[self.positive]
            says = f"{self.wish.name} {report.number(reached)} on the validation texts"
            short = reached is None or reached < self.wish.value
            beside = f", where {self.wish.value:g} was asked for" if short else ""
            sentences.append(f"{shown} is answered from a probability of {self.threshold:.3f} on: {says}{beside}")
        return sentences + tell_temperature(self.temperature, self.calibrates, "validation texts")

    def _confusion(self, shown: HeldOut) -> Any:
        return confusion(shown.targets, shown.outputs, len(self.labels), self.answers(shown.outputs))

    def card(self, config: BertConfig, results: Mapping[str, Any], split: str, is_pair: bool) -> Card:
        """The scores of each class stand below those of all."""
        rows = [
            (cell(row["label"]), *(f"{row[name]:.3f}" for name in ("precision", "recall", "f1")),
             f"{row['support']:,}")
            for row in results["per_class"][split]
        ]  # fmt: skip
        majority = f"Always the most frequent class: accuracy {results['majority'][split]:.3f}."
        example = pipeline_example("classify", "top_k=None", is_pair)
        return Card(
            kind="text-classification",
            name="a classifier of a domain",
            title=f"A classifier of {'pairs of texts' if is_pair else 'texts'} in {config.num_labels} classes",
            findings=f"{majority}{self._decided()}\n\n{table(('class', 'precision', 'recall', 'F1', 'texts'), rows)}",
            metrics=("accuracy", "macro_f1"),
            example="" if config.classifier_hidden_layers else example,
        )

    def _decided(self) -> str:
        """What the model card says of a threshold and of a temperature."""
        found = []
        if self.threshold is not None:
            positive = code_span(self.labels[self.positive])
            found.append(f"answers {positive} from a probability of {self.threshold:.4g} on")
        if self.calibrates and self.temperature is not None:
            found.append(f"gives probabilities the temperature {self.temperature:.4g}")
        if not found:
            return ""
        return f"\n\n`python -m finetune.predict` {' and '.join(found)}; the pipeline of `transformers` does not."

    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The class, and the probability of each."""
        return {LABEL: self._answer(output), PROBABILITIES: self._probabilities(output)}

    def flat_prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """A column for each class."""
        own = {f"probability_{name}": p for name, p in self._probabilities(output).items()}
        return {LABEL: self._answer(output), **own}

    def _answer(self, output: np.ndarray) -> str:
        return self.labels[int(self.answers(output[None])[0])]

    def _probabilities(self, output: np.ndarray) -> dict[str, float]:
        return {name: round(float(p), 6) for name, p in zip(self.labels, output, strict=True)}

    @property
    def num_outputs(self) -> int:
        """A probability for each class."""
        return len(self.labels)

    def shown_targets(self, targets: np.ndarray) -> str:
        """The name of the class."""
        return self.labels[int(targets[0])]


def _short(label: str) -> str:
    return label if len(label) <= 40 else f"{label[:37]}..."


def label_names(examples: Iterable[Example], show_text: bool = True) -> list[str]:
    """The classes in their order: whole numbers by value, else alphabetical.

    Raises:
        FinetuneError: there are not two.
    """
    names = {example.label for example in examples}
    if len(names) < 2:
        name = next(iter(names), "")
        shown = f", {name!r:.42}" if show_text else ""
        only = f"only one label{shown}" if names else "no usable row"
        raise FinetuneError(f"the training rows have {only}: a classifier needs rows of two classes or more")
    try:
        # "01" and "1" are two names.
        return sorted(names, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(names)


class ClassificationObjective:
    """The cross entropy of the right class; see `Objective` of the engine.

    Args:
        class_weights: float32 [C], how much a text of each class counts.
    """

    def __init__(self, class_weights: Tensor | None = None):
        self.class_weights = class_weights

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Number of texts; a window counts as its share of its text."""
        return {"label": float(batch.weights.sum())}

    def loss_sums(self, model: BertForSequenceClassification, batch: LabelledBatch) -> dict[str, Tensor]:
        """Sum of the negative log likelihoods (nats, fp32): a scalar with gradient."""
        return self.sums_of(model(batch).logits, batch)

    def sums_of(self, logits: Tensor, batch: LabelledBatch) -> dict[str, Tensor]:
        """The same of logits [N, C]."""
        losses = F.cross_entropy(logits.float(), batch.labels, reduction="none") * batch.weights
        if self.class_weights is not None:
            losses = losses * self.class_weights.to(losses.device)[batch.labels]
        return {"label": losses.sum()}


def balanced_weights(labels: np.ndarray, num_labels: int) -> Tensor:
    """n / (C * rows of the class), as `class_weight="balanced"` of scikit-learn: float32 [C]; 0 for a class without."""
    counts = np.bincount(labels, minlength=num_labels)
    weights = np.divide(len(labels), num_labels * counts, out=np.zeros(num_labels), where=counts > 0)
    return torch.from_numpy(weights.astype(np.float32))
