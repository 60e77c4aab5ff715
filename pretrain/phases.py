"""The parts of a run, each with examples of one length, and the settings that are chosen by them."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from data_prep.examples.packing import Examples
from data_prep.prepared import PreparedCorpus
from model import BertForPreTraining

from .batches import BatchMaker, ExampleStream, PositionShift
from .build import make_data
from .engine.distributed import World
from .engine.settings import Budget
from .evaluate import Evaluation
from .objective import PretrainingObjective
from .resolve import automatic_batch_size, automatic_weight_decay, may_decay_more
from .settings import WEIGHT_DECAY, PretrainSettings


@dataclass
class Phase:
    """A part of a run with examples of one length."""

    length: int
    """Most tokens of an example."""
    until: float
    """Share of the budget at its end."""
    stream: ExampleStream
    maker: BatchMaker
    evaluation: Evaluation

    @cached_property
    def cut(self) -> Examples:
        """Held-out text cut as that to learn from is."""
        shards = type(self.stream.shard_examples)(**vars(self.evaluation.shard_examples))
        return Examples.concatenate([shards(index) for index in range(len(shards))])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each of these examples: int64 [N]."""
        return self.cut.lengths()

    def examples_in(self, budget: Budget, batch_size: int) -> float:
        """About how many examples a counted budget comprises; 0 for a time budget."""
        tokens, per_token = self.stream.num_tokens, len(self.lengths) / max(1, int(self.lengths.sum()))
        rates = {"steps": batch_size, "epochs": tokens * per_token, "tokens": per_token, "seconds": 0}
        return budget.amount * rates[budget.unit]

    def epochs_in(self, budget: Budget, batch_size: int, model: BertForPreTraining, tokens: float) -> float:
        """About how many epochs a budget is, were it spent on these examples alone. For a budget of time, the speed of
        this machine is measured.

        Args:
            tokens: of the text.
        """
        if budget.unit == "epochs":
            return budget.amount
        timed = 0.0 if budget.is_counted else budget.amount * self.evaluation.training_speed(model)
        of_text = float((self.cut.a_length + self.cut.b_length).mean())
        return (timed or self.examples_in(budget, batch_size)) * of_text / tokens

    def automatic_batch_size(self, settings: PretrainSettings, model: BertForPreTraining) -> int:
        """Chosen by the mean length of an example, and for a budget of time by the speed of this machine."""
        budget = Budget.parse(settings.budget)
        given = () if budget.is_counted else (budget.amount, self.evaluation.training_speed(model))
        return automatic_batch_size(settings.device, float(self.lengths.mean()), *given)


def make_phases(
    settings: PretrainSettings, prepared: PreparedCorpus, objective: PretrainingObjective, world: World
) -> list[Phase]:
    """One for each sequence length, in the order of training.

    Args:
        settings: resolved ones.
    """
    longest, shift, phases = settings.examples.longest, None, []
    if settings.shifted_share:
        shift = PositionShift(longest, float(settings.shifted_share))
    for until, part in settings.phases:
        length = part.examples.longest
        data = make_data(part, prepared, objective, world, shift if length < longest else None)
        phases.append(Phase(length, until, *data))
    return phases


def with_batch_size(settings: PretrainSettings, phases: list[Phase], model: BertForPreTraining) -> PretrainSettings:
    """The settings with numbers for the batch size of each phase, or one number for all."""
    if settings.batch_size != "auto":
        return settings
    sizes = tuple(phase.automatic_batch_size(settings, model) for phase in phases)
    return replace(settings, batch_size=sizes if len(sizes) > 1 else sizes[0])


def with_weight_decay(
    settings: PretrainSettings, phases: list[Phase], model: BertForPreTraining, tokens: float
) -> PretrainSettings:
    """The settings with a number for the weight decay.

    Args:
        settings: with a number for the batch size.
        phases: of the text, or of a sample of it.
        tokens: of the whole text to learn from.
    """
    if settings.weight_decay != "auto":
        return settings
    if not may_decay_more(settings, tokens):
        return replace(settings, weight_decay=WEIGHT_DECAY)
    budget, parts = Budget.parse(settings.budget), settings.phases
    shares = (until - before for before, until in pairwise((0.0, *(until for until, _ in parts))))
    epochs = sum(
        share * phase.epochs_in(budget, part.batch_size, model, tokens)
        for share, phase, (_, part) in zip(shares, phases, parts, strict=True)
    )
    return replace(settings, weight_decay=automatic_weight_decay(epochs))
