"""Which part of the house may import which: read from the source, so that imports inside functions count too."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("house", Path(__file__).with_name("house.py"))
house = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(house)
MODULES, imported = house.MODULES, house.imported


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_wing_may(module):
    wing = house.wing(module)
    allowed = (wing, *house.ALLOWED[wing])
    assert not {name for name in imported(module) if not any(house.is_in(name, part) for part in allowed)}


def test_no_import_goes_round_in_a_circle():
    left = {module: imported(module) & MODULES.keys() - {module} for module in MODULES}
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    assert not left


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in MODULES.values()}
    assert all((folder / "__init__.py").exists() for folder in folders)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_goes_through_a_face(module):
    """What `data_prep`, `pretrain` and `finetune` offer is for programs; modules import a name from where it is."""
    assert not imported(module) & {"data_prep", "pretrain", "finetune"}
