"""Near duplicates: documents that share at least half of their text, as letters that differ in a name and a date.

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
"""Jaccard similarity of the windows of two documents, from which on they are near duplicates."""
WINDOW = 24
"""Bytes of a window; a sixteenth of the windows is compared, chosen by what they begin with."""
LEAST_WINDOWS = 8
"""Documents with fewer sampled windows, of less than about 150 bytes, are not compared."""
NUM_PERMUTATIONS, _ROWS = 63, 3
SIGNATURE_BYTES = 4 * NUM_PERMUTATIONS
"""Values of a signature, and of a band of it: of pairs with similarity 0.5 94 % are found, with 0.7 99.98 %."""

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
    for begin in range(0, NUM_PERMUTATIONS, _ROWS):
        band = signatures[:, begin : begin + _ROWS][rows].astype(np.uint64) @ _FACTORS
        order = np.argsort(band, kind="stable")
        same = np.flatnonzero(band[order[1:]] == band[order[:-1]]) + 1
        starts = np.flatnonzero(np.diff(band[order], prepend=~band[order[:1]]) != 0)
        first = starts[np.searchsorted(starts, same, side="right") - 1]
        pairs = np.concatenate([np.stack([order[same - 1], order[same]], 1), np.stack([order[first], order[same]], 1)])
        found = np.unique(np.concatenate([found, _agreeing(signatures, np.unique(rows[pairs], axis=0))]), axis=0)
    return found


def _agreeing(signatures: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Those of the pairs that are near duplicates."""
    parts = [_NO_PAIRS]
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        part = pairs[start : start + _PAIRS_AT_ONCE]
        share = (signatures[part[:, 0]] == signatures[part[:, 1]]).mean(axis=1)
        parts.append(part[share >= SIMILARITY])
    return np.concatenate(parts)
