"""The examples of the shards of a corpus in any epoch, and examples laid end to end in the arrays of a packed batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from ..prepared import PreparedCorpus, Shard
from . import Bools, Ints, Keys, runs
from .pairs import VERSION as PAIRS_VERSION
from .pairs import Pairs, example_keys, pairs


@dataclass(frozen=True)
class Examples:
    """Pair rows of several shards: like `Pairs`, with the shard each row points into and each example's key.

    All arrays have shape [N]; `shard` indexes the list of shards, `key` is uint64 (see `pairs.example_keys`).
    """

    shard: Ints
    a_start: Ints
    a_length: Ints
    b_start: Ints
    b_length: Ints
    label: Ints
    key: Keys

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: slice | Ints | Bools) -> Self:
        """The rows chosen by a slice, an index array or a mask."""
        return type(self)(**{name: column[rows] for name, column in vars(self).items()})

    @classmethod
    def of(cls, shard_index: int, rows: Pairs, key: Keys) -> "Examples":
        return cls(np.full(len(rows), shard_index), **rows.columns(), key=key)

    @staticmethod
    def concatenate(parts: Sequence["Examples"]) -> "Examples":
        """All of them, which are of one kind."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
        return type(parts[0])(**columns)

    def first_lengths(self) -> Ints:
        """Tokens of [CLS] A [SEP]: int64 [N]."""
        return self.a_length + 2

    def lengths(self) -> Ints:
        """Tokens of each example with its special tokens: int64 [N]."""
        return self.first_lengths() + self.b_length + (self.b_length > 0)

    def copy(self, shard: Shard, target: Ints, starts: Ints) -> None:
        """Copy the tokens of A and B into `target`; the positions of special tokens are left as they are.

        Args:
            shard: the one that all of these examples are from.
            target: [T], written in place.
            starts: int64 [N], where each example begins in `target`.
        """
        target[runs(starts + 1, self.a_length)] = shard.ids[runs(self.a_start, self.a_length)]
        target[runs(starts + self.first_lengths(), self.b_length)] = shard.ids[runs(self.b_start, self.b_length)]


class TwiceSeparated(Examples):
    """Examples with two [SEP] between A and B, as RoBERTa reads pairs."""

    def first_lengths(self) -> Ints:
        """Tokens of [CLS] A [SEP] [SEP], without a B of [CLS] A [SEP]: int64 [N]."""
        return self.a_length + 2 + (self.b_length > 0)


@dataclass(frozen=True)
class Packed:
    """N examples end to end: input_ids, token_type_ids, position_ids int64 [T], sequence_starts int64 [N + 1]."""

    input_ids: Ints
    token_type_ids: Ints
    position_ids: Ints
    sequence_starts: Ints


def pack(shards: Sequence[Shard], examples: Examples, cls_id: int, sep_id: int) -> Packed:
    """[CLS] A [SEP] B [SEP] for each example, without padding. Token types are 0 up to the [SEP] behind A, then 1."""
    lengths = examples.lengths()  # [N]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    input_ids = np.full(int(ends[-1]) if len(ends) else 0, sep_id, dtype=np.int64)  # [T]
    input_ids[starts] = cls_id
    for index in np.unique(examples.shard):
        mine = np.flatnonzero(examples.shard == index)
        examples[mine].copy(shards[index], input_ids, starts[mine])
    position_ids = np.arange(len(input_ids)) - np.repeat(starts, lengths)  # [T]
    token_type_ids = (position_ids >= np.repeat(examples.first_lengths(), lengths)).astype(np.int64)
    return Packed(input_ids, token_type_ids, position_ids, np.append(starts, len(input_ids)))


# The held-out pairs and masks are the same whatever the seed of a run, so that runs can be compared.
HELD_OUT_SEED = 2018


@dataclass(frozen=True)
class ShardExamples:
    """The examples of each shard, computed, or for epoch 0 read as the preparation stored them."""

    has_pairs: ClassVar[bool] = True
    """Whether examples may be pairs of segments."""
    shards: Sequence[Shard]
    starts_word: Bools
    """bool [V], see `pairs.pairs`."""
    sequence_length: int
    seed: int
    next_sentence: bool = True
    exchange: bool = True
    """See `pairs.pairs`."""
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
        exchange: bool = True,
    ) -> Self:
        """The examples of a part of a corpus; its stored pairs are read where they are those that are asked for."""
        identity = prepared.manifest["identity"]
        its_seed = identity.get("seed") if part == "train" else HELD_OUT_SEED
        made_with = (prepared.manifest.get("pairs"), identity["sequence_length"], its_seed, True, True)
        is_stored = made_with == (PAIRS_VERSION, sequence_length, seed, next_sentence, exchange)
        shards = prepared.train if part == "train" else prepared.validation
        stored = prepared.pairs(part) if is_stored else ()
        return cls(shards, prepared.tokenizer.starts_word, sequence_length, seed, next_sentence, exchange, stored)

    def __len__(self) -> int:
        """How many shards there are."""
        return len(self.shards)

    def __call__(self, index: int, epoch: int = 0) -> Examples:
        """All examples of one shard in an epoch, in text order."""
        if self.stored and epoch == 0:
            columns = {name: column.astype(np.int64) for name, column in self.stored[index].items()}
        else:
            shard, length = self.shards[index], self.sequence_length
            kind = self.next_sentence, self.exchange
            columns = pairs(shard, length, self.seed, epoch, self.starts_word, *kind).columns()
        rows = np.arange(len(columns["label"]))
        return Examples(np.full(len(rows), index), **columns, key=example_keys(index, rows, self.seed, epoch))
