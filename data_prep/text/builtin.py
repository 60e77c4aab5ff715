"""The built-in corpus: documentation of the Python packages that are installed wherever this runs."""

import ast
import gc
import importlib.util
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

PACKAGES = ("datasets", "matplotlib", "numpy", "torch")
"""Read beside the standard library, whose label is "python". All are requirements of this project."""

SHORTEST_MODULE = 200
"""Characters. A module with less documentation is no document."""

LABELLED_LENGTHS = (60, 2000)
"""Characters: a docstring outside this range has no place in the labelled twin."""

BYTES_A_QUOTE = 4000
"""A file with less than one triple quote per this many bytes is a table: slow to parse, little to read."""

MASK = "PACKAGE"
"""Stands in the labelled twin for every name that would give the label away."""

# Tests and vendored code are not the package's documentation; torch's compiler internals cost a third of the
# reading time for a tenth of the text.
_SKIPPED_FOLDERS = frozenset(
    "test tests testing idle_test _vendor vendor _vendored vendored site-packages dist-packages lib2to3"
    " turtledemo __pycache__ _bundled _inductor _dynamo".split()
)
_NAMES = re.compile(
    r"(?i)py-?torch|torch|numpy|matplotlib|\bpylab\b|pyplot|mpl_toolkits|hugging\s?face|c?python"
    r"|(?<![a-z])(?:np|plt|mpl|datasets|aten)(?![a-z])"
)
_STARTS_OWN_LINE = re.compile(
    r"[-*•+] |\(?\d+[.)] |>>>|\.\.\. |\.\. |:\w+|@\w+|\||[`*]{0,2}[\w.]+[`*]{0,2}(?: ?\([^)]*\))?\s*:(?:\s|$)"
)
_PLACEHOLDER = re.compile(r"\{\w+\}[.,]?")
_WRAP_COLUMN = 60


def documents() -> Iterator[tuple[str, str]]:
    """(name, text) of all topics of Python's help and all modules with documentation, in a fixed order.

    A line of the text is a paragraph or a line of code; docstrings are separated by blank lines.
    """
    yield from _topics()
    for name, _, docstrings in _modules():
        text = "\n\n".join(docstrings)
        if len(text) >= SHORTEST_MODULE:
            yield name, text


def labelled() -> Iterator[tuple[str, str]]:
    """(text, label): every docstring of 60 to 2,000 characters once, and the package it comes from.

    The packages' names are replaced by MASK, so that the label has to be read from what the text is about.
    """
    shortest, longest = LABELLED_LENGTHS
    seen = set()
    for _, label, docstrings in _modules():
        for docstring in docstrings:
            text = _NAMES.sub(MASK, docstring)
            if shortest <= len(text) <= longest and text not in seen:
                seen.add(text)
                yield text, label


@cache
def _modules() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(module, label, docstrings) of all there is; kept, as a corpus is passed over several times."""
    roots = [("python", "", Path(sysconfig.get_path("stdlib")))]
    for package in PACKAGES:
        # Asking for the place of a top-level package does not import it.
        spec = importlib.util.find_spec(package)
        if spec and spec.origin:
            roots.append((package, f"{package}.", Path(spec.origin).parent))
    with _uncollected():
        return tuple(module for label, prefix, root in roots for module in _package(label, prefix, root))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection, which takes half the time of parsing: syntax trees have many nodes and no cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _package(label: str, prefix: str, root: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for path in _python_files(root):
        source = path.read_bytes()
        if source.count(b'"""') * BYTES_A_QUOTE <= len(source):
            continue
        try:
            with warnings.catch_warnings():
                # Of escapes and the like, of which Python warns on the screen from 3.12 on.
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except (SyntaxError, ValueError):
            # A template or a file for another version of Python.
            continue
        docstrings = tuple(filter(None, map(paragraphs, _docstrings(tree))))
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        if docstrings:
            yield (prefix + name).rstrip("."), label, docstrings


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            if name.endswith(".py") and name != "topics.py":
                yield Path(folder, name)


def _topics() -> Iterator[tuple[str, str]]:
    """Python's language reference as its `help()` shows it; some distributions leave it out."""
    path = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
    if not path.is_file():
        return
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for name, text in sorted(ast.literal_eval(statement.value).items()):
                yield f"pydoc_data.topics.{name}", paragraphs(text)


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings of a module, class or function and of all inside it, in source order.

    Compiled functions get theirs by a call, `add_docstr(torch.abs, "…")`, at the top of a module.
    """
    for position, statement in enumerate(node.body):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(statement)
        elif isinstance(statement, ast.Expr):
            value = statement.value
            if position == 0 and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
            elif isinstance(node, ast.Module) and isinstance(value, ast.Call):
                yield from _long_strings(value.args)


def _long_strings(arguments: list[ast.expr]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and "\n" in argument.value:
            yield argument.value
        elif isinstance(argument, ast.Tuple):
            yield from _long_strings(argument.elts)
        elif isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute):
            yield from _long_strings([argument.func.value])


def paragraphs(docstring: str) -> str:
    """A docstring with each hard-wrapped paragraph on one line; code, examples and list items keep theirs."""
    lines: list[str] = []
    previous = ""
    code_indent = -1
    for line in inspect.cleandoc(docstring).split("\n"):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if not any(map(str.isalnum, text)) or _PLACEHOLDER.fullmatch(text):
            previous = ""
            continue
        if code_indent >= 0 and indent <= code_indent:
            code_indent = -1
        if previous and code_indent < 0 and _continues(previous, text, indent):
            lines[-1] += " " + text
        else:
            lines.append(text)
        previous = line
        if code_indent < 0 and text.endswith("::"):
            code_indent = indent
    return "\n".join(lines)


def _continues(previous: str, text: str, indent: int) -> bool:
    """True where the break before the line of `text` was made by the margin of the page, not by its author."""
    before = previous.strip()
    if _STARTS_OWN_LINE.match(text) or before.startswith(">>>") or before.endswith("::"):
        return False
    previous_indent = len(previous) - len(previous.lstrip())
    if indent == previous_indent:
        return not before.endswith(":")
    # "name: a description that is continued on the next line, which is indented": only if that line was full.
    next_word = len(text.split(maxsplit=1)[0])
    return indent > previous_indent and len(previous) + 1 + next_word > _WRAP_COLUMN
