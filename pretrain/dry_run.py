"""The plan before hours are spent: a sample of the corpus, two steps, one evaluation, and what the run will take."""

import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from data_prep.preparation import prepare_sample, say
from data_prep.prepared import PreparedCorpus
from model import parameter_count

from .batches import Batches, Position
from .budget import Budget
from .build import make_data, make_model, make_objective, make_optimizer, precision_context
from .loop import Run, step
from .pretraining import base_config, with_batch_size
from .progress import clock
from .resolve import resolve
from .settings import PretrainSettings

SAMPLE_BYTES = 2_000_000
# The first step warms up (memory, kernels); the second is timed.
_STEPS = 2
_EVALUATED = 64


def dry_run(settings: PretrainSettings) -> None:
    """Print the plan of a run. Everything is written to a temporary folder that is removed again."""
    settings = resolve(settings, base_config(settings))
    with tempfile.TemporaryDirectory(prefix="domain-bert-") as folder:
        prepared, share = _sample(settings, Path(folder))
        objective = make_objective(settings, prepared)
        stream, maker, evaluation = make_data(settings, prepared, objective)
        settings = with_batch_size(settings, evaluation)
        model = make_model(settings, prepared).to(settings.device)
        run = _bare_run(settings, model)
        batches = Batches(stream, maker, settings.batch_size, Position())
        for _ in range(_STEPS):
            start = time.monotonic()
            step(run, next(batches), objective)
            seconds = time.monotonic() - start
        found = evaluation(model, _EVALUATED)
        corpus_tokens = round(stream.num_tokens / (share or 1.0))
        tokens_a_step = run.counters.tokens / _STEPS
        content_a_step = batches.position.content_tokens / _STEPS
    amount = f"{'at least' if share is None else 'about'} {corpus_tokens:,} tokens"
    _print_plan(settings, model, found, seconds, tokens_a_step, corpus_tokens / content_a_step, amount)


def _sample(settings: PretrainSettings, folder: Path) -> tuple[PreparedCorpus, float | None]:
    """A prepared corpus to try, and about which share of the whole it is."""
    if settings.prepared:
        return PreparedCorpus(settings.prepared, verify=False), 1.0
    prep = replace(settings.prep, tokenizer=settings.init_from or settings.prep.tokenizer)
    return prepare_sample(prep, settings.examples, folder / "prepared", SAMPLE_BYTES)


def _bare_run(settings: PretrainSettings, model) -> Run:
    """A run that trains and records nothing."""
    optimizer = make_optimizer(settings, model)
    optimizer.set_learning_rate(settings.learning_rate * 0.01)
    return Run(
        model=model.train(),
        optimizer=optimizer,
        budget=Budget.parse(settings.budget),
        rate=lambda progress: 0.0,
        precision=precision_context(settings.device, settings.precision),
        device=torch.device(settings.device),
        checkpoints=None,
        progress=None,
        clip_norm=settings.clip_norm,
        evaluations=settings.evaluations,
        judge=None,
        checkpoint_every=Budget.parse(settings.checkpoint_every),
        seed=settings.examples.seed,
    )


def _print_plan(settings, model, found, seconds, tokens_a_step, steps_an_epoch, amount) -> None:
    budget = Budget.parse(settings.budget)
    steps = {
        "seconds": budget.amount / seconds,
        "steps": budget.amount,
        "epochs": budget.amount * steps_an_epoch,
        "tokens": budget.amount / tokens_a_step,
    }[budget.unit]
    rows = [
        ("model", f"{parameter_count(model.config):,} parameters"),
        ("corpus", f"{amount}, {steps_an_epoch:,.0f} steps an epoch"),
        ("budget", settings.budget),
        ("steps", f"about {steps:,.0f} of {settings.batch_size} examples ({steps / steps_an_epoch:.1f} epochs)"),
        ("tokens", f"about {steps * tokens_a_step:,.0f}"),
        ("speed", f"{tokens_a_step / seconds:,.0f} tokens/s, {seconds:.2f} s a step"),
        ("arithmetic", f"{settings.precision} on {settings.device}"),
        ("time", clock(budget.amount if budget.unit == "seconds" else steps * seconds)),
        ("memory", f"{_peak_memory(settings.device) / 1e9:.1f} GB at most so far"),
        ("first held-out MLM loss", f"{found['mlm_loss']:.2f} (word frequencies: {found['unigram_entropy']:.2f})"),
    ]
    say("\nThe plan (nothing was kept):")
    for name, value in rows:
        say(f"  {name:<24}{value}")


def _peak_memory(device: str) -> int:
    """Bytes: of the GPU where there is one, else of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
