"""Sentence pairs as a function: windows of whole sentences, cut into A and B, half of them with exchanged B's.

Next-sentence pairs after Devlin et al. 2019 (BERT, section 3.1, task 2 and appendix A.1), built by partition and
swap: each sentence is used exactly once an epoch, labels are exactly balanced, and partners are chosen so that
lengths do not tell the label.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from .prepared import Shard
from .random_keys import below, keys, uniform

SHORT_PROBABILITY = 0.1
IS_NEXT, IS_RANDOM, UNLABELLED = 0, 1, -100
# [CLS] A [SEP] B [SEP]
SPECIAL_TOKENS = 3
_PARTNERS_TRIED = 64
_LENGTH_STEPS = 16


@dataclass(frozen=True)
class Pairs:
    """The examples of one shard in one epoch: integer rows that point into the shard's ids.

    `b_length` is 0 for a window that has no second segment. `label` is 0 (B follows A), 1 (B is from another
    document) or -100 (trains MLM only). All arrays have shape [number of windows].
    """

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    label: np.ndarray
    sentences_cut: int

    def __len__(self) -> int:
        return len(self.label)

    def lengths(self) -> np.ndarray:
        """Tokens of each example with its special tokens: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
        return self.a_length + self.b_length + 2 + (self.b_length > 0)

    def columns(self) -> dict[str, np.ndarray]:
        """The rows as named columns, in the order in which they are stored."""
        names = ("a_start", "a_length", "b_start", "b_length", "label")
        return {name: getattr(self, name) for name in names}


def pairs(
    shard: Shard, sequence_length: int, seed: int, epoch: int, starts_word: np.ndarray, next_sentence: bool = True
) -> Pairs:
    """All examples of a shard in an epoch, in text order.

    Args:
        shard: ids with their sentence and document boundaries.
        sequence_length: the most tokens of an example, special tokens included.
        starts_word: bool [V], False for pieces that continue a word; over-long sentences are cut at word starts.
        next_sentence: False makes every window one segment, [CLS] A [SEP], without a label.
    """
    capacity = sequence_length - SPECIAL_TOKENS
    piece_starts, document_starts, sentences_cut = cut_long_sentences(shard, capacity, starts_word)
    first = windows(piece_starts, document_starts, capacity, shard.index, seed, epoch)
    num_pieces = np.diff(first, append=len(piece_starts) - 1)
    start, end = piece_starts[first], piece_starts[first + num_pieces]
    middle = end.copy()
    label = np.full(len(first), UNLABELLED, dtype=np.int64)
    split = np.flatnonzero(num_pieces > 1) if next_sentence else np.empty(0, dtype=np.int64)
    place = below(keys(seed, "split", epoch, shard.index, first[split]), num_pieces[split] - 1)
    middle[split] = piece_starts[first[split] + 1 + place]
    a_length, b_start, b_length = middle - start, middle.copy(), end - middle
    if len(split):
        document = np.searchsorted(document_starts, first[split], side="right")
        order_key = keys(seed, "partner", epoch, shard.index, first[split])
        shapes = (a_length[split], b_length[split], num_pieces[split] - 1 - place)
        left, right = find_partners(*shapes, document, order_key, capacity)
        _exchange(split[left], split[right], b_start, b_length, label, keys(seed, "swap", epoch, shard.index, left))
    return Pairs(start, a_length, b_start, b_length, label, sentences_cut)


