"""Near duplicates: documents that share two thirds of their text or more, as letters that differ in a name and a date.

MinHash (Broder 1997, "On the resemblance and containment of documents") over windows of bytes, so that no language
needs a word splitter. What is compared is a sample of the windows, chosen by a hash of their beginning, hence the same
in every document. Documents become candidates where a band of their signatures agrees (Indyk and Motwani 1998), and
near duplicates where the whole signatures agree enough. Signatures lie on disk; memory is about 150 bytes a document,
of form letters up to 600.
"""

from collections.abc import Iterator
from functools import cache

import numpy as np

SIMILARITY = 0.5
"""Jaccard similarity of the windows of two documents, from which on they are near duplicates: that of two equally long
ones with two thirds in common."""
WINDOW = 24
"""Bytes of a window; a sixteenth of the windows is compared, chosen by what they begin with."""
LEAST_WINDOWS = 8
"""Documents with fewer sampled windows, of less than about 150 bytes, are not compared."""
NUM_PERMUTATIONS, _ROWS = 63, 3
SIGNATURE_BYTES = 4 * NUM_PERMUTATIONS
"""Values of a signature, and of a band of it. Of pairs with similarity 0.5 half are found, with 0.6 90 %, with 0.7 99 %
(measured): 94 % have a band in common with 0.5, and signatures agree in a share around the similarity."""
LEADERS = 64
"""Of the documents in which a band agrees, how many each is compared with where hardly any may be missed."""

_NO_PAIRS = np.empty((0, 2), dtype=np.int64)
# Upper case, marks and line breaks make no difference.
_MARKS = b"\t\n\r!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_FOLDED = bytes.maketrans(_MARKS, b" " * len(_MARKS)).lower()
_SAMPLED_BITS = 4
_CHUNK = 1 << 20
_PAIRS_AT_ONCE = 1 << 12
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64)
# The parameters of the permutations are drawn from this seed, and are the same in all versions of the scheme.
_SCHEME, _SEED = "affine32", 1


def minhash(text: bytes) -> np.ndarray | None:
    """uint32 [NUM_PERMUTATIONS], or None for a text with too few windows."""
    found = [values for values in sampled_windows(text) if len(values)]
    if sum(map(len, found)) < LEAST_WINDOWS:
        return None
    # Slow to load, and needed by preparations alone.
    from datasketch import MinHash

    made = MinHash(NUM_PERMUTATIONS, hashfunc=int, permutations=_permutations(), scheme=_SCHEME)
    for values in found:
        made.update_batch(values.tolist())
    return made.hashvalues


@cache
def _permutations() -> tuple[np.ndarray, np.ndarray]:
    """The parameters of the permutations."""
    from datasketch import MinHash

    return MinHash(NUM_PERMUTATIONS, seed=_SEED, scheme=_SCHEME).permutations


def sampled_windows(text: bytes) -> Iterator[np.ndarray]:
    """The hashes of the sampled windows of a text, uint32, a chunk of the text at a time."""
    for start in range(0, len(text), _CHUNK):
        folded = b" ".join(text[start : start + _CHUNK].translate(_FOLDED).split())
        count = len(folded) - WINDOW + 1
        if count <= 0:
            continue
        # Eight bytes at every place of the text; those of the sample are read on to a whole window.
        heads, *rest = (np.ndarray(count, "<u8", folded, offset, (1,)) for offset in range(0, WINDOW, 8))
        sample = np.flatnonzero((heads * _FACTORS[0]) >> np.uint64(64 - _SAMPLED_BITS) == 0)
        mixed = heads[sample] * _FACTORS[0]
        for words, factor in zip(rest, _FACTORS[1:], strict=True):
            mixed += words[sample] * factor
        mixed ^= mixed >> np.uint64(32)
        yield (mixed * _FACTORS[0] >> np.uint64(32)).astype(np.uint32)


def near_duplicates(signatures: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Pairs of some rows whose signatures agree in a share of SIMILARITY or more: int64 [pairs, 2], the earlier first.

    Of many documents that are near duplicates of each other, each is paired with one or more before it, not with all.
    """
    found = _NO_PAIRS
    for order, first in _bands(signatures, rows):
        same = np.flatnonzero(first < np.arange(len(order)))
        first = first[same]
        pairs = np.concatenate([np.stack([order[same - 1], order[same]], 1), np.stack([order[first], order[same]], 1)])
        found = np.unique(np.concatenate([found, _agreeing(signatures, np.unique(rows[pairs], axis=0))]), axis=0)
    return found


def near_earlier_ones(signatures: np.ndarray, rows: np.ndarray, num_first: int | None = None) -> np.ndarray:
    """For each of some rows that is a near duplicate of an earlier one, one such pair: int64 [pairs, 2].

    Of the rows whose band agrees each is compared with up to `LEADERS` of the earliest.

    Args:
        num_first: what the rows behind these are compared with; None takes all.
    """
    found, waits = [_NO_PAIRS], np.ones(len(rows), dtype=bool)
    waits[: num_first or 0] = False
    limit = len(rows) if num_first is None else num_first
    for order, first in _bands(signatures, rows):
        place = np.flatnonzero(waits[order] & (first < np.arange(len(order))))
        for leader in range(LEADERS):
            place = place[first[place] + leader < place]
            place = place[order[first[place] + leader] < limit]
            if not len(place):
                break
            agrees = _agree(signatures, rows[order[first[place] + leader]], rows[order[place]])
            pairs = np.stack([order[first[place] + leader], order[place]], axis=1)[agrees]
            found.append(rows[pairs])
            waits[pairs[:, 1]] = False
            place = place[~agrees]
    return np.concatenate(found)


def _bands(signatures: np.ndarray, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each band an order of the rows in which equal ones stand together, the earlier first, and for each place of it
    the first place with the same band."""
    for begin in range(0, NUM_PERMUTATIONS, _ROWS):
        band = signatures[:, begin : begin + _ROWS][rows].astype(np.uint64) @ _FACTORS
        order = np.argsort(band, kind="stable")
        starts = np.flatnonzero(np.diff(band[order], prepend=~band[order[:1]]) != 0)
        yield order, np.repeat(starts, np.diff(starts, append=len(order)))


def _agreeing(signatures: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Those of the pairs that are near duplicates."""
    return pairs[_agree(signatures, pairs[:, 0], pairs[:, 1])]


def _agree(signatures: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether two rows are near duplicates: bool [pairs]."""
    parts = [np.empty(0, dtype=bool)]
    for start in range(0, len(one), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        parts.append((signatures[one[part]] == signatures[other[part]]).mean(axis=1) >= SIMILARITY)
    return np.concatenate(parts)
