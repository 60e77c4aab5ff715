"""Which documents are duplicates, which are held out, which teach the vocabulary.

One pass over the corpus writes a 40-byte record a document to disk; everything else works on these records,
partition by partition, so memory is bounded whatever the size of the corpus (16 bytes of hash make two different
documents equal with probability under 1e-20 for a billion documents).
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from .corpus import Document
from .errors import PrepError
from .text_checks import TextChecks

# Bytes of UTF-8 text a token takes, about, in the languages measured (clinical English 4.9, novels 4.6, Korean 4.4).
BYTES_PER_TOKEN = 5
HELD_OUT_SHARE, HELD_OUT_TOKENS, HELD_OUT_PAIRS = 0.05, 250_000, 500
# The held-out part never takes more than this share, however small the corpus.
LARGEST_SHARE = 0.2
VOCABULARY_BYTES = 500_000_000

RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("order", "<u8"), ("bytes", "<u8"), ("grouped", "<u8")])
_PARTITION_BYTES = 64_000_000

TRAIN, VALIDATION, DUPLICATE = 0, 1, 2


@dataclass(frozen=True)
class Split:
    """The fate of every document, in corpus order.

    `role` uint8 [documents]: TRAIN, VALIDATION or DUPLICATE. `in_vocabulary` bool [documents]: among those that the
    vocabulary is trained on. `cut_document` is the index of the document whose last part is held out, where no whole
    document could be, else None. `cut_share` is the share of its lines that is held out.
    """

    role: np.ndarray
    in_vocabulary: np.ndarray
    cut_document: int | None
    cut_share: float
    bytes: int
    held_out_bytes: int

    @property
    def num_duplicates(self) -> int:
        return int(np.count_nonzero(self.role == DUPLICATE))


def record_documents(documents: Iterable[Document], path: Path, checks: TextChecks | None = None) -> int:
    """Write a record for each document: 128 bits of its content's hash, its place in the hash order, its size.

    Where lines end is not part of the content, so that a text is the same however its lines were cut. The place in the
    order is the hash of the group where documents have one, so that a group stays together.
    Returns the number of documents; `checks` gets each.
    """
    count = 0
    with open(path, "wb") as file:
        for document in documents:
            text = "\n".join(document.lines).encode("utf-8", "surrogatepass")
            content = hashlib.blake2b(text.replace(b"\n", b" "), digest_size=16).digest()
            if document.group is None:
                order = hashlib.blake2b(text, digest_size=16).digest()[:8]
            else:
                order = hashlib.blake2b(document.group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            is_grouped = document.group is not None
            file.write(content + order + len(text).to_bytes(8, "little") + is_grouped.to_bytes(8, "little"))
            count += 1
            if checks:
                checks.add(document.lines, text, document.group)
    return count


def read_records(path: Path) -> np.ndarray:
    """The records, memory-mapped: RECORD [documents]."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=RECORD)
    return np.memmap(path, dtype=RECORD, mode="r")


