"""The options of a command, out of its settings dataclass, and what words on a command line or in a file mean to them.

Options are flat: a settings dataclass inside another one (a field with a default_factory) adds its fields
without a prefix, so `--vocab-size`, and `vocab_size` in YAML, wherever the field lives.
"""

import contextlib
import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

from ..errors import UserError

POSITIONAL = "positional"
"""Marks a field whose values stand on the command line without an option: Annotated[tuple[str, ...], POSITIONAL]."""

# A dash, a negative number, and a text of several words behind one dash ("- not an option") are words.
_FLAG = re.compile(r"-(?!$|\.?\d|inf$)(-|[^\s=]*(=|$))")


def option_name(field: str) -> str:
    """The option of a field of settings: "--batch-size" of batch_size."""
    return f"--{field.replace('_', '-')}"


@dataclasses.dataclass(frozen=True)
class EveryCommand:
    """Options beside the settings of a command."""

    groups: ClassVar = {"every command": ("config", "print_config")}

    config: Path | None = None
    """YAML file with settings; it is read first, so the options given here win."""
    print_config: bool = False
    """Print all settings as YAML, in the form that --config reads, and stop."""


class Option(NamedTuple):
    """A field of a settings dataclass on the command line: its type, the title it stands under on the help page."""

    name: str
    field: dataclasses.Field
    kind: Any
    title: str
    owner: type
    is_positional: bool


def options_of(settings_class: type) -> dict[str, Option]:
    """The options of a settings dataclass by name, in the order of the help page.

    A settings dataclass may have a class variable `groups`, titles with the names of fields; fields in none of them are
    called "options". Those of a dataclass inside it stand behind its own.
    """
    hints = typing.get_type_hints(settings_class, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(settings_class)}
    titles = {name: title for title, names in getattr(settings_class, "groups", {}).items() for name in names}
    found, inner = [], []
    for name in {**titles, **fields}:
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            inner += options_of(kind).values()
            continue
        is_positional = POSITIONAL in getattr(kind, "__metadata__", ())
        kind = get_args(kind)[0] if is_positional else kind
        title = titles.get(name, "options")
        found.append(Option(name.replace("_", "-"), fields[name], kind, title, settings_class, is_positional))
    options: dict[str, Option] = {}
    for option in [*found, *inner]:
        if option.name in options:
            raise TypeError(f"two settings share the name {option.name}")
        options[option.name] = option
    return options


def read_arguments(arguments: Sequence[str], options: Mapping[str, Option]) -> dict[str, Any]:
    """The values that a command line gives, by the name of the field.

    An option takes the word behind it, one of a list all words, a switch none. The words that are left are those of the
    positional option, if there is one.

    Raises:
        UserError: at the first mistake.
    """
    named = {name: option for name, option in options.items() if not option.is_positional}
    positional = next((option for option in options.values() if option.is_positional), None)
    values: dict[str, Any] = {}
    free: list[str] = []
    for token, behind in _grouped(arguments):
        flag, joined, word = token.partition("=")
        words = [word, *behind] if joined else behind
        option = _find(flag, named, positional) if token else None
        count = 0 if option is None or option.kind is bool else len(words) if is_list(option.kind) else 1
        own, others = words[:count], words[count:]
        if others and (positional is None or (joined and not own)):
            raise UserError(_one_too_many(option, others[0], named))
        free += others
        if option is not None:
            # Of other options the last one counts, so that a command can be given with a change behind it.
            if is_list(option.kind) and get_args(option.kind)[0] is str and option.field.name in values:
                raise UserError(f"--{option.name} is given twice: put all its values after one --{option.name}")
            values[option.field.name] = _value(option, flag, own)
    if free:
        values[positional.field.name] = value_of(free, positional.kind, positional.name)
    return values


