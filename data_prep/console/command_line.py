"""Settings dataclass <-> command line, YAML file, printed settings: every stage's front door.

Options are flat: a settings dataclass inside another one (a field with a default_factory) adds its fields
without a prefix, so `--vocab-size`, and `vocab_size` in YAML, wherever the field lives. tyro reads the
command line; when it refuses something, a second reading finds the words for it.
"""

import contextlib
import dataclasses
import functools
import inspect
import io
import os
import shlex
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from ..errors import Interrupted, UserError
from .help_page import help_page
from .mistakes import (
    Option,
    argument_problems,
    closest,
    dashed,
    describe,
    entry_problems,
    is_list,
    missing,
    underscored,
    without_value,
)

Settings = TypeVar("Settings")


POSITIONAL = "positional"
"""Marks a field whose values stand on the command line without an option: Annotated[tuple[str, ...], POSITIONAL]."""

INTERRUPTED = 75
"""Exit code of a run that a signal ended after its work was saved (EX_TEMPFAIL of sysexits.h: try again)."""

_COMMAND_OPTIONS = {"config": Option(Path | None, False), "print-config": Option(bool, False)}


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
    try:
        code = _main(settings_class, run, prog, description, examples, arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
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
        print(help_page(settings_class, prog, description, examples), end="")
        return 0
    try:
        config = _config_file(arguments)
        stated = {} if config is None else _read_yaml(config)
        parsed = _parse(settings_class, stated, config or "", arguments)
        settings = _construct(settings_class, parsed)
    except UserError as error:
        # All processes of a run have the same arguments: one complains.
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        if parsed.print_config:
            print(to_yaml(settings), end="")
        else:
            run(settings)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror or error} (check permissions and free space)", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"{stop}. Go on with\n  {again(prog, arguments)}", file=sys.stderr)
        return INTERRUPTED
    return 0


def again(prog: str, arguments: Sequence[str]) -> str:
    """The command that was given, as it is typed; the launcher's options but the number of processes are not known."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if processes > 1:
        prog = prog.replace("python", f"torchrun --nproc-per-node {processes}", 1)
    return " ".join([prog, *map(shlex.quote, arguments)])


def as_dict(settings: Any) -> dict[str, Any]:
    """The settings as a flat dict of plain values (paths as text, tuples as lists), in field order."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            plain |= as_dict(value)
        elif isinstance(value, (list, tuple)):
            plain[field.name] = [_plain(item) for item in value]
        else:
            plain[field.name] = _plain(value)
    return plain


def from_dict(settings_class: type[Settings], values: Mapping[str, Any], source: str = "settings") -> Settings:
    """The inverse of `as_dict`; fields that `values` leaves out keep their defaults.

    Raises UserError that begins with `source` for an unknown name or a value of the wrong type.
    """
    return _construct(settings_class, _parse(settings_class, values, source, []))


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
            values = {name: [*value] if isinstance(value, tuple) else value for name, value in options.items()}
            given = {name: value for name, value in values.items() if value is not None}
            return function(from_dict(settings_class, given, f"{function.__name__}()"), **own)

        call.__signature__ = signature.replace(parameters=[*_keywords(settings_class), *besides])
        return call

    return decorate


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
    for name in [*new, *(name for name in old if name not in new)]:
        before = old.get(name, "not set")
        now = new.get(name, "not set")
        if (name in old, before) != (name in new, now):
            lines.append(f"{name}: {before} before, {now} now")
    return lines


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _parser_class(settings_class: type, is_root: bool = True) -> type:
    """A subclass that tyro fills with raw values: no checks of its own, and the command's own options added.

    The checks run when the real class is constructed, so that their errors are ours to print.
    """
    import tyro

    hints = typing.get_type_hints(settings_class, include_extras=True)
    body: dict[str, Any] = {"__post_init__": lambda self: None, "__doc__": settings_class.__doc__}
    annotations: dict[str, Any] = {}
    for field in dataclasses.fields(settings_class):
        if POSITIONAL in getattr(hints[field.name], "__metadata__", ()):
            annotations[field.name] = tyro.conf.Positional[get_args(hints[field.name])[0]]
            body[field.name] = field.default
        elif dataclasses.is_dataclass(hints[field.name]):
            nested = _parser_class(hints[field.name], is_root=False)
            annotations[field.name] = nested
            body[field.name] = dataclasses.field(default_factory=_defaults_as(nested, field.default_factory))
    if is_root:
        annotations |= {"config": Path | None, "print_config": bool}
        body |= {"config": None, "print_config": False}
    body |= {"__annotations__": annotations, "__module__": settings_class.__module__}
    parser_class = type(settings_class.__name__, (settings_class,), body)
    frozen = settings_class.__dataclass_params__.frozen
    return tyro.conf.configure(tyro.conf.OmitArgPrefixes)(dataclasses.dataclass(frozen=frozen)(parser_class))


