"""A short run of the fuzzer: damaged and hostile files are answered with a sentence."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz import Originals, attempt

# About as many seconds as there are tries, over all.
TRIES = 6


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return Originals(tmp_path_factory.mktemp("whole")).targets()


def test_every_damaged_file_is_answered(targets, tmp_path):
    wrong = {}
    for number in range(TRIES):
        for name, target in targets.items():
            seed = f"test {number} {name}"
            error = attempt(target, seed, tmp_path / "try")
            if error is not None:
                wrong[seed] = error
    assert not wrong
