"""What `--help` prints: every option in its group with its default, short enough for two screens, examples last."""

import argparse
import ast
import dataclasses
import inspect
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

_EVERY_COMMAND = {
    "config": "YAML file with settings; it is read first, so the options given here win.",
    "print_config": "Print all settings as YAML, in the form that --config reads, and stop.",
}
_WIDEST, _OPTION_WIDTH = 120, 28
_VALUES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


class _Entry(NamedTuple):
    """A setting as the page shows it."""

    name: str
    kind: Any
    default: Any
    text: str


def help_page(settings_class: type, prog: str, description: str, examples: str) -> str:
    """The page, as wide as the terminal, but at most 120 characters.

    A settings dataclass may have a class variable `groups`, titles with the names of fields; fields in none of them are
    called "options". The groups of a dataclass inside another one stand behind its own.
    """
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    groups = {title: list(entries) for title, entries in _groups(settings_class)}
    positional = [entry for entries in groups.values() for entry in entries if hasattr(entry.kind, "__metadata__")]
    page = argparse.ArgumentParser(
        usage=" ".join([prog, "[OPTIONS]", *(f"[{entry.name.upper()} ...]" for entry in positional)]),
        description=textwrap.fill(f"{description} Defaults stand in brackets.", width),
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).rstrip(), "  ") if examples else None,
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 1, _OPTION_WIDTH, width),
    )
    for title, entries in groups.items():
        group = page.add_argument_group(title)
        for entry in entries:
            _add(group, entry)
    every = page.add_argument_group("every command")
    for name, text in _EVERY_COMMAND.items():
        _add(every, _Entry(name, Path if name == "config" else bool, None, text))
    return page.format_help()


def _groups(settings_class: type) -> Iterator[tuple[str, list[_Entry]]]:
    """(title, entries) of a settings class, and of those inside it."""
    hints, texts = typing.get_type_hints(settings_class, include_extras=True), _docstrings(settings_class)
    own, nested = {}, []
    for field in dataclasses.fields(settings_class):
        if dataclasses.is_dataclass(hints[field.name]):
            nested.append(hints[field.name])
        else:
            own[field.name] = _Entry(field.name, hints[field.name], field.default, texts.get(field.name, ""))
    for title, names in getattr(settings_class, "groups", {}).items():
        yield title, [own.pop(name) for name in names]
    if own:
        yield "options", list(own.values())
    for inner in nested:
        yield from _groups(inner)


def _docstrings(settings_class: type) -> dict[str, str]:
    """The docstring under each field; a class comes before those it is derived from."""
    found: dict[str, str] = {}
    for owner in reversed(settings_class.__mro__):
        if dataclasses.is_dataclass(owner):
            body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body
            for field, text in zip(body, body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[field.target.id] = " ".join(text.value.value.split())
    return found


def _add(group: argparse._ArgumentGroup, entry: _Entry) -> None:
    kind, text = entry.kind, entry.text
    if hasattr(kind, "__metadata__"):
        group.add_argument(entry.name, metavar=entry.name.upper(), nargs="*", help=_escaped(text))
        return
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    choices = [str(word) for member in members if get_origin(member) is Literal for word in get_args(member)]
    if not all(choice in text for choice in choices):
        text = f"{'|'.join(choices)}. {text}"
    if not any(entry.default is nothing for nothing in (None, (), False, dataclasses.MISSING)):
        shown = " ".join(map(str, entry.default)) if isinstance(entry.default, tuple) else entry.default
        text += f" [{'yes' if shown is True else shown}]"
    option = f"--{entry.name.replace('_', '-')}"
    if kind is bool:
        option = option if not entry.default else option.replace("--", "--[no-]", 1)
        group.add_argument(option, action="store_true", help=_escaped(text))
    else:
        group.add_argument(option, metavar=_value(members), help=_escaped(text))


def _value(members: tuple) -> str:
    """What stands behind an option: a number, a text, a path, several of them; nothing for words to choose from."""
    for member in members:
        if get_origin(member) in (tuple, list):
            return f"{_value((get_args(member)[0],))} ..."
        if member in _VALUES:
            return _VALUES[member]
    return "WORD"


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
