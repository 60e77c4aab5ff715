"""The span boundary objective (Joshi et al. 2020, section 3.2) beside what word frequencies alone reach.

Each token of a masked span is predicted from the states of the two tokens beside the span and from how far inside it
is. Masked tokens in a row are one span. Held-out text is masked twice: the tokens that every run is scored on, and
spans.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from data_prep.examples import Ints
from data_prep.examples.packing import Examples
from model import BertConfig, BertForPreTraining
from model.batch import in_recurring_rows
from model.blocks import ACTIVATIONS
from model.families import Family
from model.heads import vocabulary_scores
from model.initialisation import initialise

from .batches import BatchMaker, PretrainingBatch
from .masked_words import (
    cross_entropy_sum,
    fill_with_unigram,
    most_frequent_accuracy,
    row_scores,
    unigram_cross_entropy,
)
from .objective import Part, PretrainingObjective, Row, Scores

# Tokens of a span that are predicted, from its first on, and the size of the embedding of their places in it: those of
# the authors' code.
MOST_TARGETS, POSITION_SIZE = 20, 200


@dataclass(frozen=True)
class Spans:
    """The B masked positions that are predicted, and the E boundary tokens next to their spans."""

    boundaries: Tensor
    """[E] int64, token indices in [0, T), each once; none is masked."""
    left: Tensor
    """[B] int64, index in `boundaries` of the token before the span."""
    right: Tensor
    """[B] int64, index in `boundaries` of the token after the span."""
    offset: Tensor
    """[B] int64, how many tokens of the span come before."""
    masked: Tensor
    """[B] int64, index among the masked positions of the batch."""
    most_read: int
    """Upper bound on the masked positions and boundaries of one example."""

    @classmethod
    def of(cls, batch: PretrainingBatch, fixed_ids: tuple[int, ...]) -> "Spans":
        """Those of a batch on the host. A span beside a special token has no targets, as in the authors' code."""
        ids, places, starts = (t.numpy() for t in (batch.input_ids, batch.masked_positions, batch.sequence_starts))
        first = np.flatnonzero(np.diff(places, prepend=-2) != 1)  # [S], among the masked
        size = np.diff(first, append=len(places))
        before, behind = places[first] - 1, places[first] + size
        is_inside = ~(np.isin(ids[before], fixed_ids) | np.isin(ids[behind], fixed_ids))
        offset = np.arange(len(places)) - np.repeat(first, size)  # [M]
        masked = np.flatnonzero(np.repeat(is_inside, size) & (offset < MOST_TARGETS))  # [B]
        span = np.repeat(np.arange(len(first)), size)[masked]
        boundaries = np.unique(np.append(before[is_inside], behind[is_inside]))
        left, right = (np.searchsorted(boundaries, side[span]) for side in (before, behind))
        most_read = _most(np.sort(np.append(places, boundaries)), starts)
        return cls(*map(torch.from_numpy, (boundaries, left, right, offset[masked], masked)), most_read)


def _most(places: Ints, starts: np.ndarray) -> int:
    """The most of these ascending places in one example."""
    return int(np.diff(np.searchsorted(places, starts)).max())


@dataclass(kw_only=True)
class SpanBatch(PretrainingBatch):
    """A packed batch with what is to be predicted from the boundaries of spans: its own, or those of a copy."""

    spans: Spans | None = None
    span_copy: "SpanBatch | None" = None
    """The same examples with masked spans, where this batch has other masks."""

    @property
    def with_spans(self) -> "SpanBatch":
        """The batch whose spans are predicted."""
        return self.span_copy or self


