"""Classification of texts and of pairs of texts (Devlin et al. 2019, section 4.1): what is this task's own."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_prep.console.screen import say
from data_prep.text import builtin
from data_prep.text.cells import column_names, group_of, kind_of, whole_characters
from data_prep.text.rules import TEXT_COLUMNS
from data_prep.text.sources import listing
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertForSequenceClassification, ModelError
from model.initialisation import start_positions

from ..data import Encoded, LabelledBatch, encode_texts
from ..errors import FinetuneError
from ..long_text import LongText
from ..metrics import scores
from ..tables import BadRows, table_rows

NAME = "classification"
BUILTIN = "builtin"
PAIR_COLUMNS = (
    ("text_a", "text_b"), ("text", "text_pair"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"), ("question1", "question2"), ("question", "answer"), ("query", "passage"),
)  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "sentiment")
# Of the rows at the front of a file, for finding its columns.
_SAMPLED_ROWS = 100


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the text (or the pair of texts), the class, and whose text it is, are."""

    texts: tuple[str, ...]
    label: str | None
    group: str | None = None

    def __str__(self) -> str:
        texts = " and ".join(f'"{name}"' for name in self.texts)
        others = [("labels", self.label), ("groups", self.group)]
        return f"texts in {texts}" + "".join(f', {what} in "{name}"' for what, name in others if name)

    def named(self) -> list[str]:
        """All of them."""
        return [*self.texts, *filter(None, (self.label, self.group))]


@dataclass(frozen=True, slots=True)
class Example:
    """A row: `place` is for people ("train.jsonl:17"); `text_pair`, `label` and `group` may be absent."""

    place: str
    text: str
    text_pair: str | None = None
    label: str | None = None
    group: str | None = None
    """Whose text it is: rows of one group must not be held out from each other."""


# --- rows


def columns_of_file(
    path: str,
    encoding: str,
    texts: Sequence[str],
    label: str | None,
    group: str | None = None,
    show_text: bool = True,
) -> Columns:
    """The columns of a file of labelled texts (see `find_columns`)."""
    if path == BUILTIN:
        return Columns(("text",), "label")
    sample = [row for _, row in islice(table_rows(path, encoding), _SAMPLED_ROWS)]
    return find_columns(path, sample, texts, label, group, labelled=True, show_text=show_text)


def require_columns(path: str, encoding: str, columns: Columns, train: str, show_text: bool = True) -> None:
    """Raises FinetuneError where a further file lacks a column that the training file has."""
    names = sorted({name for _, row in islice(table_rows(path, encoding), _SAMPLED_ROWS) for name in row})
    for name in columns.named():
        if name not in names:
            there = f"among {column_names(names, show_text)}" if names else "and no rows"
            raise FinetuneError(f'{path} has no column "{name}" {there}: call its columns as in {train}')


def find_columns(
    path: str,
    sample: Sequence[dict[str, Any]],
    texts: Sequence[str],
    label: str | None,
    group: str | None = None,
    *,
    labelled: bool,
    show_text: bool = True,
) -> Columns:
    """The columns of rows: those that are named, else those with a usual name, else the only one of text.

    Args:
        path: where the rows are from, for messages.
        sample: the first rows.
        texts, label, group: names given by a person; empty and None if not.
        labelled: whether a column of labels is needed.
        show_text: whether messages may show what could be text, as names of columns can be.

    Raises:
        FinetuneError: there is no such column, or it cannot be told which one.
    """
    names = list(dict.fromkeys(name for row in sample for name in row))
    if not names:
        wanted = "texts and labels" if labelled else "texts"
        raise FinetuneError(f"{path} has no rows with columns: give a file with {wanted}")
    shown = column_names(names, show_text)
    given = [*(("--text-column", name) for name in texts), ("--label-column", label), ("--group-column", group)]
    for option, name in given:
        if name is not None and name not in names:
            near = listing(get_close_matches(name, names, n=1))
            remedy = f"did you mean {option} {near}?" if near else f"pass one of them as {option}"
            raise FinetuneError(f'{path} has no column "{name}" among {shown}: {remedy}')
    if labelled and label is None:
        label = _usual(names, LABEL_COLUMNS)
        if label is None:
            raise FinetuneError(
                f"{path} has no column of labels that can be told by its name among {shown}: pass --label-column"
            )
    if label in texts:
        raise FinetuneError(f'"{label}" is named as text and as label: pass another --label-column')
    texts = tuple(texts) or _text_columns(path, sample, [name for name in names if name != group], label, show_text)
    return Columns(texts, label, group)


def _usual(names: Iterable[str], usual: Sequence[str]) -> str | None:
    lowered = {name.lower(): name for name in names}
    return next((lowered[name] for name in usual if name in lowered), None)


def _text_columns(
    path: str, sample: Sequence[dict[str, Any]], names: list[str], label: str | None, show_text: bool
) -> tuple[str, ...]:
    others = [name for name in names if name != label]
    for pair in PAIR_COLUMNS:
        found = tuple(_usual(others, [name]) for name in pair)
        if all(found):
            return found
    usual = _usual(others, TEXT_COLUMNS)
    if usual:
        return (usual,)
    texts = [name for name in others if any(isinstance(row.get(name), str) for row in sample)]
    if len(texts) != 1 or not show_text:
        raise FinetuneError(
            f"{path}: the column of texts cannot be told by its name among {column_names(names, show_text)}: pass "
            "--text-column with one name, or two for pairs"
        )
    return (texts[0],)


