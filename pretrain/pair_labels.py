"""A part of an objective that gives each pair of segments one of two labels, beside always one answer."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from model import BertForPreTraining

from .batches import PretrainingBatch
from .objective import Part, Row, Scores

# A model that guesses is right a little more often than the majority in some evaluations.
_GUESSING = 0.02


class PairLabels(Part):
    """The head on the pooler. A part "x" has the results x_loss (nats), x_accuracy and x_majority where pairs have
    labels, else none.

    Args:
        weight, rate: of its loss, and of pooler and head (see `Part`).
    """

    needs_pairs = True

    def __init__(self, *, weight: float = 1.0, rate: float = 1.0):
        self.weight, self.rate = weight, rate

    def logits(self, scores: Scores) -> Tensor:
        """[N, 2]."""
        return scores.pair

    def targets(self, batch: PretrainingBatch) -> Tensor:
        """int64 [N], -100 for a pair without a label."""
        return batch.pair_targets

    def modules(self, model: BertForPreTraining) -> list[nn.Module]:
        """Pooler and head."""
        return [model.bert.pooler, model.nsp_head]

    def baseline_sums(self, batch: PretrainingBatch) -> dict[str, float]:
        """How many pairs have label 1."""
        return {f"{self.name}_ones": int((batch.pair_targets == 1).sum())}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Loss and accuracy beside the more frequent of the two answers."""
        if not sums[self.name]:
            return {}
        ones = sums[f"{self.name}_ones"] / sums[self.name]
        return {**super().results(sums), f"{self.name}_majority": max(ones, 1 - ones)}

    def summary(self, results: Mapping[str, float]) -> str:
        """The accuracy."""
        if results.get(f"{self.name}_accuracy") is None:
            return ""
        accuracy, majority = (results[f"{self.name}_{what}"] for what in ("accuracy", "majority"))
        return f"{self.name.upper()} accuracy {accuracy:.1%} (majority {majority:.1%})"

    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """Loss and accuracy; none where pairs have no labels."""
        if results.get(f"{self.name}_accuracy") is None:
            return []
        title = self.name.upper()
        loss, accuracy, majority = (results[f"{self.name}_{what}"] for what in ("loss", "accuracy", "majority"))
        return [
            Row(f"{title} loss (nats)", loss, "nats", math.log(2), "guessing"),
            Row(f"{title} accuracy", accuracy, "share", majority, "always one answer"),
        ]

    def warnings(self, rows: Sequence[dict], share: float) -> dict[str, str]:
        """A model that guesses at the end."""
        results = rows[-1]["validation"]
        accuracy, majority = results.get(f"{self.name}_accuracy"), results.get(f"{self.name}_majority")
        if share < 1 or accuracy is None or accuracy > majority + _GUESSING:
            return {}
        chance = f"({accuracy:.1%} right, {majority:.1%} by always one answer)"
        return {
            "guessing": f"Warning: {self.name.upper()} is still at chance {chance}: it is learned after the words are. "
            "Give a longer --budget if you want to fine-tune on pairs of texts."
        }
