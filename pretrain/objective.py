"""What a pretraining learns: parts that share a forward pass. A part owns all that there is to know of what it learns.

`engine.step` divides the sums of a global step by its numbers of targets: a step is the same in any micro-batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import BertForPreTraining
from model.families import Family

from .batches import BatchMaker, PretrainingBatch
from .engine.optimizer import HeadRates


@dataclass(frozen=True)
class Scores:
    """What a model makes of a batch."""

    words: Tensor
    """[M, V] logits at the masked positions, or [M, S] where the batch names entries."""
    pair: Tensor | None
    """[N, 2] logits of the sentence pair; None where nothing is made of pairs."""


@dataclass(frozen=True)
class Row:
    """A held-out result beside its baseline."""

    name: str
    value: float
    unit: Literal["nats", "share", "count", "number"]
    baseline: float | None = None
    of: str = ""
    """What reaches the baseline."""


class Part(ABC):
    """What one head learns, and how that is judged. Its losses are named after it: "x" has x_loss and x_accuracy."""

    name: str
    learned: str
    """In a sentence: "pretrained with ..."."""
    needs_pairs: bool
    """Whether examples are to be pairs of segments."""
    exchanges: bool = True
    """Whether half of the pairs may have exchanged B's, as next sentence prediction wants it; else B follows A."""
    metrics: tuple[str, ...]
    """The names of its results."""
    baselines: Mapping[str, str]
    """"loss" or "accuracy" -> the result that is its baseline. Baselines depend on the held-out examples alone."""
    weight: float = 1.0
    """Factor of its mean loss in the loss that a step minimises."""
    rate: float = 1.0
    """Share of the learning rate that its `modules` are trained at."""
    scores_vocabulary: bool = False
    """Whether its head scores all entries of the vocabulary for masked positions, which takes memory."""
    head: str | None = None
    """The first tensor of the head that `start` initialises. The head is new if the model folder lacks this tensor."""
    training_only: bool = False
    """Whether no model folder has its head (see `PretrainedModel.training_only`): each run begins with a new one."""

    def logits(self, scores: Scores) -> Tensor:
        """[targets, classes]. A part whose targets are not classes does not implement this; it overrides `count` and
        the sums."""
        raise NotImplementedError

    def targets(self, batch: PretrainingBatch) -> Tensor:
        """int64 [targets], -100 where there is none."""
        raise NotImplementedError

    @abstractmethod
    def modules(self, model: BertForPreTraining) -> list[nn.Module]:
        """What is trained by this part alone."""

    def start(self, model: BertForPreTraining) -> None:
        """Give a fresh head what it would otherwise spend its first steps on learning."""
        return None

    def count(self, batch: PretrainingBatch) -> int:
        """Number of targets; no model needed."""
        return int((self.targets(batch) >= 0).sum())

    def loss_sum(self, scores: Scores, batch: PretrainingBatch) -> Tensor:
        """Sum of the negative log likelihoods (nats, fp32) of the targets: a scalar with a gradient."""
        return F.cross_entropy(self.logits(scores).float(), self.targets(batch), reduction="sum")

    def score_sums(self, scores: Scores, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Sums for an evaluation: scalars in float32 on the model's device, for which nothing has waited."""
        logits, targets = self.logits(scores).float(), self.targets(batch)
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return {f"{self.name}_loss": loss, f"{self.name}_correct": (logits.argmax(-1) == targets).sum().float()}

    def baseline_sums(self, batch: PretrainingBatch) -> dict[str, float]:
        """What is reached without a model, as sums over the targets of a batch on the host. The names must be the same
        for every batch, because processes add the sums up."""
        return {}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Held-out results and their baselines out of all sums; none where nothing was to be predicted.

        Args:
            sums: those of `score_sums` and `baseline_sums`, and the number of targets under the part's name.
        """
        if not sums[self.name]:
            return {}
        return {f"{self.name}_{what}": sums[f"{self.name}_{done}"] / sums[self.name]
                for what, done in (("loss", "loss"), ("accuracy", "correct"))}  # fmt: skip

    @abstractmethod
    def summary(self, results: Mapping[str, float]) -> str:
        """Its results in a few words."""

    @abstractmethod
    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """Its results, one by one."""

    def warnings(self, rows: Sequence[dict], share: float) -> dict[str, str]:
        """Kind -> sentence, if the part does not learn as it should; each kind is printed once.

        Args:
            rows: of metrics.jsonl, those of evaluations: the newest comes last.
            share: of the budget that is used; 1 at its end.
        """
        return {}


_USE = """\
```python
from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/folder")
print(fill("One word is [MASK] here."))
```"""


class PretrainingObjective:
    """Parts whose mean losses are added, times their weights: in BERT 1:1 (Devlin et al. 2019, section 3.1).

    An objective that needs more of a model than `Scores` holds subclasses `Scores`, and returns that from `scores`.

    Args:
        off: parts that are not learned; modules that only they would train are frozen.
        batch_maker: makes the batches, as `BatchMaker` does, with what the parts' targets are read from.
    """

    family: ClassVar[str] = "bert"
    """The `model_type` of the models it starts with, unless another is asked for."""
    hub_task: ClassVar[str] = "fill-mask"
    """What hubs call that which its models do."""
    memory_is_computed: ClassVar[bool] = True
    """Whether `gpu_memory` knows what its steps take."""
    use: ClassVar[str] = _USE
    """How to use its models, in Markdown for the model card."""

    def __init__(self, parts: Sequence[Part], off: Sequence[Part] = (), batch_maker: type[BatchMaker] = BatchMaker):
        self.parts, self.off, self.batch_maker = tuple(parts), tuple(off), batch_maker

    @property
    def needs_pairs(self) -> bool:
        """Whether examples are to be pairs of segments."""
        return any(part.needs_pairs for part in self.parts)

    @property
    def exchanges(self) -> bool:
        """Whether half of the pairs are to have exchanged B's; else B follows A in all of them."""
        return all(part.exchanges for part in self.parts)

    @property
    def learned(self) -> str:
        """In a sentence: "pretrained with ..."."""
        return " and ".join(part.learned for part in self.parts if part.weight)

    @property
    def name(self) -> str:
        """The names of its parts, joined by "+"."""
        return "+".join(part.name for part in self.parts)

    @property
    def facts(self) -> dict[str, str]:
        """What must stay the same when a run resumes, besides its name: readable name -> value."""
        return {}

    @property
    def metrics(self) -> list[str]:
        """The names of all results, those of parts that are off included."""
        return [name for part in (*self.parts, *self.off) for name in part.metrics]

    def model_class(self, family: Family) -> type[BertForPreTraining]:
        """The class of models of a family that it is learned with: a subclass where it has heads of its own."""
        return family.pretraining

    def start(self, model: BertForPreTraining, learned: Collection[str] = ()) -> None:
        """Give fresh heads what they would otherwise spend their first steps on learning.

        Args:
            learned: names of the parts whose heads come from a folder; the others are fresh.
        """
        for part in self.parts:
            if part.name not in learned:
                part.start(model)

    def rates(self, model: BertForPreTraining) -> HeadRates | None:
        """Shares of the learning rate for the modules of single parts, where any has its own."""
        own = {
            id(parameter): part.rate
            for part in self.parts
            if part.rate != 1
            for module in part.modules(model)
            for parameter in module.parameters()
        }
        shares = {name: own[id(parameter)] for name, parameter in model.named_parameters() if id(parameter) in own}
        return HeadRates(shares) if shares else None

    def freeze_unused(self, model: BertForPreTraining) -> None:
        """Freeze the modules of parts that are off."""
        for part in self.off:
            for module in part.modules(model):
                module.requires_grad_(False)

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Number of targets of each part; no model needed."""
        return {part.name: part.count(batch) for part in self.parts}

    def loss_sums(self, model: BertForPreTraining, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Sum of the negative log likelihoods (nats, fp32) of each part's targets, times its weight: scalars with
        gradients."""
        scores = self.scores(model, batch)
        return {part.name: part.weight * part.loss_sum(scores, batch) for part in self.parts}

    @torch.no_grad()
    def score_sums(self, model: BertForPreTraining, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Sums for an evaluation: scalars in float32 on the model's device, for which nothing has waited."""
        scores, sums = self.scores(model, batch), {}
        for part in self.parts:
            sums |= part.score_sums(scores, batch)
        return sums

    def baseline_sums(self, batch: PretrainingBatch) -> dict[str, float]:
        """Numbers of targets, and what is reached on them without a model, of a batch on the host."""
        sums: dict[str, float] = {}
        for part in self.parts:
            sums |= {part.name: part.count(batch), **part.baseline_sums(batch)}
        return sums

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Held-out results, each part's beside its baselines, out of the sums of all batches."""
        results: dict[str, float] = {}
        for part in self.parts:
            results |= part.results(sums)
        return results

    def judge(self, results: Mapping[str, float]) -> list[float]:
        """The sum of the held-out losses times their weights, of which the best model has the lowest."""
        return [sum(part.weight * results.get(f"{part.name}_loss", 0.0) for part in self.parts)]

    def baselines(self, results: Mapping[str, float]) -> list[float | None]:
        """Results that depend only on the held-out examples: equal for evaluations on the same examples."""
        return [results.get(name) for part in self.parts for name in part.baselines.values()]

    def summary(self, results: Mapping[str, float]) -> str:
        """Held-out results in a line, beside their baselines."""
        return "held-out " + ", ".join(filter(None, (part.summary(results) for part in self.parts)))

    def rows(self, results: Mapping[str, float]) -> list[Row]:
        """Held-out results beside their baselines."""
        return [row for part in self.parts for row in part.rows(results)]

    def warnings(self, rows: Sequence[dict], share: float) -> dict[str, str]:
        """Kind -> sentence about parts that are not learned as they should be (see `Part.warnings`)."""
        # The last evaluation takes more examples than those before, and is not to be compared with them.
        baselines = self.baselines(rows[-1]["validation"])
        same = [row for row in rows if self.baselines(row["validation"]) == baselines]
        learned = [part for part in self.parts if part.weight]
        return {kind: said for part in learned for kind, said in part.warnings(same, share).items()}

    def scores(self, model: BertForPreTraining, batch: PretrainingBatch) -> Scores:
        """What the model makes of a batch, for all parts."""
        chosen = {} if batch.entries is None else {"entries": batch.entries.ids}
        return Scores(*model.forward_packed(batch, batch.masked_positions, batch.most_masked, **chosen))
