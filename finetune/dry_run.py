"""The plan of a fine-tuning before time is spent on it: all rows are read, a few steps are done, nothing is kept."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from data_prep.console.screen import say, say_example, say_plan
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from pretrain.engine.batches import Batches, Position
from pretrain.engine.device import Precision
from pretrain.engine.distributed import World
from pretrain.engine.plan import Needs, nearest, seconds_a_step
from pretrain.engine.progress import clock
from pretrain.engine.settings import Budget
from pretrain.engine.stage import as_before, say_begun
from pretrain.engine.step import Learner
from pretrain.engine.threads import busy

from .auxiliary import Masking
from .batches import BatchMaker, Encoded
from .candidates import ways
from .compare import named_models
from .dataset import Dataset, describe, read_dataset, sampled
from .finetuning import cut_sentence, warn_of_unknown
from .folds import folds
from .learning_curve import growing
from .predictor import outputs
from .resolve import (
    MAY_DIFFER,
    check_model,
    model_config,
    out_folder,
    resolve,
    with_budget,
    with_search,
    with_seeds,
    with_task,
)
from .rows import Example
from .settings import SCRATCH, FinetuneSettings
from .tasks import Task
from .teacher import open_teacher
from .tokenizer import open_tokenizer
from .training import depth_rates, learned

_EXAMPLES_SHOWN = 3
_STEPS = 9


def dry_run(settings: FinetuneSettings, task: Task | None = None) -> None:
    """Print what is in the texts, three of them as the model reads them, and what the run will take, of each model.

    Raises:
        FinetuneError, PretrainError, PrepError: the input cannot be used, or the output folder holds something else.
    """
    out = out_folder(settings)
    settings = as_before(settings, out, MAY_DIFFER) or settings
    say_begun(out)
    for model in settings.compare:
        if model != SCRATCH:
            check_model(model, model_config(model))
    models = {"": settings}
    if settings.compare:
        models = {name: with_search(run) for name, run in named_models(settings).items()}
    models = {name: resolve(run) for name, run in models.items()}
    first, *others = models.values()
    torch.set_num_threads(first.threads)
    parts = list(folds(first, task)) if first.folds else [read_dataset(first, task)]
    if first.folds:
        describe(parts[0], first)
    parts = growing(parts[0]) if first.learning_curve else parts
    found = []
    for name, run in models.items():
        if others:
            say(f"\n=== {name}")
        found.append(_planned(run, parts, shows_texts=run is first))
    if others:
        disk = sum(each.models for each in found) + max(each.checkpoints for each in found)
        seconds = clock(sum(each.seconds for each in found))
        say(f"\nAll {len(models)} models: {seconds}, about {disk / 1e9:.2f} GB on disk.")


class Takes(NamedTuple):
    """What the trainings of a model take."""

    seconds: float
    models: float
    """Bytes on disk."""
    checkpoints: float
    """Bytes on disk, until they end."""


def _planned(settings: FinetuneSettings, parts: Sequence[Dataset], shows_texts: bool) -> Takes:
    """Print the plan of a model.

    Args:
        parts: to train on, one after the other.
    """
    dataset, settings = parts[-1], with_seeds(settings, [len(part.train) for part in parts])
    task = dataset.task
    trainings = [each for part in parts for each in planned(with_budget(settings, len(part.train)), len(part.train))]
    settings = with_task(max((each.settings for each in trainings), key=lambda each: each.batch_size), task)
    tokenizer = open_tokenizer(settings.model)
    train = _encoded(dataset.train, dataset, tokenizer, settings)
    validation = _encoded(dataset.validation, dataset, tokenizer, settings)
    say(f"In {train.num_texts:,} of them: {cut_sentence(train, settings, task)}")
    warn_of_unknown("training", train, tokenizer)
    if shows_texts and settings.show_text == "yes":
        _show_examples(train, dataset, tokenizer)
    model = task.build_model(settings, settings.seed)
    teacher = open_teacher(settings, task, tokenizer, dataset.train)
    objective = learned(settings, task.objective(train, settings), model, train.words(tokenizer), teacher=teacher)
    learner = Learner(settings, model, objective, settings.seed, rates=depth_rates(settings, model))
    masking = Masking(tokenizer, settings.seed) if settings.mlm_weight else None
    maker = task.maker(train, tokenizer, settings.micro_batch_tokens, masking=masking)
    batches = Batches(task.stream(train, settings.seed), maker, settings.batch_size, Position(), World())
    seconds = seconds_a_step(learner, batches, _STEPS) / settings.batch_size
    tokens = learner.counters.tokens / (_STEPS * settings.batch_size)
    began = time.monotonic()
    held_out = BatchMaker(validation, tokenizer, settings.micro_batch_tokens)
    outputs(task, model, held_out, Precision(settings.device, settings.precision), World())
    seconds_a_held_out = (time.monotonic() - began) / validation.num_texts
    pace = Pace(seconds, tokens, len(dataset.validation) * seconds_a_held_out)
    testing = len(dataset.test) * seconds_a_held_out
    return _print_plan(settings, trainings, len(parts), learner, dataset, pace, testing)


class Pace(NamedTuple):
    """What was measured, a training text."""

    seconds: float
    tokens: float
    evaluation: float
    """Seconds of one, of all validation texts."""


class Training(NamedTuple):
    """One of the trainings of a run."""

    settings: FinetuneSettings
    rows: int
    """Training texts."""

    @property
    def steps_an_epoch(self) -> int:
        return math.ceil(self.rows / self.settings.batch_size)

    def seconds(self, pace: Pace) -> float:
        """How long it takes."""
        budget = Budget.parse(self.settings.budget)
        if not budget.is_counted:
            return budget.amount
        training = self.steps(pace) * self.settings.batch_size * pace.seconds
        return training + (self.settings.evaluations + 1) * pace.evaluation

    def steps(self, pace: Pace) -> float:
        """How many steps it has."""
        budget, size = Budget.parse(self.settings.budget), self.settings.batch_size
        left = max(0.0, budget.amount - (self.settings.evaluations + 1) * pace.evaluation)
        in_unit = {
            "seconds": left / (pace.seconds * size),
            "steps": budget.amount,
            "epochs": budget.amount * self.steps_an_epoch,
            "tokens": budget.amount / (pace.tokens * size),
        }
        return in_unit[budget.unit]


def planned(settings: FinetuneSettings, rows: int) -> list[Training]:
    """The trainings on this many texts: the first seed in each of the `candidates.ways`, the others in the longest."""
    first = [Training(replace(settings, **changes), rows) for changes in ways(settings).values()]
    longest = max(first, key=lambda each: Budget.parse(each.settings.budget).amount)
    return [*first, *[longest] * (settings.seeds - 1)]


def _encoded(
    examples: Sequence[Example], dataset: Dataset, tokenizer: TextTokenizer, settings: FinetuneSettings
) -> Encoded:
    """Some of the examples, which are tokenized, trained on and evaluated."""
    some = sampled(examples)
    return dataset.task.encode(some, tokenizer, settings.sequence_length, settings.long_text)


def _show_examples(train: Encoded, dataset: Dataset, tokenizer: TextTokenizer) -> None:
    maker = BatchMaker(train, tokenizer, 1)
    for number, text in enumerate(range(min(_EXAMPLES_SHOWN, train.num_texts)), 1):
        # A single sequence, or all of a text whose sequences stay together.
        batch = next(maker.micro_batches(np.array([text])))
        starts, places = batch.sequence_starts.tolist(), batch.places.numpy()
        for begin, end in pairwise(starts):
            targets = batch.labels.numpy()[(begin <= places) & (places < end)]
            shown = tokenizer.decode(batch.input_ids[begin:end].tolist())
            say_example(number, dataset.task.shown_targets(targets), shown)


def _print_plan(
    settings: FinetuneSettings,
    trainings: Sequence[Training],
    num_parts: int,
    learner: Learner,
    dataset: Dataset,
    pace: Pace,
    testing: float,
) -> Takes:
    runs = len(trainings)
    seconds = sum(each.seconds(pace) for each in trainings) + runs * testing
    longest = max(trainings, key=lambda each: each.steps(pace))
    steps = longest.steps(pace)
    budgets = list(dict.fromkeys(each.settings.budget for each in trainings))
    rates = dict.fromkeys(f"{each.settings.learning_rate:g}" for each in trainings)
    needs = Needs(settings, learner, steps)
    # Each part has a final/ beside its trainings.
    takes = Takes(seconds, (runs + num_parts) * needs.weights, needs.checkpoints)
    say_plan(
        {
            "model": f"{learner.model.num_parameters:,} parameters",
            "budget": " or ".join(budgets) + (f" for each of {runs} runs" if runs > 1 else ""),
            "steps": f"about {steps:,.0f} of {longest.settings.batch_size} texts "
            f"({steps / longest.steps_an_epoch:.1f} epochs)" + (", the longest" if len(budgets) > 1 else ""),
            "speed": f"{1 / pace.seconds:,.0f} texts/s, {settings.batch_size * pace.seconds:.2f} s a step",
            "learning rate": " or ".join(rates),
            "precision": f"{settings.precision} on {settings.device}",
            "time": clock(seconds),
            "memory": f"about {needs.memory / 1e9:.1f} GB",
            "disk": f"about {(takes.models + takes.checkpoints) / 1e9:.2f} GB",
            "nearest run measured": _nearest(dataset.task.name, len(dataset.train)),
        }
    )
    for warning in (needs.warning, busy(longest.settings)):
        if warning:
            say(warning)
    return takes


def _nearest(task: str, rows: int) -> str:
    row = nearest("fine-tuning", task, rows=rows)
    if row is None:
        return f"none of {task}"
    return (
        f"{row['texts']}, {row['rows']:,} rows: {row['score']} {row['reached']:.3f} (with nothing pretrained "
        f"{row['from_scratch']:.3f})"
    )
