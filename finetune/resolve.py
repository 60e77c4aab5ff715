"""From what a person asked to what is done: `auto` values, and where the results go."""

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from data_prep.console.options import option_name
from model import BertConfig
from model.families import read_config
from pretrain.engine.device import find_device
from pretrain.engine.folder import family_of, model_mistakes, require_embeddings, require_made
from pretrain.engine.settings import Budget
from pretrain.engine.stage import for_device

from .settings import FinetuneError, FinetuneSettings
from .tasks import Task
from .tasks.selection import TASKS
from .tokenizer import open_tokenizer
from .vectors.sentence_model import SentenceModel

# These do not decide the result of a seed.
MAY_DIFFER = {
    "out", "resume", "dry_run", "checkpoint_every", "keep_checkpoints", "log_every", "detect_anomaly", "seeds",
    "show_text", "report_by", "threads",
}  # fmt: skip
# Learning rate at hidden size 768 (Devlin et al. 2019, section A.3), and at 128, where it was measured
# (docs/fine_tuning.md): twice as much and some seeds fail.
_RATE_AT_768, _RATE_AT_128 = 5e-5, 6e-4
# Epochs of the paper; a small set takes more (Mosbach et al. 2021, section 6) to reach about as many steps as are given
# here for these widths: narrow models gain from more (docs/fine_tuning.md).
_EPOCHS, _MOST_EPOCHS, _STEPS_AT_768, _STEPS_AT_128 = 3, 30, 600, 1500
# Seeds of a set that does not reach this many, where one seed may end far below another (docs/fine_tuning.md).
_FEW_STEPS, _SEEDS_OF_FEW = 600, 5
_MOST_EVALUATIONS, _EVALUATIONS = 10, 5
# Of a sequence, as `--sequence-length` takes it.
_SHORTEST = 8


def out_folder(settings: FinetuneSettings) -> Path:
    """`--out`, or runs/NAME OF THE MODEL-NAME OF THE TEXTS."""
    if settings.out != "auto":
        return Path(settings.out)
    texts = "packages" if settings.train == "builtin" else _stem(settings.train)
    return Path("runs") / f"{model_name(settings.model)}-{texts}"


def model_name(folder: str) -> str:
    """How a model is called in tables and file names: a run's final/ goes by the name of the run."""
    path = Path(os.path.abspath(folder))
    name = path.parent.name if path.name == "final" else path.name
    return name or "model"


def _stem(path: str) -> str:
    return Path(path.removeprefix("hub:")).name.split(".")[0].strip("*?[] ") or "texts"


def model_config(folder: str) -> BertConfig:
    """The config of the model to start from.

    Raises:
        FinetuneError: the folder holds no model.
    """
    require_made(folder, FinetuneSettings.model, "pretrain.run")
    with model_mistakes(FinetuneError):
        return read_config(folder)


def check_model(folder: str, config: BertConfig) -> None:
    """Look at the files of a model before anything is written.

    Raises:
        FinetuneError, PrepError: weights or tokenizer are missing or damaged, or do not belong together.
    """
    family = family_of(folder, FinetuneError)
    with model_mistakes(FinetuneError):
        family.weights(Path(folder))
    require_embeddings(folder, open_tokenizer(folder).vocab_size, config.vocab_size, FinetuneError)


def resolve(settings: FinetuneSettings) -> FinetuneSettings:
    """Choose every `auto` but those that depend on the number of texts.

    Raises:
        FinetuneError, PretrainError, PrepError: there is no such model or device, or the model cannot read that many
            tokens.
    """
    config = model_config(settings.model)
    check_model(settings.model, config)
    if settings.teacher is not None:
        check_model(settings.teacher, model_config(settings.teacher))
    refuse_of_wrapped(settings)
    device = find_device(settings.device)
    longest = config.max_position_embeddings
    if settings.sequence_length != "auto" and settings.sequence_length > longest:
        raise FinetuneError(
            f"--sequence-length {settings.sequence_length} is more than {settings.model} reads: give up to {longest}"
        )
    if settings.task == "similarity":
        said = SentenceModel.found(Path(settings.model))
        # As long as the texts that its vectors were made of before.
        longest = min(longest, max(_SHORTEST, (said and said.sequence_length) or longest))
    chosen = {
        "learning_rate": learning_rate(settings.optimizer, config.hidden_size),
        "sequence_length": longest,
        **for_device(device),
    }
    if settings.grid == "paper":
        # Left open, for `candidates.paper_grid`.
        del chosen["learning_rate"]
    automatic = {name: value for name, value in chosen.items() if getattr(settings, name) == "auto"}
    return replace(settings, device=device, out=str(out_folder(settings)), **automatic)


