"""Evaluation on held-out text: the same pairs and the same masks every time, each number beside its baseline."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from data_prep.packing import Examples
from data_prep.pairs import example_keys, example_order, pairs
from data_prep.preparation import HELD_OUT_SEED
from data_prep.prepared import PreparedCorpus
from data_prep.unigram import cross_entropy, most_frequent_accuracy
from model import BertForPreTraining

from .batches import BatchMaker
from .budget import Budget
from .objective import PretrainingObjective

MOST_EXAMPLES_DURING = 2_000
# Shares of the budget that all evaluations during the run, and the last one, may take.
SHARE_DURING, SHARE_FINAL = 0.05, 0.05
_LEAST_EXAMPLES = 64
# A forward pass costs about a third of a training step.
_TRAINING_COST = 3
# Seconds kept for the last checkpoint.
_SAVING = 1.0


@dataclass(frozen=True)
class EvaluationPlan:
    """How many of the held-out examples the evaluations during a run take, and the last one. Fixed at the start.

    `reserve` is the time, in seconds, that a time budget keeps for the last evaluation and the last checkpoint.
    """

    during: int
    final: int
    reserve: float = 0.0


class Evaluation:
    """The frozen held-out examples in a fixed order.

    Args:
        prepared: where the held-out part comes from.
        maker: of the validation part.
        sequence_length: as in training; the seed of pairs and masks is the same for all runs.
        precision: gives the context that the model computes in.
    """

    def __init__(
        self,
        prepared: PreparedCorpus,
        objective: PretrainingObjective,
        maker: BatchMaker,
        sequence_length: int,
        precision: Callable[[], AbstractContextManager],
    ):
        self.prepared, self.objective, self.maker = prepared, objective, maker
        self.sequence_length, self.precision = sequence_length, precision

    @cached_property
    def examples(self) -> Examples:
        """All held-out examples, in the order in which they are used."""
        parts = []
        for index, shard in enumerate(self.prepared.validation):
            starts_word = self.prepared.tokenizer.starts_word
            with_pairs = "nsp" in self.objective.names
            rows = pairs(shard, self.sequence_length, HELD_OUT_SEED, 0, starts_word, with_pairs)
            key = example_keys(index, np.arange(len(rows)), HELD_OUT_SEED, 0)
            parts.append(Examples.of(index, rows, key))
        examples = Examples.concatenate(parts)
        return examples[example_order(examples.key)]

    def __call__(self, model: BertForPreTraining, count: int) -> dict[str, float]:
        """Evaluate on the first `count` examples; dropout is off, and the model's mode is put back.

        Returns:
            mlm_loss (nats), mlm_perplexity, mlm_accuracy, unigram_entropy (the loss of word frequencies alone, on the
            same targets), most_frequent_accuracy; where there are labelled pairs also nsp_loss, nsp_accuracy and
            nsp_majority.
        """
        was_training = model.training
        model.eval()
        device = next(model.parameters()).device
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        mlm_labels, nsp_labels = [], []
        for batch in self.maker.micro_batches(self.examples[:count]):
            mlm_labels.append(batch.masked_labels.numpy())
            nsp_labels.append(batch.next_sentence_labels.numpy())
            with torch.no_grad(), self.precision():
                for name, value in self.objective.score_sums(model, batch.to(device)).items():
                    sums[name] = sums.get(name, 0.0) + value
            for name, value in self.objective.counts(batch).items():
                counts[name] = counts.get(name, 0) + value
        model.train(was_training)
        return self._results(sums, counts, np.concatenate(mlm_labels), np.concatenate(nsp_labels))

    def _results(self, sums, counts, mlm_labels: np.ndarray, nsp_labels: np.ndarray) -> dict[str, float]:
        loss = sums["mlm_loss"] / max(1, counts["mlm"])
        unigram = self.prepared.unigram_counts
        results = {
            "mlm_loss": loss,
            "mlm_perplexity": math.exp(min(loss, 700.0)) if not math.isnan(loss) else loss,
            "mlm_accuracy": sums["mlm_correct"] / max(1, counts["mlm"]),
            "unigram_entropy": cross_entropy(unigram, mlm_labels),
            "most_frequent_accuracy": most_frequent_accuracy(unigram, mlm_labels),
        }
        if counts.get("nsp"):
            labelled = nsp_labels[nsp_labels >= 0]
            share = float(labelled.mean())
            results["nsp_loss"] = sums["nsp_loss"] / counts["nsp"]
            results["nsp_accuracy"] = sums["nsp_correct"] / counts["nsp"]
            results["nsp_majority"] = max(share, 1 - share)
        return results

    def plan(
        self, model: BertForPreTraining, budget: Budget, examples_in_budget: float, evaluations: int
    ) -> EvaluationPlan:
        """How many examples fit into the shares of the budget that evaluation may take.

        For a counted budget this is arithmetic (`examples_in_budget`), for a time budget the speed is measured.
        """
        speed = 0.0 if budget.is_counted else self._examples_per_second(model)
        allowed = examples_in_budget * _TRAINING_COST if budget.is_counted else budget.amount * speed
        wanted = (min(MOST_EXAMPLES_DURING, SHARE_DURING * allowed / evaluations), SHARE_FINAL * allowed)
        during, final = (min(len(self.examples), max(_LEAST_EXAMPLES, int(count))) for count in wanted)
        return EvaluationPlan(during, final, reserve=final / speed + _SAVING if speed else 0.0)

    def _examples_per_second(self, model: BertForPreTraining) -> float:
        for _ in range(2):  # the first call warms up
            start = time.monotonic()
            self(model, _LEAST_EXAMPLES)
        return min(_LEAST_EXAMPLES, len(self.examples)) / (time.monotonic() - start)
