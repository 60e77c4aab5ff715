"""What is learned of vectors: that those of texts that belong together are nearer than others, or how near they are.

The vectors of a batch stand in pairs: 2k and 2k + 1 are of one pair, or of two passes over one text.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from model.tasks import BertForVectors

from ..batches import LabelledBatch
from .cosines import TEMPERATURE


class InBatchNegatives:
    """The cross entropy of finding the other text of a pair among those of all pairs of a batch, by their cosines; see
    `Objective` of the engine. A batch is a group (see `groups`).

    With `both_ways` each text of a pair is to find the other one, and the mean of both counts (Radford et al. 2021,
    section 2.3); else the first is to find the second. Of two passes over the same texts with other dropout the latter
    is unsupervised SimCSE (Gao et al. 2021, section 3).
    """

    def __init__(self, both_ways: bool):
        self.both_ways = both_ways

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Number of pairs."""
        return {"label": float(batch.num_sequences // 2)}

    def loss_sums(self, model: BertForVectors, batch: LabelledBatch) -> dict[str, Tensor]:
        """Sum of the losses (nats, fp32): a scalar with gradient."""
        vectors = _vectors(model, batch)
        if len(vectors) % 2:
            return {"label": 0 * vectors.sum()}
        numbers = batch.labels[:, 0]
        losses = contrastive_losses(vectors[0::2], vectors[1::2], numbers[0::2], numbers[1::2], self.both_ways)
        return {"label": losses.sum()}


class CosineRegression:
    """The squared error of the cosine of a pair as its score, which is from 0 to 1; see `Objective` of the engine.

    It is a sum over pairs, which micro-batches and processes may divide; a ranking of all pairs of a batch is none.
    """

    def counts(self, batch: LabelledBatch) -> dict[str, float]:
        """Number of pairs."""
        return {"label": float(batch.num_sequences // 2)}

    def loss_sums(self, model: BertForVectors, batch: LabelledBatch) -> dict[str, Tensor]:
        """Sum of the squared errors (fp32): a scalar with gradient."""
        vectors = _vectors(model, batch)
        if len(vectors) % 2:
            return {"label": 0 * vectors.sum()}
        errors = F.cosine_similarity(vectors[0::2], vectors[1::2]) - batch.labels[0::2, 1]
        return {"label": errors.square().sum()}


def _vectors(model: BertForVectors, batch: LabelledBatch) -> Tensor:
    """[N, H]; of a batch without a target a single one, which is no pair."""
    found = model(batch).pooler_output
    assert found is not None
    return found


def contrastive_losses(
    first: Tensor, second: Tensor, first_text: Tensor, second_text: Tensor, both_ways: bool
) -> Tensor:
    """The negative log of the probability of the right text in a softmax of cosines / TEMPERATURE: [G].

    A text never stands against itself: left out are what is equal to the asking text, or to the right one, and what
    belongs to a copy of the asking text.

    Args:
        first, second: vectors [G, H].
        first_text, second_text: [G], the number of each text, the same for equal ones.
    """
    # In bf16 a cosine of 1 is off by more than other texts differ.
    with torch.autocast(first.device.type, enabled=False):
        scores = F.normalize(first) @ F.normalize(second).T / TEMPERATURE  # [G, G]
    asking, right = first_text[:, None], second_text[:, None]
    is_out = (asking == second_text) | (right == second_text) | (asking == first_text)
    is_out = is_out & ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    own = scores.diagonal()
    scores = scores.masked_fill(is_out, -torch.inf)
    forth = scores.logsumexp(1) - own
    return (forth + scores.logsumexp(0) - own) / 2 if both_ways else forth
