"""Any number of labels for each text or pair of texts: none, one or several."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_prep.durable import write_text
from data_prep.text.cells import parsed_cell
from model import BertConfig, BertForSequenceClassification
from pretrain.engine.model_card import table
from pretrain.engine.step import Objective

from .. import report
from ..batches import Encoded, LabelledBatch
from ..collapse import Collapse, collapse_of_labels
from ..label_metrics import multi_label_scores, multi_label_scores_of_draws, per_label
from ..mistakes import mistakes_markdown, wrong_labels
from ..names import cell
from ..operating_point import (
    FEWEST_MISTAKES,
    OperatingPoint,
    are_thresholds,
    label_temperature,
    label_thresholds,
    labels_at_temperature,
    tell_temperature,
    temperature_of,
)
from ..rows import BadRows, Columns, Example
from ..settings import FACTS_FILE, FinetuneError, FinetuneSettings
from ..simple_models import tfidf_of_labels
from . import Card, HeldOut, Task, entropy
from .sequences import (
    class_name,
    fine_tuned,
    labels_of,
    last_layer,
    new_model,
    pipeline_example,
    require_names,
    unknown,
)

TFIDF, FREQUENCIES = "TF-IDF + logistic regression", "label frequencies"
LABELS, PROBABILITIES = "predicted_labels", "probabilities"
SEPARATOR = ";"
MOST_LABELS_SHOWN = 50
# What can be wished for, as it is named over all labels.
MICRO = {"sensitivity": "micro_recall", "specificity": "micro_specificity",
         "ppv": "micro_precision", "npv": "micro_npv"}  # fmt: skip


class MultiLabel(Task):
    """Some of several labels for each text, or none.

    Args:
        labels: the names of the labels, once they are known.
        wish: the operating point that the thresholds must reach; by default the best F1.
        calibrates: whether probabilities are scaled with the temperature fitted on the validation texts.

    Attributes:
        shares: of each label, how many of the training texts have it, by its name.
        thresholds: float64 [K], the least probability with which each label is given.
        temperature: what fits the validation texts best, which is told in any case.
    """

    name = "multi-label"
    label_columns = ("labels", "label", "tags", "categories", "classes", "topics")
    shown = {
        "micro-F1": "micro_f1",
        "macro-F1": "macro_f1",
        "mAP": "map",
        "LRAP": "lrap",
        "AUROC": "auroc",
        "all labels right": "exact_match",
    }
    metrics = ("micro_f1", "macro_f1", "micro_precision", "micro_recall", "micro_specificity", "micro_npv", "map",
               "auroc", "lrap", "exact_match", "calibration_error", "loss")  # fmt: skip
    default_metric, takes = "micro_f1", frozenset({"operating_point", "calibrate"})
    lower_is_better = frozenset({"loss", "calibration_error"})
    baseline_names = (TFIDF, FREQUENCIES)

    def __init__(self, labels: Sequence[str] = (), wish: OperatingPoint | None = None, calibrates: bool = False):
        self.labels, self.wish, self.calibrates = list(labels), wish, calibrates
        self.shares: Mapping[str, float] = {}
        self.thresholds = np.full(len(self.labels), 0.5)
        self.temperature: float | None = None

    # --- rows

    def label_of(self, row: Mapping[str, Any], column: str) -> tuple[str, ...]:
        """The names of a row's labels, of a list (see `parsed_cell`) or joined by semicolons, each once, in order; an
        empty list or text is no label. Raises ValueError with what is wrong with it, such as a 0 or 1 for each label
        that there is."""
        value = parsed_cell(row.get(column))
        if isinstance(value, str):
            value = [part for part in value.split(SEPARATOR) if part.strip()]
        if not isinstance(value, list | tuple):
            value = [value]
        names = [class_name(each, column) for each in value]
        if len(names) > len(set(names)) and all(isinstance(each, int | float) and each in (0, 1) for each in value):
            raise ValueError(f'has a 0 or 1 for each label in "{column}": names of labels are wanted there')
        return tuple(sorted(set(names)))

    def fitted(self, train: Sequence[Example], columns: Columns, settings: FinetuneSettings) -> "MultiLabel":
        """Raises FinetuneError where no row has a label, or where labels are texts or numbers of the rows."""
        counts = Counter(name for example in train for name in example.label)
        if not counts:
            raise FinetuneError(f'no row of {settings.train} has a label in "{columns.label}": give --label-column')
        require_names(counts, train, columns, settings, "labels")
        wish = OperatingPoint.parse(settings.operating_point) if settings.operating_point else None
        return MultiLabel(sorted(counts), wish, settings.calibrate).fitted_to(train)

    def fitted_to(self, train: Sequence[Example]) -> "MultiLabel":
        """The shares of the labels among these rows."""
        counts = Counter(name for example in train for name in example.label)
        return self._with(shares={name: (counts[name] + 0.5) / (len(train) + 1) for name in self.labels})

    def of_model(self, config: BertConfig) -> "MultiLabel":
        """The labels are the label names of the model."""
        return MultiLabel(labels_of(config))

    def facts(self) -> list[str]:
        """The names of the labels."""
        return [self.name, *self.labels]

    def usable(self, examples: Iterable[Example], bad: BadRows, show_text: bool) -> Iterator[Example]:
        """Those of known labels alone; an unknown label may be a text."""
        known = set(self.labels)
        for example in examples:
            if others := set(example.label) - known:
                bad(example.place, unknown("label", min(others), self.labels, show_text))
            else:
                yield example

    def stratum(self, example: Example) -> str:
        """Its rarest label."""
        return min(example.label, key=lambda name: (self.shares.get(name, 0), name), default="")

    def describe(self, train: Sequence[Example]) -> list[str]:
        """How many texts have each label, and how many have none or several."""
        counts = Counter(name for example in train for name in example.label)
        numbers = Counter(min(2, len(example.label)) for example in train)
        shown = ", ".join(f"{name:.40} {number:,}" for name, number in counts.most_common(12))
        more = f" and {len(counts) - 12} more" if len(counts) > 12 else ""
        return [
            f"{len(self.labels)} labels: {shown}{more}. Texts without a label: {numbers[0]:,}, with several: "
            f"{numbers[2]:,}."
        ]

    # --- learning

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Which labels each example has: float32 [n, K] of 0 and 1."""
        ids = {name: index for index, name in enumerate(self.labels)}
        found = np.zeros((len(examples), len(self.labels)), np.float32)
        for row, example in zip(found, examples, strict=True):
            row[[ids[name] for name in example.label or ()]] = 1
        return found

    def build_model(self, settings: FinetuneSettings, seed: int) -> BertForSequenceClassification:
        """The encoder under a new head of a row for each label (see `Task.build_model`), whose biases are the log odds
        of the labels: rare ones need not be learned to be rare."""
        names = dict(enumerate(self.labels))
        model = new_model(
            "sequence_classification", settings, seed, id2label=names, problem_type="multi_label_classification"
        )
        last_layer(model).bias.data = torch.tensor([self.shares[name] for name in self.labels]).logit()
        return model

    def open_model(self, folder: Path) -> BertForSequenceClassification:
        """Raises FinetuneError where the folder is damaged, or gives one label a text."""
        model = fine_tuned("sequence_classification", folder)
        if model.config.problem_type != "multi_label_classification":
            raise FinetuneError(f"{folder} does not give several labels (its problem_type): give a multi-label model")
        return model

    def objective(self, train: Encoded, settings: FinetuneSettings) -> "LabelsObjective":
        """The binary cross entropy of each label."""
        return LabelsObjective()

    def collapse(self, train: Encoded, outputs: np.ndarray, objective: Objective, rate: float) -> Collapse | None:
        """A loss at the entropy of the labels."""
        return collapse_of_labels(train.targets, outputs, rate)

    # --- judging

    def outputs(self, logits: Tensor) -> Tensor:
        """A probability for each label."""
        return logits.float().sigmoid()

    def tuned(self, targets: np.ndarray, outputs: np.ndarray) -> "MultiLabel":
        """With the temperature that fits these texts, unless hardly any label is answered wrongly at 0.5; and with the
        thresholds of the best F1 on them, or of what is wished for: one for all, and one of its own for a label that at
        least 50 of the texts have."""
        mistakes = int(((outputs >= 0.5) != targets).sum())
        task = self._with(temperature=label_temperature(targets, outputs) if mistakes >= FEWEST_MISTAKES else None)
        return task._with(thresholds=label_thresholds(targets, task.finished(outputs), self.wish))

    def finished(self, outputs: np.ndarray) -> np.ndarray:
        """Probabilities at the temperature, if they are to be calibrated."""
        if self.temperature is None or not self.calibrates:
            return outputs
        return labels_at_temperature(outputs, self.temperature)

    def decision(self) -> dict[str, Any]:
        """The threshold of each label, and the temperature."""
        found: dict[str, Any] = {"thresholds": dict(zip(self.labels, self.thresholds.tolist(), strict=True))}
        found |= {} if self.temperature is None else {"temperature": self.temperature}
        return found | ({"calibrated": True} if self.calibrates else {})

    def with_decision(self, decision: Mapping[str, Any]) -> Self:
        """Of a folder of transformers, without thresholds, 0.5. Raises FinetuneError where one of them, or the
        temperature, is no number."""
        found = decision.get("thresholds")
        found = dict.fromkeys(self.labels, 0.5) if found is None else found
        numbers = [found.get(name) if isinstance(found, Mapping) else None for name in self.labels]
        if not are_thresholds(numbers):
            raise FinetuneError(
                f"the thresholds in {FACTS_FILE} are no probabilities, one for each label: copy the folder again"
            )
        degree = temperature_of(decision)
        calibrates = self.calibrates or decision.get("calibrated") is True
        return self._with(thresholds=np.array(numbers, np.float64), temperature=degree, calibrates=calibrates)

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        """See `finetune.label_metrics.multi_label_scores`."""
        return multi_label_scores(targets, outputs, outputs >= self.thresholds)

    def scores_of_draws(
        self, targets: np.ndarray, outputs: np.ndarray, draws: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """See `finetune.label_metrics.multi_label_scores_of_draws`."""
        return multi_label_scores_of_draws(targets, outputs, outputs >= self.thresholds, draws)

    def baselines(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], settings: FinetuneSettings
    ) -> dict[str, dict[str, np.ndarray]]:
        """Word counts with a linear model for each label, and the frequencies of the labels."""
        targets = self.targets(train)
        priors = [np.tile(targets.mean(0, dtype=np.float32), (len(rows), 1)) for rows in held_out.values()]
        found = {TFIDF: tfidf_of_labels(train, targets, list(held_out.values())), FREQUENCIES: priors}
        return {name: dict(zip(held_out, outputs, strict=True)) for name, outputs in found.items()}

    def uncertainty(self, outputs: np.ndarray) -> tuple[float, float]:
        """The same of each label, which is there or not; the mean over the labels."""
        both = np.stack([outputs, 1 - outputs], axis=-1)
        of_mean, of_each = entropy(both.mean(0)).mean(), entropy(both).mean()
        return float(of_mean), float(of_mean - of_each)

    def doubt(self, target: np.ndarray, output: np.ndarray) -> float:
        """That of its most doubtful label."""
        return float(np.abs(target - output).max())

    # --- telling

    def results(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], shown: HeldOut
    ) -> dict[str, Any]:
        """The labels with their thresholds, and the scores of each."""
        given = shown.outputs >= self.thresholds
        return {
            "labels": self.labels,
            "thresholds": self.thresholds.tolist(),
            "per_label": {shown.split: per_label(shown.targets, shown.outputs, given, self.labels)},
        }

    def write_files(self, out: Path, shown: HeldOut, settings: FinetuneSettings) -> None:
        """mistakes.md: labels that were surely given, or surely not, and wrongly so."""
        worst = wrong_labels(shown.examples, shown.targets, shown.outputs, self.thresholds, self.labels)
        write_text(out / "mistakes.md", mistakes_markdown(worst, settings.show_text == "yes"))

    def tell(self, out: Path, results: Mapping[str, Any], best: Mapping[str, Any], shown: HeldOut,
             seeds: int) -> list[str]:  # fmt: skip
        """Thresholds and temperature, the scores of each label, and where the mistakes are."""
        sentences = self._tell_decision(best["validation"])
        if len(self.labels) <= MOST_LABELS_SHOWN:
            which = f"seed {shown.seed}, which is kept" if seeds > 1 else "by label"
            rows = results["per_label"][shown.split]
            sentences.append(f"\n{shown.split} texts, {which}:\n{report.per_class_table(rows, 'label')}")
        sentences.append(f"\nThe most confident mistakes are in {out / 'mistakes.md'}.")
        return sentences

    def _tell_decision(self, validation: Mapping[str, float | None]) -> list[str]:
        """What thresholds and temperature do, and where they do not do what was asked for.

        Args:
            validation: scores of the seed that is kept.
        """
        aim, says = "of the best F1", ""
        if self.wish is not None:
            reached = validation[MICRO[self.wish.name]]
            short = reached is None or reached < self.wish.value
            says = f" ({report.number(reached)} over all labels{', which is less' if short else ''})"
            aim = f"for {self.wish}"
        found = [f"thresholds, {aim} on the validation texts: {shown_thresholds(self.thresholds)}{says}"]
        return found + tell_temperature(self.temperature, self.calibrates, "labels of the validation texts")

    def card(self, config: BertConfig, results: Mapping[str, Any], split: str, is_pair: bool) -> Card:
        """The scores of each label stand below those of all, with its threshold."""
        rows = [
            (cell(row["label"]), f"{threshold:.3f}",
             *(f"{row[name]:.3f}" for name in ("precision", "recall", "f1")), f"{row['support']:,}")
            for row, threshold in zip(results["per_label"][split], results["thresholds"], strict=True)
        ]  # fmt: skip
        at_degree = ""
        if self.calibrates and self.temperature is not None:
            at_degree = ("\n\n`python -m finetune.predict` gives probabilities the temperature "
                         f"{self.temperature:.4g}; the pipeline of `transformers` does not.")  # fmt: skip
        example = pipeline_example("classify", "top_k=None", is_pair)
        return Card(
            kind="text-classification",
            name="a multi-label classifier of a domain",
            title=f"Any of {config.num_labels} labels for {'pairs of texts' if is_pair else 'texts'}",
            findings=table(("label", "threshold", "precision", "recall", "F1", "texts"), rows) + at_degree,
            metrics=("micro_f1", "macro_f1", "map"),
            example="" if config.classifier_hidden_layers else example,
        )

    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The labels at or above their thresholds, and the probability of each label."""
        probabilities = {name: round(float(p), 6) for name, p in zip(self.labels, output, strict=True)}
        return {LABELS: self._given(output), PROBABILITIES: probabilities}

    def flat_prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The labels joined by semicolons, and a column for the probability of each. Raises FinetuneError where a label
        has a semicolon itself."""
        if both := next((name for name in self.labels if SEPARATOR in name), None):
            raise FinetuneError(
                f"the label {both!r:.42} has a semicolon, which stands between labels in a CSV: use --format jsonl"
            )
        own = {f"probability_{name}": round(float(p), 6) for name, p in zip(self.labels, output, strict=True)}
        return {LABELS: SEPARATOR.join(self._given(output)), **own}

    def _given(self, output: np.ndarray) -> list[str]:
        return [name for name, is_given in zip(self.labels, output >= self.thresholds, strict=True) if is_given]

    @property
    def num_outputs(self) -> int:
        """A probability for each label."""
        return len(self.labels)

    def shown_targets(self, targets: np.ndarray) -> str:
        """The names of the labels."""
        return SEPARATOR.join(name for name, has in zip(self.labels, targets[0], strict=True) if has) or "(no label)"


def shown_thresholds(found: np.ndarray) -> str:
    """One number where all are the same, else their range."""
    low, high = found.min(), found.max()
    return f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"


class LabelsObjective:
    """The binary cross entropy, mean over the labels of a text; see `Objective` of the engine."""

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Number of texts; a window counts as its share of its text."""
        return {"label": float(batch.weights.sum())}

    def loss_sums(self, model: BertForSequenceClassification, batch: LabelledBatch) -> dict[str, Tensor]:
        """Sum over the texts (nats, fp32): a scalar with gradient."""
        losses = F.binary_cross_entropy_with_logits(model(batch).logits.float(), batch.labels, reduction="none")
        return {"label": (losses.mean(-1) * batch.weights).sum()}
