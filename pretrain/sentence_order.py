"""Sentence order prediction (Lan et al. 2020, section 3.1) beside always one answer."""

from dataclasses import replace

import numpy as np

from data_prep.examples.packing import Examples
from data_prep.examples.pairs import IS_NEXT, UNLABELLED
from data_prep.examples.random_keys import keys, uniform

from .batches import BatchMaker, PretrainingBatch
from .pair_labels import PairLabels

IN_ORDER, EXCHANGED = 0, 1


class SentenceOrder(PairLabels):
    """SOP: whether two segments that follow each other in a document stand in order (0) or exchanged (1)."""

    name, learned, exchanges = "sop", "the order of sentences (SOP)", False
    metrics = ("sop_loss", "sop_accuracy", "sop_majority")
    baselines = {"accuracy": "sop_majority"}


class SentenceOrderBatches(BatchMaker):
    """Batches in which the segments of half of the pairs that follow each other change places, as the keys of the
    examples have it. Other examples have no label: none gets a B of another document."""

    def packed(self, examples: Examples) -> PretrainingBatch:
        """One masked packed batch of these examples, some of them exchanged."""
        return super().packed(in_some_order(examples))


def in_some_order(examples: Examples) -> Examples:
    """The same examples with labels of their order; half of those in which B follows A are exchanged."""
    follows = examples.label == IS_NEXT
    exchanged = follows & (uniform(keys(0, "sentence order", 0, examples.key)) < 0.5)
    segments = {
        f"{one}_{what}": np.where(exchanged, getattr(examples, f"{other}_{what}"), getattr(examples, f"{one}_{what}"))
        for one, other in ("ab", "ba")
        for what in ("start", "length")
    }
    label = np.where(follows, np.where(exchanged, EXCHANGED, IN_ORDER), UNLABELLED)
    return replace(examples, **segments, label=label.astype(np.int64))
