"""What tasks have in common: an encoder under a new head, a trained model, names of classes, numbers, items."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from data_prep.console.screen import say
from data_prep.examples import runs
from data_prep.text.cells import is_text, kind_of, name_of
from data_prep.text.sources import listing
from model import BertConfig, BertForSequenceClassification
from pretrain.engine.folder import family_of, open_model

from ..rows import Columns, Example
from ..settings import FinetuneError, FinetuneSettings

# float32 goes to 3.4e38, and so does what is computed of numbers.
_LARGEST = 1e37
# So many classes may have a single text each; more are names or numbers of the rows.
_MOST_OF_FEW_ROWS = 50


def new_model(kind: str, settings: FinetuneSettings, seed: int, **changes: Any) -> Any:
    """The encoder of `settings.model` under a new head, or the same with nothing pretrained.

    Args:
        kind: the name of its class in `model.families.Family`.
        changes: of the model's config: its labels, its problem_type.

    Raises:
        FinetuneError: the folder cannot be used.
    """
    changes |= {
        "classifier_hidden_layers": settings.hidden_layers,
        "classifier_dropout": None,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
    }
    torch.manual_seed(seed)
    of_kind = getattr(family_of(settings.model, FinetuneError), kind)
    model = open_model(of_kind, settings.model, FinetuneError, new_head=True, **changes)
    made_anew = [name for name in model.newly_initialised if not name.startswith(model.names.task_heads)]
    if made_anew and not settings.from_scratch:
        say(f"{settings.model} has no {', '.join(made_anew)}: initialised at random.")
    if settings.from_scratch:
        torch.manual_seed(seed)
        model = of_kind(model.config)
        model.look_at_neighbours()
    return model


def labels_of(config: BertConfig) -> list[str]:
    """The names of a model's labels, those without a name numbered.

    Raises:
        FinetuneError: two have the same name.
    """
    names = [name_of((config.id2label or {}).get(number, f"LABEL_{number}")) for number in range(config.num_labels)]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise FinetuneError(
            f"the model has two labels with the name {twice[0]!r:.42}: give each its own in id2label of config.json"
        )
    return names


def require_names(
    names: Collection[str], train: Sequence[Example], columns: Columns, settings: FinetuneSettings, what: str
) -> None:
    """Raises FinetuneError where what should be "classes" or "labels" are numbers of the rows, or texts."""
    where, remedy = f'"{columns.label}" of {settings.train}', f"name the column of {what} with --label-column"
    if len(names) > max(_MOST_OF_FEW_ROWS, len(train) / 2):
        raise FinetuneError(f"{where} has {len(names):,} different labels in {len(train):,} rows: {remedy}")
    if settings.show_text == "no" and any(map(is_text, names)):
        raise FinetuneError(
            f"{where} holds texts where labels should be, which would be shown: {remedy}, or give the {what} short "
            "names"
        )


def unknown(kind: str, name: str, known: Sequence[str], show_text: bool) -> str:
    """What is wrong with a row of a "label" or "tag" that training does not know; the name may be a text."""
    named = f"the {kind} {name!r:.42}, which" if show_text else f"a {kind} that"
    return f"has {named} does not occur in training ({listing(known, 8)})"


def pipeline_example(name: str, option: str, is_pair: bool) -> str:
    """Python that asks a model of sequences with the pipeline of transformers."""
    arguments = '{"text": "One text.", "text_pair": "Another."}' if is_pair else '"One text."'
    return f"""from transformers import pipeline

{name} = pipeline("text-classification", model="path/to/this/folder", {option})
print({name}({arguments}, truncation=True))"""


def fine_tuned(kind: str, folder: Path) -> Any:
    """A model with a head that was trained.

    Raises:
        FinetuneError: the folder is damaged, or its head was never trained.
    """
    model = open_model(getattr(family_of(folder, FinetuneError), kind), folder, FinetuneError)
    if model.newly_initialised:
        raise FinetuneError(
            f"{folder} is {_MISSING[kind]}, it lacks {model.newly_initialised[0]}: fine-tune it first with python -m "
            f"finetune.run --model {folder}"
        )
    return model


_MISSING = {
    "sequence_classification": "no classifier", "token_classification": "no tagger",
    "multiple_choice": "no model that chooses", "question_answering": "no model that answers questions",
    "vectors": "no whole encoder",
}  # fmt: skip


def last_layer(model: BertForSequenceClassification) -> nn.Linear:
    """The linear layer that makes the logits."""
    return [part for part in model.classifier.modules() if isinstance(part, nn.Linear)][-1]


_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")


def class_name(value: Any, column: str) -> str:
    """The name of a class, from a text or a whole number; raises ValueError with what is wrong with it."""
    if isinstance(value, float):
        if math.isnan(value):
            value = None
        elif math.isinf(value):
            raise ValueError(f'has an infinite number in "{column}", which is not a class')
        elif value.is_integer():
            value = int(value)
        else:
            raise ValueError(f'has a fraction in "{column}", which is a number and not a class (--task regression)')
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError(f'has no "{column}"')
    if not isinstance(value, str | int):
        raise ValueError(f'has {kind_of(value)} in "{column}", which is not a class')
    return name_of(str(value))


def number(row: Mapping[str, Any], column: str) -> float:
    """The number of a row; raises ValueError with what is wrong with it."""
    value = row.get(column)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None if not value.strip() else value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise ValueError(f'has no "{column}"')
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        has_comma = isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value)
        hint = " (of a decimal comma make a point)" if has_comma else ""
        raise ValueError(f'has {kind_of(value)} in "{column}", which is not a number{hint}')
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isinf(found):
        raise ValueError(f'has an infinite "{column}"')
    if abs(found) > _LARGEST:
        raise ValueError(f'has a "{column}" that does not fit into float32')
    return found


def items_of_texts(outputs: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """What belongs to the items of each text, say its words: as many as it has.

    Args:
        outputs: of all items, [I, ...].
        counts: items of each text.
    """
    ends = np.cumsum(counts)
    assert len(outputs) == ends[-1], "as many outputs as items"
    return np.split(outputs, ends[:-1])


def drawn_items(targets: np.ndarray, outputs: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Targets and outputs of the items of these texts (see `Task.drawn`); every copy of a text is a text of its own.

    Args:
        targets: int64 [I, 2], the text of each item, ascending, and what is learned of it.
    """
    first, last = np.searchsorted(targets[:, 0], texts), np.searchsorted(targets[:, 0], texts, side="right")
    chosen = runs(first, last - first)
    numbers = np.repeat(np.arange(len(texts)), last - first)
    return np.stack([numbers, targets[chosen, 1]], axis=1), outputs[chosen]
