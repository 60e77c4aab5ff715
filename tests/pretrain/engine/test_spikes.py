import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.engine.counters import UsualLoss

STEPS = 10_000


def spikes(losses):
    """The steps that stand out."""
    usual = UsualLoss()
    return [step for step, loss in enumerate(losses) if usual.is_spike(float(loss))]


def noise(steps, seed=0):
    return 3 + 0.1 * np.random.default_rng(seed).standard_normal(steps)


def falling(rng):
    return 2 + 7 * np.exp(-np.arange(STEPS) / 500) + 0.1 * rng.standard_normal(STEPS)


def rising_slowly(rng):
    return np.linspace(3, 6, STEPS) + 0.1 * rng.standard_normal(STEPS)


def heavy_tailed(rng):
    return 3 + 0.1 * rng.standard_t(3, STEPS)


def small_and_skewed(rng):
    """A classifier that is sure: the loss is small in most steps, and large where a text of the batch was difficult."""
    difficult = rng.random(STEPS) < 0.05
    return np.where(difficult, rng.exponential(1.0, STEPS), rng.exponential(0.01, STEPS))


@pytest.mark.parametrize(
    "losses, most",
    [
        (lambda rng: noise(STEPS, rng.integers(99)), 0),
        (falling, 0),
        (rising_slowly, 0),
        (lambda rng: np.full(STEPS, 0.7), 0),
        (lambda rng: 1e-4 + 1e-3 * rng.exponential(1, STEPS), 0),
        (heavy_tailed, 20),
        (small_and_skewed, 40),
    ],
)
def test_usual_losses_seldom_stand_out(losses, most):
    found = [len(spikes(losses(np.random.default_rng(seed)))) for seed in range(3)]
    assert np.mean(found) <= most


@given(st.integers(60, 900), st.integers(0, 50), st.floats(1.3, 1e6))
@settings(max_examples=40, deadline=None)
def test_one_loss_far_above_the_others_is_found_and_no_other(step, seed, height):
    losses = noise(1000, seed)
    losses[step] += height
    assert spikes(losses) == [step]


def test_a_small_loss_that_jumps_is_found():
    losses = 0.05 * np.random.default_rng(0).exponential(1, 1000)
    losses[500] += 1
    assert 500 in spikes(losses)


def test_spikes_that_come_again_are_all_found():
    losses = noise(2000)
    losses[300::300] += 2
    assert spikes(losses) == list(range(300, 2000, 300))


@pytest.mark.parametrize("height, most", [(1.5, 1), (5, 2), (1000, 5)])
def test_a_loss_that_stays_high_is_said_at_once_and_becomes_the_usual_one(height, most):
    losses = noise(2000)
    losses[1000:] += height
    found = spikes(losses)
    assert found[0] == 1000 and len(found) <= most
    losses[1900] += 2 + height
    assert spikes(losses)[-1] == 1900


def test_the_slow_way_back_after_a_spike_is_one_spike():
    losses = noise(600)
    losses[300:] += 5 * np.exp(-np.arange(300) / 20)
    assert spikes(losses) == [300]


def test_the_steep_beginning_is_not_judged():
    losses = noise(200)
    losses[10] += 50
    assert spikes(losses) == []


@given(st.integers(0, 400), st.integers(0, 20))
@settings(max_examples=30, deadline=None)
def test_what_is_saved_goes_on_as_if_it_had_not_been(saved_at, seed):
    losses = np.random.default_rng(seed).lognormal(0, 1.5, 400)
    # Twice in a row: of those the second falls into the pause.
    losses[[100, 101, 350]] = 1e3, 1e5, 1e6
    usual, found = UsualLoss(), []
    for step, loss in enumerate(losses):
        if step == saved_at:
            usual = UsualLoss(**json.loads(json.dumps(asdict(usual))))
        if usual.is_spike(float(loss)):
            found.append(step)
    assert found == spikes(losses) and found
