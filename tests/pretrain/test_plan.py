"""Plans: the measured run that a plan shows is the one most like it."""

import pytest

from pretrain.engine.plan import nearest


@pytest.mark.parametrize(("rows", "expected"), [
    (1, 449), (500, 449), (5_000, 4_910), (14_000, 14_778), (1_000_000, 50_000),
])  # fmt: skip
def test_the_nearest_run_is_nearest_by_factor(rows, expected):
    assert nearest("fine-tuning", "classification", rows=rows)["rows"] == expected


def test_the_nearest_run_is_of_the_same_task():
    assert nearest("fine-tuning", "no task", rows=500) is None


@pytest.mark.parametrize(("tokens", "seconds", "expected"), [
    (0, 0, (2_400_000, 240)), (1_000_000, 3_600, (800_000, 720)), (11_000_000, 1_400, (10_900_000, 600)),
    (11_000_000, 1_500, (10_900_000, 3_600)), (1e12, 1e9, (10_900_000, 3_600)),
])  # fmt: skip
def test_the_nearest_run_of_two_numbers_is_nearest_by_both(tokens, seconds, expected):
    found = nearest("pretraining", tokens=tokens, seconds=seconds)
    assert (found["tokens"], found["seconds"]) == expected
