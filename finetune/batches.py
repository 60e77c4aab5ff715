"""Encoded texts, what is read of the long ones, the order of an epoch as arithmetic, and packed batches of them."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_prep.examples import runs
from data_prep.examples.packing import Examples, TwiceSeparated, pack
from data_prep.examples.random_keys import keys
from data_prep.prepared import Shard
from data_prep.text.cells import words_apart
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from model import PackedBatch
from pretrain.engine.batches import Maker, Position, divided, empty_sequence, inputs

from .auxiliary import MaskedCopy, Masking
from .rows import Example
from .settings import LongText


@dataclass(kw_only=True)
class LabelledBatch(PackedBatch):
    """A packed batch of N sequences, and P places in it with a target each: one a sequence, or one a word."""

    places: Tensor
    """int64 [P], in [0, T): the tokens that are read."""
    labels: Tensor
    """[P] or [P, K], of the type of the task's targets; float32 for float64, which not every device has."""
    weights: Tensor
    """[P] float32: 1 / places of the item, so that every text or word counts once."""
    masked: MaskedCopy | None = None
    """The same sequences for masked language modelling, where that is learned too."""


@dataclass(frozen=True)
class Encoded:
    """n texts as S sequences that fit the model, one for each text or several windows, and the I items to learn.

    An item is a text, a choice of a text, or a word. It is read at one or more of the P places: a text or choice at the
    first token of each of its sequences.

    `ids` holds the tokens; `sequences` are spans of it (see `data_prep.examples.packing`); `text` int64 [S] is the text
    that each belongs to, ascending.
    """

    ids: np.ndarray
    sequences: Examples
    text: np.ndarray
    targets: np.ndarray
    """Of each item: [I] or [I, K]."""
    item: np.ndarray
    """int64 [P]: the item of each place. The places of a sequence stand together, in the order of the sequences."""
    place: np.ndarray
    """int64 [P]: the token of the sequence that is read; 0 is [CLS]."""
    bounds: np.ndarray
    """int64 [S + 1]: where the places of each sequence begin."""
    num_texts: int
    num_tokens: int
    """Of all texts before they were cut, special tokens not counted; one that is read with each of several choices
    counts with each."""
    num_long: int
    """Texts that are longer than a sequence."""
    num_cut: int
    """How many of these tokens are in no sequence."""
    together: bool = False
    """Whether the sequences of a text are learned from in one micro-batch, as what is learned depends on all."""

    def words(self, tokenizer: TextTokenizer) -> Tensor:
        """The ids of all tokens of the sequences, each once: int64."""
        ids = np.unique(self.ids).astype(np.int64)
        return torch.from_numpy(np.union1d(ids, [tokenizer.cls_id, tokenizer.sep_id]))

    def lost(self) -> str:
        """What cannot be learned of the texts though they are read, as a sentence that follows another; or nothing."""
        return ""

    def lengths(self) -> np.ndarray:
        """Tokens of each text's sequences together: int64 [n]."""
        return np.bincount(self.text, self.sequences.lengths(), self.num_texts).astype(np.int64)

    def digest(self) -> str:
        """Of everything that is learned from."""
        content = hashlib.blake2b(digest_size=16)
        # Targets of texts are the labels of their sequences.
        of_words = () if self.item is self.text else (self.targets, self.item, self.place, self.bounds)
        for array in (self.ids, self.text, *vars(self.sequences).values(), *of_words):
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()


def encode(
    examples: Sequence[Example],
    targets: np.ndarray,
    tokenizer: TextTokenizer,
    sequence_length: int,
    long_text: LongText,
) -> Encoded:
    """The same as `encode_texts`, of examples."""
    texts = [(example.text, example.text_pair) for example in examples]
    return encode_texts(texts, targets, tokenizer, sequence_length, long_text)


