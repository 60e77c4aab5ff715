"""A fine-tuned teacher beside a task: a student also learns the probabilities that it gives to the classes (Hinton et
al. 2015)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_prep.text.cells import words_apart
from data_prep.text.sources import listing
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model.bert import BertWithHead
from pretrain.engine.folder import weights_digest

from .batches import LabelledBatch
from .rows import Example
from .settings import FinetuneError, FinetuneSettings
from .tasks import ClassObjective, Task
from .tokenizer import open_tokenizer

LOSS = "soft"
"""The name of the teacher's loss, as it is learned: times its share."""
# Logits are divided by it before the softmax.
TEMPERATURE = 2.0
_ROWS_AT_ONCE = 1024


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


def open_teacher(
    settings: FinetuneSettings, task: Task, tokenizer: TextTokenizer, train: Sequence[Example]
) -> Teacher | None:
    """The model that `--teacher` names; None without it.

    Args:
        tokenizer: of the student.
        train: the texts that both read.

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
    _check_tokenizers(open_tokenizer(folder), tokenizer, train, f"the teacher {folder}", settings.model)
    if model.config.max_position_embeddings < settings.sequence_length:
        raise FinetuneError(
            f"the teacher {folder} reads {model.config.max_position_embeddings} tokens: give --sequence-length up to "
            "that"
        )
    model = model.to(settings.device).eval().requires_grad_(False)
    return Teacher(task, model, [labels.index(name) for name in task.labels], weights_digest(folder))


def _check_tokenizers(
    of_teacher: TextTokenizer, of_student: TextTokenizer, train: Sequence[Example], teacher: str, student: str
) -> None:
    """Raises FinetuneError where they do not make the same sequences of the texts; those of a BERT and a DistilBERT
    may, which are kept in other forms."""
    both = of_teacher, of_student
    if of_teacher.digest() == of_student.digest() and of_teacher.tells_segments == of_student.tells_segments:
        return
    facts = [(each.cls_id, each.sep_id, each.unk_id, tuple(each.vocabulary)) for each in both]
    rows = (train[begin : begin + _ROWS_AT_ONCE] for begin in range(0, len(train), _ROWS_AT_ONCE))
    parts = ([words_apart(text) for row in part for text in row.every_text()] for part in rows)
    if facts[0] != facts[1] or any(of_teacher.encode(part) != of_student.encode(part) for part in parts):
        raise FinetuneError(f"{teacher} has another tokenizer than {student}: give a student of the same vocabulary")
    of_pairs = [(each.pair_separators, each.tells_segments) for each in both]
    if of_pairs[0] != of_pairs[1] and any(row.text_pair is not None for row in train):
        raise FinetuneError(f"{teacher} reads pairs of texts in another way than {student}: give a student that reads "
                            "them as the teacher does")  # fmt: skip
