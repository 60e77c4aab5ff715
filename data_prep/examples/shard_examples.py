"""The examples of the shards of a corpus in any epoch: pairs, and the keys their masks are drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from ..prepared import PreparedCorpus, Shard
from . import Bools
from .packing import Examples
from .pairs import VERSION, example_keys, pairs

# The held-out pairs and masks are the same whatever the seed of a run, so that runs can be compared.
HELD_OUT_SEED = 2018


@dataclass(frozen=True)
class ShardExamples:
    """The examples of each shard, computed, or for epoch 0 read as the preparation stored them."""

    shards: Sequence[Shard]
    starts_word: Bools
    """bool [V], see `pairs.pairs`."""
    sequence_length: int
    seed: int
    next_sentence: bool = True
    stored: Sequence[Mapping[str, npt.NDArray[np.int32]]] = ()
    """Of each shard the pairs of epoch 0 as columns [rows]; empty if they are to be computed too."""

    @classmethod
    def of(
        cls,
        prepared: PreparedCorpus,
        part: Literal["train", "validation"],
        sequence_length: int,
        seed: int = HELD_OUT_SEED,
        next_sentence: bool = True,
    ) -> Self:
        """The examples of a part of a corpus; its stored pairs are read where they are those that are asked for."""
        identity = prepared.manifest["identity"]
        its_seed = identity.get("seed") if part == "train" else HELD_OUT_SEED
        made_with = (prepared.manifest.get("pairs"), identity["sequence_length"], its_seed, True)
        is_stored = made_with == (VERSION, sequence_length, seed, next_sentence)
        shards = prepared.train if part == "train" else prepared.validation
        stored = prepared.pairs(part) if is_stored else ()
        return cls(shards, prepared.tokenizer.starts_word, sequence_length, seed, next_sentence, stored)

    def __len__(self) -> int:
        """How many shards there are."""
        return len(self.shards)

    def __call__(self, index: int, epoch: int = 0) -> Examples:
        """All examples of one shard in an epoch, in text order."""
        if self.stored and epoch == 0:
            columns = {name: column.astype(np.int64) for name, column in self.stored[index].items()}
        else:
            shard, length = self.shards[index], self.sequence_length
            columns = pairs(shard, length, self.seed, epoch, self.starts_word, self.next_sentence).columns()
        rows = np.arange(len(columns["label"]))
        return Examples(np.full(len(rows), index), **columns, key=example_keys(index, rows, self.seed, epoch))