def encode_texts(
    texts: Sequence[tuple[str, str | None]],
    targets: np.ndarray,
    tokenizer: TextTokenizer,
    sequence_length: int,
    long_text: LongText,
) -> Encoded:
    """Texts or pairs of texts to sequences of at most `sequence_length` tokens with [CLS] and [SEP].

    Args:
        targets: [n] or [n, K], what is to be learned of each.
        long_text: head keeps the beginning (of a pair, tokens are taken off the longer text), head-tail a quarter from
            the beginning and the rest from the end, windows everything, in overlapping sequences (of a pair, the
            longer text moves along the shorter one).
    """
    kept: list[np.ndarray] = []
    rows: list[tuple[int, int, int, int, int]] = []
    used = num_tokens = num_long = num_cut = 0
    for index, (first, second) in enumerate(_tokenized(texts, tokenizer)):
        capacity = sequence_length - 2 - (0 if second is None else tokenizer.pair_separators)
        total = len(first) + len(second or ())
        num_tokens += total
        num_long += total > capacity
        first, second = np.asarray(first, dtype=np.uint32), np.asarray(second or [], dtype=np.uint32)
        pieces, spans = _fit(first, second, capacity, long_text)
        rows += [(index, used + a, a_length, used + b, b_length) for a, a_length, b, b_length in spans]
        kept += pieces
        stored = sum(map(len, pieces))
        used, num_cut = used + stored, num_cut + total - stored
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    text = table[:, 0]
    return Encoded(
        ids=np.concatenate(kept) if kept else np.empty(0, dtype=np.uint32),
        sequences=spans_of(table[:, 1:], targets[text], tokenizer.pair_separators),
        text=text,
        targets=targets,
        item=text,
        place=np.zeros(len(text), dtype=np.int64),
        bounds=np.arange(len(text) + 1),
        num_texts=len(texts),
        num_tokens=num_tokens,
        num_long=num_long,
        num_cut=num_cut,
    )


def spans_of(table: np.ndarray, labels: np.ndarray, separators: int = 1) -> Examples:
    """Sequences out of their spans.

    Args:
        table: int64 [S, 4], the columns a_start, a_length, b_start, b_length (see `data_prep.examples.packing`).
        labels: [S] or [S, K].
        separators: [SEP] between two segments, 1 or 2.
    """
    return {1: Examples, 2: TwiceSeparated}[separators](
        shard=np.zeros(len(table), dtype=np.int64),
        a_start=table[:, 0],
        a_length=table[:, 1],
        b_start=table[:, 2],
        b_length=table[:, 3],
        label=labels,
        key=np.zeros(len(table), dtype=np.uint64),
    )


_TEXTS_AT_ONCE = 4096


def _tokenized(
    texts: Sequence[tuple[str, str | None]], tokenizer: TextTokenizer
) -> Iterator[tuple[list[int], list[int] | None]]:
    """Ids of each text and of its second one, if it has one."""
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[begin : begin + _TEXTS_AT_ONCE]
        # As the text of pretraining was read.
        first = tokenizer.encode([words_apart(text) for text, _ in part])
        second = iter(tokenizer.encode([words_apart(text) for _, text in part if text is not None]))
        for ids, (_, text) in zip(first, part, strict=True):
            yield ids, None if text is None else next(second)


def _fit(first: np.ndarray, second: np.ndarray, capacity: int, long_text: LongText):
    """The ids to store for a text, and (a_start, a_length, b_start, b_length) of its sequences in them."""
    if long_text == "windows":
        return _windowed(first, second, capacity)
    kept = []
    for ids, room in zip((first, second), fitted(len(first), len(second), capacity), strict=True):
        spans = head_tail(len(ids), room) if long_text == "head-tail" else [(0, room)]
        kept.append(np.concatenate([ids[start : start + length] for start, length in spans]))
    a, b = map(len, kept)
    return kept, [(0, a, a, b)]