def _defaults_as(nested: type, factory: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: nested(**{f.name: getattr(factory(), f.name) for f in dataclasses.fields(factory())})


def _construct(settings_class: type[Settings], parsed: Any) -> Settings:
    """The real settings, with their checks, from the parser's values."""
    hints = typing.get_type_hints(settings_class)
    values = {field.name: getattr(parsed, field.name) for field in dataclasses.fields(settings_class)}
    for name, value in values.items():
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _construct(hints[name], value)
    try:
        return settings_class(**values)
    except ValueError as error:
        raise UserError(str(error)) from None


def _parse(settings_class: type, stated: Mapping[str, Any], source: str, arguments: list[str]) -> Any:
    """The parser class filled from `stated` (what `source` holds), then from the arguments."""
    import tyro

    options = _options(settings_class)
    entries = [_entry(name, value, options, source) for name, value in stated.items()]
    positional = _positional(settings_class)
    # What needs no option comes first: behind one that takes several values it would be taken for one of them.
    tokens = [word for name, words in entries if name == positional for word in words]
    for name, words in entries:
        if name != positional:
            tokens += _as_tokens(name, words, options[name].kind)
    parser_class = _parser_class(settings_class)
    if problem := without_value(arguments, options):
        raise UserError(problem)
    try:
        # tyro prints some of its messages whatever console_outputs says.
        with contextlib.redirect_stderr(io.StringIO()):
            return tyro.cli(parser_class, args=[*tokens, *arguments], console_outputs=False)
    except SystemExit:
        problems = [
            *entry_problems(entries, options, source),
            *argument_problems(arguments, options | _COMMAND_OPTIONS, positional),
            *missing(options, [name for name, _ in entries], arguments),
        ]
        raise UserError(problems[0] if problems else "these options do not go together (see --help)") from None


def _options(settings_class: type) -> dict[str, Option]:
    """All settings by option name (with dashes)."""
    hints = typing.get_type_hints(settings_class)
    options: dict[str, Option] = {}
    for field in dataclasses.fields(settings_class):
        if dataclasses.is_dataclass(hints[field.name]):
            found = _options(hints[field.name])
        else:
            no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            found = {dashed(field.name): Option(hints[field.name], no_default)}
        if options.keys() & found:
            raise TypeError(f"two settings share one name: {sorted(options.keys() & found)}")
        options |= found
    return options


def _config_file(arguments: Sequence[str]) -> str | None:
    found = None
    for token, following in zip(arguments, [*arguments[1:], "--"], strict=False):
        if token == "--config" and not following.startswith("--"):
            found = following
        elif token.startswith("--config="):
            found = token.partition("=")[2]
    return found


def _read_yaml(name: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the settings file {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text at byte {error.start}: give a YAML file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise UserError(f"{name} is not valid YAML{place}: write one `name: value` a line") from None
    if not isinstance(content or {}, dict):
        raise UserError(f"{name} does not hold settings: write one `name: value` a line")
    return content or {}


def _entry(name: Any, value: Any, options: Mapping[str, Option], source: str) -> tuple[str, list[str] | bool]:
    """A YAML entry as an option and the words for it (or, for a switch, on or off)."""
    option = dashed(str(name))
    if option not in options:
        guess = closest(option, options)
        hint = f": did you mean {underscored(guess)}?" if guess else ": remove it, or see --help for the names"
        raise UserError(f"{source}: unknown setting {name}{hint}")
    kind = options[option].kind
    if kind is bool and isinstance(value, bool):
        return option, value
    if isinstance(value, dict) or (isinstance(value, list) and not is_list(kind)):
        raise UserError(f"{source}: {name} takes {describe(kind)}, not a {type(value).__name__}")
    return option, [str(item) for item in (value if isinstance(value, list) else [value])]


def _as_tokens(option: str, words: list[str] | bool, kind: Any) -> list[str]:
    if isinstance(words, bool):
        return [f"--{option}" if words else f"--no-{option}"]
    return [f"--{option}", *words] if is_list(kind) else [f"--{option}={words[0]}"]


def _positional(settings_class: type) -> str | None:
    """The setting whose values stand without an option."""
    hints = typing.get_type_hints(settings_class, include_extras=True)
    return next((name for name, hint in hints.items() if POSITIONAL in getattr(hint, "__metadata__", ())), None)
