"""What a fine-tuning learns, as an object that is handed in: everything that one task knows and no other needs to."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from torch import Tensor

from data_prep.text.cells import TEXT_COLUMNS
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model import BertConfig
from model.bert import BertWithHead
from model.huggingface import PretrainedModel
from pretrain.engine.step import Objective

from ..auxiliary import Masking
from ..batches import BatchMaker, Encoded, LabelledBatch, TextStream, encode
from ..collapse import Collapse
from ..rows import BadRows, Columns, Example, Label, Labels, text_of
from ..settings import FinetuneSettings, LongText


@dataclass(frozen=True)
class HeldOut:
    """The texts that results are shown on, and what the best seed's model makes of them."""

    split: str
    """"test", or "validation" if there is no test split."""
    seed: int
    examples: Sequence[Example]
    targets: np.ndarray
    """[I] or [I, K], see `Task.targets`."""
    outputs: np.ndarray
    """Float32 [I, C], see `Task.outputs`."""


class ClassObjective(Objective, Protocol):
    """The objective of a task of classes."""

    def sums_of(self, logits: Tensor, batch: LabelledBatch) -> dict[str, Tensor]:
        """What `loss_sums` makes of the logits [P, C] of a batch."""


@dataclass(frozen=True)
class Card:
    """A task's own parts of a model card, in Markdown."""

    kind: str
    """The task as model hubs call it."""
    name: str
    """Of the model, for the index of a hub."""
    title: str
    findings: str
    """Below the table of results."""
    metrics: tuple[str, ...]
    """For the index of a hub."""
    example: str
    """Python that asks the model with transformers; empty where transformers cannot."""
    instead: str = "Its head has hidden layers that `transformers` does not know: use `python -m finetune.predict`."
    """What the card says instead."""


