from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.engine.settings import PretrainError, Schedule, ScheduleKind

KINDS = get_args(ScheduleKind)


@given(st.sampled_from(KINDS), st.floats(0.01, 0.9), st.floats(0, 0.999))
def test_the_schedule_is_continuous_and_within_zero_and_one(kind, warmup, progress):
    factor = Schedule(kind, warmup, 1.0)
    step = 1e-7
    steepest = max(1 / warmup, 5 / (1 - warmup))
    assert 0 <= factor(progress) <= 1
    assert abs(factor(progress + step) - factor(progress)) <= 1.01 * steepest * step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_the_schedule_peaks_after_the_warmup_and_ends_at_zero(kind, warmup):
    factor = Schedule(kind, warmup, 1.0)
    assert factor(warmup) == 1
    assert factor(warmup / 2) == (pytest.approx(0.505) if warmup else 1)
    assert factor(1.0) == pytest.approx(0, abs=1e-12)


@given(st.sampled_from(KINDS), st.floats(0.01, 0.3), st.floats(0.01, 0.99), st.floats(1.1, 4.0))
def test_a_budget_that_grows_goes_on_at_the_rate_it_had_reached(kind, warmup, grown_at, total):
    before = Schedule(kind, warmup, 1.0)
    after = before.extended(total, grown_at if grown_at > warmup else None)
    assert after(grown_at) == pytest.approx(before(grown_at), abs=1e-9)
    assert after(total) == pytest.approx(0, abs=1e-9)
    later = grown_at + 1e-6
    assert abs(after(later) - after(grown_at)) < 1e-3


def test_the_first_step_of_a_run_learns():
    assert all(Schedule(kind, 0.1, 1.0)(0.0) > 0 for kind in KINDS)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(PretrainError, match="'constant'.*linear, cosine, warmup-stable-decay"):
        Schedule("constant", 0.1, 1.0)


def test_linear_cosine_and_stable_at_known_places():
    assert Schedule("linear", 0.2, 1.0)(0.6) == pytest.approx(0.5)
    assert Schedule("cosine", 0.0, 1.0)(1 / 3) == pytest.approx(0.75)
    assert Schedule("warmup-stable-decay", 0.0, 1.0)(0.79) == 1
    assert Schedule("warmup-stable-decay", 0.0, 1.0)(0.9) == pytest.approx(0.5)
