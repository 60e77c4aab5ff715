"""What methods without a BERT reach on the same texts."""

import numpy as np

from data_prep.console.screen import say

from .dataset import Dataset
from .metrics import combined
from .settings import FinetuneSettings
from .tasks import Task


def run_baselines(
    settings: FinetuneSettings, dataset: Dataset, keep: dict[str, tuple[Task, dict[str, np.ndarray]]] | None = None
) -> dict[str, dict]:
    """The scores of each baseline of the task: name -> {"validation", "test"}, the latter None where there is none.

    Args:
        keep: where their outputs are put too, each with the task as it was decided on them: name -> (task, {split:
            outputs}).
    """
    task, held_out = dataset.task, dataset.held_out()
    results = {}
    say(f"\n{task.baselines_are[0].upper()}{task.baselines_are[1:]}: {', '.join(task.baseline_names)}.")
    for name, outputs in task.baselines(dataset.train, held_out, settings).items():
        tuned = task.tuned(task.targets(held_out["validation"]), outputs["validation"])
        outputs = {split: tuned.finished(found) for split, found in outputs.items()}
        if keep is not None:
            keep[name] = (tuned, outputs)
        scores = {split: combined([tuned.scores(task.targets(held_out[split]), p)]) for split, p in outputs.items()}
        results[name] = {"validation": None, "test": None, **scores}
    return results
