"""Sentence pairs as a function: windows of whole sentences, cut into A and B, half of them with exchanged B's.

Next-sentence pairs after Devlin et al. 2019 (BERT, section 3.1, task 2 and appendix A.1), built by partition and
swap: each sentence is used exactly once an epoch, labels are exactly balanced, and partners are chosen so that
lengths do not tell the label.
"""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ..prepared import PAIR_COLUMNS, Shard
from . import Bools, Ints, Keys
from .random_keys import below, keys
from .windows import cut_long_sentences, wanted_lengths, windows

# Of what `pairs` gives for the same arguments. A run begun with other pairs cannot go on with these.
VERSION = 2
IS_NEXT, IS_RANDOM, UNLABELLED = 0, 1, -100
# [CLS] A [SEP] B [SEP]
NUM_SPECIAL_TOKENS = 3
_PARTNERS_TRIED = 64
_COUPLES_TAKEN_APART = 64
_LENGTH_STEPS = 16


class Reason(IntEnum):
    """Why an example has no label: the first that holds."""

    LABELLED = 0
    ONLY_SENTENCE = 1
    """One sentence, the only one of its document."""
    NO_ROOM = 2
    """One sentence, beside which no neighbour fits the sequence length."""
    LEFT_OVER = 3
    """One sentence; the neighbours that would fit stand in other windows."""
    NO_PARTNER = 4
    """A and B, but no window of another document was left to swap B's with; or no pairs were asked for."""
    ODD_COUPLE = 5
    """One of the two windows that are left unlabelled so that a shard has equally many of both labels."""