def _partitions(records: np.ndarray, field: str) -> Iterator[np.ndarray]:
    """Indices of the records, partition by partition of a uniformly distributed field, in ascending partitions."""
    count = max(1, -(-records.nbytes // _PARTITION_BYTES))
    width = (1 << 64) // count + 1
    for part in range(count):
        low, high = np.uint64(part * width), np.uint64(min((part + 1) * width, (1 << 64) - 1))
        values = records[field]
        last = part == count - 1
        yield np.flatnonzero((values >= low) & ((values < high) | last))


def find_duplicates(records: np.ndarray) -> np.ndarray:
    """Bool [documents]: an equal document comes earlier in the corpus."""
    duplicate = np.zeros(len(records), dtype=bool)
    for indices in _partitions(records, "high"):
        part = records[indices]
        order = np.lexsort((indices, part["low"], part["high"]))
        part = part[order]
        same = (part["high"][1:] == part["high"][:-1]) & (part["low"][1:] == part["low"][:-1])
        duplicate[indices[order[1:][same]]] = True
    return duplicate


def hash_order(records: np.ndarray, keep: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of the kept documents in the order of their hash (or their group's), partition by partition."""
    for indices in _partitions(records, "order"):
        indices = indices[keep[indices]]
        part = records[indices]
        yield indices[np.lexsort((indices, part["low"], part["high"], part["order"]))]


def held_out_target(total_bytes: int, sequence_length: int) -> int:
    """Bytes of text to hold out: min(5 %, 250,000 tokens), but enough for 500 pairs if that is under 20 %."""
    wanted = min(HELD_OUT_SHARE * total_bytes, HELD_OUT_TOKENS * BYTES_PER_TOKEN)
    enough = HELD_OUT_PAIRS * sequence_length * BYTES_PER_TOKEN
    return int(min(max(wanted, enough), LARGEST_SHARE * total_bytes))


def split_documents(records: np.ndarray, sequence_length: int, num_validation: int = 0) -> Split:
    """Decide the fate of every document.

    Documents are held out in hash order until the target is reached; one that would overshoot the target twofold is
    passed over (a novel among short stories), and of those that are left a fifth goes at most. If nothing fits, the
    smallest group is held out, or, where there are no groups, the last part of the largest document.

    Args:
        records: RECORD [documents].
        num_validation: the first so many documents are a validation corpus of its own; nothing else is held out.

    Raises:
        PrepError: all documents are of one group.
    """
    role = np.where(find_duplicates(records), DUPLICATE, TRAIN).astype(np.uint8)
    sizes = np.where(role == TRAIN, records["bytes"], 0).astype(np.int64)
    total = int(sizes.sum())
    held, cut_document = int(sizes[:num_validation].sum()), None
    target = 0 if num_validation else held_out_target(total, sequence_length)
    if num_validation:
        role[:num_validation][role[:num_validation] == TRAIN] = VALIDATION
    else:
        held = _hold_out(records, role, sizes, target) or _hold_out_smallest_group(records, role, sizes)
        if held == 0 and len(records):
            cut_document = int(sizes.argmax())
            held = target
    in_vocabulary = np.zeros(len(records), dtype=bool)
    budget = VOCABULARY_BYTES
    for indices in hash_order(records, role == TRAIN):
        before = np.cumsum(sizes[indices]) - sizes[indices]
        in_vocabulary[indices[before < budget]] = True
        budget -= int(sizes[indices].sum())
    cut_share = target / int(sizes[cut_document]) if cut_document is not None else 0.0
    return Split(role, in_vocabulary, cut_document, cut_share, total, held)


def _groups(records, role, sizes) -> Iterator[tuple[np.ndarray, int]]:
    """Documents of equal `order` among those in training, in hash order: their indices and their bytes."""
    for indices in hash_order(records, role == TRAIN):
        order = records["order"][indices]
        bounds = np.flatnonzero(np.concatenate([[True], order[1:] != order[:-1], [True]]))
        for begin, end in pairwise(bounds if len(indices) else ()):
            yield indices[begin:end], int(sizes[indices[begin:end]].sum())


def _hold_out(records, role, sizes, target: int) -> int:
    """Mark held-out documents in `role`; whole groups go together. Returns the bytes."""
    held = 0
    # The text of a giant that cannot be held out does not make the small ones fewer.
    target = min(target, int(LARGEST_SHARE * _bytes_that_fit(records, role, sizes, 2 * target)))
    for group, size in _groups(records, role, sizes):
        if held + size <= 2 * target:
            role[group] = VALIDATION
            held += size
        if held >= target:
            break
    return held


def _bytes_that_fit(records, role, sizes, most: int) -> int:
    """Bytes of all groups in training that have `most` bytes or fewer."""
    total = 0
    for indices in hash_order(records, role == TRAIN):
        order = records["order"][indices]
        begins = np.flatnonzero(np.concatenate([[True], order[1:] != order[:-1]]))[: len(indices)]
        if len(indices):
            of_groups = np.add.reduceat(sizes[indices], begins)
            total += int(of_groups[of_groups <= most].sum())
    return total


def _hold_out_smallest_group(records, role, sizes) -> int:
    """For a few large groups that never fit: a cut through a document would put its group on both sides."""
    if not records["grouped"][role == TRAIN].any():
        return 0
    groups = list(_groups(records, role, sizes))
    if len(groups) == 1:
        raise PrepError(
            "all documents have the same value in the --group-column, so none can be held out: "
            "give --validation-corpus, or leave --group-column out"
        )
    group, size = min(groups, key=lambda found: found[1])
    role[group] = VALIDATION
    return size
