"""What comparisons, folds and learning curves share: several fine-tunings, each in a folder under one output folder."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from pretrain.engine.distributed import World
from pretrain.engine.folder import claimed
from pretrain.engine.process import Interruption
from pretrain.engine.stage import agreed, as_before, stage, write_settings

from .dataset import Dataset
from .finetuning import run_seeds
from .resolve import MAY_DIFFER, out_folder, resolve, with_task
from .settings import FinetuneSettings
from .tasks import Task


@contextmanager
def stage_of_several(settings: FinetuneSettings) -> Iterator[tuple[FinetuneSettings, World, Interruption]]:
    """See `pretrain.engine.stage.stage`. The settings keep their `auto`, which each of the runs chooses for itself, but
    for the output folder."""
    out = out_folder(settings)
    with stage(settings, out, lambda: as_before(settings, out, MAY_DIFFER) or settings) as (asked, world, interruption):
        yield replace(asked, out=str(out)), world, interruption


def write_asked(settings: FinetuneSettings, task: Task, world: World) -> None:
    """Write down what was asked for all of the runs, once their task is known.

    Raises:
        FinetuneError: it does not go with the task.
    """
    with_task(settings, task)
    if world.is_main:
        write_settings(settings, Path(settings.out))


def as_begun(run: FinetuneSettings, world: World, fresh: FinetuneSettings | None = None) -> FinetuneSettings:
    """The settings of one of the runs without `auto`, as it was begun: a seed goes on with what was chosen for those
    before it, also on another machine.

    Args:
        run: with its own folder as `out`.
        fresh: the settings to begin with, where they are not these.

    Raises:
        FinetuneError, PretrainError: the model cannot be used, or the folder holds something else.
    """
    return agreed(run, world, lambda: resolve(as_before(run, Path(run.out), MAY_DIFFER) or fresh or run))


def results_of_run(
    run: FinetuneSettings, dataset: Dataset, world: World, interruption: Interruption, **how: bool
) -> dict:
    """What one of the runs reaches, with the settings of `as_begun` (see `run_seeds`)."""
    out = Path(run.out)
    with claimed(out) if world.is_main else nullcontext():
        return run_seeds(run, out, dataset, world, interruption, **how)
