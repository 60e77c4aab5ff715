"""The cross entropy over a vocabulary against torch's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain import masked_words
from pretrain.masked_words import cross_entropy_sum


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masked_words._SCORES_AT_ONCE, "cpu", chunk)
        (ours, gradient), (expected, expected_gradient) = both(
            torch.randn(rows, size) * spread, torch.randint(size, (rows,)), 0.37
        )
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


@pytest.mark.parametrize(("dtype", "precise"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-7), (torch.float16, 2**-9)])
def test_all_types_and_several_chunks_give_what_torch_gives_in_float64(dtype, precise, monkeypatch):
    torch.manual_seed(0)
    # Seven chunks and a part of one.
    monkeypatch.setitem(masked_words._SCORES_AT_ONCE, "cpu", 20_000)
    logits = (torch.randn(75, 2000) * 3).to(dtype).requires_grad_()
    exact, labels = logits.detach().double().requires_grad_(), torch.randint(2000, (75,))
    losses = cross_entropy_sum(logits, labels), F.cross_entropy(exact, labels, reduction="sum")
    for loss in losses:
        (loss * 100).backward()
    torch.testing.assert_close(losses[0].double(), losses[1], rtol=1e-6, atol=0)
    # float16 has no number between 0 and 6e-8.
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=precise, atol=6e-8)


def test_probabilities_too_small_for_float16_still_have_a_gradient_when_the_loss_is_scaled():
    logits = torch.tensor([[0.0, *[-18.0] * 999]], dtype=torch.float16, requires_grad=True)
    (cross_entropy_sum(logits, torch.tensor([0])) * 2**14).backward()
    expected = torch.softmax(logits.detach().double(), -1)[0, 1:] * 2**14
    torch.testing.assert_close(logits.grad[0, 1:].double(), expected, rtol=2**-6, atol=0)


class Largest(TorchDispatchMode):
    """The most entries of a float32 tensor that an operation in this block made, and all operations."""

    def __init__(self):
        super().__init__()
        self.entries, self.operations = 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **kwargs or {})
        self.operations.add(function)
        for tensor in torch.utils._pytree.tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.entries = max(self.entries, tensor.numel())
        return made


@pytest.mark.parametrize("rows", [0, 9000])
def test_other_devices_copy_a_part_of_the_scores_at_a_time_and_never_wait(rows):
    logits = torch.zeros(rows, 30_522, device="meta", dtype=torch.bfloat16, requires_grad=True)
    with Largest() as largest:
        loss = cross_entropy_sum(logits, torch.zeros(rows, dtype=torch.int64, device="meta"))
        loss.backward()
    assert loss.shape == () and logits.grad.shape == (rows, 30_522)
    assert largest.entries <= 2**24
    assert torch.ops.aten._local_scalar_dense.default not in largest.operations
