"""Plans: the measured run that a plan shows is the one most like it."""

import pytest

from pretrain.engine.plan import MEASURED, nearest


@pytest.mark.parametrize(("rows", "expected"), [
    (1, 449), (500, 449), (5_000, 4_910), (14_000, 14_778), (1_000_000, 50_000),
])  # fmt: skip
def test_the_nearest_run_is_nearest_by_factor(rows, expected):
    assert nearest("fine-tuning", "classification", rows=rows)["rows"] == expected


def test_the_nearest_run_is_of_the_same_task():
    assert nearest("fine-tuning", "no task", rows=500) is None


def named(row):
    return row["runs"][0]


@pytest.mark.parametrize("row", MEASURED["pretraining"], ids=named)
def test_a_run_like_a_measured_one_shows_that_one(row):
    like = {"tokens": row["tokens"] * 1.02, "read": row["read"] * 0.98, "parameters": row["parameters"]}
    assert nearest("pretraining", **like) is row


@pytest.mark.parametrize(("tokens", "read", "parameters", "expected"), [
    (0, 0, 0, "1mb_30_decay"), (1e12, 1e12, 1e9, "articles_60m"),
    # Between two runs, the one that is nearer by factor.
    (11_000_000, 24_000_000, 2_957_058, "articles_10m_1"), (11_000_000, 26_000_000, 7_536_130, "articles_60m"),
])  # fmt: skip
def test_the_nearest_run_of_three_numbers_is_nearest_by_all(tokens, read, parameters, expected):
    assert named(nearest("pretraining", tokens=tokens, read=read, parameters=parameters)) == expected
