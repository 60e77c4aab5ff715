"""Words to values: what a word means to a type, what a type admits, and which word was probably meant."""

import contextlib
import difflib
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import UserError

FILES = ("data", "dataset", "input", "text", "file", "files", "train-file")
"""What other programs call the option in front of a file."""

# What other programs call them: options (with a value where only that says it), and words.
_OTHER_NAMES = {
    "lr": ("learning-rate",),
    **dict.fromkeys(("epochs", "num-epochs", "num-train-epochs"), ("budget 3epochs",)),
    **dict.fromkeys(("steps", "max-steps"), ("budget 5000steps",)),
    **dict.fromkeys(("time", "minutes", "hours"), ("budget 30m",)),
    **dict.fromkeys(FILES, ("corpus", "train")),
    **dict.fromkeys(("output", "output-dir", "save"), ("out",)),
    **dict.fromkeys(("model-name-or-path", "checkpoint"), ("model", "init-from")),
    "model": ("init-from",),
    "size": ("preset",),
    **dict.fromkeys(("max-length", "max-seq-length"), ("sequence-length",)),
    **dict.fromkeys(("gpu", "cuda"), ("device cuda", "cuda")),
    **dict.fromkeys(("cpu", "no-cuda"), ("device cpu",)),
    **dict.fromkeys(("fp16", "bf16"), ("precision bf16",)),
    "wwm": ("masking whole-word",),
    "num-workers": ("workers",),
    "dev": ("validation", "validation-corpus"),
    "cased": ("no-lowercase",),
}


def value_of(words: Sequence[str], kind: Any, place: str) -> Any:
    """The value of a type that these words stand for: one word, or any number of them for a list or a tuple.

    Raises:
        UserError: the type does not admit one of them. It begins with `place`.
    """
    if is_list(kind):
        return get_origin(kind)(value_of([word], get_args(kind)[0], place) for word in words)
    word, spelled = words[0], _spelled_out(kind)
    if word in spelled:
        return spelled[word]
    for member in members(kind):
        if member in (int, float, str, Path):
            with contextlib.suppress(ValueError):
                return member(word)
    guess = closest(word, spelled)
    raise UserError(f"{place}: {word!r} is not {describe(kind)}" + (f": did you mean {guess}?" if guess else ""))


def describe(kind: Any) -> str:
    """What a value has to be, for a person."""
    if is_list(kind):
        return f"{describe(get_args(kind)[0])}, or several"
    if len(members(kind)) > 1:
        return " or ".join(describe(member) for member in members(kind) if member is not types.NoneType)
    words = list(_spelled_out(kind))
    if words:
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    return {int: "a whole number", float: "a number", Path: "a path"}.get(kind, "a text")


def _spelled_out(kind: Any) -> dict[str, Any]:
    """The words that a type spells out, in order, with their values; none for an open type."""
    closed = {types.NoneType: (None,), bool: (True, False)}
    found = [closed.get(m, get_args(m) if get_origin(m) is Literal else ()) for m in members(kind)]
    return {str(value): value for values in found for value in values}


def members(kind: Any) -> tuple:
    """The types that a union joins; any other type alone."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def is_list(kind: Any) -> bool:
    """Whether a type takes several values."""
    return get_origin(kind) in (list, tuple)


def closest(word: str, names: Iterable[str]) -> str | None:
    """The name that other programs' word stands for here, else the most similar one."""
    names = list(names)
    for meant in _OTHER_NAMES.get(word, ()):
        if meant.split()[0].removeprefix("no-") in names:
            return meant
    return next(iter(difflib.get_close_matches(word, names, n=1)), None)
