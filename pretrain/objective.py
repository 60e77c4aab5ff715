"""What is learned: masked words and next sentences, as sums of losses and numbers of targets.

The loop divides the sums of a global step by its numbers of targets, so a step is the same however it is divided into
micro-batches. Fine-tuning tasks are objectives with the same three functions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from model import BertForPreTraining, PackedBatch

from .cross_entropy import cross_entropy_sum


class PretrainingObjective:
    """MLM, and NSP unless it is switched off (Devlin et al. 2019, section 3.1); the two are added 1:1."""

    def __init__(self, next_sentence: bool = True):
        self.names = ("mlm", "nsp") if next_sentence else ("mlm",)

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        """Number of targets of each part; no model needed."""
        targets = {"mlm": len(batch.masked_labels), "nsp": int((batch.next_sentence_labels >= 0).sum())}
        return {name: targets[name] for name in self.names}

    def loss_sums(self, model: BertForPreTraining, batch: PackedBatch) -> dict[str, Tensor]:
        """Sum of the negative log likelihoods (nats, fp32) of each part's targets: scalars with gradients."""
        mlm_logits, nsp_logits = model.forward_packed(batch)
        sums = {"mlm": cross_entropy_sum(mlm_logits, batch.masked_labels)}
        if "nsp" in self.names:
            sums["nsp"] = F.cross_entropy(nsp_logits.float(), batch.next_sentence_labels, reduction="sum")
        return sums

    @torch.no_grad()
    def score_sums(
        self, model: BertForPreTraining, batch: PackedBatch, chosen: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Sums for an evaluation: `mlm_loss`, `mlm_correct` and, with NSP, `nsp_loss`, `nsp_correct`: scalars in
        float32 on the model's device, for which nothing has waited.

        `chosen`, float32 [M], gives a weight to each masked token: with it also `chosen_loss` and `chosen_correct`.
        """
        mlm_logits, nsp_logits = model.forward_packed(batch)
        parts = {"mlm": (mlm_logits.float(), batch.masked_labels)}
        if "nsp" in self.names:
            parts["nsp"] = (nsp_logits.float(), batch.next_sentence_labels)
        sums = {}
        for name, (logits, labels) in parts.items():
            sums[f"{name}_loss"] = F.cross_entropy(logits, labels, reduction="sum")
            sums[f"{name}_correct"] = (logits.argmax(-1) == labels).sum().float()
        if chosen is not None:
            logits, labels = parts["mlm"]
            # No product of matrices, which autocast would compute in half precision.
            sums["chosen_loss"] = (F.cross_entropy(logits, labels, reduction="none") * chosen).sum()
            sums["chosen_correct"] = ((logits.argmax(-1) == labels) * chosen).sum()
        return sums
