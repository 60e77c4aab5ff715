"""Full examples: sentences in a row, over document ends too, as many as fit, with [SEP] where a document ends inside.

FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2), for masked words alone. Every epoch has the same examples, in
another order and with other masks: cut from another place on, they would be the same again after a few of them.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..prepared import Shard
from . import Bools, Ints, runs
from .packing import Examples, ShardExamples
from .pairs import UNLABELLED, example_keys
from .windows import cut_long_sentences, walk

# [CLS] ... [SEP]
NUM_SPECIAL_TOKENS = 2


@dataclass(frozen=True)
class FullSentences(Examples):
    """Examples whose A may hold the ends of documents, with [SEP] behind each; there is no B."""

    separators: Ints
    """int64 [N], how many [SEP] are in A."""

    def first_lengths(self) -> Ints:
        """Tokens of [CLS] A [SEP], those between documents included: int64 [N]."""
        return super().first_lengths() + self.separators

    def copy(self, shard: Shard, target: Ints, starts: Ints) -> None:
        """Write the tokens of A; where a document ends, one place is left as it is."""
        ends = shard.sentence_starts[shard.document_starts[1:]]  # [documents]
        row = np.repeat(np.arange(len(self)), self.a_length)  # [tokens of A]
        source = runs(self.a_start, self.a_length)
        within = source - self.a_start[row]
        ended = np.searchsorted(ends, source, side="right") - np.searchsorted(ends, self.a_start, side="right")[row]
        target[starts[row] + 1 + within + ended] = shard.ids[source]


def full_sentences(shard: Shard, sequence_length: int, starts_word: Bools) -> tuple[Ints, Ints, Ints]:
    """A shard, from its first sentence to its last, cut where the next sentence would not fit.

    A sentence that is longer than an example is cut first (see `cut_long_sentences`).

    Returns:
        Of each example its first token, how many tokens of the shard it has, and how many [SEP] are between them: int64
        [N] each.
    """
    capacity = sequence_length - NUM_SPECIAL_TOKENS
    stretch_starts, document_starts, _ = cut_long_sentences(shard, capacity, starts_word)
    document = np.repeat(np.arange(shard.num_documents), np.diff(document_starts))  # [S]
    # Places in a text that has a [SEP] between documents.
    begin, end = stretch_starts[:-1] + document, stretch_starts[1:] + document
    first = walk(np.searchsorted(end, begin + capacity, side="right"))  # [N]
    after = np.append(first[1:], len(document))
    start = stretch_starts[first]
    return start, stretch_starts[after] - start, document[after - 1] - document[first]


class FullShardExamples(ShardExamples):
    """Full examples of each shard, none of which is a pair."""

    has_pairs: ClassVar[bool] = False

    def __call__(self, index: int, epoch: int = 0) -> FullSentences:
        """All examples of one shard in an epoch, in text order."""
        start, length, separators = full_sentences(self.shards[index], self.sequence_length, self.starts_word)
        rows = np.arange(len(start))
        return FullSentences(
            shard=np.full(len(rows), index),
            a_start=start,
            a_length=length,
            b_start=start + length,
            b_length=np.zeros_like(length),
            label=np.full_like(length, UNLABELLED),
            key=example_keys(index, rows, self.seed, epoch),
            separators=separators,
        )
