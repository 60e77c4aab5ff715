"""Soft targets against torch's divergence, and against what Hinton et al. (2015) say of large temperatures."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr, softmax
from torch import nn

from pretrain import masked_words
from pretrain.batches import PretrainingBatch
from pretrain.soft_targets import TEMPERATURE, SoftTargets, TaughtScores, divergence_sum, positions


def expected(logits, teacher, temperature):
    """Loss and gradient by torch, in float64."""
    logits = logits.double().detach().requires_grad_()
    ours, theirs = (logits / temperature).log_softmax(-1), (teacher.double() / temperature).softmax(-1)
    # "batchmean" divides by the rows, "mean" would by the words too.
    loss = nn.KLDivLoss(reduction="batchmean")(ours, theirs) * len(logits) * temperature**2
    loss.backward()
    return loss.item(), logits.grad


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(2, 300), st.floats(0.01, 30), st.floats(0.5, 8), st.integers(64, 4096))
def test_loss_and_gradient_are_those_of_torch(rows, size, spread, temperature, chunk):
    torch.manual_seed(rows * size)
    logits, teacher = torch.randn(2, rows, size) * spread
    logits.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masked_words._SCORES_AT_ONCE, "cpu", chunk)
        loss = divergence_sum(logits, teacher, temperature)
        (loss * 0.37).backward()
    value, gradient = expected(logits, teacher, temperature)
    # A row's logarithms are rounded at their size, that of the logits, and counted times the square of the temperature.
    rounding = 1e-6 * rows * temperature * (temperature + 4 * spread)
    assert loss.item() == pytest.approx(value, rel=1e-4, abs=rounding)
    torch.testing.assert_close(logits.grad, (gradient * 0.37).float(), rtol=1e-4, atol=1e-5)


def test_a_teacher_that_is_the_student_has_nothing_to_teach():
    logits = (torch.randn(9, 50) * 10).requires_grad_()
    loss = divergence_sum(logits, logits.detach().clone())
    loss.backward()
    assert loss.item() == 0 and not logits.grad.any()


def test_at_large_temperatures_the_gradient_is_the_difference_of_the_logits():
    """(z - v) / V for logits of mean zero (section 2.1), at any large temperature: the loss has its square."""
    torch.manual_seed(0)
    logits, teacher = (each - each.mean(-1, keepdim=True) for each in torch.randn(2, 6, 40))
    for temperature in (200.0, 800.0):
        given = logits.clone().requires_grad_()
        divergence_sum(given, teacher, temperature).backward()
        torch.testing.assert_close(given.grad, (logits - teacher) / 40, rtol=0.03, atol=3e-4)


@pytest.mark.parametrize(("dtype", "precise"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-9)])
def test_scores_of_16_bits_lose_only_the_rounding_of_the_gradient(dtype, precise):
    torch.manual_seed(0)
    logits, teacher = (torch.randn(2, 30, 500) * 3).to(dtype)
    logits.requires_grad_()
    loss = divergence_sum(logits, teacher)
    loss.backward()
    value, gradient = expected(logits, teacher, TEMPERATURE)
    assert logits.grad.dtype == dtype and loss.item() == pytest.approx(value, rel=1e-4)
    torch.testing.assert_close(logits.grad.double(), gradient, rtol=precise, atol=1e-6)


def batch_of(masked, tokens):
    """A packed batch of one sequence."""
    ids = torch.arange(tokens)
    return PretrainingBatch(
        input_ids=ids, token_type_ids=ids * 0, position_ids=ids, max_sequence_length=tokens,
        sequence_starts=torch.tensor([0, tokens], dtype=torch.int32), masked_positions=torch.tensor(masked).long(),
        masked_targets=ids[: len(masked)], most_masked=len(masked), pair_targets=torch.tensor([-100]),
    )  # fmt: skip


def test_a_teacher_is_asked_at_all_tokens_or_at_the_masked_ones_and_never_where_nothing_is_to_be_learned():
    assert positions(batch_of([2, 5], 7), every=True).tolist() == list(range(7))
    assert positions(batch_of([2, 5], 7), every=False).tolist() == [2, 5]
    for every in (True, False):
        assert positions(batch_of([], 2), every).tolist() == []
        assert SoftTargets(np.ones(9), every, 1.0).count(batch_of([], 2)) == 0
    assert SoftTargets(np.ones(9), True, 1.0).count(batch_of([2, 5], 7)) == 7


def test_the_results_are_the_mean_divergences_and_the_words_on_which_both_agree():
    torch.manual_seed(0)
    counts, (logits, teacher) = np.array([7, 0, 3, 90, 12]), torch.randn(2, 40, 7) * 3
    # Two rows more than there are entries, as rare as the rarest.
    part, batch, none = SoftTargets(counts, True, 5.0), batch_of([3], 40), torch.zeros(40, 0)
    scores = TaughtScores(none, none, logits, teacher, none, none)
    sums = part.score_sums(scores, batch)
    found = part.results({"soft": part.count(batch), **{name: float(value) for name, value in sums.items()}})
    ours, theirs = (softmax(each.double().numpy() / TEMPERATURE, axis=-1) for each in (logits, teacher))
    words = np.append((counts + 1) / (counts.sum() + 5), [1 / (counts.sum() + 5)] * 2) ** (1 / TEMPERATURE)
    assert found["soft_loss"] == pytest.approx(rel_entr(theirs, ours).sum(-1).mean() * TEMPERATURE**2, rel=1e-5)
    baseline = rel_entr(theirs, words / words.sum()).sum(-1).mean() * TEMPERATURE**2
    assert found["soft_unigram"] == pytest.approx(baseline, rel=1e-5)
    assert found["soft_accuracy"] == pytest.approx((logits.argmax(-1) == teacher.argmax(-1)).double().mean().item())
    assert part.loss_sum(scores, batch).item() / 40 == pytest.approx(found["soft_loss"], rel=1e-5)