def _grouped(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each option with the words behind it; words in front of all options, and those behind `--`, have none ("")."""
    groups: list[tuple[str, list[str]]] = [("", [])]
    for place, token in enumerate(arguments):
        if token == "--":
            return [*groups, ("", [*arguments[place + 1 :]])]
        if _FLAG.match(token):
            groups.append((token, []))
        else:
            groups[-1][1].append(token)
    return groups


def _find(flag: str, named: Mapping[str, Option], positional: Option | None) -> Option:
    name = flag.replace("_", "-").removeprefix("--")
    option = named.get(name) or named.get(name.removeprefix("no-"))
    if option and (option.name == name or option.kind is bool):
        return option
    if positional and name in (positional.name, *FILES):
        raise UserError(f"unknown option {flag}: write its value without an option (see --help)")
    guess = closest(name, named)
    raise UserError(f"unknown option {flag}" + (f": did you mean --{guess}?" if guess else "") + " (see --help)")


def _one_too_many(option: Option | None, word: str, named: Mapping[str, Option]) -> str:
    if option is None:
        meant = closest("file", named)
        hint = f": did you mean --{meant} {word}?" if meant else ": every value stands behind its option"
        return f"unexpected argument {word!r}{hint} (see --help)"
    if option.kind is bool:
        return f"--{option.name} takes no value: write --{option.name} or --no-{option.name}, without {word!r}"
    return f"--{option.name} takes one value: {word!r} is one too many"


def _value(option: Option, flag: str, words: Sequence[str]) -> Any:
    if option.kind is bool:
        return flag.replace("_", "-") == f"--{option.name}"
    # A shell makes an empty word of a variable that is not set.
    if not any(words):
        raise UserError(f"--{option.name}: a value is missing: give {describe(option.kind)}")
    return value_of(words, option.kind, f"--{option.name}")


def read_entries(entries: Mapping[str, Any], options: Mapping[str, Option], source: str) -> dict[str, Any]:
    """The values that the entries of a settings file give, by the name of the field.

    Raises:
        UserError: for an unknown name or a value of the wrong type. It begins with `source`.
    """
    values = {}
    for name, entry in entries.items():
        asked = str(name).replace("_", "-")
        if asked not in options:
            guess = (closest(asked, options) or "").replace("-", "_")
            hint = f": did you mean {guess}?" if guess else ": remove it, or see --help for the names"
            raise UserError(f"{source}: unknown setting {name}{hint}")
        option = options[asked]
        if option.field.name in values:
            raise UserError(f"{source}: {name} is set twice: leave one out")
        takes_list = any(map(is_list, members(option.kind)))
        if entry is None or entry == "":
            if entry == "" or types.NoneType not in members(option.kind):
                raise UserError(f"{source}: {name} has no value: give {describe(option.kind)}, or leave it out")
            values[option.field.name] = None
            continue
        if isinstance(entry, dict) or (isinstance(entry, list) and not takes_list):
            raise UserError(f"{source}: {name} takes {describe(option.kind)}, not a {type(entry).__name__}")
        if isinstance(entry, list) and any(isinstance(item, list | dict) for item in entry):
            raise UserError(f"{source}: {name} has a list in its list: write its values one by one")
        words = [_word(item, option.kind) for item in (entry if isinstance(entry, list) else [entry])]
        words = words if is_list(option.kind) else [",".join(words)]
        values[option.field.name] = value_of(words, option.kind, f"{source}: {option.field.name}")
    return values


_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _word(item: Any, kind: Any) -> str:
    """An entry as a word: where no text is taken, all that YAML takes for a truth value stands for one, or for yes and
    no."""
    admitted = members(get_args(kind)[0] if is_list(kind) else kind)
    truth = item if isinstance(item, bool) else _TRUTH.get(str(item).lower())
    if truth is None or (isinstance(item, str) and not {str, Path}.isdisjoint(admitted)):
        return str(item)
    return str(truth) if bool in admitted else ("no", "yes")[truth]


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

    Numbers of a list may stand in one word, with commas. A type that admits a list beside other values takes it so.

    Raises:
        UserError: the type does not admit one of them. It begins with `place`.
    """
    if is_list(kind):
        item = get_args(kind)[0]
        words = [part for word in words for part in word.split(",")] if item in (int, float) else words
        return get_origin(kind)(value_of([word], item, place) for word in words)
    word, spelled = words[0], _spelled_out(kind)
    if word in spelled:
        return spelled[word]
    for member in members(kind):
        if member in (int, float, str, Path):
            with contextlib.suppress(ValueError):
                return member(word)
        if is_list(member) and "," in word:
            return value_of([word], member, place)
    guess = closest(word, spelled)
    raise UserError(f"{place}: {word!r} is not {describe(kind)}" + (f": did you mean {guess}?" if guess else ""))


def describe(kind: Any) -> str:
    """What a value has to be, for a person."""
    if is_list(kind):
        return f"{describe(get_args(kind)[0])}, or several"
    if len(members(kind)) > 1:
        given = [member for member in members(kind) if member is not types.NoneType]
        return " or ".join("several with commas" if is_list(member) else describe(member) for member in given)
    words = list(_spelled_out(kind))
    if words:
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    return {int: "a whole number", float: "a number", Path: "a path"}.get(kind, "a text")


def _spelled_out(kind: Any) -> dict[str, Any]:
    """The words that a type spells out, in order, with their values; none for an open type."""
    # Where a text is taken, None is one.
    closed = {types.NoneType: () if str in members(kind) else (None,), bool: (True, False)}
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
