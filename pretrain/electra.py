"""The objective of ELECTRA: a generator fills in masked words, a discriminator finds its errors (Clark et al. 2020).

Both learn in one step. The draws from the generator are no path for a gradient: it learns masked words alone, and the
two share their embeddings.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from data_prep.examples.packing import Examples
from data_prep.examples.random_keys import keys, uniform
from data_prep.prepared import PreparedCorpus, Shard
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model.electra_pair import GENERATOR, DiscriminatorAndGenerator
from model.families import Family

from .batches import BatchMaker, TrainingPlan
from .masked_words import MaskedWords, parts_of
from .objective import PretrainingObjective
from .replaced_tokens import ReplacedTokens, ReplacementBatch, ReplacementScores
from .settings import PretrainSettings

# Of the masked tokens (google-research/electra); the rest stays as it is, and none becomes a random word.
MASK_SHARE, RANDOM_SHARE = 0.85, 0.0


class ReplacementMaker(BatchMaker):
    """Masks as ELECTRA does in training, as BERT does in held-out text, and draws the chances of the generator."""

    def __init__(self, shards: list[Shard], tokenizer: WordPieceTokenizer, masking: str, micro_batch_tokens: int,
                 copied: list[np.ndarray] | None = None, plan: TrainingPlan | None = None):  # fmt: skip
        super().__init__(shards, tokenizer, masking, micro_batch_tokens, copied, plan)
        # Held-out text, which has no plan, keeps the masks that all runs are compared on.
        if plan:
            self.rules = replace(self.rules, mask_share=MASK_SHARE, random_share=RANDOM_SHARE)

    def packed(self, examples: Examples) -> ReplacementBatch:
        """See `BatchMaker`. A chance depends on the example and the position alone, whatever batch they are in."""
        batch = super().packed(examples)
        places = batch.masked_positions.numpy()
        example = np.searchsorted(batch.sequence_starts.numpy(), places, side="right") - 1  # [M]
        key = keys(0, "generator", 0, examples.key[example], batch.position_ids.numpy()[places])
        chances = torch.from_numpy(uniform(key).astype(np.float32))
        return ReplacementBatch(**vars(batch), chances=chances)

    def empty_batch(self) -> ReplacementBatch:
        """A batch without a target."""
        return ReplacementBatch(**vars(super().empty_batch()), chances=torch.zeros(0))


class GeneratorWords(MaskedWords):
    """MLM of the generator. Results are those of `MaskedWords`."""

    learned = "masked words (MLM) of its generator"

    def modules(self, model: DiscriminatorAndGenerator) -> list[nn.Module]:
        """All of the generator; its embeddings are also the discriminator's."""
        return [model.generator]

    def start(self, model: DiscriminatorAndGenerator) -> None:
        """See `MaskedWords`."""
        super().start(model.generator)


class Electra(PretrainingObjective):
    """Replaced tokens, whose loss counts 50 times, and masked words (section 2 and appendix A).

    Args:
        unigram_counts: int64 [V], how often each entry of the vocabulary occurs in the training part.
        mask_share: of the tokens, at the start of training.
    """

    family = "electra"
    hub_task = "feature-extraction"
    memory_is_computed = False
    use = f"""\
It is the discriminator, a start for fine-tuning:

```python
from transformers import AutoModelForSequenceClassification

model = AutoModelForSequenceClassification.from_pretrained("path/to/this/folder", num_labels=2)
```

Its generator, in `{GENERATOR}/`, fills masks:

```python
from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/folder/{GENERATOR}")
print(fill("One word is [MASK] here."))
```"""

    def __init__(self, unigram_counts: np.ndarray, mask_share: float = 0.15):
        parts = [ReplacedTokens(mask_share), GeneratorWords(unigram_counts)]
        super().__init__(parts, batch_maker=ReplacementMaker)

    def model_class(self, family: Family) -> type[DiscriminatorAndGenerator]:
        """Both models as one."""
        return DiscriminatorAndGenerator

    def scores(self, model: DiscriminatorAndGenerator, batch: ReplacementBatch) -> ReplacementScores:
        """The generator's scores, and those of the discriminator for what it drew."""
        words = model.masked_scores(batch, batch.masked_positions, batch.most_masked)
        drawn = sampled(words, batch.chances)
        filled = replace(batch, input_ids=batch.input_ids.index_copy(0, batch.masked_positions, drawn))
        is_wrong = (drawn != batch.masked_targets).float()
        replaced = torch.zeros_like(filled.input_ids, dtype=torch.float32)
        replaced = replaced.index_copy(0, batch.masked_positions, is_wrong)
        return ReplacementScores(words=words, pair=None, tokens=model.replaced_scores(filled), replaced=replaced)


@torch.no_grad()
def sampled(logits: Tensor, chances: Tensor) -> Tensor:
    """Draw an entry from the softmax of each row by inverse transform sampling: the first one whose cumulative
    probability exceeds the chance. No gradient flows through it.

    Args:
        logits: [M, V].
        chances: float32 [M] in [0, 1].

    Returns:
        int64 [M].
    """
    drawn = torch.empty_like(chances, dtype=torch.int64)
    for part in parts_of(logits):
        added = logits[part].float().softmax(-1).cumsum(-1)
        # Of the last sum, which is 1 but for rounding.
        wanted = chances[part, None] * added[:, -1:]
        drawn[part] = torch.searchsorted(added, wanted, right=True).squeeze(1)
    return drawn.clamp_(max=logits.shape[1] - 1)


def make_electra(settings: PretrainSettings, prepared: PreparedCorpus) -> Electra:
    """The objective for a prepared corpus."""
    return Electra(prepared.unigram_counts, settings.mask_shares[0])