class SpanBatchMaker(BatchMaker):
    """Makes batches that know their spans. With another masking they have a copy with masked spans."""

    def packed(self, examples: Examples) -> SpanBatch:
        """One masked packed batch of these examples."""
        return self._finished(super().packed(examples), lambda maker: maker.packed(examples))

    def empty_batch(self) -> SpanBatch:
        """A batch without a target."""
        return self._finished(super().empty_batch(), SpanBatchMaker.empty_batch)

    def _finished(self, batch: PretrainingBatch, make: Callable[["SpanBatchMaker"], SpanBatch]) -> SpanBatch:
        if self.rules.masking == "span":
            return SpanBatch(**vars(batch), spans=Spans.of(batch, self.rules.fixed_ids))
        of_copies = copy(self)
        of_copies.rules = replace(self.rules, masking="span")
        return SpanBatch(**vars(batch), span_copy=make(of_copies))


class SpanBoundaryHead(nn.Module):
    """Scores over the vocabulary for a token of a span. The output matrix is the word embedding, as in the MLM head.

    Args:
        width: of the word embedding.
    """

    def __init__(self, config: BertConfig, width: int):
        super().__init__()
        self.position = nn.Embedding(MOST_TARGETS, POSITION_SIZE)
        self.first = nn.Linear(2 * config.hidden_size + POSITION_SIZE, config.hidden_size)
        self.first_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.second = nn.Linear(config.hidden_size, width)
        self.second_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self, left: Tensor, right: Tensor, offset: Tensor, word_embedding: Tensor, entries: Tensor | None = None
    ) -> Tensor:
        """States beside the span [B, H] each, places in it int64 [B] -> [B, V], or [B, S] for these entries alone."""
        read = torch.cat([left, right, self.position(offset)], dim=-1)  # [B, 2 H + 200]

        def scores(read: Tensor) -> Tensor:
            hidden = self.first_norm(self.activation(self.first(read)))  # [B, H]
            hidden = self.second_norm(self.activation(self.second(hidden)))
            return vocabulary_scores(hidden, word_embedding, self.bias, entries)

        return in_recurring_rows(scores, read)


@cache
def with_span_boundary_head(kind: type[BertForPreTraining]) -> type[BertForPreTraining]:
    """The class with the head beside those it has. Only training has it: no model folder does."""

    class WithSpanBoundaryHead(kind):
        training_only = (*kind.training_only, "span_boundary_head.")

        def __init__(self, config: BertConfig):
            super().__init__(config)
            self.span_boundary_head = SpanBoundaryHead(config, self.bert.embeddings.word.weight.shape[1])
            initialise(self.span_boundary_head, config.initializer_range)

    return WithSpanBoundaryHead


@dataclass(frozen=True)
class SpanScores(Scores):
    """What a model with a span boundary head makes of a batch."""

    spans: Tensor
    """[B, V] logits of the tokens of spans, or [B, S] where the batch names entries."""


