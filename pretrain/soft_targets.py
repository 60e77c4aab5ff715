"""Soft targets: the probabilities that a teacher gives to all words (Hinton et al. 2015, section 2), as something to
learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from data_prep.vocabulary.word_counts import log_unigram
from model import BertForPreTraining

from .batches import PretrainingBatch
from .masked_words import gradient_scale, parts_of, softmax_and_logsumexp
from .objective import Part, Row, Scores

# Logits are divided by it before the softmax (Sanh et al. 2019 train with 2).
TEMPERATURE = 2.0


@dataclass(frozen=True)
class TaughtScores(Scores):
    """What a student and its teacher make of a batch, at P of its tokens."""

    logits: Tensor | None
    """[P, V]; None where the teacher's words are not learned."""
    teacher_logits: Tensor | None
    """[P, V], without a gradient; None likewise."""
    states: Tensor
    """[P, H], of the last layer."""
    teacher_states: Tensor
    """[P, H], without a gradient."""


def positions(batch: PretrainingBatch, every: bool) -> Tensor:
    """The tokens at which a teacher is learned from, as places in [0, T): int64 [P], all of them or the masked ones."""
    if every:
        return torch.arange(batch.num_tokens_learned, device=batch.masked_positions.device)
    return batch.masked_positions


class SoftTargets(Part):
    """The words that a teacher finds probable, at all tokens or at the masked ones.

    Its results are soft_loss (the Kullback-Leibler divergence of the student from the teacher at the temperature, times
    the square of that, in nats), soft_unigram (that of word frequencies in place of the student) and soft_accuracy (how
    often the most probable word is the teacher's).

    Args:
        unigram_counts: int64 [V], how often each entry of the vocabulary occurs in the training part.
        every: whether at all tokens.
        weight: of its loss.
    """

    name, learned, needs_pairs = "soft", "the probabilities of a teacher", False
    metrics = ("soft_loss", "soft_unigram", "soft_accuracy")
    # The baseline is computed with the teacher, not from the examples alone.
    baselines: Mapping[str, str] = {}

    def __init__(self, unigram_counts: np.ndarray, every: bool, weight: float):
        self.unigram_counts, self.every, self.weight = unigram_counts, every, weight

    def modules(self, model: BertForPreTraining) -> list[nn.Module]:
        """None: the head is that of masked words."""
        return []

    def count(self, batch: PretrainingBatch) -> int:
        """Number of tokens at which the teacher is learned from."""
        return len(positions(batch, self.every))

    def loss_sum(self, scores: TaughtScores, batch: PretrainingBatch) -> Tensor:
        """Sum of the divergences, times the square of the temperature (nats, fp32): a scalar with a gradient."""
        return divergence_sum(scores.logits, scores.teacher_logits)

    def score_sums(self, scores: TaughtScores, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Those of the loss, of its baseline, and of the words on which both agree."""
        frequencies = self._log_frequencies(scores.logits)
        sums = scores.logits.new_zeros(3, dtype=torch.float32)
        for part in parts_of(scores.logits):
            ours, theirs = (tempered(each[part], TEMPERATURE) for each in (scores.logits, scores.teacher_logits))
            divergences = [F.kl_div(each, theirs, reduction="sum", log_target=True) for each in (ours, frequencies)]
            agreed = (ours.argmax(-1) == theirs.argmax(-1)).sum()
            sums += torch.stack([*divergences, agreed.float()])
        loss, baseline, agreed = sums.unbind()
        scale = TEMPERATURE**2
        return {"soft_loss": scale * loss, "soft_unigram_loss": scale * baseline, "soft_correct": agreed}

    def _log_frequencies(self, logits: Tensor) -> Tensor:
        """Of the words, at the temperature: float32 [V]; rows without an entry are as rare as the rarest."""
        logs = log_unigram(self.unigram_counts)
        logs = np.pad(logs, (0, logits.shape[1] - len(logs)), constant_values=logs.min())
        return tempered(torch.from_numpy(logs).to(logits.device), TEMPERATURE)

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Loss and agreement, and what word frequencies reach."""
        if not sums[self.name]:
            return {}
        return {**super().results(sums), "soft_unigram": sums["soft_unigram_loss"] / sums[self.name]}

    def summary(self, results: Mapping[str, float]) -> str:
        """Loss and agreement."""
        if "soft_loss" not in results:
            return ""
        loss = f"teacher's probabilities {results['soft_loss']:.3f} (unigram {results['soft_unigram']:.3f})"
        return f"{loss}, its word {results['soft_accuracy']:.1%}"

    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """Loss and agreement."""
        if results.get("soft_loss") is None:
            return []
        baseline = results["soft_unigram"]
        return [
            Row("teacher's words (nats)", results["soft_loss"], "nats", baseline, "word frequencies alone"),
            Row("same word as teacher", results["soft_accuracy"], "share"),
        ]


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Log probabilities at a temperature, in float32."""
    return (logits.float() / temperature).log_softmax(-1)


def divergence_sum(logits: Tensor, teacher: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """The sum of the Kullback-Leibler divergences of the student from the teacher, of logits [P, V] at a temperature,
    times its square, which keeps the gradient about as large as at 1 (Hinton et al. 2015, section 2).

    The gradient is worked out beside the loss, as in `masked_words.cross_entropy_sum`; the teacher has none.
    """
    result: Tensor = _DivergenceSum.apply(logits, teacher, temperature)
    return result


class _DivergenceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        total = logits.new_zeros((), dtype=torch.float32)
        ctx.scale = gradient_scale(logits)
        for part in parts_of(logits):
            ours, theirs = (each[part].float() / temperature for each in (logits, teacher))
            (own, own_sum), (wanted, wanted_sum) = softmax_and_logsumexp(ours), softmax_and_logsumexp(theirs)
            total += (theirs.sub_(ours).mul_(wanted)).sum() - (wanted_sum - own_sum).sum()
            if gradient is not None:
                gradient[part] = own.sub_(wanted).mul_(temperature * ctx.scale)
        ctx.save_for_backward(gradient)
        return total * temperature**2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        # In place, as in `masked_words`.
        return gradient.mul_(grad / ctx.scale), None, None
