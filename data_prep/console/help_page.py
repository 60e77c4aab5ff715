"""What `--help` prints: every option in its group with its default, short enough for two screens, examples last."""

import ast
import dataclasses
import inspect
import shutil
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from .options import EveryCommand, Option, options_of
from .values import members

_WIDEST, _OPTION_WIDTH = 120, 28
_VALUES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def help_page(settings_class: type, prog: str, description: str, examples: str) -> str:
    """The page, as wide as the terminal, but at most 120 characters."""
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    options = [*options_of(settings_class).values(), *options_of(EveryCommand).values()]
    column = min(_OPTION_WIDTH, width - 20, 3 + max(len(_invocation(option)) for option in options))
    usage = ["usage:", prog, "[OPTIONS]", *(f"[{_invocation(o)} ...]" for o in options if o.is_positional)]
    parts = [" ".join(usage), textwrap.fill(f"{description} Defaults stand in brackets.", width)]
    for title in dict.fromkeys(option.title for option in options):
        entries = [_entry(option, column, width) for option in options if option.title == title]
        parts.append("\n".join([f"{title}:", *entries]))
    if examples:
        parts.append("examples:\n" + textwrap.indent(textwrap.dedent(examples).rstrip(), "  "))
    return "\n\n".join(parts) + "\n"


def _entry(option: Option, column: int, width: int) -> str:
    """An option, and what it means in a column of its own: on the same line if there is room for both."""
    begin, indent = f" {_invocation(option)}", " " * column
    text = textwrap.fill(_text(option), width, initial_indent=indent, subsequent_indent=indent)
    return begin + text[len(begin) :] if len(begin) + 2 <= column else f"{begin}\n{text}"


def _invocation(option: Option) -> str:
    if option.is_positional:
        return option.field.name.upper()
    if option.kind is bool:
        return f"--[no-]{option.name}" if option.field.default else f"--{option.name}"
    return f"--{option.name} {_value(option.kind)}"


def _value(kind: Any) -> str:
    """What stands behind an option: a number, a text, a path, several of them; nothing for words to choose from."""
    for member in members(kind):
        if get_origin(member) in (tuple, list):
            return f"{_value(get_args(member)[0])} ..."
        if member in _VALUES:
            return _VALUES[member]
    return "WORD"


def _text(option: Option) -> str:
    """The docstring of the field; with the words to choose from, unless it has them, and the default."""
    text, default = _docstrings(option.owner).get(option.field.name, ""), option.field.default
    literals = [member for member in members(option.kind) if get_origin(member) is Literal]
    choices = [str(word) for literal in literals for word in get_args(literal)]
    if not all(choice in text for choice in choices):
        text = f"{'|'.join(choices)}. {text}"
    if not any(default is nothing for nothing in (None, (), False, dataclasses.MISSING)):
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        text += f" [{'yes' if shown is True else shown}]"
    return text


@cache
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