@dataclass(frozen=True)
class Form:
    """What stands in a file before the first prediction, between two, and behind the last."""

    begin: str
    between: str
    end: str
    key: str | None = None
    """The column that names the answers, where they are one JSON object."""


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Of the last axis, in nats: [..., C] -> [...]."""
    p = np.clip(probabilities.astype(np.float64), 1e-12, 1)
    return -(p * np.log(p)).sum(-1)


class Task(Labels):
    """A task, at first without knowledge of its rows; `fitted` and `of_model` add what the rows or a model define.

    A row has a label. Targets are the numbers that are learned from labels, outputs what a model predicts. Both are per
    item: I texts, or, in a task that learns something for each word or each choice, I words or choices.
    """

    name: str
    """In finetune.json."""
    text_columns: tuple[str, ...] = TEXT_COLUMNS
    """Usual names of the column of texts."""
    asked_row: str = ""
    """An example of the rows with which a program asks; empty where it asks with texts."""
    long_texts: tuple[LongText, ...] = ("head", "head-tail", "windows")
    """What `--long-text` may be; the first is what `auto` is."""
    judges_other_rows = False
    """Whether validation and test rows may have other columns than training rows."""
    needs_seeds = False
    """Whether only several seeds show how unsure a model is."""
    has_answers = True
    """Whether a model gives answers, of which those of several seeds have a mean, and of which it may be unsure."""
    forms: Mapping[str, Form] = {}
    """Of `--format` of predictions, besides jsonl and csv."""
    shown: Mapping[str, str]
    """The scores that tables show, the most important first: title -> name."""
    metrics: tuple[str, ...]
    """The names of all scores. One of them is "loss"."""
    prediction_holds_text = False
    """Whether a prediction repeats something of the text."""
    takes: frozenset[str] = frozenset()
    """The task-specific settings that this task accepts: among class_weights, positive, operating_point, calibrate and
    teacher. With teacher, `logits` must be those of the classes `labels`, and the objective a `ClassObjective`."""
    labels: list[str]
    """The names of the classes, of a task that has some, once they are known."""
    baseline_names: tuple[str, ...] = ()
    """Of what learns without a BERT."""
    baselines_are = "without a BERT"
    """What these have in common."""
    default_metric: str
    """What `--metric auto` chooses by."""
    lower_is_better: frozenset[str] = frozenset({"loss"})

    def _with(self, **found: Any) -> Self:
        """The same task with other values for some of its attributes."""
        task = copy(self)
        vars(task).update(found)
        return task

    # --- rows

    def usual_text_columns(self, sample: Sequence[Mapping[str, Any]], label: str | None) -> Sequence[str]:
        """Names of the column of texts, the most usual first.

        Args:
            sample: the first rows.
            label: the column of labels.
        """
        return self.text_columns

    def example(self, place: str, row: Mapping[str, Any], columns: Columns) -> Example:
        """A row as an example; raises ValueError with what is wrong with it ("has no ...")."""
        texts = [text_of(row, name) for name in columns.texts]
        label = self.label_of(row, columns.label) if columns.label else None
        return Example(place, texts[0], texts[1] if len(texts) > 1 else None, label)

    @abstractmethod
    def label_of(self, row: Mapping[str, Any], column: str) -> Label:
        """The label of a row; raises ValueError with what is wrong with it ("has no ...")."""

    @abstractmethod
    def fitted(self, train: Sequence[Example], columns: Columns, settings: FinetuneSettings) -> Self:
        """The task as its training rows define it.

        Raises:
            FinetuneError: nothing can be learned of them.
        """

    def fitted_to(self, train: Sequence[Example]) -> Self:
        """The same labels, with what else the training rows say of these rows: of a part of them, say."""
        return self

    @abstractmethod
    def of_model(self, config: BertConfig) -> Self:
        """The task that a fine-tuned model was trained for."""

    @abstractmethod
    def facts(self) -> list[str]:
        """What the training rows defined, for a digest."""

    def usable(self, examples: Iterable[Example], bad: BadRows, show_text: bool) -> Iterator[Example]:
        """Rows of a further file that the task can judge; tells `bad` of the others."""
        yield from examples

    def with_held_out(self, held_out: Mapping[str, list[Example]]) -> tuple[Self, dict[str, list[Example]]]:
        """The task with what the held-out rows say of how it is judged, and these rows as they are judged.

        Args:
            held_out: by split.

        Raises:
            FinetuneError: nothing can be judged by them.
        """
        return self, dict(held_out)

    def stratum(self, example: Example) -> str:
        """The stratum of an example; the same share of each stratum is held out."""
        return ""

    def describe(self, train: Sequence[Example]) -> list[str]:
        """Sentences about the labels of the training rows."""
        return []

    # --- learning

    @abstractmethod
    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """The target of each item: numbers [I] or [I, K], arbitrary for an example without a label. A task that is
        evaluated on other targets than it learns (see `judged`) returns those, of any type."""

    def encode(
        self, examples: Sequence[Example], tokenizer: TextTokenizer, sequence_length: int, long_text: LongText
    ) -> Encoded:
        """The examples as sequences of tokens with their targets."""
        return encode(examples, self.targets(examples), tokenizer, sequence_length, long_text)

    def stream(self, train: Encoded, seed: int) -> TextStream:
        """The global batches of training texts, which `maker` divides."""
        return TextStream(train, seed)

    def maker(self, train: Encoded, tokenizer: TextTokenizer, micro_batch_tokens: int,
              places: Sequence[str] = (), masking: Masking | None = None) -> BatchMaker:  # fmt: skip
        """What makes micro-batches of training texts (see `BatchMaker`)."""
        return BatchMaker(train, tokenizer, micro_batch_tokens, places, masking)

    @abstractmethod
    def build_model(self, settings: FinetuneSettings, seed: int) -> BertWithHead:
        """The pretrained encoder of `settings.model` under a new head, or the same with nothing pretrained.

        Raises:
            FinetuneError: the folder cannot be used.
        """

    @abstractmethod
    def open_model(self, folder: Path) -> BertWithHead:
        """A fine-tuned model; raises FinetuneError where the folder holds none, or one of another task."""

    @abstractmethod
    def objective(self, train: Encoded, settings: FinetuneSettings) -> Objective:
        """What is learned from these texts."""

    def collapse(self, train: Encoded, outputs: np.ndarray, objective: Objective, rate: float) -> Collapse | None:
        """What a training that learned nothing ended at, by its outputs for training texts; else None."""
        return None

    def kept(self, model: BertWithHead) -> PretrainedModel:
        """A trained model as it goes into a folder."""
        return model

    @property
    def deciding_metrics(self) -> Sequence[str]:
        """Those that the validation texts can be judged by."""
        return self.metrics

    def asked_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The columns of texts with which a model is asked, by those of the training rows."""
        return tuple(columns)

    def write_model_files(self, folder: Path, config: BertConfig, sequence_length: int) -> None:
        """What a model folder needs besides, for others to use it as it was trained."""
        return None

    # --- judging

    def logits(self, model: BertWithHead, batch: LabelledBatch) -> Tensor:
        """What the model makes of the places of a batch: [P, ...]."""
        logits: Tensor = model(batch).logits
        return logits

    @abstractmethod
    def outputs(self, logits: Tensor) -> Tensor:
        """Logits -> float32 [P, C]; the outputs of a text are the mean over its windows."""

    def width(self, config: BertConfig) -> int:
        """Numbers of each of the `outputs`, before `judged`; by default C."""
        return self.num_outputs

    def judged(self, outputs: np.ndarray, encoded: Encoded) -> np.ndarray:
        """The outputs that are evaluated and shown: float32 [I, C], by default those of the learned items. A task may
        convert them, say to one row per text; then all methods but those of learning take the converted ones.

        Args:
            outputs: of all items of `encoded`.
        """
        return outputs

    def averaged(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """What several models make of texts together."""
        found: np.ndarray = np.mean(outputs, axis=0, dtype=np.float32)
        return found

    def of_texts(self, outputs: np.ndarray, examples: Sequence[Example]) -> Iterable[np.ndarray]:
        """The output of each text: [C], or [W, C] of its words or choices.

        Args:
            outputs: of all items, float32 [I, C].
        """
        return outputs

    def tuned(self, targets: np.ndarray, outputs: np.ndarray) -> Self:
        """The task with what is decided on a trained model's outputs for validation texts, say thresholds. All other
        methods take outputs that are `finished`."""
        return self

    def finished(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs as they are judged and shown, after what `tuned` decided: [I, C]."""
        return outputs

    def decision(self) -> dict[str, Any]:
        """What `tuned` decided, for finetune.json."""
        return {}

    def with_decision(self, decision: Mapping[str, Any]) -> Self:
        """The task with what was decided earlier.

        Raises:
            FinetuneError: the decision is not of this task.
        """
        return self

    @abstractmethod
    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        """The `metrics` of held-out texts; None for what is not defined.

        Args:
            targets: [I] or [I, K].
            outputs: [I, C].
        """

    def drawn(self, targets: np.ndarray, outputs: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Targets and outputs of texts by number, each as often as it is named: int64 [m]."""
        return targets[texts], outputs[texts]

    def scores_of_draws(
        self, targets: np.ndarray, outputs: np.ndarray, draws: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The `scores` of B draws of the texts (see `drawn`): name -> float64 [B], NaN for what is not defined."""
        found = [self.scores(*self.drawn(targets, outputs, texts)) for texts in draws]
        return {name: np.array([scores[name] for scores in found], np.float64) for name in self.metrics}

    def judge(self, scores: Mapping[str, float | None], metric: str) -> list[float]:
        """Scores as a sort key, lowest best: the metric, then the loss to break ties. An undefined score is worst, and
        all of them are where one is NaN: a metric may be high of outputs that are no numbers."""
        value = scores[metric]
        if value is not None and metric not in self.lower_is_better:
            value = -value
        key = [math.inf if found is None else found for found in (value, scores["loss"])]
        return [math.inf, math.inf] if any(map(math.isnan, key)) else key

    def tolerance(self, scores: Mapping[str, float], metric: str, num_texts: int) -> float:
        """How far below the best seed's metric, on `num_texts` texts, another seed still counts as equally good."""
        return 0.0

    def baselines(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], settings: FinetuneSettings
    ) -> dict[str, dict[str, np.ndarray]]:
        """What learns without a BERT: name -> held-out split -> outputs."""
        return {}

    def uncertainty(self, outputs: np.ndarray) -> tuple[float, float]:
        """How unsure models are of a text, and how much of it is that they disagree.

        By default of probabilities of classes: the entropy of their mean, in nats, and what it has over the mean of the
        entropies (Houlsby et al. 2011, section 3).

        Args:
            outputs: of S models for the text (see `of_texts`), [S, C] or [S, W, C].
        """
        of_mean, of_each = entropy(outputs.mean(0)), entropy(outputs).mean(0)
        return float(of_mean), float(of_mean - of_each)

    def doubt(self, target: np.ndarray, output: np.ndarray) -> float:
        """How improbable a label is by a model that did not learn from it: the larger, the more.

        Args:
            target: of a text, [] or [K], or [W, 2] of its words or choices.
            output: of the text (see `of_texts`).
        """
        return float(1 - output[int(target)])

    # --- telling

    def results(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], shown: HeldOut
    ) -> dict[str, Any]:
        """What results.json has beside the scores."""
        return {}

    def write_files(self, out: Path, shown: HeldOut, settings: FinetuneSettings) -> None:
        """Write the task's own result files."""
        return None

    def tell(self, out: Path, results: Mapping[str, Any], best: Mapping[str, Any], shown: HeldOut,
             seeds: int) -> list[str]:  # fmt: skip
        """The sentences below the table of scores.

        Args:
            results: content of results.json.
            best: results of the seed that is kept.
        """
        return []

    def of_folds(self, found: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
        """What results.json of several folds has beside the scores, and the sentences that say it.

        Args:
            found: results.json of each fold.
        """
        return {}, []

    @abstractmethod
    def card(self, config: BertConfig, results: Mapping[str, Any], split: str, is_pair: bool) -> Card:
        """The task's parts of the model card."""

    @abstractmethod
    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The output of a text (see `of_texts`), as JSON lines have it."""

    def flat_prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The same as columns of a table."""
        return self.prediction(output, example)

    def prediction_names(self, is_table: bool) -> list[str]:
        """The names in a prediction."""
        nothing = np.zeros(self.num_outputs, np.float32), Example("", "")
        return list(self.flat_prediction(*nothing) if is_table else self.prediction(*nothing))

    def written(self, form: str, row: Mapping[str, Any], example: Example, output: np.ndarray) -> str:
        """A row with its prediction in one of the `forms`."""
        raise NotImplementedError

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """C."""

    @abstractmethod
    def shown_targets(self, targets: np.ndarray) -> str:
        """The targets of a sequence, [P] or [P, K], as a person reads them."""
