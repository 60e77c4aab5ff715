"""Which of the choices of a row is the right one: the end of a story, the answer to a question (Devlin et al. 2019,
section 4.4, SWAG)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_prep.durable import write_text
from data_prep.text.cells import TEXT_COLUMNS
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model import BertConfig, BertForMultipleChoice
from pretrain.engine.step import Objective

from ..batches import Encoded, LabelledBatch
from ..choice_metrics import chance, choice_scores, choice_scores_of_draws, length, similarity
from ..choices import (
    choices_of,
    columns_of_lists,
    encode_choices,
    first_number_of,
    is_missing,
    right_choice,
    usual_choices,
)
from ..collapse import Collapse, where_no_better
from ..metrics import spread
from ..mistakes import MOST_MISTAKES, Mistake, mistakes_markdown
from ..rows import Columns, Example, text_of
from ..settings import FinetuneError, FinetuneSettings, LongText
from . import Card, HeldOut, Task
from .sequences import drawn_items, fine_tuned, items_of_texts, new_model

SIMILARITY, LENGTH = "TF-IDF similarity", "longest choice"
CHOICE, TEXT, PROBABILITIES = "predicted_choice", "predicted_text", "probabilities"
# If none of at least this many rows has its first choice as the right one, numbers may be counted from 1.
_ROWS_TO_TELL = 20


class MultipleChoice(Task):
    """One of the choices that a row brings with it, of which there may be any number from 2 on.

    A choice has a score by itself; the softmax over the scores of a row gives probabilities.

    Args:
        column: that held the lists of choices in training, where there was one.
    """

    name = "multiple-choice"
    label_columns = (
        "label", "answerkey", "answer_key", "answer", "correct", "correct_answer", "correct_choice", "gold", "target",
        "cop",
    )  # fmt: skip
    text_columns = (
        "question", "context", "premise", "sent1", "startphrase", "ctx", "goal", "query", "prompt", "stem", "passage",
        "article", *TEXT_COLUMNS,
    )  # fmt: skip
    pair_columns = (
        ("sent1", "sent2"), ("article", "question"), ("passage", "question"), ("context", "question"),
        ("premise", "question"),
    )  # fmt: skip
    asked_row = '{"question": "...", "choices": ["...", "..."]}'
    long_texts = ("head", "head-tail")
    prediction_holds_text = True
    shown = {"accuracy": "accuracy", "mean reciprocal rank": "mrr", "loss": "loss"}
    metrics = ("accuracy", "mrr", "loss")
    default_metric = "accuracy"
    baseline_names = (SIMILARITY, LENGTH)
    num_outputs = 1

    def __init__(self, column: str = ""):
        self.column = column

    # --- rows

    def choice_columns(
        self, sample: Sequence[Mapping[str, Any]], names: Sequence[str], texts: Sequence[str]
    ) -> tuple[str, ...] | None:
        """Lists where a person names them, or training had them; those with a usual name; the only ones there are."""
        lists = columns_of_lists(sample, names)
        if named := [name for name in lists if name in texts]:
            return (named[0],)
        if self.column in lists:
            return (self.column,)
        return usual_choices(sample, names) or ((lists[0],) if len(lists) == 1 else None)

    def first_number(self, sample: Sequence[Mapping[str, Any]], choices: Sequence[str], label: str | None) -> int:
        """See `first_number_of`."""
        return first_number_of(sample, choices, label)

    def example(self, place: str, row: Mapping[str, Any], columns: Columns) -> Example:
        """A row with its choices; its second text, which may be empty, is the beginning of each of them.

        Raises:
            ValueError: with what is wrong with it.
            FinetuneError: plain text has no choices.
        """
        if not columns.choices:
            raise FinetuneError(
                f"{place} is a line of text and has no choices: give .jsonl, .csv or .parquet with a column of choices"
            )
        text = text_of(row, columns.texts[0])
        beginning = None
        if len(columns.texts) > 1 and not is_missing(row.get(columns.texts[1])):
            beginning = text_of(row, columns.texts[1])
        choices, names = choices_of(row, columns.choices)
        label = None
        if columns.label is not None:
            label = right_choice(row.get(columns.label), columns.label, choices, names, columns.first_number)
        return Example(place, text, beginning, label, choices=tuple(choices))

    def label_of(self, row: Mapping[str, Any], column: str) -> Any:
        """The label of a row is read with its choices (see `example`)."""
        return row.get(column)

    def fitted(self, train: Sequence[Example], columns: Columns, settings: FinetuneSettings) -> "MultipleChoice":
        """Raises FinetuneError where there is no row."""
        if not train:
            raise FinetuneError(f"{settings.train} has no usable row: give rows with choices and the right one")
        return MultipleChoice(columns.choices[0] if len(columns.choices) == 1 else "")

    def of_model(self, config: BertConfig) -> "MultipleChoice":
        """Every such model scores one choice at a time."""
        return MultipleChoice()

    def facts(self) -> list[str]:
        """Nothing but the task."""
        return [self.name]

    def describe(self, train: Sequence[Example]) -> list[str]:
        """How many choices a row has, and whether they seem to be counted from 1."""
        counts = [len(row.choices or ()) for row in train]
        least, most = min(counts), max(counts)
        number = f"{least}" if least == most else f"{least} to {most}"
        sentences = [f"{number} choices a row; one at random is right in {chance(train):.3f} of the training rows."]
        if len(train) >= _ROWS_TO_TELL and not any(row.label == 0 for row in train):
            sentences.append("The right choice is never the first one of its row: numbers of choices count from 0.")
        return sentences

    # --- learning

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """The row of each choice, and 1 for the right one: int64 [I, 2]; 0 for all of a row without a label."""
        found = [
            (number, place == example.label)
            for number, example in enumerate(examples)
            for place in range(len(example.choices or ()))
        ]
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    def encode(
        self, examples: Sequence[Example], tokenizer: TextTokenizer, sequence_length: int, long_text: LongText
    ) -> Encoded:
        """A sequence for each choice, those of a row together."""
        return encode_choices(examples, self.targets(examples), tokenizer, sequence_length, long_text)

    def build_model(self, settings: FinetuneSettings, seed: int) -> BertForMultipleChoice:
        """The encoder under a new head of one output (see `Task.build_model`)."""
        return new_model("multiple_choice", settings, seed)

    def open_model(self, folder: Path) -> BertForMultipleChoice:
        """Raises FinetuneError where the folder is damaged, or its head was never trained."""
        return fine_tuned("multiple_choice", folder)

    def objective(self, train: Encoded, settings: FinetuneSettings) -> "ChoiceObjective":
        """The cross entropy of the right choice."""
        return ChoiceObjective()

    def collapse(self, train: Encoded, outputs: np.ndarray, objective: Objective, rate: float) -> Collapse | None:
        """A loss at that of all choices alike."""
        unread = np.log(np.unique(train.targets[:, 0], return_counts=True)[1]).mean()
        return where_no_better(Collapse(rate, choice_scores(train.targets, outputs)["loss"], float(unread)))

    # --- judging

    def outputs(self, logits: Tensor) -> Tensor:
        """The score of each choice: [P, 1]."""
        return logits.float()

    def judged(self, outputs: np.ndarray, encoded: Encoded) -> np.ndarray:
        """The logarithm of the probability of each choice: float32 [I, 1]."""
        scores, starts = outputs.astype(np.float64), np.flatnonzero(np.diff(encoded.text, prepend=-1))
        wholes = np.logaddexp.reduceat(scores, starts)
        return (scores - np.repeat(wholes, np.diff(np.append(starts, len(scores))), axis=0)).astype(np.float32)

    def averaged(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """The logarithm of the mean of their probabilities."""
        found = np.logaddexp.reduce(np.stack(outputs).astype(np.float64)) - np.log(len(outputs))
        return found.astype(np.float32)

    def of_texts(self, outputs: np.ndarray, examples: Sequence[Example]) -> list[np.ndarray]:
        """[W, 1] of the W choices of each row."""
        return items_of_texts(outputs, [len(example.choices or ()) for example in examples])

    def scores(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        """See `finetune.choice_metrics.of_rows`."""
        return dict(choice_scores(targets, outputs))

    def drawn(self, targets: np.ndarray, outputs: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The choices of these rows; every copy of a row is a row of its own."""
        return drawn_items(targets, outputs, texts)

    def scores_of_draws(
        self, targets: np.ndarray, outputs: np.ndarray, draws: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """See `finetune.choice_metrics.choice_scores_of_draws`."""
        return choice_scores_of_draws(targets, outputs, draws)

    def decision(self) -> dict[str, Any]:
        """The column of choices, which predictions look for first."""
        return {"choices": self.column} if self.column else {}

    def with_decision(self, decision: Mapping[str, Any]) -> "MultipleChoice":
        """Raises FinetuneError where the column is no name."""
        column = decision.get("choices", self.column)
        if not isinstance(column, str):
            raise FinetuneError("the column of choices of the model is no name: fine-tune again")
        return MultipleChoice(column)

    def baselines(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], settings: FinetuneSettings
    ) -> dict[str, dict[str, np.ndarray]]:
        """The choice that shares most words with the text, and the longest one."""
        alike = similarity(train, list(held_out.values()))
        return {
            SIMILARITY: dict(zip(held_out, alike, strict=True)),
            LENGTH: {split: length(rows) for split, rows in held_out.items()},
        }

    def uncertainty(self, outputs: np.ndarray) -> tuple[float, float]:
        """That of the choices of a row (see `Task.uncertainty`)."""
        return super().uncertainty(_probabilities(outputs))

    def doubt(self, target: np.ndarray, output: np.ndarray) -> float:
        """How improbable the right choice is."""
        return float(1 - _probabilities(output)[target[:, 1].argmax()])

    # --- telling

    def results(
        self, train: Sequence[Example], held_out: Mapping[str, Sequence[Example]], shown: HeldOut
    ) -> dict[str, Any]:
        """How many choices the rows have, and the accuracy of one at random."""
        counts = [len(row.choices or ()) for row in (*train, *(row for rows in held_out.values() for row in rows))]
        return {
            "choices": {"least": min(counts), "most": max(counts)},
            "chance": {split: chance(rows) for split, rows in held_out.items()},
        }

    def write_files(self, out: Path, shown: HeldOut, settings: FinetuneSettings) -> None:
        """mistakes.md: wrong choices of the largest probability."""
        with_text = settings.show_text == "yes"
        write_text(out / "mistakes.md", mistakes_markdown(self._mistakes(shown, with_text), with_text))

    def _mistakes(self, shown: HeldOut, with_text: bool) -> list[Mistake]:
        found = []
        rights, outputs = (self.of_texts(each, shown.examples) for each in (shown.targets[:, 1], shown.outputs))
        for example, right, output in zip(shown.examples, rights, outputs, strict=True):
            probabilities, choices = _probabilities(output), example.choices or ()
            places = int(right.argmax()), int(probabilities.argmax())
            if places[0] != places[1]:
                names = (f"{place}: {choices[place]}" if with_text else f"choice {place}" for place in places)
                probability = float(probabilities[places[1]])
                found.append(Mistake(example.place, example.text, example.text_pair, *names, probability))
        return sorted(found, key=lambda mistake: -mistake.probability)[:MOST_MISTAKES]

    def tell(self, out: Path, results: Mapping[str, Any], best: Mapping[str, Any], shown: HeldOut,
             seeds: int) -> list[str]:  # fmt: skip
        """What one choice at random reaches, and where the mistakes are."""
        of_chance, reached = results["chance"], best["validation"]["accuracy"]
        sentences = [f"one choice at random: {shown.split} accuracy {of_chance[shown.split]:.3f}"]
        if reached <= of_chance["validation"]:
            sentences.append(
                "The kept model is no more accurate on the validation texts than that: "
                f"{reached:.3f} against {of_chance['validation']:.3f}."
            )
        return [*sentences, f"\nThe most confident mistakes are in {out / 'mistakes.md'}."]

    def of_folds(self, found: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
        """What `results` has, of the test rows of all folds."""
        least, most = (pick(fold["choices"][name] for fold in found) for name, pick in (("least", min), ("most", max)))
        of_chance = spread([fold["chance"]["test"] for fold in found])
        kept = {"choices": {"least": least, "most": most}, "chance": {"test": of_chance}}
        return kept, [f"one choice at random: test accuracy {of_chance['mean']:.3f}"]

    def card(self, config: BertConfig, results: Mapping[str, Any], split: str, is_pair: bool) -> Card:
        """Chance stands below the scores."""
        least, most = results["choices"]["least"], results["choices"]["most"]
        number = f"{least}" if least == most else f"{least} to {most}"
        ends = '["A beginning and one end.", "A beginning and another end."]'
        choices = ends if is_pair else '["One choice.", "Another choice."]'
        example = f"""import torch
from transformers import AutoModelForMultipleChoice, AutoTokenizer

folder = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForMultipleChoice.from_pretrained(folder).eval()
text, choices = "One text.", {choices}
rows = tokenizer([text] * len(choices), choices, truncation="only_first", padding=True, return_tensors="pt")
with torch.no_grad():
    scores = model(**{{name: values[None] for name, values in rows.items()}}).logits[0]
print(choices[int(scores.argmax())], scores.softmax(-1))"""
        return Card(
            kind="multiple-choice",
            name="multiple choice in a domain",
            title="Which of several choices is the right one",
            findings=f"{number} choices a row. One choice at random: accuracy {results['chance'][split]:.3f}.",
            metrics=("accuracy",),
            example="" if config.classifier_hidden_layers else example,
        )

    def prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The number of a choice from 0, the choice, and the probability of each in their order."""
        probabilities, choices = _probabilities(output), example.choices or ()
        place = int(probabilities.argmax())
        return {CHOICE: place, TEXT: choices[place], PROBABILITIES: [round(float(p), 6) for p in probabilities]}

    def flat_prediction(self, output: np.ndarray, example: Example) -> dict[str, Any]:
        """The probabilities as JSON."""
        found = self.prediction(output, example)
        return {**found, PROBABILITIES: json.dumps(found[PROBABILITIES])}

    def prediction_names(self, is_table: bool) -> list[str]:
        """The names in a prediction."""
        return [CHOICE, TEXT, PROBABILITIES]

    def shown_targets(self, targets: np.ndarray) -> str:
        """Whether the choice is right."""
        return "right" if targets[0, 1] else "wrong"


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """[..., W, 1] of the choices of a row -> [..., W]."""
    from scipy.special import softmax

    found: np.ndarray = softmax(scores[..., 0], axis=-1)
    return found


class ChoiceObjective:
    """The cross entropy of the right choice of a row; see `Objective` of the engine. All choices of a row are in one
    batch, one after the other."""

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Number of rows."""
        return {"label": float(batch.labels[:, 1].sum())}

    def loss_sums(self, model: BertForMultipleChoice, batch: LabelledBatch) -> dict[str, Tensor]:
        """Sum of the negative log likelihoods (nats, fp32): a scalar with gradient."""
        probabilities = log_softmax_of_rows(model(batch).logits.float()[:, 0], batch.labels[:, 0])
        return {"label": -(probabilities * batch.labels[:, 1]).sum()}


def log_softmax_of_rows(scores: Tensor, rows: Tensor) -> Tensor:
    """The log probability of each choice among those of its row: [P] -> [P], without waiting for the device.

    Args:
        rows: int64 [P], the row of each; those of one row stand together.
    """
    is_first = torch.cat([rows.new_zeros(1), (rows[1:] != rows[:-1]).long()])
    place = is_first.cumsum(0)  # [P], rows of this batch, of which there are P at most
    lowest = torch.full_like(scores, -torch.inf)
    highest = lowest.scatter_reduce(0, place, scores.detach(), "amax").index_select(0, place)
    shares = torch.zeros_like(scores).scatter_add(0, place, (scores - highest).exp())
    return scores - highest - shares.index_select(0, place).log()
