"""Distillation: a student learns masked words, and what a teacher makes of the same masked text (Sanh et al. 2019)."""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_prep.prepared import PreparedCorpus
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertConfig, BertForMaskedLM, BertForPreTraining

from .batches import PretrainingBatch
from .build import check_embeddings, check_length, check_model, check_tokenizer
from .engine.folder import open_model, weights_digest
from .engine.settings import PretrainError
from .objective import Part, PretrainingObjective, Row
from .settings import PretrainSettings
from .soft_targets import SoftTargets, TaughtScores, positions


class States(Part):
    """The direction of the teacher's last hidden states, at all tokens or at the masked ones.

    Its result is cosine_loss: 1 - the cosine of student and teacher.

    Args:
        every: whether at all tokens.
        weight: of its loss.
    """

    name, learned, needs_pairs = "cosine", "its last hidden states", False
    metrics = ("cosine_loss",)
    baselines: Mapping[str, str] = {}

    def __init__(self, every: bool, weight: float):
        self.every, self.weight = every, weight

    def modules(self, model: BertForPreTraining) -> list[nn.Module]:
        """None: it is learned by the encoder."""
        return []

    def count(self, batch: PretrainingBatch) -> int:
        """Number of tokens at which the teacher is learned from."""
        return len(positions(batch, self.every))

    def loss_sum(self, scores: TaughtScores, batch: PretrainingBatch) -> Tensor:
        """Sum of 1 - cosine (fp32): a scalar with a gradient."""
        return (1 - F.cosine_similarity(scores.states.float(), scores.teacher_states.float(), dim=-1)).sum()

    def score_sums(self, scores: TaughtScores, batch: PretrainingBatch) -> dict[str, Tensor]:
        """That of the loss."""
        return {"cosine_loss": self.loss_sum(scores, batch)}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The loss."""
        return {"cosine_loss": sums["cosine_loss"] / sums[self.name]} if sums[self.name] else {}

    def summary(self, results: Mapping[str, float]) -> str:
        """The loss."""
        return f"1 - cosine {results['cosine_loss']:.3f}" if "cosine_loss" in results else ""

    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """The loss."""
        if results.get("cosine_loss") is None:
            return []
        return [Row("1 - cosine of states", results["cosine_loss"], "number")]


class DistillationObjective(PretrainingObjective):
    """The parts of an objective, and what a teacher makes of the same batches.

    Args:
        objective: of a BERT; its masked words get the weight that is given.
        teacher: is moved to the device of the student; it stays as it is, in eval mode.
        digest: of the teacher's weights.
        taught: parts that read `TaughtScores`.
        every: whether the teacher is learned from at all tokens.
    """

    def __init__(self, objective: PretrainingObjective, teacher: BertForMaskedLM, digest: str, taught: list[Part],
                 every: bool):  # fmt: skip
        super().__init__([*objective.parts, *taught], objective.off, objective.batch_maker)
        # No module of the objective: neither the optimizer nor a checkpoint knows of it.
        self.teacher = teacher.eval().requires_grad_(False)
        self.digest, self.every = digest, every
        self.teaches_words = any(isinstance(part, SoftTargets) for part in taught)

    @property
    def facts(self) -> dict[str, str]:
        """The digest of the teacher."""
        return {"teacher": self.digest}

    def scores(self, model: BertForPreTraining, batch: PretrainingBatch) -> TaughtScores:
        """Both read the masked batch; the words to predict are among the tokens at which they are asked. Where no words
        of the teacher are learned, none but these are scored."""
        at = positions(batch, self.every)
        states, pooled = _read(model, batch, at)
        with torch.no_grad():
            teacher_states, _ = _read(self.teacher, batch, at)
            teacher_logits = self.teacher.word_scores(teacher_states) if self.teaches_words else None

        def masked(values: Tensor) -> Tensor:
            return values.index_select(0, batch.masked_positions) if self.every else values

        logits = model.word_scores(states) if self.teaches_words else None
        words = model.word_scores(masked(states)) if logits is None else masked(logits)
        return TaughtScores(words, model.nsp_head(pooled), logits, teacher_logits, states, teacher_states)


def _read(
    model: BertForPreTraining | BertForMaskedLM, batch: PretrainingBatch, at: Tensor
) -> tuple[Tensor, Tensor | None]:
    """What a model makes of a batch: last hidden states [P, H] of some tokens, and the pooler's output.

    Args:
        at: int64 [P], places in [0, T), each once.
    """
    most = batch.most_masked if len(at) == len(batch.masked_positions) else None
    encoded = model.bert.encode(batch, at=at, most_at=most)
    return encoded.last_hidden_state, encoded.pooler_output


def distilled(
    objective: PretrainingObjective, settings: PretrainSettings, prepared: PreparedCorpus
) -> DistillationObjective:
    """What is learned from `--teacher` beside an objective.

    Raises:
        PretrainError, PrepError: the teacher cannot be used, or does not fit the corpus.
    """
    soft, words, cosine = settings.teacher_weights
    teacher = open_teacher(settings, prepared)
    for part in objective.parts:
        part.weight = words if part.name == "mlm" else part.weight
    every = settings.teacher_positions == "all"
    taught = [SoftTargets(prepared.unigram_counts, every, soft), States(every, cosine)]
    digest = weights_digest(Path(str(settings.teacher)))
    return DistillationObjective(objective, teacher, digest, [part for part in taught if part.weight], every)


def open_teacher(settings: PretrainSettings, prepared: PreparedCorpus) -> BertForMaskedLM:
    """The BERT that `--teacher` names, with its MLM head, on the device of the run.

    Raises:
        PretrainError, PrepError: it cannot be used, or does not fit the corpus.
    """
    folder = str(settings.teacher)
    tokenizer = WordPieceTokenizer.load(folder)
    check_tokenizer(tokenizer, folder, prepared)
    if prepared.tokenizer.vocab_size > tokenizer.vocab_size:
        raise PretrainError(
            f"{prepared.folder} has vocabulary entries that the teacher {folder} does not know: prepare the corpus "
            f"with --tokenizer {folder}, without --extend-vocab"
        )
    teacher = open_model(BertForMaskedLM, folder, PretrainError)
    if teacher.newly_initialised:
        raise PretrainError(
            f"{folder} has no MLM head (it lacks {teacher.newly_initialised[0]}): give a pretrained BERT as --teacher"
        )
    check_embeddings(teacher, tokenizer, folder)
    check_model(teacher, folder, prepared, settings.examples.longest)
    return teacher.to(settings.device)


def check_teacher(settings: PretrainSettings, teacher: BertConfig, student: BertConfig) -> None:
    """Refuse what does not fit as far as configs and tokenizers show it, before a corpus is prepared.

    Args:
        student: what the run starts from.

    Raises:
        PretrainError: the teacher is no BERT, reads too short sequences, or is none for the student.
        PrepError: one of the two has no tokenizer.
    """
    folder, own = str(settings.teacher), settings.init_from
    if teacher.model_type != BertConfig.model_type:
        raise PretrainError(
            f"{folder} is of the type {teacher.model_type}, and only a BERT can teach: give a BERT as --teacher"
        )
    check_length(teacher, folder, settings.examples.longest)
    if own is None:
        return
    if settings.teacher_weights[2] and student.hidden_size != teacher.hidden_size:
        raise PretrainError(
            f"{own} has {student.hidden_size} hidden units and the teacher {teacher.hidden_size}, so that their states "
            "do not compare: leave these out with --teacher-weights 5,2,0"
        )
    if student.vocab_size != teacher.vocab_size:
        raise PretrainError(
            f"{own} has {student.vocab_size} word embeddings and the teacher {teacher.vocab_size}: give both as many "
            "(resize_token_embeddings of transformers)"
        )
    if WordPieceTokenizer.load(own).digest() != WordPieceTokenizer.load(folder).digest():
        raise PretrainError(
            f"{own} has another tokenizer than the teacher {folder}: give a student with the tokenizer of the teacher"
        )
