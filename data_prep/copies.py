"""Held-out text that stands in the training text too, word for word: runs of 16 tokens and more.

What a model has seen it may know by heart, so evaluation is also given without such tokens. Longer copies of whole
documents are known before (see `near_duplicates`); what is left are quotations, headings and formulas of a trade.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .prepared import Shard

RUN = 16
"""Tokens of a run; a power of two."""

_TOKENS_AT_ONCE = 1 << 20
_FACTOR, _MIXED = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def copied_tokens(train: Iterable[Shard], validation: Sequence[Shard]) -> list[np.ndarray]:
    """For each shard of held-out text which tokens lie in a run that also stands in a training document.

    Runs are compared by 64 bits of hash, and lie within one document.

    Returns:
        A bool array [tokens] for each shard of `validation`.
    """
    runs = [np.unique(hashes) for shard in validation for _, hashes in _runs(shard)]
    if not sum(map(len, runs)):
        return [np.zeros(len(shard.ids), dtype=bool) for shard in validation]
    known = np.unique(np.concatenate(runs))
    found = np.zeros(len(known), dtype=bool)
    # Few runs of the training text are looked up: those whose upper bits are the same.
    shift = np.uint64(64 - min(28, max(10, int(16 * len(known)).bit_length())))
    is_near = np.zeros(1 << (64 - int(shift)), dtype=bool)
    is_near[known >> shift] = True
    for shard in train:
        for _, hashes in _runs(shard):
            hashes = hashes[is_near[hashes >> shift]]
            place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            found[place[known[place] == hashes]] = True
    copied = []
    for shard in validation:
        ends = np.zeros(len(shard.ids) + 1, dtype=np.int32)
        for starts, hashes in _runs(shard):
            starts = starts[found[np.searchsorted(known, hashes)]]
            ends[starts] += 1
            ends[starts + RUN] -= 1
        copied.append(np.cumsum(ends[:-1]) > 0)
    return copied


def _runs(shard: Shard) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Where the runs of a shard start, and their hashes, uint64, some of them at a time."""
    bounds = shard.sentence_starts[shard.document_starts[1:]].astype(np.int64)
    for begin in range(0, len(shard.ids), _TOKENS_AT_ONCE):
        ids = shard.ids[begin : begin + _TOKENS_AT_ONCE + RUN - 1]
        if len(ids) < RUN:
            continue
        hashes = (ids.astype(np.uint64) + np.uint64(1)) * _FACTOR
        hashes ^= hashes >> np.uint64(32)
        width = 1
        while width < RUN:
            # Of two halves that follow each other; the later factor is odd, as it must be.
            hashes = hashes[:-width] * _MIXED + hashes[width:]
            hashes ^= hashes >> np.uint64(29)
            width *= 2
        within = np.ones(len(hashes), dtype=bool)
        near = bounds[(bounds > begin) & (bounds < begin + len(ids))] - begin
        over = near[:, None] - np.arange(1, RUN)
        within[over[(over >= 0) & (over < len(within))]] = False
        starts = np.flatnonzero(within)
        yield starts + begin, hashes[starts]
