"""Next sentence prediction (Devlin et al. 2019, section 3.1, task 2) beside always one answer."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from model import BertForPreTraining

from .batches import PretrainingBatch
from .objective import Part, Row, Scores

# A model that guesses is right a little more often than the majority in some evaluations.
_GUESSING = 0.02


class NextSentence(Part):
    """NSP: whether B follows A. Where pairs have labels its results are nsp_loss (nats), nsp_accuracy, nsp_majority."""

    name, learned, needs_pairs = "nsp", "next sentences (NSP)", True
    metrics = ("nsp_loss", "nsp_accuracy", "nsp_majority")
    baselines = {"accuracy": "nsp_majority"}

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
        """How many pairs are random ones."""
        return {"nsp_random": int((batch.pair_targets == 1).sum())}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Loss and accuracy beside the more frequent of the two answers."""
        if not sums["nsp"]:
            return {}
        random = sums["nsp_random"] / sums["nsp"]
        return {**super().results(sums), "nsp_majority": max(random, 1 - random)}

    def summary(self, results: Mapping[str, float]) -> str:
        """The accuracy."""
        if "nsp_accuracy" not in results:
            return ""
        return f"NSP accuracy {results['nsp_accuracy']:.1%} (majority {results['nsp_majority']:.1%})"

    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """Loss and accuracy; none where pairs have no labels."""
        if results.get("nsp_accuracy") is None:
            return []
        return [
            Row("NSP loss (nats)", results["nsp_loss"], "nats", math.log(2), "guessing"),
            Row("NSP accuracy", results["nsp_accuracy"], "share", results["nsp_majority"], "always one answer"),
        ]

    def warnings(self, rows: Sequence[dict], share: float) -> dict[str, str]:
        """A model that guesses at the end."""
        results = rows[-1]["validation"]
        accuracy, majority = results.get("nsp_accuracy"), results.get("nsp_majority")
        if share <= 1 or accuracy is None or accuracy > majority + _GUESSING:
            return {}
        return {
            "guessing": f"Warning: NSP is still at chance ({accuracy:.1%} right, {majority:.1%} by always one answer): "
            "it is learned after the words are. Give a longer --budget if you want to fine-tune on pairs of texts."
        }
