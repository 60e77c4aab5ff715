"""Windows: documents cut into runs of whole sentences, as few as fit the sequence length, hardly one of them alone.

A window is an example before it is divided into A and B (Devlin et al. 2019, appendix A.2). A window of one sentence
has nothing to be divided, so it trains masked words alone. Which sentences stand alone is therefore chosen for the
whole document: those that fit beside no neighbour, and of the others as few tokens as can be.
"""

import numpy as np
import numpy.typing as npt

from ..prepared import Shard
from . import Bools, Ints
from .random_keys import below, keys, uniform

SHORT_PROBABILITY = 0.1
# A choice looks this many windows ahead; in running text 20 decide it.
_WINDOWS_AHEAD = 64
_NEVER = 1 << 30


def cut_long_sentences(shard: Shard, capacity: int, starts_word: Bools) -> tuple[Ints, Ints, int]:
    """Cut sentences longer than `capacity` at word starts into stretches; any other sentence is one stretch.

    Returns:
        stretch_starts int64 [S + 1] (token offsets; the last is the number of ids), document_starts int64
        [documents + 1] (in stretches), and how many sentences were cut.
    """
    sentence_starts = shard.sentence_starts.astype(np.int64)
    too_long = np.flatnonzero(np.diff(sentence_starts) > capacity)
    cuts = []
    for start, end in zip(sentence_starts[too_long].tolist(), sentence_starts[too_long + 1].tolist(), strict=True):
        cuts += _cuts(shard.ids, start, end, capacity, starts_word)
    stretch_starts = np.sort(np.concatenate([sentence_starts, np.array(cuts, dtype=np.int64)]))  # [S + 1]
    document_tokens = sentence_starts[shard.document_starts]  # [documents + 1]
    return stretch_starts, np.searchsorted(stretch_starts, document_tokens), len(too_long)


def _cuts(ids: npt.NDArray[np.integer], start: int, end: int, capacity: int, starts_word: Bools) -> list[int]:
    word_starts = start + np.flatnonzero(starts_word[ids[start:end]])
    cuts = []
    while end - start > capacity:
        place = int(np.searchsorted(word_starts, start + capacity, side="right")) - 1
        # A word longer than the capacity has no word start to cut at.
        fits = place >= 0 and word_starts[place] > start
        start = int(word_starts[place]) if fits else start + capacity
        cuts.append(start)
    return cuts


def wanted_lengths(num_stretches: int, capacity: int, shard_index: int, seed: int, epoch: int) -> Ints:
    """The most tokens wanted in a window that begins with each stretch: int64 [S].

    `capacity`, or with probability 0.1 a length drawn from 2..capacity (Devlin et al. 2019, appendix A.2; there the
    draw is for a document).
    """
    stretch = np.arange(num_stretches)
    wanted = np.full(num_stretches, capacity, dtype=np.int64)
    short = uniform(keys(seed, "short", epoch, shard_index, stretch)) < SHORT_PROBABILITY
    wanted[short] = 2 + below(keys(seed, "short length", epoch, shard_index, stretch[short]), capacity - 1)
    return wanted


def windows(stretch_starts: Ints, document_starts: Ints, capacity: int, wanted: Ints) -> Ints:
    """First stretch of each window: int64 [N].

    A window takes whole stretches of one document up to its wanted length. Whatever that length, it takes a second
    stretch, and a third, if all fit the capacity and this leaves fewer tokens of the rest of the document alone. It may
    end one stretch earlier for the same reason. So, of all ways to cut a document within the capacity, this one leaves
    the fewest tokens in windows of one stretch. Where no wanted length is short, it also makes the fewest windows.

    Args:
        stretch_starts, document_starts: see `cut_long_sentences`.
        wanted: int64 [S], see `wanted_lengths`.
    """
    alone, smallest = tokens_alone(stretch_starts, document_starts, capacity)
    following = np.searchsorted(stretch_starts, stretch_starts[:-1] + wanted, side="right") - 1  # [S]
    following = np.minimum(following, np.repeat(document_starts[1:], np.diff(document_starts)))
    following -= alone[following - 1] < alone[following]
    stretch = np.arange(len(wanted))
    return walk(np.where(following > stretch + 2, following, stretch + smallest))  # [N]


def walk(following: Ints) -> Ints:
    """The places that are reached from place 0 on, each from the one before: int64 [N].

    Args:
        following: int64 [S], the place that follows each place; S ends the walk.
    """
    path = following.tolist()
    reached, place = [], 0
    while place < len(path):
        reached.append(place)
        place = path[place]
    return np.array(reached, dtype=np.int64)


def tokens_alone(stretch_starts: Ints, document_starts: Ints, capacity: int) -> tuple[npt.NDArray[np.int32], Ints]:
    """For each stretch, the fewest tokens that end up in windows of one stretch, from it to the next forced end.

    A window must end where a document ends, and between neighbours that do not fit the capacity together. Only windows
    of one, two and three stretches are considered: every longer one can be divided into windows of two and three.

    Returns:
        int32 [S + 1], 0 for a stretch that always begins a window; and int64 [S], the size of a window that begins with
        each stretch and leaves the fewest alone: 2 stretches if that is one, else 3, else 1.
    """
    length = np.diff(stretch_starts).astype(np.int32)  # [S]
    two_fit = np.append(length[:-1] + length[1:] <= capacity, False)
    two_fit[document_starts[1:] - 1] = False
    three_fit = two_fit & np.append(two_fit[1:], False)
    three_fit[:-2] &= length[:-2] + length[1:-1] + length[2:] <= capacity
    two, three = (np.where(fit, 0, _NEVER).astype(np.int32) for fit in (two_fit, three_fit))
    follows = np.append(False, two_fit[:-1]).astype(np.int32)
    alone = np.zeros(len(length) + 3, dtype=np.int32)  # [S + 3]
    for _ in range(_WINDOWS_AHEAD):
        costs = (two + alone[2:-1], three + alone[3:], length + alone[1:-2])
        fewest = np.minimum(np.minimum(*costs[:2]), costs[2])  # [S]
        if np.array_equal(fewest * follows, alone[:-3]):
            break
        alone[:-3] = fewest * follows
    smallest = np.where(costs[0] == fewest, 2, np.where(costs[1] == fewest, 3, 1))
    return alone[:-2], smallest  # [S + 1], [S]
