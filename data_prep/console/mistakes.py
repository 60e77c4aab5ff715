"""What is wrong with a command line or a settings file, in words, with the nearest name that is right."""

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin


class Option(NamedTuple):
    """An option: the type of its value, and whether it has no default."""

    kind: Any
    is_required: bool


_FILES = ("data", "dataset", "input", "text", "file", "files", "train-file")
# What other programs call them: options (with a value where only that says it), and words.
_OTHER_NAMES = {
    "lr": ("learning-rate",),
    **dict.fromkeys(("epochs", "num-epochs", "num-train-epochs"), ("budget 3epochs",)),
    **dict.fromkeys(("steps", "max-steps"), ("budget 5000steps",)),
    **dict.fromkeys(("time", "minutes", "hours"), ("budget 30m",)),
    **dict.fromkeys(_FILES, ("corpus", "train")),
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
# Options that a word without one is probably meant for.
_WITHOUT_OPTION = ("corpus", "train")


def entry_problems(
    entries: Sequence[tuple[str, list[str] | bool]], options: Mapping[str, Option], source: str
) -> Iterator[str]:
    """What is wrong with the entries of a settings file that goes by the name `source`."""
    for option, words in entries:
        wrong = None if isinstance(words, bool) else _wrong_word(words, options[option].kind)
        if wrong:
            yield f"{source}: {underscored(option)}: {wrong}"


def argument_problems(arguments: Sequence[str], options: Mapping[str, Option], positional: str | None) -> Iterator[str]:
    """What is wrong with words of the command line; those of the setting `positional` stand without an option."""
    options = {name: option for name, option in options.items() if name != positional}
    for flag, words in _grouped(arguments):
        option = dashed(flag.removeprefix("--"))
        switch = option if option in options else option.removeprefix("no-")
        kind = options[switch].kind if switch in options else None
        if not flag:
            if positional:
                continue
            meant = next((name for name in _WITHOUT_OPTION if name in options), None)
            hint = f": did you mean --{meant} {words[0]}?" if meant else ": every value stands behind its option"
            yield f"unexpected argument {words[0]!r}{hint} (see --help)"
        elif kind is None and positional and option in (positional, *_FILES):
            yield f"unknown option {flag}: write what stands behind it without an option (see --help)"
        elif kind is None or (switch != option and kind is not bool):
            guess = closest(option, options)
            yield f"unknown option {flag}" + (f": did you mean --{guess}?" if guess else "") + " (see --help)"
        elif kind is bool:
            if words and not positional:
                yield f"--{switch} takes no value: write --{switch} or --no-{switch}, without {words[0]!r}"
        elif not is_list(kind) and not words:
            yield f"--{option}: a value is missing: give {describe(kind)}"
        elif not is_list(kind) and len(words) > 1 and not positional:
            yield f"--{option} takes one value: {words[1]!r} is one too many"
        elif wrong := _wrong_word(words if is_list(kind) else words[:1], kind):
            yield f"--{option}: {wrong}"


def _grouped(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each option with the words behind it; words before the first option stand behind ""."""
    groups: list[tuple[str, list[str]]] = []
    for token in arguments:
        if token.startswith("-") and not _fits(token, float):
            flag, equals, word = token.partition("=")
            groups.append((flag, [word] if equals else []))
        elif groups:
            groups[-1][1].append(token)
        else:
            groups.append(("", [token]))
    return groups


def without_value(arguments: Sequence[str], options: Mapping[str, Option]) -> str | None:
    """What is wrong with an option that takes several values and was given none."""
    for flag, words in _grouped(arguments):
        option = options.get(dashed(flag.removeprefix("--")))
        if option and is_list(option.kind) and not any(words):
            return f"{flag}: a value is missing: give {describe(option.kind)}"
    return None


def missing(options: Mapping[str, Option], stated: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    """Options without a default that neither a settings file nor the command line gives."""
    given = {*stated, *(dashed(flag.removeprefix("--")) for flag, _ in _grouped(arguments))}
    for name, option in options.items():
        if option.is_required and name not in given:
            yield f"--{name} is missing: give {describe(option.kind)} (see --help)"


def _wrong_word(words: Sequence[str], kind: Any) -> str | None:
    """What is wrong with the first word that the type does not admit."""
    item = get_args(kind)[0] if is_list(kind) else kind
    for word in words:
        if not _fits(word, item):
            guess = closest(word, _choices(item))
            return f"{word!r} is not {describe(item)}" + (f": did you mean {guess}?" if guess else "")
    return None


def _fits(word: str, kind: Any) -> bool:
    if _is_union(kind):
        return any(_fits(word, member) for member in get_args(kind))
    if kind in (int, float):
        try:
            kind(word)
        except ValueError:
            return False
        return True
    choices = _choices(kind)
    return word in choices if choices else True


def describe(kind: Any) -> str:
    """What a value has to be, for a person."""
    if _is_union(kind):
        return " or ".join(describe(member) for member in get_args(kind) if member is not types.NoneType)
    if is_list(kind):
        return f"{describe(get_args(kind)[0])}, or several"
    choices = _choices(kind)
    if choices:
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    return {int: "a whole number", float: "a number", Path: "a path"}.get(kind, "a text")


def _choices(kind: Any) -> list[str]:
    """The words that a type spells out, in order; none for an open type."""
    if _is_union(kind):
        return [word for member in get_args(kind) for word in _choices(member)]
    if kind is types.NoneType:
        return ["None"]
    if kind is bool:
        return ["True", "False"]
    return [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


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


def dashed(name: str) -> str:
    """The name of a setting as an option."""
    return name.replace("_", "-")


def underscored(name: str) -> str:
    """The name of an option as a setting."""
    return name.replace("-", "_")
