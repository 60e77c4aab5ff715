"""The cross entropy over a vocabulary against torch's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain import cross_entropy
from pretrain.cross_entropy import cross_entropy_sum


def both(logits: torch.Tensor, labels: torch.Tensor, scale: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Loss and gradient of ours and of torch's, of the loss times `scale`."""
    found = []
    for function in (cross_entropy_sum, lambda x, y: F.cross_entropy(x.float(), y, reduction="sum")):
        given = logits.clone().requires_grad_()
        loss = function(given, labels)
        (loss * scale).backward()
        found.append((loss.detach(), given.grad))
    return found


@settings(max_examples=60)
@given(st.integers(0, 40), st.integers(2, 300), st.floats(0.01, 300), st.integers(64, 4096), st.integers(0, 99))
def test_loss_and_gradient_are_those_of_torch(rows, size, spread, chunk, seed):
    torch.manual_seed(seed)
    before, cross_entropy._CHUNK = cross_entropy._CHUNK, chunk
    try:
        (ours, gradient), (expected, expected_gradient) = both(
            torch.randn(rows, size) * spread, torch.randint(size, (rows,)), 0.37
        )
    finally:
        cross_entropy._CHUNK = before
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5 * spread)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_scores_in_bf16_lose_only_the_rounding_of_the_gradient(spread):
    torch.manual_seed(0)
    logits = (torch.randn(50, 1000) * spread).bfloat16()
    (ours, gradient), (expected, expected_gradient) = both(logits, torch.randint(1000, (50,)), 1 / 50)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-4)
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient, expected_gradient, rtol=2**-7, atol=1e-6)


def test_an_entry_that_is_hopeless_has_a_finite_loss():
    logits = torch.tensor([[200.0, 0.0, -500.0]])
    assert cross_entropy_sum(logits, torch.tensor([2])).item() == pytest.approx(700)


@pytest.mark.parametrize("rows", [0, 5])
def test_other_devices_take_all_rows_at_once_and_none_at_all(rows):
    logits = torch.zeros(rows, 30, device="meta", requires_grad=True)
    loss = cross_entropy_sum(logits, torch.zeros(rows, dtype=torch.int64, device="meta"))
    loss.backward()
    assert loss.shape == () and logits.grad.shape == (rows, 30)
