"""Groups of texts that are learned against each other, whatever the micro-batches and however many the processes."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from data_prep.examples.random_keys import keys
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from pretrain.engine.batches import Position

from ..auxiliary import Masking
from ..batches import BatchMaker, Encoded, LabelledBatch, TextStream

GROUP_SIZE = 64
"""Most texts of a group: the batch of Gao et al. 2021 (appendix A)."""


class GroupStream(TextStream):
    """Global batches as groups of texts by number: int64 [R, G], -1 behind the last text of a smaller group.

    What shares and divides a global batch indexes its rows, so no group is ever divided. An epoch takes every text
    once, at random; its batches, and the groups of a batch, differ in size by one text at most.

    Args:
        group_size: most texts of a group.
    """

    order = 1

    def __init__(self, encoded: Encoded, seed: int, group_size: int = GROUP_SIZE):
        super().__init__(encoded, seed)
        self.group_size = group_size

    def batches(self, batch_size: int, start: Position) -> Iterator[tuple[np.ndarray, Position]]:
        """The batches from `start` on, each with the position after it."""
        for texts, position in super().batches(batch_size, start):
            yield grouped(texts, self.group_size), position

    def _batches_of(self, epoch: int, size: int) -> list[np.ndarray]:
        count = self.encoded.num_texts
        order = np.argsort(keys(self.seed, "texts", epoch, np.arange(count)), kind="stable")
        return np.array_split(order, math.ceil(count / size))


def grouped(texts: np.ndarray, group_size: int) -> np.ndarray:
    """Texts by number, int64 [n], as the rows of as few groups as can be: [R, G], filled up with -1."""
    parts = np.array_split(texts, math.ceil(len(texts) / group_size))
    found = np.full((len(parts), max(map(len, parts))), -1, dtype=np.int64)
    for row, part in zip(found, parts, strict=True):
        row[: len(part)] = part
    return found


class GroupMaker(BatchMaker):
    """Groups of texts to micro-batches, of one group each, however large it is. All texts have as many sequences: two
    of a pair, which follow each other, or one.

    Args:
        copies: how often each sequence is read, one copy after the other; dropout makes them differ.
    """

    remedy = "a smaller --batch-size"

    def __init__(self, encoded: Encoded, tokenizer: TextTokenizer, micro_batch_tokens: int,
                 places: Sequence[str] = (), masking: Masking | None = None, copies: int = 1):  # fmt: skip
        super().__init__(encoded, tokenizer, micro_batch_tokens, places, masking)
        self.copies = copies

    def lengths(self, texts: np.ndarray) -> np.ndarray:
        """Tokens of each group: [R]."""
        found: np.ndarray = self.copies * np.where(texts < 0, 0, self._text_lengths[texts]).sum(1)
        return found

    def longest(self, texts: np.ndarray) -> int:
        """Tokens of the largest group, which cannot be divided."""
        return int(self.lengths(texts).max(initial=0))

    def micro_batches(self, texts: np.ndarray) -> Iterator[LabelledBatch]:
        """A batch for each group."""
        for group in texts:
            yield self.packed(np.repeat(self._sequences(group[group >= 0]), self.copies))

    def identify(self, texts: np.ndarray) -> list[str]:
        """Where the rows of the texts are, as for a person."""
        return super().identify(texts[texts >= 0])
