"""Runs that do not learn as they should are told so, once for each trouble, with what to do."""

import numpy as np
import pytest

from data_prep.settings import ExampleSettings
from pretrain.objectives import bert_objective
from pretrain.report import Trouble, change_of_length, too_large, too_many, too_short
from pretrain.settings import PretrainSettings


def row(step: int, loss: float, nsp: float = 0.7, unigram: float = 6.9) -> dict:
    found = {"mlm_loss": loss, "unigram_entropy": unigram, "nsp_accuracy": nsp, "nsp_majority": 0.5}
    return {"step": step, "validation": found}


def said(*rows: dict, steps: int = 40) -> list[list[str]]:
    """The warnings after each evaluation in a run of `steps` steps; a row of a training step stands before each."""
    seen: list[dict] = []
    trouble, found = Trouble(bert_objective(np.ones(1)), lambda: seen[-1]["step"] / steps), []
    for each in rows:
        seen += [{"step": each["step"], "mlm_loss": 1.0}, each]
        found.append(trouble.found(seen))
    return found


def test_a_run_that_learns_is_left_alone():
    assert said(row(10, 6.9), row(20, 6.0), row(30, 4.0), row(40, 4.01)) == [[]] * 4


def test_a_loss_that_stays_at_word_frequencies_is_said_once_and_not_early():
    found = said(*(row(10 * n, 6.85) for n in range(1, 5)))
    assert [len(sentences) for sentences in found] == [0, 1, 0, 0]
    assert "after 50% of the budget" in found[1][0] and "--budget" in found[1][0] and "--learning-rate" in found[1][0]


def test_a_held_out_loss_that_rises_is_said_with_the_step_of_the_best():
    found = said(row(10, 5.0), row(20, 4.0), row(30, 4.04), row(40, 4.2))
    assert [len(sentences) for sentences in found] == [0, 0, 0, 1]
    assert "from 4.00 at step 20 to 4.20" in found[3][0] and "--dropout" in found[3][0]


def test_a_loss_that_rises_with_the_learning_rate_of_a_larger_budget_is_not_said():
    rates = {10: 5e-4, 20: 1e-5, 25: 2e-4, 30: 4e-4, 40: 3e-4, 50: 2e-4}
    losses = {10: 5.0, 20: 4.0, 30: 4.5, 40: 4.4, 50: 4.6}
    rows = [{"step": step, "learning_rate": rate} for step, rate in rates.items()]
    rows = sorted([*rows, *(row(step, loss) for step, loss in losses.items())], key=lambda each: each["step"])
    trouble = Trouble(bert_objective(np.ones(1)), lambda: 0.5)
    found = [trouble.found(rows[: end + 1]) for end, each in enumerate(rows) if "validation" in each]
    assert [len(sentences) for sentences in found] == [0, 0, 0, 0, 1] and "from 4.40 at step 40 to 4.60" in found[-1][0]


@pytest.mark.parametrize(("accuracy", "expected"), [(0.51, 1), (0.6, 0)])
def test_guessed_next_sentences_are_said_at_the_end_alone(accuracy, expected):
    rows = [row(10 * n, 7 - n, accuracy) for n in range(1, 5)]
    assert [len(sentences) for sentences in said(*rows)] == [0, 0, 0, expected]
    without = {"step": 40, "validation": {"mlm_loss": 1.0, "unigram_entropy": 6.9}}
    assert said(*rows[:3], without)[-1] == []


def test_a_model_too_large_for_its_text_is_said():
    assert too_large(5_000_000, 1_000_000) is None
    assert "110,000,000 parameters for 2,000,000 tokens" in too_large(110_000_000, 2_000_000)


def test_a_step_of_more_than_all_text_is_said():
    settings = PretrainSettings(prepared="x", batch_size=(8, 500), examples=ExampleSettings(sequence_length=(64, 128)))
    assert too_many(settings, 64_000) is None
    assert "a step of 500 examples of up to 128 tokens reads all 32,000 tokens of the text 2.0 times" in too_many(
        settings, 32_000
    )


def test_an_evaluation_of_other_text_is_not_compared():
    """The last one takes more of the held-out examples."""
    rows = [row(10 * n, 6 - 0.2 * n) for n in range(1, 4)]
    assert said(*rows, row(40, 5.6, unigram=7.1)) == [[]] * 4
    assert len(said(*rows, row(40, 5.6))[-1]) == 1


def test_a_budget_that_is_too_short_is_said():
    assert too_short(60, True) is None
    assert "about 31 steps are too few" in too_short(31.2, True) and "--preset" in too_short(31.2, True)
    assert "--budget" in too_short(31.2, False) and "--preset" not in too_short(31.2, False)


def test_a_return_to_shorter_examples_is_said_with_its_reason():
    assert change_of_length(24, 48, 8) == "From here on the examples have up to 48 tokens, 8 of them a step."
    assert change_of_length(48, 24, 16).startswith("The larger budget has more of the shorter examples. From here on")
