"""Masked language modelling (Devlin et al. 2019, section 3.1, task 1) beside what word frequencies alone reach."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from data_prep.vocabulary.word_counts import log_unigram
from model import BertForPreTraining

from .batches import PretrainingBatch
from .objective import Part, Row, Scores

# Nats: a loss so near to that of word frequencies is not better.
_PLATEAU = 0.1
# From this share of the budget on, words should be learned.
_EARLY = 0.4
# Nats over the best evaluation: more than two evaluations of the same weights on other examples differ.
_RISE = 0.05


class MaskedWords(Part):
    """MLM: the words in the masked positions.

    Its results are mlm_loss (nats), mlm_perplexity, mlm_accuracy, unigram_entropy (the loss of word frequencies alone
    on the same targets) and most_frequent_accuracy. Where copies are known (see `data_prep.copies`) also mlm_copied,
    their share of the targets, and mlm_loss_without_copies, mlm_accuracy_without_copies and
    unigram_entropy_without_copies.

    Args:
        unigram_counts: int64 [V], how often each entry of the vocabulary occurs in the training part.
    """

    name, learned, needs_pairs = "mlm", "masked words (MLM)", False
    scores_vocabulary, head = True, "mlm_head.dense.weight"
    metrics = ("mlm_loss", "mlm_perplexity", "mlm_accuracy", "unigram_entropy", "most_frequent_accuracy", "mlm_copied",
               "mlm_loss_without_copies", "mlm_accuracy_without_copies", "unigram_entropy_without_copies")  # fmt: skip
    baselines = {"loss": "unigram_entropy", "accuracy": "most_frequent_accuracy"}

    def __init__(self, unigram_counts: np.ndarray):
        self.unigram_counts = unigram_counts

    def logits(self, scores: Scores) -> Tensor:
        """[M, V]."""
        return scores.words

    def targets(self, batch: PretrainingBatch) -> Tensor:
        """int64 [M], all of them targets."""
        return batch.masked_targets

    def modules(self, model: BertForPreTraining) -> list[nn.Module]:
        """The head; its matrix is the word embedding."""
        return [model.mlm_head]

    def start(self, model: BertForPreTraining) -> None:
        """The output bias is the log unigram probability."""
        fill_with_unigram(model.mlm_head.bias, self.unigram_counts)

    def loss_sum(self, scores: Scores, batch: PretrainingBatch) -> Tensor:
        """Sum of the negative log likelihoods (nats, fp32) of the targets, estimated where the batch names entries: a
        scalar with a gradient."""
        if batch.entries is None:
            return cross_entropy_sum(scores.words, batch.masked_targets)
        return cross_entropy_sum(scores.words, batch.entries.targets, batch.entries.log_weights)

    def score_sums(self, scores: Scores, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Also of the targets that are no copies, where they are known."""
        losses, correct = row_scores(scores.words, batch.masked_targets)
        sums = {f"{self.name}_loss": losses.sum(), f"{self.name}_correct": correct.sum()}
        if batch.fresh is not None:
            # No product of matrices, which autocast would compute in half precision.
            sums |= {"fresh_loss": (losses * batch.fresh).sum(), "fresh_correct": (correct * batch.fresh).sum()}
        return sums

    def baseline_sums(self, batch: PretrainingBatch) -> dict[str, float]:
        """What word frequencies alone and the most frequent word reach."""
        targets = batch.masked_targets.numpy()
        sums = {
            "unigram_loss": unigram_cross_entropy(self.unigram_counts, targets) * len(targets),
            "most_frequent_correct": most_frequent_accuracy(self.unigram_counts, targets) * len(targets),
        }
        if batch.fresh is not None:
            fresh = targets[batch.fresh.numpy() > 0]
            sums |= {
                "fresh": len(fresh),
                "fresh_unigram_loss": unigram_cross_entropy(self.unigram_counts, fresh) * len(fresh),
            }
        return sums

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Those of no target at all are 0."""
        masked = max(1, sums["mlm"])
        loss = sums["mlm_loss"] / masked
        results = {
            "mlm_loss": loss,
            "mlm_perplexity": math.exp(min(loss, 700.0)) if not math.isnan(loss) else loss,
            "mlm_accuracy": sums["mlm_correct"] / masked,
            "unigram_entropy": sums["unigram_loss"] / masked,
            "most_frequent_accuracy": sums["most_frequent_correct"] / masked,
        }
        if "fresh" in sums:
            fresh = sums["fresh"]
            results["mlm_copied"] = 1 - fresh / masked
            if fresh:
                results["mlm_loss_without_copies"] = sums["fresh_loss"] / fresh
                results["mlm_accuracy_without_copies"] = sums["fresh_correct"] / fresh
                results["unigram_entropy_without_copies"] = sums["fresh_unigram_loss"] / fresh
        return results

    def summary(self, results: Mapping[str, float]) -> str:
        """Loss and accuracy."""
        loss = f"MLM loss {results['mlm_loss']:.3f} (unigram {results['unigram_entropy']:.3f})"
        return f"{loss}, accuracy {results['mlm_accuracy']:.1%}"

    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """Loss, that without copies, perplexity, accuracy."""
        frequencies = "word frequencies alone"
        rows = [
            Row("MLM loss (nats)", results["mlm_loss"], "nats", results["unigram_entropy"], frequencies),
            Row("MLM perplexity", results["mlm_perplexity"], "count"),
            Row("MLM accuracy", results["mlm_accuracy"], "share", results["most_frequent_accuracy"], "always one word"),
        ]
        loss = results.get("mlm_loss_without_copies")
        if loss is not None:
            of = f"{frequencies}; {results['mlm_copied']:.1%} of the words are copies"
            rows.insert(1, Row("... without copies", loss, "nats", results["unigram_entropy_without_copies"], of))
        return rows

    def warnings(self, rows: Sequence[dict], share: float) -> dict[str, str]:
        """A loss that stays at word frequencies, and one that rises again."""
        return {kind: said for kind, said in (("plateau", _plateau(rows, share)), ("rise", _rise(rows))) if said}


def _plateau(rows: Sequence[dict], share: float) -> str | None:
    results = rows[-1]["validation"]
    loss, unigram = results["mlm_loss"], results["unigram_entropy"]
    if share < _EARLY or loss < unigram - _PLATEAU:
        return None
    return (
        f"Warning: after {share:.0%} of the budget the loss is still that of word frequencies alone "
        f"({loss:.2f}, {unigram:.2f}): give a longer --budget or a smaller model (--preset); if that does not help, "
        "halve the --learning-rate, and look into prep_report.md for text that repeats."
    )


def _rise(rows: Sequence[dict]) -> str | None:
    best = min(rows, key=lambda row: row["validation"]["mlm_loss"])
    lowest, latest = best["validation"]["mlm_loss"], rows[-1]["validation"]["mlm_loss"]
    if latest < lowest + _RISE:
        return None
    return (
        f"Warning: the held-out loss has risen from {lowest:.2f} at step {best['step']:,} to {latest:.2f}: the model "
        "learns the text by heart. Give more text, a shorter --budget, a smaller model (--preset) or --dropout 0.1."
    )


# Scores that are computed on at a time in float32: 2 MB, which stay in the caches of a CPU; elsewhere 64 MB, enough to
# keep a GPU busy.
_SCORES_AT_ONCE = {"cpu": 2**19}
SCORES_AT_ONCE_ON_GPU = 2**24
# A gradient in float16 is scaled up by this factor: the probability of a rare word is smaller than what float16 tells
# from zero.
_FLOAT16_SCALE = 2.0**10


def parts_of(scores: Tensor) -> Iterator[slice]:
    """Rows of scores [M, V] to compute on at a time in float32."""
    rows = max(1, _SCORES_AT_ONCE.get(scores.device.type, SCORES_AT_ONCE_ON_GPU) // scores.shape[1])
    return (slice(first, first + rows) for first in range(0, scores.shape[0], rows))


def gradient_scale(scores: Tensor) -> float:
    """What a gradient that is kept in the type of these scores is multiplied by until it is used."""
    return _FLOAT16_SCALE if scores.dtype == torch.float16 else 1.0


def cross_entropy_sum(logits: Tensor, labels: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """Sum of the negative log likelihoods (nats, float32) of labels [M] under logits [M, V], every label a column.

    The gradient is computed together with the loss, in the dtype of the logits, so that no float32 copy of all scores
    is made, kept, or read again.

    Args:
        log_weights: float32 [V], the log of how many columns each column stands for, as in sampled softmax; a row's own
            label counts once.
    """
    return _CrossEntropySum.apply(logits, labels, log_weights)


def softmax_and_logsumexp(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [P, V], and the logarithms of the sums that they were divided by [P]: half the time of log_softmax
    and its exponentials."""
    probabilities = scores.softmax(-1)
    # The most probable entry has at least 1 / V: the logarithm of its probability is exact.
    return probabilities, scores.amax(-1) - probabilities.amax(-1).log()


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, log_weights: Tensor | None) -> Tensor:
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        total = logits.new_zeros((), dtype=torch.float32)
        ctx.scale = gradient_scale(logits)
        for part in parts_of(logits):
            scores, label = logits[part].float(), labels[part, None]
            own = scores.gather(1, label)  # [rows, 1]
            if log_weights is not None:
                scores = (scores + log_weights).scatter_(1, label, own)
            probabilities, normaliser = softmax_and_logsumexp(scores)
            total += (normaliser - own.squeeze(1)).sum()
            if gradient is not None:
                probabilities.scatter_add_(1, label, probabilities.new_full(label.shape, -1.0))
                gradient[part] = probabilities if ctx.scale == 1.0 else probabilities.mul_(ctx.scale)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        # In place: the scores of a step are among its largest tensors. A second backward pass is an error.
        return gradient.mul_(grad / ctx.scale), None, None


