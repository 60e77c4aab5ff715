"""A fine-tuned teacher beside a task: a student also learns the probabilities that it gives to the classes (Hinton et
al. 2015)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_prep.text.sources import listing
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model.bert import BertWithHead
from pretrain.engine.folder import weights_digest

from .batches import LabelledBatch
from .settings import FinetuneError, FinetuneSettings
from .tasks import ClassObjective, Task
from .tokenizer import open_tokenizer

LOSS = "soft"
"""The name of the teacher's loss, as it is learned: times its share."""
# Logits are divided by it before the softmax.
TEMPERATURE = 2.0


@dataclass(frozen=True)
class Teacher:
    """A model that was fine-tuned for the classes of a task."""

    task: Task
    model: BertWithHead
    """In eval mode, without gradients, on the device of the run."""
    order: list[int]
    """Where the model has each class of the task."""
    digest: str
    """Of its weights."""

    @torch.no_grad()
    def logits(self, batch: LabelledBatch) -> Tensor:
        """[P, C], in the order of the task's classes."""
        return self.task.logits(self.model, batch)[:, self.order]


class WithTeacher:
    """A task's objective and that of its teacher, as shares of one loss; see `Objective` of the engine.

    Args:
        share: of the teacher.
    """

    def __init__(self, objective: ClassObjective, teacher: Teacher, share: float):
        self.objective, self.teacher, self.share = objective, teacher, share

    def counts(self, batch: LabelledBatch) -> Mapping[str, float]:
        """Those of the task, and the items that the teacher is asked about."""
        return {**self.objective.counts(batch), LOSS: float(batch.weights.sum())}

    def loss_sums(self, model: Any, batch: LabelledBatch) -> dict[str, Tensor]:
        """Those of the task, and of the divergences from the teacher (nats, fp32), each times its share."""
        logits = self.teacher.task.logits(model, batch)
        of_task = {name: (1 - self.share) * value for name, value in self.objective.sums_of(logits, batch).items()}
        apart = divergences(logits, self.teacher.logits(batch)) * batch.weights
        return {**of_task, LOSS: self.share * apart.sum()}


def divergences(logits: Tensor, teacher: Tensor) -> Tensor:
    """The Kullback-Leibler divergences from a teacher's probabilities at the temperature, times its square, which keeps
    the gradient about as large as at 1: logits [P, C] twice -> float32 [P]."""
    ours, theirs = ((each.float() / TEMPERATURE).log_softmax(-1) for each in (logits, teacher))
    return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1) * TEMPERATURE**2


def open_teacher(settings: FinetuneSettings, task: Task, tokenizer: TextTokenizer) -> Teacher | None:
    """The model that `--teacher` names; None without it.

    Args:
        tokenizer: of the student.

    Raises:
        FinetuneError, PrepError: it cannot be used, or does not fit the task or the student.
    """
    if settings.teacher is None:
        return None
    folder = Path(settings.teacher)
    model = task.open_model(folder)
    labels = task.of_model(model.config).labels
    if set(labels) != set(task.labels):
        named = f": {listing(labels, 8)}; {listing(task.labels, 8)}" if settings.show_text == "yes" else ""
        raise FinetuneError(
            f"the teacher {folder} has other classes than {settings.train}{named}: fine-tune it on the same classes"
        )
    if open_tokenizer(folder).digest() != tokenizer.digest():
        raise FinetuneError(
            f"the teacher {folder} has another tokenizer than {settings.model}: give a student of the same vocabulary"
        )
    if model.config.max_position_embeddings < settings.sequence_length:
        raise FinetuneError(
            f"the teacher {folder} reads {model.config.max_position_embeddings} tokens: give --sequence-length up to "
            "that"
        )
    model = model.to(settings.device).eval().requires_grad_(False)
    return Teacher(task, model, [labels.index(name) for name in task.labels], weights_digest(folder))