def read_rows(path: str, encoding: str, columns: Columns, bad: BadRows) -> Iterator[Example]:
    """The usable rows of a file, or of the labelled twin of the built-in corpus.

    Raises:
        FinetuneError: a row lacks a text or a label, and bad rows are not skipped.
    """
    if path == BUILTIN:
        for number, (text, label) in enumerate(builtin.labelled(), 1):
            yield Example(f"{BUILTIN}:{number}", text, None, label)
        return
    for place, row in table_rows(path, encoding, columns.named()):
        example = example_of(place, row, columns, bad)
        if example:
            yield example


def example_of(place: str, row: dict[str, Any], columns: Columns, bad: BadRows) -> Example | None:
    """A row as an example; None for a bad one that is skipped."""
    try:
        texts = [text_of(row, name) for name in columns.texts]
        label = label_of(row, columns.label) if columns.label else None
    except ValueError as problem:
        bad(place, str(problem))
        return None
    return Example(place, texts[0], texts[1] if len(texts) > 1 else None, label, group_of(row, columns.group))


def text_of(row: dict[str, Any], column: str) -> str:
    """The text of a row; raises ValueError with what is wrong with it."""
    value = row.get(column)
    if value is None:
        raise ValueError(f'has no "{column}"')
    if not isinstance(value, str):
        raise ValueError(f'has {kind_of(value)} in "{column}", which is not text')
    if not value.strip():
        raise ValueError(f'has an empty "{column}"')
    return whole_characters(value)


def label_of(row: dict[str, Any], column: str) -> str:
    """The name of a row's class, from a text or a whole number; raises ValueError with what is wrong with it."""
    value = row.get(column)
    if isinstance(value, float):
        if math.isnan(value):
            value = None
        elif value.is_integer():
            value = int(value)
        else:
            raise ValueError(f'has a fraction in "{column}", which is a number and not a class')
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError(f'has no "{column}"')
    if not isinstance(value, str | int):
        raise ValueError(f'has {kind_of(value)} in "{column}", which is not a class')
    return whole_characters(" ".join(str(value).split()))


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


def known_labels(
    examples: Iterable[Example], labels: Sequence[str], bad: BadRows, show_text: bool = True
) -> Iterator[Example]:
    """Examples of known classes; the others are bad rows, whose label may be a text."""
    known = set(labels)
    shown = listing(labels, 8)
    for example in examples:
        if example.label in known:
            yield example
        else:
            label = f"the label {example.label!r:.42}, which" if show_text else "a label that"
            bad(example.place, f"has {label} does not occur in training ({shown})")


# --- encoding, model, objective, results


def encode(
    examples: Sequence[Example],
    labels: Sequence[str],
    tokenizer: WordPieceTokenizer,
    sequence_length: int,
    long_text: LongText,
) -> Encoded:
    """Examples as sequences of ids (see `data.encode_texts`)."""
    texts = [(example.text, example.text_pair) for example in examples]
    return encode_texts(texts, classes(examples, labels), tokenizer, sequence_length, long_text)


def classes(examples: Sequence[Example], labels: Sequence[str]) -> np.ndarray:
    """The place of each example's label among `labels`: int64 [n]; 0 for one without a label."""
    ids = {name: index for index, name in enumerate(labels)} | {None: 0}
    return np.array([ids[example.label] for example in examples], dtype=np.int64)


def build_model(
    folder: str, labels: Sequence[str], seed: int, dropout: float, hidden_layers: int = 0, from_scratch: bool = False
) -> BertForSequenceClassification:
    """The pretrained encoder of a folder under a new head, or the same model with nothing pretrained.

    Raises:
        FinetuneError: the folder cannot be used.
    """
    changes = {
        "id2label": dict(enumerate(labels)),
        "problem_type": "single_label_classification",
        "classifier_hidden_layers": hidden_layers,
        "classifier_dropout": None,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            # Said below in a sentence of our own.
            warnings.simplefilter("ignore", UserWarning)
            model = BertForSequenceClassification.from_pretrained(folder, new_head=True, **changes)
    except ModelError as error:
        raise FinetuneError(str(error)) from error
    made_anew = [name for name in model.newly_initialised if not name.startswith("classifier.")]
    if made_anew and not from_scratch:
        say(f"{folder} has no {', '.join(made_anew)}: made anew.")
    if from_scratch:
        torch.manual_seed(seed)
        model = BertForSequenceClassification(model.config)
        start_positions(model.bert)
    return model


class ClassificationObjective:
    """The cross entropy of the right class; an objective of the loop, as `pretrain.objective.PretrainingObjective`.

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
        losses = F.cross_entropy(model(batch).logits.float(), batch.labels, reduction="none") * batch.weights
        if self.class_weights is not None:
            losses = losses * self.class_weights.to(losses.device)[batch.labels]
        return {"label": losses.sum()}


def balanced_weights(labels: np.ndarray, num_labels: int) -> Tensor:
    """n / (C * rows of the class), as `class_weight="balanced"` of scikit-learn: float32 [C]; 0 for a class without."""
    counts = np.bincount(labels, minlength=num_labels)
    weights = np.divide(len(labels), num_labels * counts, out=np.zeros(num_labels), where=counts > 0)
    return torch.from_numpy(weights.astype(np.float32))


def objective(train: Encoded, num_labels: int, balanced: bool) -> ClassificationObjective:
    """What is learned from these texts."""
    return ClassificationObjective(balanced_weights(train.labels(), num_labels) if balanced else None)


def decode(probabilities: np.ndarray, labels: Sequence[str]) -> list[str]:
    """The most probable class of each text by name: float [n, C] -> n names."""
    return [labels[index] for index in probabilities.argmax(1)]


def metrics(gold: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Held-out results: see `finetune.metrics.scores`."""
    return scores(gold, probabilities)
