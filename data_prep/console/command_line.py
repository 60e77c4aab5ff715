"""Settings dataclass <-> command line, YAML file, printed settings, --help: every stage's front door."""

import ast
import dataclasses
import functools
import inspect
import io
import os
import re
import shlex
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from ..errors import Interrupted, SaidElsewhere, StoppedElsewhere, UserError
from ..start import as_typed
from .options import EveryCommand, Option, describe, members, options_of, read_arguments, read_entries

Settings = TypeVar("Settings")

INTERRUPTED = 75
"""Exit code of a run that a signal ended after its work was saved (EX_TEMPFAIL of sysexits.h: try again)."""


def main(
    settings_class: type[Settings],
    run: Callable[[Settings], object],
    *,
    prog: str,
    description: str,
    examples: str = "",
    argv: Sequence[str] | None = None,
) -> int:
    """Read the command line into `settings_class`, call `run` with it, and return the exit code.

    0: done, or --help or --print-config. 2: a mistake of the user (a UserError from `run`, a ValueError or
    UserError from the settings' checks), said in one sentence on stderr. 75: interrupted by a signal after the work
    was saved; the command that goes on is printed. 130: interrupted from the keyboard where nothing is to be saved.
    141: whoever read the output (head, a pager) has ended.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Whoever starts a program may close them. What is opened takes the place of the one that is closed.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal may lack letters of the text, and names of files may be no text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _main(settings_class, run, prog, description, examples, arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:
        # Or Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _main(
    settings_class: type[Settings],
    run: Callable[[Settings], object],
    prog: str,
    description: str,
    examples: str,
    arguments: list[str],
) -> int:
    if {"-h", "--help"} & set(arguments):
        print(help_page(settings_class, as_typed(prog), description, as_typed(examples)), end="")
        return 0
    try:
        options = options_of(settings_class)
        given = read_arguments(arguments, options | options_of(EveryCommand))
        command = _construct(EveryCommand, given)
        stated = read_entries(_read_yaml(command.config), options, str(command.config)) if command.config else {}
        settings = _construct(settings_class, stated | given)
    except UserError as error:
        # All processes of a run have the same arguments: one complains.
        if os.environ.get("RANK", "0") == "0":
            _complain(f"error: {error}")
        return 2
    try:
        if command.print_config:
            if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
                # --config reads UTF-8.
                sys.stdout.reconfigure(encoding="utf-8")
            print(to_yaml(settings), end="")
        else:
            run(settings)
    except SaidElsewhere:
        return 2
    except StoppedElsewhere:
        return INTERRUPTED
    except UserError as error:
        _complain(f"error: {error}")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _complain(f"error: {place}{error.strerror or error} (check permissions and free space)")
        return 2
    except Interrupted as stop:
        _complain(f"{stop}. {again(as_typed(prog), arguments)}")
        return INTERRUPTED
    return 0


def _complain(sentence: str) -> None:
    """Say it on stderr; the exit code says it too where nobody can read that."""
    with suppress(OSError):
        print(as_typed(sentence), file=sys.stderr, flush=True)


def again(prog: str, arguments: Sequence[str]) -> str:
    """What is to be done to go on: the command that was given, as it is typed. That of several machines, or of a
    scheduler, has options that are not known here."""
    stated = (os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    processes, of_all = (int(value) if value.isdecimal() else 1 for value in stated)
    if of_all > processes:
        return f"Start the same {of_all} processes again to resume."
    if processes > 1:
        launcher = f"torchrun --nproc-per-node {processes}"
        prog = prog.replace("python", launcher, 1) if prog.startswith("python ") else f"{launcher} --no-python {prog}"
    return " ".join(["Resume with\n ", prog, *map(shlex.quote, arguments)])


def as_dict(settings: Any) -> dict[str, Any]:
    """The settings as a flat dict of plain values (paths as text, tuples as lists), in field order."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        plain |= as_dict(value) if dataclasses.is_dataclass(value) else {field.name: _plain(value)}
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_dict(settings_class: type[Settings], values: Mapping[str, Any], source: str = "settings") -> Settings:
    """The inverse of `as_dict`; fields that `values` leaves out keep their defaults.

    Raises UserError that begins with `source` for an unknown name or a value of the wrong type.
    """
    return _construct(settings_class, read_entries(values, options_of(settings_class), source))


