"""The plan before hours are spent: a sample of the corpus, a few steps, one evaluation, and what the run will take."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch

from data_prep.console.screen import say, say_plan
from data_prep.dry_run import SAMPLE_BYTES, show_examples, temporary_folder
from data_prep.examples.packing import Examples
from data_prep.prepared import PreparedCorpus
from data_prep.sample import Whole, prepare_sample
from model import BertConfig

from .batches import ExampleStream
from .build import make_model
from .engine.batches import Batches, Position
from .engine.distributed import World
from .engine.plan import Needs, nearest, seconds_a_step
from .engine.progress import clock
from .engine.settings import Budget
from .engine.stage import say_begun
from .engine.step import Learner, step
from .engine.threads import busy
from .gpu_memory import GpuMemory
from .objective import PretrainingObjective
from .objectives import make_objective
from .phases import Phase, make_phases, with_batch_size, with_weight_decay
from .pretraining import compiled, resolved, say_other_examples
from .report import not_reached, too_large, too_many, too_short
from .resolve import is_fresh_bert, is_open, out_folder, with_preset
from .settings import PretrainSettings

# The first step warms up (memory, kernels); the second is timed.
STEPS = 2
# The longest examples of this many steps make the step that needs the most memory.
SEARCHED = 8


def dry_run(settings: PretrainSettings) -> None:
    """Print the plan of a run. Everything is written to a temporary folder that is removed again.

    Raises:
        PretrainError, PrepError: the input cannot be used, or the output folder holds something else.
    """
    out = out_folder(settings)
    settings = resolved(settings, out)
    say_begun(out)
    torch.set_num_threads(settings.threads)
    with temporary_folder() as folder:
        prepared, whole = _sample(settings, folder)
        corpus_tokens = round(prepared.manifest["train"]["tokens"] * whole.train)
        if is_open(settings) and not whole.is_known:
            say("The size of the text is not known: the plan is for a model chosen by the sample (--preset sets one).")
        settings = with_preset(settings, corpus_tokens, prepared.tokenizer.vocab_size)
        objective = make_objective(settings, prepared)
        phases = make_phases(settings, prepared, objective, World())
        model = make_model(settings, prepared, objective).to(settings.device)
        # Of a text whose size is not known, a sample says nothing about how often it is read.
        tokens = corpus_tokens if whole.is_known else math.inf
        settings = with_weight_decay(with_batch_size(settings, phases, model), phases, model, tokens)
        learner = Learner(settings, model, objective, settings.examples.seed)
        compiled(settings, phases[0].evaluation, learner)
        speeds = [
            _measured(learner, phase, part.batch_size, corpus_tokens)
            for phase, (_, part) in zip(phases, settings.phases, strict=True)
        ]
        evaluation = phases[-1].evaluation
        found = evaluation(model, examples_at_once(evaluation.examples, settings.micro_batch_tokens))
        if not settings.prepared:
            show_examples(prepared)
        on_disk = (0.0, 0.0)
        if not settings.prepared:
            on_disk = whole.bytes_on_disk(prepared), whole.bytes_meanwhile(prepared)
    corpus = CorpusSize(corpus_tokens, whole.about, *on_disk)
    _print_plan(settings, learner, objective, objective.summary(found), speeds, corpus)


def _measured(learner: Learner, phase: Phase, batch_size: int, corpus_tokens: int) -> "Speed":
    """What steps on the examples of a phase take; one of long examples follows, which needs as much memory as any."""
    batches = Batches(Rehearsal(phase.stream), phase.maker, batch_size, Position(), World())
    before = learner.counters.tokens
    seconds = seconds_a_step(learner, batches, STEPS)
    tokens = (learner.counters.tokens - before) / STEPS
    content = batches.position.content_tokens / STEPS
    batches.draw()
    step(learner, batches)
    return Speed(phase.length, batch_size, seconds, tokens, corpus_tokens / content)


@dataclass(frozen=True)
class CorpusSize:
    """A whole corpus, as its sample has it."""

    tokens: int
    about: str
    """Or "at least"."""
    bytes: float
    """On disk, prepared; 0 where it is there already."""
    bytes_meanwhile: float
    """Beside them, until it is prepared."""

    def __str__(self) -> str:
        return f"{self.about} {self.tokens:,} tokens"


@dataclass(frozen=True)
class Speed:
    """What a step on examples of one length takes, and does."""

    length: int
    batch_size: int
    seconds: float
    tokens: float
    steps_an_epoch: float

    def steps_in(self, budget: Budget, share: float) -> float:
        """How many of them a share of a budget comprises."""
        one = {"seconds": self.seconds, "steps": 1.0, "epochs": 1 / self.steps_an_epoch, "tokens": self.tokens}
        return share * budget.amount / one[budget.unit]

    def __str__(self) -> str:
        return f"{self.tokens / self.seconds:,.0f} tokens/s, {self.seconds:.2f} s a step"


class Rehearsal:
    """A stream of the first batches of a run, and then one of long examples, which needs as much memory as any."""

    def __init__(self, stream: ExampleStream):
        self.stream = stream

    def batches(self, batch_size: int, start: Position) -> Iterator[tuple[Examples, Position]]:
        batches = self.stream.batches(batch_size, start)
        yield from islice(batches, STEPS)
        parts, positions = zip(*islice(batches, SEARCHED), strict=True)
        examples = Examples.concatenate(parts)
        yield examples[np.argsort(examples.lengths(), kind="stable")[-batch_size:]], positions[-1]

    def epochs(self, position: Position) -> float:
        return self.stream.epochs(position)


def examples_at_once(examples: Examples, tokens: int) -> int:
    """How many of the examples, from the first on, make a full micro-batch."""
    return max(1, int(np.searchsorted(examples.lengths().cumsum(), tokens, side="right")))


def _sample(settings: PretrainSettings, folder: Path) -> tuple[PreparedCorpus, Whole]:
    """A prepared corpus to try, and what it says of the whole."""
    if settings.prepared:
        prepared = PreparedCorpus(settings.prepared, verify=False)
        say_other_examples(settings, prepared)
        return prepared, Whole()
    prep = replace(settings.prep, tokenizer=settings.starts_from or settings.prep.tokenizer)
    examples = settings.examples.of_length(settings.examples.longest)
    return prepare_sample(prep, examples, folder / "prepared", SAMPLE_BYTES, Path(settings.out) / "prepared")


def _print_plan(
    settings: PretrainSettings, learner: Learner, objective: PretrainingObjective, described: str, speeds: list[Speed],
    corpus: CorpusSize,
) -> None:  # fmt: skip
    budget, parameters = Budget.parse(settings.budget), learner.model.num_parameters
    ends = [0.0, *(until for until, _ in settings.phases)]
    parts = [speed.steps_in(budget, end - begin) for speed, (begin, end) in zip(speeds, pairwise(ends), strict=True)]
    steps = sum(parts)
    seconds = sum(count * speed.seconds for count, speed in zip(parts, speeds, strict=True))
    tokens = sum(count * speed.tokens for count, speed in zip(parts, speeds, strict=True))
    epochs = sum(count / speed.steps_an_epoch for count, speed in zip(parts, speeds, strict=True))
    needs, first = Needs(settings, learner, steps), speeds[0]
    of_lengths = "".join(f"; at {s.length}: {s}" for s in speeds[1:])
    sizes = ", then ".join(map(str, dict.fromkeys(s.batch_size for s in speeds)))
    # And the model alone.
    disk = corpus.bytes + max(corpus.bytes_meanwhile, needs.checkpoints + needs.weights)
    say_plan(
        {
            "model": f"{parameters:,} parameters",
            "corpus": f"{corpus}, {first.steps_an_epoch:,.0f} steps an epoch",
            "budget": settings.budget,
            "steps": f"about {steps:,.0f} of {sizes} examples ({epochs:.1f} epochs)",
            "tokens": f"about {tokens:,.0f}",
            "speed": f"{first}{of_lengths}",
            "precision": f"{settings.precision} on {settings.device}",
            "time": clock(seconds),
            "memory": f"about {needs.memory / 1e9:.1f} GB",
            "tokens at once on a GPU": of_gpus(settings, learner.model.config, objective),
            "disk": f"about {disk / 1e9:.2f} GB",
            "before training": described,
            "nearest run measured": _nearest(settings, corpus.tokens, tokens, parameters),
        }
    )
    for warning in (
        needs.warning,
        *(not_reached(speed.length) for speed, count in zip(speeds[1:], parts[1:], strict=True) if count < 1),
        None if settings.starts_from else too_large(parameters, corpus.tokens),
        too_many(settings, corpus.tokens),
        None if settings.starts_from else too_short(steps, budget.unit == "seconds"),
        busy(settings),
    ):
        if warning:
            say(warning)


def _nearest(settings: PretrainSettings, tokens: float, read: float, parameters: int) -> str:
    """What is printed of the nearest measured run: all of them trained a fresh BERT.

    Args:
        tokens: of the text.
        read: tokens that the run computes in all epochs.
        parameters: of the model.
    """
    if not is_fresh_bert(settings):
        return "none of this kind"
    row = nearest("pretraining", tokens=tokens, read=read, parameters=parameters)
    took = f", {row['seconds'] / 60:.0f} minutes on 2 CPU cores" if "seconds" in row else ""
    return (
        f"{row['text']} ({row['tokens'] / 1e6:.1f} M tokens, {row['read'] / 1e6:.1f} M read{took}), "
        f"{row['model']}: MLM loss {row['loss']:.2f} (word frequencies {row['unigram_entropy']:.2f}), accuracy "
        f"{row['accuracy']:.1%}"
    )


def of_gpus(settings: PretrainSettings, config: BertConfig, objective: PretrainingObjective) -> str:
    """How many tokens at once fit GPUs of some sizes; where the plan is for a CPU, in bf16."""
    if not objective.memory_is_computed:
        return "not computed for this objective; a step that does not fit is computed in halves"
    if settings.teacher is not None:
        return "not computed beside a teacher"
    precision = settings.precision if settings.device == "cuda" else "bf16"
    heads = sum(part.scores_vocabulary for part in objective.parts)
    computed = GpuMemory(config, settings.optimizer, precision, max(settings.mask_shares), heads)
    return computed.of_gpus(settings.examples.longest)