def cut_long_sentences(
    shard: Shard, capacity: int, starts_word: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Cut sentences longer than `capacity` at word starts into consecutive pieces.

    Returns:
        piece_starts int64 [P + 1] (token offsets; the last is the number of ids), document_starts int64 [D + 1]
        (in pieces), and how many sentences were cut.
    """
    sentence_starts = shard.sentence_starts.astype(np.int64)
    too_long = np.flatnonzero(np.diff(sentence_starts) > capacity)
    cuts = []
    for start, end in zip(sentence_starts[too_long].tolist(), sentence_starts[too_long + 1].tolist(), strict=True):
        cuts += _cuts(shard.ids, start, end, capacity, starts_word)
    piece_starts = np.sort(np.concatenate([sentence_starts, np.array(cuts, dtype=np.int64)]))
    document_tokens = sentence_starts[shard.document_starts]
    return piece_starts, np.searchsorted(piece_starts, document_tokens), len(too_long)


def _cuts(ids: np.ndarray, start: int, end: int, capacity: int, starts_word: np.ndarray) -> list[int]:
    word_starts = start + np.flatnonzero(starts_word[ids[start:end]])
    cuts = []
    while end - start > capacity:
        place = int(np.searchsorted(word_starts, start + capacity, side="right")) - 1
        # A word longer than the capacity has no word start to cut at.
        fits = place >= 0 and word_starts[place] > start
        start = int(word_starts[place]) if fits else start + capacity
        cuts.append(start)
    return cuts


def windows(
    piece_starts: np.ndarray, document_starts: np.ndarray, capacity: int, shard_index: int, seed: int, epoch: int
) -> np.ndarray:
    """First piece of each window: whole pieces of one document up to the target length.

    The target is `capacity`, or with probability 0.1 a length drawn from 2..capacity. The draw belongs to the piece a
    window begins with, so where a window ends is known for every piece at once, and the windows are the path from
    piece to piece.
    """
    piece = np.arange(len(piece_starts) - 1)
    target = np.full(len(piece), capacity, dtype=np.int64)
    short = uniform(keys(seed, "short", epoch, shard_index, piece)) < SHORT_PROBABILITY
    target[short] = 2 + below(keys(seed, "short length", epoch, shard_index, piece[short]), capacity - 1)
    following = np.searchsorted(piece_starts, piece_starts[:-1] + target, side="right") - 1
    document_end = np.repeat(document_starts[1:], np.diff(document_starts))
    path = np.minimum(np.maximum(following, piece + 1), document_end).tolist()
    first, place = [], 0
    while place < len(path):
        first.append(place)
        place = path[place]
    return np.array(first, dtype=np.int64)


def find_partners(
    a_length: np.ndarray,
    b_length: np.ndarray,
    b_pieces: np.ndarray,
    document: np.ndarray,
    order_key: np.ndarray,
    capacity: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Couple windows whose B's can change places: different documents, and both results within `capacity`.

    Windows are visited by length of B in steps of a sixteenth of the capacity, within a step by its number of
    pieces, and take the nearest fitting window that still waits. (By exact length the number would never decide
    among long B's, and a B whose sentences are as long as those of A would give an unswapped pair away.) Couples
    are found before it is decided which of them swap, so that being hard to couple says nothing about the label.

    Returns:
        Two int64 arrays of equal length: the two windows of each couple.
    """
    step = b_length // max(1, capacity // _LENGTH_STEPS)
    visit = np.lexsort((order_key, b_length, b_pieces, step)).tolist()
    a, b, documents = a_length.tolist(), b_length.tolist(), document.tolist()
    waiting: deque[int] = deque(maxlen=_PARTNERS_TRIED)
    left, right = [], []
    for one in visit:
        for other in reversed(waiting):
            fits = a[one] + b[other] <= capacity and a[other] + b[one] <= capacity
            if fits and documents[one] != documents[other]:
                waiting.remove(other)
                left.append(other)
                right.append(one)
                break
        else:
            waiting.append(one)
    return np.array(left, dtype=np.int64), np.array(right, dtype=np.int64)


def _exchange(left, right, b_start, b_length, label, order_key) -> None:
    """Swap the B's of half of the couples, in place; of an odd number the last couple stays without a label."""
    half = len(left) // 2
    order = np.argsort(order_key, kind="stable")
    swapped, kept = order[:half], order[half : 2 * half]
    i, j = left[swapped], right[swapped]
    for column in (b_start, b_length):
        column[i], column[j] = column[j], column[i].copy()
    label[i] = label[j] = IS_RANDOM
    label[left[kept]] = label[right[kept]] = IS_NEXT


def example_keys(shard_index: np.ndarray | int, row: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """One uint64 key for each example: its identity in the epoch, from which its masks are drawn."""
    return keys(seed, "example", epoch, shard_index, row)


def shard_order(num_shards: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which an epoch visits the shards: int64 [num_shards]."""
    return np.argsort(keys(seed, "shard order", epoch, np.arange(num_shards)), kind="stable")


def example_order(example_key: np.ndarray) -> np.ndarray:
    """The order of the examples of a buffer of shards: int64 indices, as many as there are keys."""
    return np.argsort(keys(0, "example order", 0, example_key), kind="stable")