def plain_values(settings_class: type, entries: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Entries of a settings file as `as_dict` has them, each of a type that its option admits.

    Raises UserError that begins with `source` for an unknown name or a value of the wrong type.
    """
    return {name: _plain(value) for name, value in read_entries(entries, options_of(settings_class), source).items()}


def takes_options(settings_class: type) -> Callable[[Callable], Callable]:
    """Decorates a function of settings: it is called with their names as keywords, flat as on the command line.

    A single value stands for a list of one, None for the default. What the function takes besides stays a keyword.
    Raises UserError as `from_dict` does.
    """

    def decorate(function: Callable) -> Callable:
        signature = inspect.signature(function)
        _, *besides = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]

        @functools.wraps(function)
        def call(**options):
            own = {p.name: options.pop(p.name) for p in besides if p.name in options}
            source = f"{function.__name__}()"
            values = {name: _plain_value(value, f"{source}: {name}") for name, value in options.items()}
            given = {name: value for name, value in values.items() if value is not None}
            return function(from_dict(settings_class, given, source), **own)

        call.__signature__ = signature.replace(parameters=[*_keywords(settings_class), *besides])
        return call

    return decorate


def _plain_value(value: Any, place: str) -> Any:
    """A value of Python as one of a settings file.

    Raises:
        UserError: it is something else, which is not shown: it may be a table of texts. It begins with `place`.
    """
    if isinstance(value, list | tuple | Iterator):
        return [_plain_value(item, place) for item in value]
    # A number of numpy.
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    if value is None or isinstance(value, str | int | float | os.PathLike | dict):
        return value
    raise UserError(f"{place} is a {type(value).__name__}: give a text, a path or a number, or a list of them")


def _keywords(settings_class: type) -> Iterator[inspect.Parameter]:
    """The settings as parameters, in field order."""
    hints = typing.get_type_hints(settings_class)
    for field in dataclasses.fields(settings_class):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _keywords(hint)
        else:
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hint)


def to_yaml(settings: Any, without: Collection[str] = ()) -> str:
    """The settings as YAML text, one line or list per option, no default left out.

    Args:
        without: names of settings that have nothing to act on.
    """
    import yaml

    stated = {name: value for name, value in as_dict(settings).items() if name not in without}
    return yaml.safe_dump(stated, sort_keys=False, allow_unicode=True, width=1000)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One readable line for each setting that differs: "batch_size: 32 before, 64 now"."""
    lines = []
    for name in {**new, **old}:
        before, now = old.get(name, "not set"), new.get(name, "not set")
        if (name in old, before) != (name in new, now):
            lines.append(f"{name}: {before} before, {now} now")
    return lines


def _construct(settings_class: type[Settings], values: Mapping[str, Any]) -> Settings:
    """The settings with their checks; what `values` leaves out keeps its default."""
    for option in options_of(settings_class).values():
        no_default = option.field.default is option.field.default_factory is dataclasses.MISSING
        if no_default and option.field.name not in values:
            raise UserError(f"--{option.name} is missing: give {describe(option.kind)} (see --help)")
    try:
        return settings_class(**_fields(settings_class, values))
    except ValueError as error:
        raise UserError(str(error)) from None


def _fields(settings_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The given fields of a settings class, those of a dataclass inside it as that dataclass."""
    hints = typing.get_type_hints(settings_class)
    found = {}
    for field in dataclasses.fields(settings_class):
        if dataclasses.is_dataclass(hints[field.name]):
            found[field.name] = dataclasses.replace(field.default_factory(), **_fields(hints[field.name], values))
        elif field.name in values:
            found[field.name] = values[field.name]
    return found


def _read_yaml(name: Path) -> dict[str, Any]:
    """The entries of a settings file; values are the words that stand there (007, Yes), None where there is none."""
    import yaml

    class Words(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar = {}

    for tag, spelled, first in (("null", r"(?:~|null|Null|NULL)?$", ["~", "n", "N", ""]), ("merge", "<<$", ["<"])):
        Words.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(spelled), first)
    try:
        content = yaml.load(name.read_text(encoding="utf-8"), Words)
    except OSError as error:
        raise UserError(f"cannot read the settings file {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text at byte {error.start}: give a YAML file") from None
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise UserError(f"{name} is not valid YAML{place}: write one `name: value` a line") from None
    if not isinstance(content or {}, dict):
        raise UserError(f"{name} does not hold settings: write one `name: value` a line")
    return content or {}


_WIDEST, _OPTION_WIDTH = 120, 28
_PLACEHOLDERS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def help_page(settings_class: type, prog: str, description: str, examples: str) -> str:
    """The page, as wide as the terminal, but at most 120 characters."""
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    options = [*options_of(settings_class).values(), *options_of(EveryCommand).values()]
    column = min(_OPTION_WIDTH, width - 20, 3 + max(len(_invocation(option)) for option in options))
    usage = ["usage:", prog, "[OPTIONS]", *(f"[{_invocation(o)} ...]" for o in options if o.is_positional)]
    parts = [" ".join(usage), textwrap.fill(f"{description} Defaults stand in brackets.", width)]
    for title in dict.fromkeys(option.title for option in options):
        entries = [_help_entry(option, column, width) for option in options if option.title == title]
        parts.append("\n".join([f"{title}:", *entries]))
    if examples:
        parts.append("examples:\n" + textwrap.indent(textwrap.dedent(examples).rstrip(), "  "))
    return "\n\n".join(parts) + "\n"


def _help_entry(option: Option, column: int, width: int) -> str:
    """An option, and what it means in a column of its own: on the same line if there is room for both."""
    begin, indent = f" {_invocation(option)}", " " * column
    text = textwrap.fill(_meaning(option), width, initial_indent=indent, subsequent_indent=indent)
    return begin + text[len(begin) :] if len(begin) + 2 <= column else f"{begin}\n{text}"


def _invocation(option: Option) -> str:
    if option.is_positional:
        return option.field.name.upper()
    if option.kind is bool:
        return f"--[no-]{option.name}" if option.field.default else f"--{option.name}"
    return f"--{option.name} {_placeholder(option.kind)}"


def _placeholder(kind: Any) -> str:
    """What stands behind an option: a number, a text, a path, several of them; nothing for words to choose from."""
    for member in members(kind):
        if get_origin(member) in (tuple, list):
            return f"{_placeholder(get_args(member)[0])} ..."
        if member in _PLACEHOLDERS:
            return _PLACEHOLDERS[member]
    return "WORD"


def _meaning(option: Option) -> str:
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
