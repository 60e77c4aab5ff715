"""Which part of the house may import which: read from the source, so that imports inside functions count too."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_prep", "finetune", "model", "pretrain")
# What each part may import of this project besides itself; a longer name goes before a shorter one.
ALLOWED = {
    "model": (),
    "data_prep.text": ("data_prep.errors", "data_prep.files"),
    "data_prep.vocabulary": ("data_prep.errors", "data_prep.files", "data_prep.settings", "data_prep.text"),
    "data_prep.examples": ("data_prep.errors", "data_prep.prepared", "data_prep.settings", "data_prep.vocabulary"),
    "data_prep.console": ("data_prep.errors",),
    "data_prep": (),
    "pretrain.engine": ("data_prep", "model"),
    "pretrain": ("data_prep", "model"),
    "finetune": ("data_prep", "model", "pretrain.engine"),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imported(module: str) -> set[str]:
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
    return {name for name in found if name.split(".")[0] in PACKAGES}


def is_in(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_wing_may(module):
    wing = next(part for part in ALLOWED if is_in(module, part))
    strangers = {name for name in imported(module) if not any(is_in(name, part) for part in (wing, *ALLOWED[wing]))}
    assert not strangers


def test_no_import_goes_round_in_a_circle():
    left = {module: imported(module) & MODULES.keys() - {module} for module in MODULES}
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    assert not left


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in MODULES.values()}
    assert all((folder / "__init__.py").exists() for folder in folders)
