"""The plan of a fine-tuning before time is spent on it: all rows are read, a few steps are done, nothing is kept."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from data_prep.console.screen import say, say_example, say_plan
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import parameter_count
from pretrain.engine.batches import Batches, Position
from pretrain.engine.device import Precision
from pretrain.engine.distributed import World
from pretrain.engine.plan import Needs, nearest, seconds_a_step
from pretrain.engine.progress import clock
from pretrain.engine.settings import Budget
from pretrain.engine.step import Learner

from .batches import BatchMaker, Encoded, TextStream
from .dataset import Dataset, read_dataset, sampled
from .finetuning import candidate_rates, cut_sentence
from .predictor import outputs
from .resolve import check_model, model_config, resolve, with_budget, with_search, with_task
from .rows import Example
from .settings import SCRATCH, FinetuneSettings
from .tasks import Task

_EXAMPLES_SHOWN = 3
_STEPS = 9


def dry_run(settings: FinetuneSettings, task: Task | None = None) -> None:
    """Print what is in the texts, three of them as the model reads them, and what the run will take."""
    for model in settings.compare:
        if model != SCRATCH:
            check_model(model, model_config(model))
    settings = resolve(with_search(settings) if settings.compare else settings)
    torch.set_num_threads(settings.threads)
    dataset = read_dataset(settings, task)
    task = dataset.task
    settings = with_task(with_budget(settings, len(dataset.train)), task)
    rates = candidate_rates(settings) if settings.learning_rate == "search" else [settings.learning_rate]
    settings = replace(settings, learning_rate=rates[0])
    tokenizer = WordPieceTokenizer.load(settings.model)
    train = _encoded(dataset.train, dataset, tokenizer, settings)
    validation = _encoded(dataset.validation, dataset, tokenizer, settings)
    say(f"In {train.num_texts:,} of them: {cut_sentence(train, settings)}")
    if settings.show_text == "yes":
        _show_examples(train, dataset, tokenizer)
    model = task.build_model(settings, settings.seed)
    if settings.freeze_encoder:
        model.freeze_encoder()
    learner = Learner(settings, model, task.objective(train, settings), settings.seed)
    maker = BatchMaker(train, tokenizer, settings.micro_batch_tokens)
    batches = Batches(TextStream(train, settings.seed), maker, settings.batch_size, Position(), World())
    seconds = seconds_a_step(learner, batches, _STEPS)
    began = time.monotonic()
    held_out = BatchMaker(validation, tokenizer, settings.micro_batch_tokens)
    outputs(task, model, held_out, Precision(settings.device, settings.precision), World())
    seconds_a_text = (time.monotonic() - began) / validation.num_texts
    _print_plan(settings, rates, learner, dataset, seconds, seconds_a_text)


def _encoded(
    examples: Sequence[Example], dataset: Dataset, tokenizer: WordPieceTokenizer, settings: FinetuneSettings
) -> Encoded:
    """Some of the examples, which are tokenized, trained on and evaluated."""
    some = sampled(examples)
    return dataset.task.encode(some, tokenizer, settings.sequence_length, settings.long_text)


def _show_examples(train: Encoded, dataset: Dataset, tokenizer: WordPieceTokenizer) -> None:
    maker = BatchMaker(train, tokenizer, 1)
    for number, text in enumerate(range(min(_EXAMPLES_SHOWN, train.num_texts)), 1):
        batch = next(maker.micro_batches(np.array([text])))
        shown = tokenizer.decode(batch.input_ids[: int(batch.sequence_starts[1])].tolist())
        say_example(number, dataset.task.shown_targets(batch.labels.numpy()), shown)


def _print_plan(
    settings: FinetuneSettings,
    rates: Sequence[float],
    learner: Learner,
    dataset: Dataset,
    step_seconds: float,
    seconds_a_text: float,
) -> None:
    budget, num_texts = Budget.parse(settings.budget), len(dataset.train)
    steps_an_epoch = math.ceil(num_texts / settings.batch_size)
    evaluating = (settings.evaluations + 1) * len(dataset.validation) * seconds_a_text
    evaluating += len(dataset.test) * seconds_a_text
    if budget.unit == "seconds":
        seconds, steps = budget.amount, max(0.0, budget.amount - evaluating) / step_seconds
    else:
        steps = budget.amount * (steps_an_epoch if budget.unit == "epochs" else 1)
        seconds = steps * step_seconds + evaluating
    models = 1 + len(settings.compare)
    # The first seed is trained at each rate, the others at the best.
    runs = (settings.seeds + len(rates) - 1) * models
    needs = Needs(settings, learner, steps)
    disk = needs.checkpoints + (settings.seeds + len(rates)) * models * needs.weights
    say_plan(
        {
            "model": f"{parameter_count(learner.model.config):,} parameters",
            "budget": f"{settings.budget} for each of {runs} runs" if runs > 1 else settings.budget,
            "steps": f"about {steps:,.0f} of {settings.batch_size} texts ({steps / steps_an_epoch:.1f} epochs)",
            "speed": f"{settings.batch_size / step_seconds:,.0f} texts/s, {step_seconds:.2f} s a step",
            "learning rate": " or ".join(f"{rate:g}" for rate in rates),
            "arithmetic": f"{settings.precision} on {settings.device}",
            "time": clock(seconds * runs),
            "memory": f"about {needs.memory / 1e9:.1f} GB",
            "disk": f"about {disk / 1e9:.2f} GB",
            "nearest run measured": _nearest(num_texts),
        }
    )
    if needs.warning:
        say(needs.warning)


def _nearest(rows: int) -> str:
    row = nearest("fine-tuning", rows=rows)
    return (
        f"{row['texts']}, {row['rows']:,} rows: accuracy {row['accuracy']:.3f}, macro-F1 {row['macro_f1']:.3f} "
        f"(accuracy with nothing pretrained {row['from_scratch']:.3f})"
    )