@dataclass(frozen=True)
class Pairs:
    """The examples of one shard in one epoch: integer rows that point into the shard's ids.

    `b_length` is 0 for a window that has no second segment. `label` is 0 (B follows A), 1 (B is from another
    document) or -100 (trains MLM only), and `reason`, a `Reason`, says why it is -100. All arrays are [N], one entry a
    window.
    """

    a_start: Ints
    a_length: Ints
    b_start: Ints
    b_length: Ints
    label: Ints
    reason: npt.NDArray[np.int8]
    sentences_cut: int

    def __len__(self) -> int:
        return len(self.label)

    def lengths(self) -> Ints:
        """Tokens of each example with its special tokens: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
        return self.a_length + self.b_length + 2 + (self.b_length > 0)

    def columns(self) -> dict[str, Ints]:
        """The rows as named columns, in the order in which they are stored."""
        return {name: getattr(self, name) for name in PAIR_COLUMNS}


def pairs(
    shard: Shard,
    sequence_length: int,
    seed: int,
    epoch: int,
    starts_word: Bools,
    next_sentence: bool = True,
    exchange: bool = True,
) -> Pairs:
    """All examples of a shard in an epoch, in text order.

    Args:
        shard: ids with their sentence and document boundaries.
        sequence_length: the most tokens of an example, special tokens included.
        starts_word: bool [V], False for pieces that continue a word; over-long sentences are cut at word starts.
        next_sentence: False makes every window one segment, [CLS] A [SEP], without a label.
        exchange: False leaves every B behind its A: windows are cut in the same places, and have label 0.
    """
    capacity = sequence_length - NUM_SPECIAL_TOKENS
    stretch_starts, document_starts, sentences_cut = cut_long_sentences(shard, capacity, starts_word)
    wanted = wanted_lengths(len(stretch_starts) - 1, capacity, shard.index, seed, epoch)  # [S]
    first = windows(stretch_starts, document_starts, capacity, wanted)  # [N]
    num_stretches = np.diff(first, append=len(stretch_starts) - 1)
    start, end = stretch_starts[first], stretch_starts[first + num_stretches]
    middle = end.copy()
    label = np.full(len(first), UNLABELLED, dtype=np.int64)
    split = np.flatnonzero(num_stretches > 1) if next_sentence else np.empty(0, dtype=np.int64)  # [B]
    place = below(keys(seed, "split", epoch, shard.index, first[split]), num_stretches[split] - 1)
    middle[split] = stretch_starts[first[split] + 1 + place]
    a_length, b_start, b_length = middle - start, middle.copy(), end - middle
    reason = np.full(len(first), Reason.NO_PARTNER, dtype=np.int8)
    alone = np.flatnonzero(num_stretches == 1)
    reason[alone] = why_alone(stretch_starts, document_starts, first[alone], capacity)
    if len(split) and not exchange:
        label[split] = IS_NEXT
    elif len(split):
        document = np.searchsorted(document_starts, first[split], side="right")
        order_key = keys(seed, "partner", epoch, shard.index, first[split])
        shapes = (a_length[split], b_length[split], num_stretches[split] - 1 - place)
        left, right = find_partners(*shapes, document, order_key, capacity)  # [couples] each
        reason[split[left]] = reason[split[right]] = Reason.ODD_COUPLE
        _exchange(split[left], split[right], b_start, b_length, label, keys(seed, "swap", epoch, shard.index, left))
    reason[label != UNLABELLED] = Reason.LABELLED
    return Pairs(start, a_length, b_start, b_length, label, reason, sentences_cut)


def why_alone(stretch_starts: Ints, document_starts: Ints, stretch: Ints, capacity: int) -> Ints:
    """Why these stretches are windows of one stretch: a `Reason` for each."""
    has_left, has_right = (np.isin(stretch + size, document_starts, invert=True) for size in (0, 1))
    end = stretch_starts[np.minimum(stretch + 2, len(stretch_starts) - 1)]
    fits_left = has_left & (stretch_starts[stretch + 1] - stretch_starts[stretch - has_left] <= capacity)
    fits_right = has_right & (end - stretch_starts[stretch] <= capacity)
    conditions = [~has_left & ~has_right, ~fits_left & ~fits_right]
    return np.select(conditions, [Reason.ONLY_SENTENCE, Reason.NO_ROOM], Reason.LEFT_OVER)


def find_partners(
    a_length: Ints, b_length: Ints, b_stretches: Ints, document: Ints, order_key: Keys, capacity: int
) -> tuple[Ints, Ints]:
    """Match windows whose B's can be swapped: of different documents, and both results within `capacity`.

    Windows are visited by the length of B, in steps of a sixteenth of the capacity, and within a step by the number of
    stretches in B. Each takes the nearest waiting window that fits. (Sorted by exact length, the number of stretches
    would never decide among long B's, and a B whose sentences are as long as those of A would give an unswapped pair
    away.) Couples are formed before deciding which of them swap, so being hard to match says nothing about the label.

    Returns:
        Two int64 arrays of equal length: the two windows of each couple.
    """
    step = b_length // max(1, capacity // _LENGTH_STEPS)
    visit = np.lexsort((order_key, b_length, b_stretches, step))
    a, b, documents = a_length.tolist(), b_length.tolist(), document.tolist()
    waiting: deque[int] = deque(maxlen=_PARTNERS_TRIED)
    left, right = [], []
    for one in visit.tolist():
        for other in reversed(waiting):
            fits = a[one] + b[other] <= capacity and a[other] + b[one] <= capacity
            if fits and documents[one] != documents[other]:
                waiting.remove(other)
                left.append(other)
                right.append(one)
                break
        else:
            waiting.append(one)
    couples = np.array([left, right], dtype=np.int64)  # [2, couples]
    is_left_over = np.ones(len(a), dtype=bool)
    is_left_over[couples] = False
    rest = visit[is_left_over[visit]].tolist()
    left, right = couple_the_rest(couples, rest, (a_length, b_length, document), capacity)
    return left, right


def couple_the_rest(couples: Ints, rest: list[int], shapes: tuple[Ints, Ints, Ints], capacity: int) -> Ints:
    """Match windows that are left over, two at a time, by splitting a couple in which each of them fits one member.

    Among such couples, the one whose B's are closest in length is split. Otherwise a few percent of the windows would
    stay without a label where windows are few, or most are of one document.

    Args:
        couples: int64 [2, couples], changed in place.
        rest: windows in no couple, similar ones next to each other.
        shapes: length of A, length of B and document of all windows.

    Returns:
        All couples, int64 [2, couples].
    """
    added: list[tuple[int, int]] = []
    a, b, document = (column[couples] for column in shapes)  # [2, couples] each

    def fit(one: int) -> Bools:
        its_a, its_b, its_document = (column[one] for column in shapes)
        return (a <= capacity - its_b) & (b <= capacity - its_a) & (document != its_document)

    for _ in range(_COUPLES_TAKEN_APART if couples.size else 0):
        if len(rest) < 2:
            break
        one, other = rest.pop(), rest.pop()
        suits = fit(one) & fit(other)[::-1]
        distance = np.abs(b - shapes[1][one]) + np.abs(b - shapes[1][other])[::-1]
        distance[~suits] = 2 * capacity
        side, place = np.unravel_index(distance.argmin(), suits.shape)
        if not suits[side, place]:
            rest.append(other)
            continue
        added.append((other, couples[1 - side, place]))
        couples[1 - side, place] = one
        for found, column in zip((a, b, document), shapes, strict=True):
            found[1 - side, place] = column[one]
    return np.concatenate([couples, np.array(added, dtype=np.int64).reshape(-1, 2).T], axis=1)


def _exchange(left: Ints, right: Ints, b_start: Ints, b_length: Ints, label: Ints, order_key: Keys) -> None:
    """Swap the B's of half of the couples, in place; of an odd number the last couple stays without a label."""
    half = len(left) // 2
    order = np.argsort(order_key, kind="stable")
    swapped, kept = order[:half], order[half : 2 * half]
    i, j = left[swapped], right[swapped]
    for column in (b_start, b_length):
        column[i], column[j] = column[j], column[i].copy()
    label[i] = label[j] = IS_RANDOM
    label[left[kept]] = label[right[kept]] = IS_NEXT


def example_keys(shard_index: Ints | int, row: Ints, seed: int, epoch: int) -> Keys:
    """One uint64 key for each example: its identity in the epoch, from which its masks are drawn."""
    return keys(seed, "example", epoch, shard_index, row)


def shard_order(num_shards: int, seed: int, epoch: int) -> Ints:
    """The order in which an epoch visits the shards: int64 [num_shards]."""
    return np.argsort(keys(seed, "shard order", epoch, np.arange(num_shards)), kind="stable")


def example_order(example_key: Keys) -> Ints:
    """The order of the examples of a buffer of shards: int64 indices, as many as there are keys."""
    return np.argsort(keys(0, "example order", 0, example_key), kind="stable")
