"""Evaluation on held-out text: the same pairs and the same masks every time, each number beside its baseline."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from data_prep.examples.packing import Examples, ShardExamples
from data_prep.examples.pairs import example_order

from .batches import BatchMaker
from .engine.batches import moved, share
from .engine.device import evaluating
from .engine.distributed import World
from .engine.out_of_memory import fitting
from .engine.settings import Budget
from .objective import PretrainingObjective

MOST_EXAMPLES_DURING = 2_000
# Shares of the budget that all evaluations during the run, and the last one, may take.
SHARE_DURING, SHARE_FINAL = 0.05, 0.05
_LEAST_EXAMPLES = 64
# A forward pass costs about a third of a training step.
_TRAINING_COST = 3
# Seconds kept for the last checkpoint.
_SAVING = 1.0


def _added(scores: list[dict[str, Tensor]]) -> dict[str, float]:
    """The sums of scalars by name, in float64; the host waits for the device here alone."""
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
        shard_examples: those of the held-out part, with the sequence length of training and the seed of all runs.
        maker: of the validation part, with its copies.
        precision: gives the context that the model computes in.
        world: the processes that share an evaluation.
    """

    def __init__(
        self,
        shard_examples: ShardExamples,
        objective: PretrainingObjective,
        maker: BatchMaker,
        precision: Callable[[], AbstractContextManager],
        world: World,
    ):
        self.shard_examples, self.objective, self.maker = shard_examples, objective, maker
        self.precision, self.world = precision, world
        self._speed: float | None = None

    @cached_property
    def examples(self) -> Examples:
        """All held-out examples, in the order in which they are used."""
        examples = Examples.concatenate([self.shard_examples(index) for index in range(len(self.shard_examples))])
        return examples[example_order(examples.key)]

    def __call__(self, model: nn.Module, count: int) -> dict[str, float]:
        """The objective's results on the first `count` examples; dropout is off, and the model's mode is put back.

        Raises:
            PretrainError: a GPU's memory is too small for one example.
        """
        device = next(model.parameters()).device
        examples = self.examples[:count]
        mine = examples[share(examples.lengths(), self.world)]
        with evaluating(model):
            sums = fitting(lambda: self._sums(model, mine, device), self.maker, mine.lengths(), device)
        return self.objective.results(dict(zip(sums, self.world.sum(list(sums.values())), strict=True)))

    def _sums(self, model: nn.Module, examples: Examples, device: torch.device) -> dict[str, float]:
        """Of this process's examples; also of none, for all processes add up the same sums."""
        sums, scores = Counter(), []
        for batch in self.maker.micro_batches(examples) if len(examples) else [self.maker.empty_batch()]:
            sums.update(self.objective.baseline_sums(batch))
            with torch.no_grad(), self.precision():
                scores.append(self.objective.score_sums(model, moved(batch, device)))
        sums.update(_added(scores))
        return dict(sums)

    def plan(self, model: nn.Module, budget: Budget, examples_in_budget: float, evaluations: int) -> EvaluationPlan:
        """How many examples fit into the shares of the budget that evaluation may take.

        For a counted budget this is arithmetic (`examples_in_budget`), for a time budget the speed is measured.
        """
        speed = 0.0 if budget.is_counted else self.speed(model)
        allowed = examples_in_budget * _TRAINING_COST if budget.is_counted else budget.amount * speed
        wanted = (min(MOST_EXAMPLES_DURING, SHARE_DURING * allowed / evaluations), SHARE_FINAL * allowed)
        during, final = (min(len(self.examples), max(_LEAST_EXAMPLES, int(count))) for count in wanted)
        return EvaluationPlan(during, final, reserve=final / speed + _SAVING if speed else 0.0)

    def speed(self, model: nn.Module) -> float:
        """Examples that the main process evaluates in a second; measured once, the same in all processes."""
        if self._speed is None:
            for _ in range(2):  # the first call warms up
                start = time.monotonic()
                self(model, _LEAST_EXAMPLES)
            mine = min(_LEAST_EXAMPLES, len(self.examples)) / (time.monotonic() - start)
            self._speed = self.world.from_main(lambda: mine)
        return self._speed

    def training_speed(self, model: nn.Module) -> float:
        """About how many examples are trained on in a second."""
        return self.speed(model) / _TRAINING_COST
