"""Masks drawn eight bits at a time."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from model.blocks import Dropout, dropped


def of(shape, p, dtype=torch.float32):
    return dropped(torch.ones(shape, dtype=dtype), p)


@given(st.integers(0, 9), st.integers(1, 7), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_values_are_zero_or_scaled_for_any_shape_and_type(rows, columns, dtype):
    values = torch.randn(rows, columns).to(dtype)
    found = dropped(values, 0.25)
    assert found.dtype == dtype and found.shape == values.shape
    assert torch.all((found == 0) | torch.isclose(found, values / 0.75, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_each_of_the_eight_values_of_a_number_is_dropped_as_often_and_on_its_own(p):
    torch.manual_seed(3)
    zero = (of(800_000, p) == 0).view(-1, 8).double()
    # Five standard deviations of a share of 100,000 draws, of which a call may round to one of 256 parts.
    bound = 5 * (p * (1 - p) / 100_000) ** 0.5
    assert (zero.mean(0) - p).abs().max() < bound + 1 / 256
    assert (zero.mean(0) - zero.mean()).abs().max() < bound
    assert (torch.corrcoef(zero.T) - torch.eye(8)).abs().max() < 5 / 100_000**0.5
    # The same for a value and its neighbour of the next number.
    pairs = torch.stack([zero[:-1, 7], zero[1:, 0]])
    assert abs(torch.corrcoef(pairs)[0, 1]) < 5 / 100_000**0.5


@pytest.mark.parametrize("p", [0.001, 0.1, 0.15, 0.995])
def test_over_many_calls_a_probability_between_two_levels_is_exact(p):
    torch.manual_seed(5)
    calls, values = 2000, 2000
    share = sum(float((of(values, p) == 0).double().mean()) for _ in range(calls)) / calls
    # Of a draw, and of the level that a call rounds to.
    between = p * 256 % 1
    variance = p * (1 - p) / (calls * values) + between * (1 - between) / 256**2 / calls
    assert abs(share - p) < 5 * variance**0.5


def test_the_mean_stays():
    torch.manual_seed(0)
    mean = torch.stack([of(5000, 0.1).double().mean() for _ in range(200)]).mean()
    # Of the values, and of the level that a call rounds to.
    assert abs(mean - 1) < 5 * (0.1 / 0.9 / 1_000_000 + 0.25 / (256 * 0.9) ** 2 / 200) ** 0.5


def test_the_generator_of_torch_decides():
    torch.manual_seed(7)
    first, second = of(1000, 0.5), of(1000, 0.5)
    torch.manual_seed(7)
    assert torch.equal(of(1000, 0.5), first) and not torch.equal(first, second)


def test_the_gradient_goes_where_the_values_go():
    values = torch.randn(50, 30, dtype=torch.float64, requires_grad=True)
    found = dropped(values.t(), 0.3)
    weight = torch.randn_like(found)
    found.mul(weight).sum().backward()
    kept = torch.where(found == 0, 0, found.detach() / values.detach().t())
    torch.testing.assert_close(values.grad, (weight * kept).t())


def test_nothing_is_drawn_outside_training_or_without_probability():
    values = torch.randn(100)
    state = torch.get_rng_state()
    assert torch.equal(Dropout(0.5).eval()(values), values) and torch.equal(Dropout(0.0)(values), values)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("p", [0.0, 0.999, 1.0])
def test_probabilities_beyond_the_levels_go_to_torch(p):
    torch.manual_seed(1)
    found = dropped(torch.ones(100), p)
    torch.manual_seed(1)
    assert torch.equal(found, F.dropout(torch.ones(100), p))
