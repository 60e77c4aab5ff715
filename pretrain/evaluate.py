"""Evaluation on held-out text: the same pairs and the same masks every time, each number beside its baseline."""

import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data_prep.assembly import HELD_OUT_SEED
from data_prep.examples.packing import Examples, pack
from data_prep.examples.pairs import example_keys, example_order, pairs
from data_prep.prepared import PreparedCorpus, Shard
from data_prep.vocabulary.unigram import cross_entropy, most_frequent_accuracy
from model import BertForPreTraining, PackedBatch

from .batches import BatchMaker
from .engine.batches import share
from .engine.budget import Budget
from .engine.device import moved
from .engine.distributed import World
from .objective import PretrainingObjective

MOST_EXAMPLES_DURING = 2_000
# Shares of the budget that all evaluations during the run, and the last one, may take.
SHARE_DURING, SHARE_FINAL = 0.05, 0.05
_LEAST_EXAMPLES = 64
# A forward pass costs about a third of a training step.
_TRAINING_COST = 3
# What processes add up.
_SUMS = ("mlm", "mlm_loss", "mlm_correct", "unigram_loss", "most_frequent_correct",
         "chosen", "chosen_loss", "chosen_correct", "chosen_unigram_loss",
         "nsp", "nsp_loss", "nsp_correct", "nsp_random")  # fmt: skip
# Seconds kept for the last checkpoint.
_SAVING = 1.0


def _added(scores: list[dict[str, Tensor]]) -> dict[str, float]:
    """The sums of scalars by name, in float64; the host waits for the device here alone."""
    if not scores:
        return {}
    rows = torch.stack([torch.stack(list(row.values())) for row in scores]).cpu().tolist()
    return dict(zip(scores[0], map(sum, zip(*rows, strict=True)), strict=True))


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
        world: the processes that share an evaluation.
    """

    def __init__(
        self,
        prepared: PreparedCorpus,
        objective: PretrainingObjective,
        maker: BatchMaker,
        sequence_length: int,
        precision: Callable[[], AbstractContextManager],
        world: World,
    ):
        self.prepared, self.objective, self.maker, self.world = prepared, objective, maker, world
        self.sequence_length, self.precision = sequence_length, precision
        self._speed: float | None = None

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
            nsp_majority. Where copies are known (see `data_prep.copies`) also mlm_copied, their share of the targets,
            and mlm_loss_without_copies, mlm_accuracy_without_copies and unigram_entropy_without_copies.
        """
        was_training = model.training
        model.eval()
        device = next(model.parameters()).device
        sums = Counter(dict.fromkeys(_SUMS, 0.0))
        examples, scores = self.examples[:count], []
        for part in self.maker.divided(examples[share(examples.lengths(), self.world)]):
            batch = self.maker.packed(part)
            chosen = self._without_copies(part, batch)
            sums.update(self._baseline_sums(batch, chosen))
            chosen = None if chosen is None else torch.from_numpy(chosen.astype(np.float32)).to(device)
            with torch.no_grad(), self.precision():
                scores.append(self.objective.score_sums(model, moved(batch, device), chosen))
        sums.update(_added(scores))
        model.train(was_training)
        return self._results(dict(zip(_SUMS, self.world.sum([sums[name] for name in _SUMS]), strict=True)))

    @cached_property
    def _copied(self) -> list[Shard] | None:
        """The held-out shards with 1 in the place of copied tokens, and 0 elsewhere."""
        copied, shards = self.prepared.validation_copied, self.prepared.validation
        if copied is None:
            return None
        return [replace(shard, ids=ids.astype(np.uint8)) for shard, ids in zip(shards, copied, strict=True)]

    def _without_copies(self, examples: Examples, batch: PackedBatch) -> np.ndarray | None:
        """Which targets do not lie in text that stands in the training part too: bool [M]."""
        if self._copied is None:
            return None
        return pack(self._copied, examples, 0, 0).input_ids[batch.masked_positions.numpy()] == 0

    def _baseline_sums(self, batch: PackedBatch, chosen: np.ndarray | None) -> dict[str, float]:
        """Numbers of targets, and what word frequencies alone and the most frequent answer reach on them."""
        counts, labels = self.objective.counts(batch), batch.masked_labels.numpy()
        unigram = self.prepared.unigram_counts
        fresh = labels[:0] if chosen is None else labels[chosen]
        return {
            "chosen": len(fresh),
            "chosen_unigram_loss": cross_entropy(unigram, fresh) * len(fresh),
            "mlm": counts["mlm"],
            "nsp": counts.get("nsp", 0),
            "unigram_loss": cross_entropy(unigram, labels) * len(labels),
            "most_frequent_correct": most_frequent_accuracy(unigram, labels) * len(labels),
            "nsp_random": int((batch.next_sentence_labels == 1).sum()),
        }

    def _results(self, sums: dict[str, float]) -> dict[str, float]:
        masked, labelled = max(1, sums["mlm"]), sums["nsp"]
        loss = sums["mlm_loss"] / masked
        results = {
            "mlm_loss": loss,
            "mlm_perplexity": math.exp(min(loss, 700.0)) if not math.isnan(loss) else loss,
            "mlm_accuracy": sums["mlm_correct"] / masked,
            "unigram_entropy": sums["unigram_loss"] / masked,
            "most_frequent_accuracy": sums["most_frequent_correct"] / masked,
        }
        if self._copied is not None:
            fresh = sums["chosen"]
            results["mlm_copied"] = 1 - fresh / masked
            if fresh:
                results["mlm_loss_without_copies"] = sums["chosen_loss"] / fresh
                results["mlm_accuracy_without_copies"] = sums["chosen_correct"] / fresh
                results["unigram_entropy_without_copies"] = sums["chosen_unigram_loss"] / fresh
        if labelled:
            random = sums["nsp_random"] / labelled
            results["nsp_loss"] = sums["nsp_loss"] / labelled
            results["nsp_accuracy"] = sums["nsp_correct"] / labelled
            results["nsp_majority"] = max(random, 1 - random)
        return results

    def plan(
        self, model: BertForPreTraining, budget: Budget, examples_in_budget: float, evaluations: int
    ) -> EvaluationPlan:
        """How many examples fit into the shares of the budget that evaluation may take.

        For a counted budget this is arithmetic (`examples_in_budget`), for a time budget the speed is measured.
        """
        speed = 0.0 if budget.is_counted else self.speed(model)
        allowed = examples_in_budget * _TRAINING_COST if budget.is_counted else budget.amount * speed
        wanted = (min(MOST_EXAMPLES_DURING, SHARE_DURING * allowed / evaluations), SHARE_FINAL * allowed)
        during, final = (min(len(self.examples), max(_LEAST_EXAMPLES, int(count))) for count in wanted)
        return EvaluationPlan(during, final, reserve=final / speed + _SAVING if speed else 0.0)

    def speed(self, model: BertForPreTraining) -> float:
        """Examples that the main process evaluates in a second; measured once, the same in all processes."""
        if self._speed is None:
            for _ in range(2):  # the first call warms up
                start = time.monotonic()
                self(model, _LEAST_EXAMPLES)
            mine = min(_LEAST_EXAMPLES, len(self.examples)) / (time.monotonic() - start)
            self._speed = self.world.first(lambda: mine)
        return self._speed

    def training_speed(self, model: BertForPreTraining) -> float:
        """About how many examples are trained on in a second."""
        return self.speed(model) / _TRAINING_COST
