"""Masked words of the training texts, learned beside a task: its loss plus a share of theirs (Radford et al. 2018,
section 3.2, whose auxiliary objective is language modelling)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_prep.console.screen import say
from data_prep.examples import Ints
from data_prep.examples.masking import MaskingRules, mask
from data_prep.examples.packing import Packed
from data_prep.examples.random_keys import keys
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model import PackedBatch
from model.bert import BertWithHead
from model.families import FAMILIES
from pretrain.engine.batches import empty_sequence, inputs
from pretrain.engine.folder import family_of, open_model
from pretrain.engine.step import Objective

from .settings import FinetuneError

LOSS = "mlm"
"""The name of the loss of masked words, as it is learned: times its weight."""


@dataclass(kw_only=True)
class MaskedCopy(PackedBatch):
    """The sequences of a batch once more, some of their tokens masked."""

    positions: Tensor
    """int64 [M], in [0, T), each once: the tokens to predict."""
    targets: Tensor
    """int64 [M], their true ids."""
    most_masked: int
    """At least the most of them in one sequence."""


class Masking:
    """Masks copies of sequences as pretraining does, in each step others.

    Args:
        seed: with step and sequence it decides what is masked.
    """

    def __init__(self, tokenizer: TextTokenizer, seed: int):
        self.tokenizer, self.rules, self.seed = tokenizer, MaskingRules.of(tokenizer), seed
        self.step = 0

    def begin(self, step: int) -> None:
        """Mask for this step from now on."""
        self.step = step

    def copy(self, packed: Packed, sequences: Ints) -> MaskedCopy:
        """A masked copy of packed sequences.

        Args:
            sequences: int64 [N], their numbers among all.
        """
        starts = packed.sequence_starts
        key = keys(self.seed, "auxiliary masks", self.step, sequences)
        ids, positions, targets = mask(packed.input_ids, packed.token_type_ids, starts, key, self.rules)
        return MaskedCopy(
            **inputs(packed) | {"input_ids": torch.from_numpy(ids)},
            positions=torch.from_numpy(positions),
            targets=torch.from_numpy(targets),
            most_masked=int(np.diff(np.searchsorted(positions, starts)).max()),
        )

    def empty_copy(self) -> MaskedCopy:
        """A copy without a target."""
        none = torch.zeros(0, dtype=torch.int64)
        return MaskedCopy(**empty_sequence(self.tokenizer), positions=none, targets=none, most_masked=0)


class WithMaskedWords:
    """A task's objective, and beside it the loss of masked words times `weight`; see `Objective` of the engine.

    Batches have a `masked` copy, the model an MLM head (`take_mlm_head`).
    """

    def __init__(self, task: Objective, weight: float):
        self.task, self.weight = task, weight

    def counts(self, batch: Any) -> Mapping[str, float]:
        """Those of the task, and how many words are masked."""
        return {**self.task.counts(batch), LOSS: len(batch.masked.targets)}

    def loss_sums(self, model: Any, batch: Any) -> dict[str, Tensor]:
        """Those of the task, and of the masked words (nats, fp32) times the weight."""
        copy: MaskedCopy = batch.masked
        hidden = model.bert.encode(copy, at=copy.positions, most_at=copy.most_masked).last_hidden_state  # [M, H]
        scores = model.word_scores(hidden).float()  # [M, V]
        loss = self.weight * F.cross_entropy(scores, copy.targets, reduction="sum")
        return {**self.task.loss_sums(model, batch), LOSS: loss}


def take_mlm_head(model: BertWithHead, folder: str | Path | None) -> None:
    """Give a model the MLM head of a folder, in which a checkpoint keeps it; a new one where there is none, which is
    said, or where no folder is given.

    Raises:
        FinetuneError: the folder cannot be used.
    """
    if folder is None:
        model.mlm_head = FAMILIES[model.config.model_type].masked_lm(model.config).mlm_head
        return
    of_folder = open_model(family_of(folder, FinetuneError).masked_lm, folder, FinetuneError)
    if of_folder.newly_initialised:
        say(f"{folder} has no MLM head: a new one starts at random.")
    model.mlm_head = of_folder.mlm_head
