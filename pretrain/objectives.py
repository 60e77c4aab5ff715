"""The objectives by their names: what `--objective` offers."""

from collections.abc import Callable

import numpy as np

from data_prep.console.screen import say
from data_prep.examples.packing import ShardExamples
from data_prep.examples.pairs import IS_NEXT
from data_prep.prepared import PreparedCorpus

from .distillation import distilled
from .electra import make_electra
from .masked_words import MaskedWords
from .next_sentence import NextSentence
from .objective import PretrainingObjective
from .sentence_order import SentenceOrder, SentenceOrderBatches
from .settings import PretrainSettings
from .span_boundary import SpanBatchMaker, SpanBoundary, SpanBoundaryObjective

ObjectiveMaker = Callable[[PretrainSettings, PreparedCorpus], PretrainingObjective]


def make_objective(settings: PretrainSettings, prepared: PreparedCorpus) -> PretrainingObjective:
    """What `--objective` names, beside what a teacher is asked for if there is one."""
    objective = OBJECTIVES[settings.objective](settings, prepared)
    return objective if settings.teacher is None else distilled(objective, settings, prepared)


def _bert(settings: PretrainSettings, prepared: PreparedCorpus) -> PretrainingObjective:
    """Masked words, and next sentences if they are asked for and the corpus has pairs at this length."""
    is_learned = settings.next_sentence and _has_pairs(settings, prepared)
    if settings.next_sentence and not is_learned:
        length = settings.examples.longest
        say(f"Next-sentence prediction is off: no example of up to {length} tokens is a pair from two documents.")
    return bert_objective(prepared.unigram_counts, is_learned, **settings.of_pairs)


def _has_pairs(settings: PretrainSettings, prepared: PreparedCorpus, exchange: bool = True) -> bool:
    """Whether any example to learn from, of the longest ones, is a pair with a label."""
    length = settings.examples.longest
    if exchange and length == prepared.manifest["identity"]["sequence_length"]:
        return prepared.next_sentence
    examples = ShardExamples.of(prepared, "train", length, settings.examples.seed, exchange=exchange)
    return any((examples(shard).label == IS_NEXT).any() for shard in range(len(examples)))


def bert_objective(
    unigram_counts: np.ndarray, next_sentence: bool = True, *, weight: float = 1.0, rate: float = 1.0
) -> PretrainingObjective:
    """Masked words, and next sentences unless they are switched off.

    Args:
        unigram_counts: int64 [V], how often each entry of the vocabulary occurs in the training part.
        weight, rate: of next sentences (see `PairLabels`).
    """
    words, following = MaskedWords(unigram_counts), NextSentence(weight=weight, rate=rate)
    return PretrainingObjective([words, following]) if next_sentence else PretrainingObjective([words], off=[following])


def _span_bert(settings: PretrainSettings, prepared: PreparedCorpus) -> PretrainingObjective:
    """Masked words, and the tokens of spans from their boundaries (Joshi et al. 2020)."""
    counts = prepared.unigram_counts
    parts = [MaskedWords(counts), SpanBoundary(counts)]
    return SpanBoundaryObjective(parts, off=[NextSentence()], batch_maker=SpanBatchMaker)


def _sentence_order(settings: PretrainSettings, prepared: PreparedCorpus) -> PretrainingObjective:
    """Masked words, and the order of sentences if any example has two."""
    words, order = MaskedWords(prepared.unigram_counts), SentenceOrder(**settings.of_pairs)
    if not _has_pairs(settings, prepared, exchange=False):
        say("Sentence-order prediction is off: no example holds two sentences of a document.")
        return PretrainingObjective([words], off=[order])
    return PretrainingObjective([words, order], batch_maker=SentenceOrderBatches)


OBJECTIVES: dict[str, ObjectiveMaker] = {
    "mlm+nsp": _bert, "mlm": _bert, "mlm+sop": _sentence_order, "mlm+sbo": _span_bert, "electra": make_electra,
}  # fmt: skip
"""`--objective` -> what makes it out of the resolved settings and the prepared corpus."""