def row_scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of labels [M] under logits [M, V] the negative log likelihoods (nats), and 1 where the label has the highest
    logit, else 0: float32 [M] each. No copy of all logits in float32 is made."""
    losses, correct = (logits.new_zeros(len(labels), dtype=torch.float32) for _ in range(2))
    for part in parts_of(logits):
        scores, label = logits[part].float(), labels[part]
        losses[part] = F.cross_entropy(scores, label, reduction="none")
        correct[part] = (scores.argmax(-1) == label).float()
    return losses, correct


@torch.no_grad()
def fill_with_unigram(bias: Tensor, counts: np.ndarray) -> None:
    """Let an output bias be the log unigram probability; rows without an entry are as rare as the rarest."""
    logs = torch.from_numpy(log_unigram(counts))
    bias.fill_(logs.min())
    bias[: len(logs)] = logs


def unigram_cross_entropy(counts: np.ndarray, targets: np.ndarray) -> float:
    """Mean negative log probability (nats a token) of targets [M] under the unigram model of `counts` [V]."""
    return float(-log_unigram(counts)[targets].mean()) if len(targets) else 0.0


def most_frequent_accuracy(counts: np.ndarray, targets: np.ndarray) -> float:
    """Share of targets [M] that are the most frequent entry: what always saying the same word achieves."""
    return float((targets == counts.argmax()).mean()) if len(targets) else 0.0