class SpanBoundary(Part):
    """SBO: the tokens of masked spans, from their boundaries.

    Its results are sbo_loss (nats), sbo_accuracy, and what word frequencies alone reach on the same targets:
    sbo_unigram_entropy and sbo_most_frequent_accuracy. They are of masked spans, in held-out text of spans that never
    change. There are none where no span has targets.

    Args:
        unigram_counts: int64 [V], how often each entry of the vocabulary occurs in the training part.
    """

    name, learned, needs_pairs = "sbo", "the tokens of spans from their boundaries (SBO)", False
    metrics = ("sbo_loss", "sbo_accuracy", "sbo_unigram_entropy", "sbo_most_frequent_accuracy")
    baselines = {"loss": "sbo_unigram_entropy", "accuracy": "sbo_most_frequent_accuracy"}
    scores_vocabulary = training_only = True

    def __init__(self, unigram_counts: np.ndarray):
        self.unigram_counts = unigram_counts

    def logits(self, scores: SpanScores) -> Tensor:
        """[B, V]."""
        return scores.spans

    def targets(self, batch: SpanBatch) -> Tensor:
        """int64 [B], all of them targets."""
        return batch.with_spans.masked_targets[batch.with_spans.spans.masked]

    def modules(self, model: BertForPreTraining) -> list[nn.Module]:
        """The head; its output matrix is the word embedding."""
        return [model.span_boundary_head]

    def start(self, model: BertForPreTraining) -> None:
        """The output bias is the log unigram probability."""
        fill_with_unigram(model.span_boundary_head.bias, self.unigram_counts)

    def loss_sum(self, scores: SpanScores, batch: SpanBatch) -> Tensor:
        """Sum of the negative log likelihoods (nats, fp32) of the targets, estimated where the batch names entries: a
        scalar with a gradient."""
        if batch.entries is None:
            return cross_entropy_sum(scores.spans, self.targets(batch))
        spans = batch.with_spans.spans
        return cross_entropy_sum(scores.spans, batch.entries.targets[spans.masked], batch.entries.log_weights)

    def score_sums(self, scores: SpanScores, batch: SpanBatch) -> dict[str, Tensor]:
        """Of the loss, and of the tokens that have the highest score."""
        losses, correct = row_scores(scores.spans, self.targets(batch))
        return {"sbo_loss": losses.sum(), "sbo_correct": correct.sum()}

    def baseline_sums(self, batch: SpanBatch) -> dict[str, float]:
        """What word frequencies alone and the most frequent word reach."""
        targets = self.targets(batch).numpy()
        return {
            "sbo_unigram_loss": unigram_cross_entropy(self.unigram_counts, targets) * len(targets),
            "sbo_most_frequent_correct": most_frequent_accuracy(self.unigram_counts, targets) * len(targets),
        }

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Loss and accuracy, each beside its baseline."""
        if not (count := sums["sbo"]):
            return {}
        return super().results(sums) | {
            "sbo_unigram_entropy": sums["sbo_unigram_loss"] / count,
            "sbo_most_frequent_accuracy": sums["sbo_most_frequent_correct"] / count,
        }

    def summary(self, results: Mapping[str, float]) -> str:
        """Loss and accuracy."""
        if "sbo_loss" not in results:
            return ""
        loss = f"SBO loss {results['sbo_loss']:.3f} (unigram {results['sbo_unigram_entropy']:.3f})"
        return f"{loss}, accuracy {results['sbo_accuracy']:.1%}"

    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """Loss and accuracy; none where no span has targets."""
        if results.get("sbo_loss") is None:
            return []
        loss, accuracy = results["sbo_unigram_entropy"], results["sbo_most_frequent_accuracy"]
        return [
            Row("SBO loss (nats)", results["sbo_loss"], "nats", loss, "word frequencies alone"),
            Row("SBO accuracy", results["sbo_accuracy"], "share", accuracy, "always one word"),
        ]


class SpanBoundaryObjective(PretrainingObjective):
    """Parts that read the states beside spans too; `SpanBatchMaker` makes its batches."""

    def model_class(self, family: Family) -> type[BertForPreTraining]:
        """The family's class with a span boundary head."""
        return with_span_boundary_head(family.pretraining)

    def scores(self, model: BertForPreTraining, batch: SpanBatch) -> SpanScores:
        """The last layer is computed for masked positions and boundaries, each head for what it reads; of a batch with
        a copy, words in one pass and spans in another."""
        with_spans, embedding = batch.with_spans, model.bert.embeddings.word.weight
        spans, entries = with_spans.spans, None if batch.entries is None else batch.entries.ids
        read = torch.cat([with_spans.masked_positions, spans.boundaries])  # [M + E]
        hidden = model.bert.encode(with_spans, at=read, most_at=spans.most_read).last_hidden_state
        masked, beside = hidden.split([len(with_spans.masked_positions), len(spans.boundaries)])
        left, right = beside.index_select(0, spans.left), beside.index_select(0, spans.right)  # [B, H]
        return SpanScores(
            model.word_scores(masked, entries) if with_spans is batch else super().scores(model, batch).words,
            pair=None,
            spans=model.span_boundary_head(left, right, spans.offset, embedding, entries),
        )
