"""Replaced token detection (Clark et al. 2020, section 2) beside always the answer that a token is the original."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from model.electra_pair import DiscriminatorAndGenerator

from .batches import PretrainingBatch
from .objective import Part, Row, Scores

# A discriminator that finds a smaller share of the replaced tokens has learned nothing of use.
_LEAST_FOUND = 0.01


@dataclass(kw_only=True)
class ReplacementBatch(PretrainingBatch):
    """A packed batch whose masked tokens a generator fills in, and of whose tokens a discriminator says which those are
    that are not the original ones."""

    chances: Tensor
    """[M] float32 in [0, 1], uniform: they decide what is drawn from the generator's softmax for each masked token."""


@dataclass(frozen=True, kw_only=True)
class ReplacementScores(Scores):
    """What both models make of a batch."""

    tokens: Tensor
    """[T] log odds that a token was replaced."""
    replaced: Tensor
    """[T] float32: 1 where a token is not the original one, else 0; also where the generator drew the original."""


class ReplacedTokens(Part):
    """RTD: which tokens were replaced, of all tokens with [CLS] and [SEP].

    Its results are rtd_loss (nats a token), rtd_accuracy, rtd_majority (what always "original" reaches), rtd_precision
    (of the tokens that are called replaced, the share that are) and rtd_recall (of the replaced tokens, the share that
    are found). What is replaced depends on the generator, so all of them do: as it learns, its tokens are harder to
    find.

    Args:
        mask_share: of the tokens, at the start of training.
    """

    name, learned, needs_pairs = "rtd", "replaced tokens (RTD)", False
    metrics = ("rtd_loss", "rtd_accuracy", "rtd_majority", "rtd_precision", "rtd_recall")
    baselines: Mapping[str, str] = {}
    weight, head = 50.0, "rtd_head.dense.weight"

    def __init__(self, mask_share: float):
        self.mask_share = mask_share

    def logits(self, scores: ReplacementScores) -> Tensor:
        """[T]."""
        return scores.tokens

    def targets(self, batch: PretrainingBatch) -> Tensor:
        """None of a batch alone: see `ReplacementScores.replaced`."""
        raise NotImplementedError("which tokens are replaced is known when the generator has drawn them")

    def modules(self, model: DiscriminatorAndGenerator) -> list[nn.Module]:
        """The head."""
        return [model.discriminator.rtd_head]

    def start(self, model: DiscriminatorAndGenerator) -> None:
        """The output bias is the log odds of a masked token: of a fresh generator's words hardly any is right."""
        nn.init.constant_(model.discriminator.rtd_head.output.bias, math.log(self.mask_share / (1 - self.mask_share)))

    def count(self, batch: ReplacementBatch) -> int:
        """Number of tokens that are judged."""
        return batch.num_tokens_learned

    def loss_sum(self, scores: ReplacementScores, batch: ReplacementBatch) -> Tensor:
        """Sum of the negative log likelihoods (nats, fp32) of the judged tokens: a scalar with a gradient."""
        judged = slice(batch.num_tokens_learned)
        return F.binary_cross_entropy_with_logits(
            scores.tokens[judged].float(), scores.replaced[judged], reduction="sum"
        )

    def score_sums(self, scores: ReplacementScores, batch: ReplacementBatch) -> dict[str, Tensor]:
        """Loss, right answers, replaced tokens, those called so, and those of them that are."""
        replaced = scores.replaced[: batch.num_tokens_learned]
        called = (scores.tokens[: batch.num_tokens_learned] > 0).float()
        return {
            "rtd_loss": self.loss_sum(scores, batch),
            "rtd_correct": (called == replaced).sum().float(),
            "rtd_replaced": replaced.sum(),
            "rtd_called": called.sum(),
            "rtd_found": (called * replaced).sum(),
        }

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Loss and accuracy beside always "original"; precision and recall are 0 of no token at all."""
        if not sums["rtd"]:
            return {}
        return {
            **super().results(sums),
            "rtd_majority": 1 - sums["rtd_replaced"] / sums["rtd"],
            "rtd_precision": sums["rtd_found"] / max(1, sums["rtd_called"]),
            "rtd_recall": sums["rtd_found"] / max(1, sums["rtd_replaced"]),
        }

    def summary(self, results: Mapping[str, float]) -> str:
        """The accuracy, and how many of the replaced tokens are found."""
        if "rtd_accuracy" not in results:
            return ""
        accuracy = f"RTD accuracy {results['rtd_accuracy']:.1%} (always original {results['rtd_majority']:.1%})"
        return f"{accuracy}, finds {results['rtd_recall']:.1%}"

    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """Loss, accuracy, precision, recall."""
        if results.get("rtd_accuracy") is None:
            return []
        return [
            Row("RTD loss (nats)", results["rtd_loss"], "nats"),
            Row("RTD accuracy", results["rtd_accuracy"], "share", results["rtd_majority"], 'always "original"'),
            Row("RTD precision", results["rtd_precision"], "share"),
            Row("RTD recall", results["rtd_recall"], "share", 0.0, 'always "original"'),
        ]

    def warnings(self, rows: Sequence[dict], share: float) -> dict[str, str]:
        """A discriminator that finds nothing at the end."""
        found = rows[-1]["validation"].get("rtd_recall")
        if share < 1 or found is None or found >= _LEAST_FOUND:
            return {}
        return {
            "nothing found": f"Warning: the discriminator finds {found:.1%} of the replaced tokens: give a longer "
            "--budget, or a smaller --preset, which makes more steps of the same time."
        }
