"""A model out of a folder, for every command: what is wrong with it in one sentence."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from data_prep.errors import UserError
from model import ModelError, families
from model.huggingface import PretrainedModel

Model = TypeVar("Model", bound=PretrainedModel)


@contextmanager
def model_mistakes(error: type[UserError]) -> Iterator[None]:
    """What a model cannot be made of is a mistake of the person who gave it."""
    try:
        yield
    except ModelError as mistake:
        raise error(str(mistake)) from mistake


def family_of(folder: str | Path, error: type[UserError]) -> families.Family:
    """The family of the model in a folder; raises `error` if there is none."""
    with model_mistakes(error):
        return families.family_of(folder)


def open_model(kind: type[Model], folder: str | Path, error: type[UserError], **config_changes: Any) -> Model:
    """A model of this class. What the folder lacks is new: the caller says so, from `newly_initialised`.

    Raises:
        error: the folder cannot be used.
    """
    with model_mistakes(error), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return kind.from_pretrained(folder, **config_changes)


def require_embeddings(folder: str | Path, entries: int, embeddings: int, error: type[UserError]) -> None:
    """Raises `error` where a model has fewer embeddings than its tokenizer has entries."""
    if entries > embeddings:
        raise error(f"{folder} has {entries} vocabulary entries and {embeddings} embeddings: use the tokenizer of this "
                    "model")  # fmt: skip