def _windowed(first: np.ndarray, second: np.ndarray, capacity: int):
    """Windows over the longer of the two; the shorter one is in all of them, cut where it fills over a half."""
    first_is_longer = len(first) > len(second)
    longer, shorter = (first, second) if first_is_longer else (second, first)
    if len(first) + len(second) > capacity:
        shorter = shorter[: capacity // 2]
    room, fixed = capacity - len(shorter), len(shorter)
    if first_is_longer:
        spans = [(start, length, len(longer), fixed) for start, length in overlapping(len(longer), room)]
        return [longer, shorter], spans
    return [shorter, longer], [(0, fixed, fixed + start, length) for start, length in overlapping(len(longer), room)]


# Share of the tokens that head-tail takes from the beginning (128 of 510 in Sun et al. 2019, section 5.3.1), and share
# of a window that the next one repeats.
HEAD_SHARE, OVERLAP = 0.25, 0.25


class Stretch(NamedTuple):
    """Tokens `start` to `start + length` of a segment."""

    start: int
    length: int


def fitted(first: int, second: int, capacity: int) -> tuple[int, int]:
    """Lengths of two segments after tokens are taken off the longer one until both fit together.

    The same numbers as `truncation="longest_first"` of `tokenizers` (except 0.23.1 and 0.23.2).
    """
    if first + second <= capacity:
        return first, second
    shorter = min(first, second)
    shorter = min(shorter, capacity // 2)
    longer = capacity - shorter
    return (longer, shorter) if first > second else (shorter, longer)


def head_tail(length: int, capacity: int) -> list[Stretch]:
    """The beginning and the end of a segment, `capacity` tokens together; all of it where it fits."""
    if length <= capacity:
        return [Stretch(0, length)]
    head = int(capacity * HEAD_SHARE)
    return [Stretch(0, head), Stretch(length - (capacity - head), capacity - head)]


def overlapping(length: int, capacity: int) -> list[Stretch]:
    """Overlapping windows that cover a segment; the last one ends with it."""
    if length <= capacity:
        return [Stretch(0, length)]
    stride = max(1, capacity - int(capacity * OVERLAP))
    starts = [*range(0, length - capacity, stride), length - capacity]
    return [Stretch(start, capacity) for start in starts]


def _tensor(targets: np.ndarray) -> Tensor:
    return torch.from_numpy(targets.astype(np.float32) if targets.dtype == np.float64 else targets)


class BatchMaker(Maker):
    """Texts to packed micro-batches.

    Args:
        micro_batch_tokens: most tokens of a micro-batch; a longer sequence is a batch of its own, and so is a longer
            text whose sequences stay together.
        places: where the row of each text is, for `identify`.
        masking: makes masked copies of the sequences, too.
    """

    def __init__(self, encoded: Encoded, tokenizer: TextTokenizer, micro_batch_tokens: int,
                 places: Sequence[str] = (), masking: Masking | None = None):  # fmt: skip
        self.encoded, self.tokenizer, self.micro_batch_tokens = encoded, tokenizer, micro_batch_tokens
        self.places, self.masking = places, masking
        self._bounds = np.searchsorted(encoded.text, np.arange(encoded.num_texts + 1))
        self._num_places = np.bincount(encoded.item, minlength=len(encoded.targets))
        self._shards = [Shard(0, encoded.ids, np.empty(0, np.int32), np.empty(0, np.int32))]
        self._lengths, self._text_lengths = encoded.sequences.lengths(), encoded.lengths()

    def begin(self, step: int, progress: float) -> None:
        """Mask other words than in the step before."""
        if self.masking:
            self.masking.begin(step)

    def lengths(self, texts: np.ndarray) -> np.ndarray:
        """Tokens of each text, all its windows together."""
        return self._text_lengths[texts]

    def longest(self, texts: np.ndarray) -> int:
        """Tokens of the longest sequence of these texts, or of the longest text whose sequences stay together."""
        lengths = self._text_lengths[texts] if self.encoded.together else self._lengths[self._sequences(texts)]
        return int(lengths.max(initial=0))

    def _sequences(self, texts: np.ndarray) -> np.ndarray:
        return runs(self._bounds[texts], self._bounds[texts + 1] - self._bounds[texts])

    def items_and_batches(self, texts: np.ndarray) -> Iterator[tuple[np.ndarray, LabelledBatch]]:
        """Batches of the sequences of these texts to be read, similar lengths together and one by one, and the item of
        each place: int64 [P]."""
        for sequences in self._one_by_one(texts):
            yield self.encoded.item[self._places(sequences)], self.packed(sequences)

    def micro_batches(self, texts: np.ndarray) -> Iterator[LabelledBatch]:
        """Batches to learn from: the same ones, or text by text where their sequences stay together."""
        divide = self._text_by_text if self.encoded.together else self._one_by_one
        return map(self.packed, divide(texts))

    def _one_by_one(self, texts: np.ndarray) -> Iterator[np.ndarray]:
        """The sequences of each batch."""
        sequences = self._sequences(texts)
        sequences = sequences[np.argsort(self._lengths[sequences], kind="stable")]
        for chosen in divided(self._lengths[sequences], self.micro_batch_tokens):
            yield sequences[chosen]

    def _text_by_text(self, texts: np.ndarray) -> Iterator[np.ndarray]:
        """The sequences of each batch, those of a text in one."""
        texts = texts[np.argsort(self._text_lengths[texts], kind="stable")]
        for chosen in divided(self._text_lengths[texts], self.micro_batch_tokens):
            yield self._sequences(texts[chosen])

    def empty_batch(self) -> LabelledBatch:
        """A batch without a target, for a process that has no text but takes part in a step."""
        targets = self.encoded.targets
        label = _tensor(np.zeros((1, *targets.shape[1:]), targets.dtype))
        read = {"places": torch.zeros(1, dtype=torch.int64), "labels": label, "weights": torch.zeros(1)}
        masked = self.masking.empty_copy() if self.masking else None
        return LabelledBatch(**empty_sequence(self.tokenizer), **read, masked=masked)

    def identify(self, texts: np.ndarray) -> list[str]:
        """Where the rows of the texts are, as for a person: "train.jsonl:17"."""
        return [self.places[text] for text in texts]

    def packed(self, sequences: np.ndarray) -> LabelledBatch:
        """One packed batch of sequences by number."""
        encoded = self.encoded
        packed = pack(self._shards, encoded.sequences[sequences], self.tokenizer.cls_id, self.tokenizer.sep_id)
        if not self.tokenizer.tells_segments:
            packed = replace(packed, token_type_ids=np.zeros_like(packed.token_type_ids))
        chosen = self._places(sequences)
        counts, items = encoded.bounds[sequences + 1] - encoded.bounds[sequences], encoded.item[chosen]
        return LabelledBatch(
            **inputs(packed),
            places=torch.from_numpy(np.repeat(packed.sequence_starts[:-1], counts) + encoded.place[chosen]),
            labels=_tensor(encoded.targets[items]),
            weights=torch.from_numpy((1 / self._num_places[items]).astype(np.float32)),
            masked=self.masking.copy(packed, sequences) if self.masking else None,
        )

    def _places(self, sequences: np.ndarray) -> np.ndarray:
        """The places of sequences, by number: int64 [P]."""
        first, last = self.encoded.bounds[sequences], self.encoded.bounds[sequences + 1]
        return runs(first, last - first)


# Batches among which texts are sorted by length; fewer in small sets, so that epochs stay different.
BATCHES_SORTED = 32


class TextStream:
    """Global batches of texts by number, epoch after epoch, for `pretrain.engine.batches.Batches`.

    An epoch takes every text once, in batches that differ in size by one text at most: in a smaller one, a text would
    count for more than in the others. `Position.example` counts texts.
    """

    order: ClassVar[int] = 2
    """A version: a training that was begun with other batches cannot go on with these."""

    def __init__(self, encoded: Encoded, seed: int):
        self.encoded, self.seed = encoded, seed

    def batches(self, batch_size: int, start: Position) -> Iterator[tuple[np.ndarray, Position]]:
        """The batches from `start` on, each with the position after it."""
        epoch, example = start.epoch, start.example
        while True:
            done = 0
            for texts in self._batches_of(epoch, batch_size):
                done += len(texts)
                if done > example:
                    is_last = done == self.encoded.num_texts
                    yield texts, Position(epoch + 1) if is_last else Position(epoch, example=done)
            epoch, example = epoch + 1, 0

    def _batches_of(self, epoch: int, size: int) -> list[np.ndarray]:
        """The batches of an epoch: texts at random, sorted by length within a few batches, batches at random."""
        lengths, count = self.encoded.lengths(), self.encoded.num_texts
        order = np.argsort(keys(self.seed, "texts", epoch, np.arange(count)), kind="stable")
        number = math.ceil(count / size)
        bounds = np.arange(number + 1) * count // number
        batches = []
        for window in np.array_split(np.arange(number), number // max(1, min(BATCHES_SORTED, number // 4))):
            begin, end = bounds[window[0]], bounds[window[-1] + 1]
            part = order[begin:end]
            part = part[np.argsort(lengths[part], kind="stable")]
            batches += np.split(part, bounds[window[1:]] - begin)
        return [batches[i] for i in np.argsort(keys(self.seed, "batches", epoch, np.arange(len(batches))))]

    def epochs(self, position: Position) -> float:
        """How many times the texts have been used, as a fraction."""
        return position.epoch + position.example / self.encoded.num_texts
