"""Statistics of the code, read from the source: python tests/house.py; its map for CONTRIBUTING.md: ... --map

Imports are counted once for each pair of files, those inside functions too. A chain is as long as the files in it.
What a change touches is counted by the files that know of what is changed: those that spell its name.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_prep", "finetune", "model", "pretrain")
# What each part may import of this project besides itself; a longer name goes before a shorter one.
ALLOWED = {
    "model": (),
    "data_prep.text": ("data_prep.errors", "data_prep.durable"),
    "data_prep.vocabulary": ("data_prep.errors", "data_prep.durable", "data_prep.settings", "data_prep.text"),
    "data_prep.examples": ("data_prep.errors", "data_prep.prepared", "data_prep.settings", "data_prep.vocabulary"),
    "data_prep.console": ("data_prep.errors", "data_prep.start"),
    "data_prep": (),
    "pretrain.engine": ("data_prep", "model"),
    "pretrain": ("data_prep", "model"),
    "finetune": ("data_prep", "model", "pretrain.engine"),
}
# What has to be known to add one more of its kind, and how few files should.
KNOWN = {
    "an objective (mlm, nsp)": (r"(?<![a-z])(mlm|nsp)(?![a-z])", 6),
    "a task on the command line": (r'"classification"|\bClassification\b', 3),
    "a masking": (r'"whole-word"', 2),
    "a schedule": (r"warmup-stable-decay", 1),
    "shared layers": (r"\bEncoderLayer\b|\bencoder\.layers\b|\.layers\b|num_hidden_layers", 3),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of this project that a module imports, wherever in its source."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join(above + ([node.module] if node.module else []))
            # A name of a package is one of its modules, or something that it holds.
            found |= {name if (name := f"{origin}.{alias.name}") in MODULES else origin for alias in node.names}
    return frozenset(name for name in found if name.split(".")[0] in PACKAGES)


def is_in(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def wing(module: str) -> str:
    return next(part for part in ALLOWED if is_in(module, part))


@cache
def chain(module: str) -> int:
    """Files in the longest way down from a module."""
    return 1 + max((chain(name) for name in imported(module) & MODULES.keys() - {module}), default=0)


def spelled(pattern: str) -> list[str]:
    """The files of the product that spell something, comments included."""
    return [module for module, path in MODULES.items() if re.search(pattern, path.read_text(encoding="utf-8"))]


def phrase(module: str) -> str:
    """The first sentences of a module's docstring, which say what is in the file."""
    text = ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def map_of_files() -> str:
    """Every file with its phrase, folder by folder, as Markdown."""
    lines = []
    for folder in sorted({path.parent for path in MODULES.values()}):
        inside = {path.name: phrase(module) for module, path in MODULES.items() if path.parent == folder}
        lines += [f"**{folder.relative_to(ROOT).as_posix()}/** {inside.pop('__init__.py')}", ""]
        lines += [f"- `{name}`: {said}" for name, said in inside.items()] + [""]
    return "\n".join(lines)


def main() -> None:
    edges = {(module, name) for module in MODULES for name in imported(module) if name != module}
    between = {(a, b) for a, b in edges if wing(a) != wing(b)}
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES.values())
    rows = [
        ("files", len(MODULES), ""),
        ("lines", f"{lines:,}", ""),
        ("imports", len(edges), 360),
        ("imports between wings", len(between), 60),
        ("longest chain of imports", max(map(chain, MODULES)), 12),
        *((f"files that know of {what}", len(spelled(pattern)), goal) for what, (pattern, goal) in KNOWN.items()),
    ]
    for name, now, goal in rows:
        print(f"{name:<48}{now:>8}" + (f"   goal {goal}" if goal else ""))


if __name__ == "__main__":
    print(map_of_files()) if "--map" in sys.argv else main()