def refuse_of_wrapped(settings: FinetuneSettings) -> None:
    """Raises FinetuneError where options ask for a head that a model which transformers computes cannot have here."""
    given = {"--hidden-layers": settings.hidden_layers, "--mlm-weight": settings.mlm_weight,
             "--task similarity": settings.task == "similarity"}  # fmt: skip
    named = [option for option, is_given in given.items() if is_given]
    if named and family_of(settings.model, FinetuneError).is_wrapped:
        remedy = "give another --model" if settings.task == "similarity" else "leave it out"
        raise FinetuneError(f"{' and '.join(named)} is for a BERT, and the heads of {settings.model} are those of "
                            f"transformers: {remedy}")  # fmt: skip


def with_budget(settings: FinetuneSettings, num_texts: int) -> FinetuneSettings:
    """The settings with budget and seeds for `num_texts` training texts and the width of the model, and an evaluation
    an epoch, ten at most; `candidates.paper_grid` has budgets of its own."""
    steps, is_grid, are_few = math.ceil(num_texts / settings.batch_size), settings.grid == "paper", False
    if settings.budget == "auto":
        are_few = _MOST_EPOCHS * steps < _FEW_STEPS
        wanted = _by_width(_STEPS_AT_128, _STEPS_AT_768, model_config(settings.model).hidden_size)
        epochs = min(_MOST_EPOCHS, max(_EPOCHS, round(wanted / steps)))
        settings = settings if is_grid else replace(settings, budget=f"{epochs}epochs")
    if settings.seeds == "auto":
        settings = replace(settings, seeds=_SEEDS_OF_FEW if are_few else 1)
    if settings.evaluations == "auto" and not is_grid:
        budget = Budget.parse(settings.budget)
        number = min(_MOST_EVALUATIONS, max(1, round(budget.amount))) if budget.unit == "epochs" else _EVALUATIONS
        settings = replace(settings, evaluations=number)
    return settings


def with_seeds(settings: FinetuneSettings, sizes: Iterable[int]) -> FinetuneSettings:
    """The settings with as many seeds for all of several trainings as the one with the fewest texts gets.

    Args:
        sizes: their numbers of training texts.
    """
    return replace(settings, seeds=max(with_budget(settings, size).seeds for size in sizes))


def with_task(settings: FinetuneSettings, task: Task) -> FinetuneSettings:
    """The settings with the score that this task is chosen by, and what it reads of long texts.

    Raises:
        FinetuneError: it has no such score, or options were given that do not act on it.
    """
    metric = task.default_metric if settings.metric == "auto" else settings.metric
    if metric not in task.deciding_metrics:
        there = ", ".join(task.deciding_metrics)
        raise FinetuneError(f"--metric {metric} is no score of {task.name}: there are {there}")
    of_some_tasks = frozenset[str]().union(*(kind.takes for kind in TASKS.values()))
    for name in sorted(of_some_tasks - task.takes):
        if getattr(settings, name) != getattr(FinetuneSettings, name):
            tasks = " and ".join(kind.name for kind in TASKS.values() if name in kind.takes)
            raise FinetuneError(f"{option_name(name)} is for {tasks}, not for {task.name}: leave it out")
    long_text = task.long_texts[0] if settings.long_text == "auto" else settings.long_text
    if long_text not in task.long_texts:
        raise FinetuneError(f"--long-text {long_text} is not for {task.name}: give {' or '.join(task.long_texts)}")
    return replace(settings, metric=metric, long_text=long_text)


def with_search(settings: FinetuneSettings) -> FinetuneSettings:
    """The settings with a learning rate found for this model, as for every other, unless all are to have one rate, or
    a grid has rates of its own."""
    is_open = settings.learning_rate == "auto" and settings.grid == "none"
    return replace(settings, learning_rate="search") if is_open else settings


def learning_rate(optimizer: str, hidden_size: int) -> float:
    """The default peak of AdamW (see `_by_width`). Muon's is half as much again, as everything but the layers' matrices
    takes 0.65 of it."""
    rate = _by_width(_RATE_AT_128, _RATE_AT_768, hidden_size)
    return float(f"{rate * (1.5 if optimizer == 'muon' else 1):.2g}")


def _by_width(at_128: float, at_768: float, hidden_size: int) -> float:
    """A power of the width, through its values for 128 units and for the 768 of BERT base."""
    exponent = math.log(at_128 / at_768) / math.log(768 / 128)
    return at_768 * (768 / hidden_size) ** exponent
