import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.engine.muon import Muon, newton_schulz, orthogonal

SHAPES = [(24, 8), (8, 24), (16, 16), (8, 20)]


def with_singular_values(values, columns, seed=0):
    """A random matrix [m, n] of these m singular values, float64."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(values)
    left = torch.linalg.qr(torch.randn(rows, rows, generator=generator, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(columns, rows, generator=generator, dtype=torch.float64))[0]
    return left @ torch.diag(torch.as_tensor(values, dtype=torch.float64)) @ right.T


def quintic(value):
    """What the five iterations make of one singular value."""
    for _ in range(5):
        value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
    return value


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8), st.sampled_from([1, 2, 3, 5]), st.integers(0, 9))
def test_each_singular_value_goes_through_the_polynomial_and_the_vectors_stay(values, ratio, seed):
    values = torch.tensor([*values, 1.0], dtype=torch.float64)
    matrix = with_singular_values(values, ratio * len(values), seed)
    expected = with_singular_values([quintic(float(v)) for v in values / values.norm()], ratio * len(values), seed)
    found = newton_schulz(matrix[None].float())[0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("columns", [32, 128])
def test_small_singular_values_survive_in_float32(columns):
    """Steep spectra are what momentum has; half of these values are under the rounding of bfloat16."""
    values = torch.exp(-0.3 * torch.arange(32, dtype=torch.float64))
    matrix = with_singular_values(values, columns)
    expected = with_singular_values([quintic(float(v)) for v in values / values.norm()], columns)
    found = newton_schulz(matrix[None].float())[0].double()
    assert (found - expected).norm() < 1e-3 * expected.norm()
    coarse = newton_schulz(matrix[None].float(), torch.bfloat16)[0].double()
    assert (coarse - expected).norm() > 1e-2 * expected.norm()


def test_matrices_are_orthogonalised_each_by_itself_whatever_they_are_computed_with():
    matrices = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(SHAPES * 2)]
    together = orthogonal(matrices)
    for matrix, found in zip(matrices, together, strict=True):
        torch.testing.assert_close(found, orthogonal([matrix])[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(orthogonal([matrix.mT])[0], found.mT, rtol=1e-4, atol=1e-5)


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def with_gradients(matrices, seed):
    generator = torch.Generator().manual_seed(seed)
    for matrix in matrices:
        matrix.grad = torch.randn(matrix.shape, generator=generator)


def test_steps_are_those_of_torch_in_the_same_arithmetic():
    ours, theirs = parameters(), parameters()
    muon = Muon(ours, lr=0.02, weight_decay=0.1, dtype=torch.bfloat16)
    options = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    reference = torch.optim.Muon(theirs, **options)
    for seed in range(4):
        with_gradients(ours, seed)
        with_gradients(theirs, seed)
        muon.step()
        reference.step()
    start = parameters()
    for mine, other, before in zip(ours, theirs, start, strict=True):
        moved = (other - before).norm()
        assert moved > 0.1 and (mine - other).norm() < 0.02 * moved
        buffers = [part.state[p]["momentum_buffer"] for part, p in ((muon, mine), (reference, other))]
        torch.testing.assert_close(*buffers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_step_has_the_size_of_adamw_in_each_arithmetic(dtype):
    matrices = parameters()
    before = copy.deepcopy(matrices)
    with_gradients(matrices, 1)
    Muon(matrices, lr=0.5, weight_decay=0.0, dtype=dtype).step()
    for matrix, old in zip(matrices, before, strict=True):
        assert float((matrix - old).detach().square().mean().sqrt()) == pytest.approx(0.2 * 0.5, rel=0.25)


def test_a_step_in_which_infinity_was_found_changes_neither_weight_nor_momentum():
    matrices = parameters()
    muon = Muon(matrices, lr=0.1, weight_decay=0.1)
    with_gradients(matrices, 0)
    muon.step()
    before = [(p.detach().clone(), muon.state[p]["momentum_buffer"].clone()) for p in matrices]
    with_gradients(matrices, 1)
    matrices[0].grad[0, 0] = float("inf")
    matrices[1].grad[0, 0] = float("nan")
    muon.found_inf = torch.tensor(1.0)
    muon.step()
    for parameter, (weight, momentum) in zip(matrices, before, strict=True):
        assert torch.equal(parameter, weight) and torch.equal(muon.state[parameter]["momentum_buffer"], momentum)
    with_gradients(matrices, 1)
    muon.found_inf = torch.tensor(0.0)
    muon.step()
    assert not any(torch.equal(parameter, weight) for parameter, (weight, _) in zip(matrices, before, strict=True))
