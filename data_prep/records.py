"""Documents as records on disk: what they are known by, how large they are, and what they belong to.

A record is 40 bytes, so all that is decided about documents works on a small file (16 bytes of hash make two different
documents equal with probability under 1e-20 for a billion documents). Documents that can be compared have a signature
beside it (see `near_duplicates`).
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from .near_duplicates import NUM_PERMUTATIONS, minhash
from .text.corpus import Document
from .text_checks import TextChecks

RECORD = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("order", "<u8"), ("bytes", "<u8"), ("file", "<u4"), ("grouped", "<u2"),
     ("signed", "<u2")]
)  # fmt: skip
_PARTITION_BYTES = 64_000_000


def record_documents(
    documents: Iterable[Document], path: Path, checks: TextChecks | None = None, signatures: Path | None = None
) -> int:
    """Write a record for each document: 128 bits of its content's hash, its place in the hash order, its size.

    Where lines end is not part of the content, so that a text is the same however its lines were cut. The place in the
    order is the hash of the group where documents have one, so that a group stays together.
    Returns the number of documents; `checks` gets each. `signatures` is where their signatures go, if anywhere.
    """
    count, number, last = 0, 0, None
    with open(path, "wb") as file, open(signatures or os.devnull, "wb") as signed:
        for document in documents:
            text = "\n".join(document.lines).encode("utf-8", "surrogatepass")
            content = hashlib.blake2b(text.replace(b"\n", b" "), digest_size=16).digest()
            if document.group is None:
                order = hashlib.blake2b(text, digest_size=16).digest()[:8]
            else:
                order = hashlib.blake2b(document.group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            signature = minhash(text) if signatures else None
            if signature is not None:
                signed.write(signature.astype("<u4").tobytes())
            number, last = number + (document.file != last), document.file
            file.write(content + order + len(text).to_bytes(8, "little"))
            file.write((number if document.file else 0).to_bytes(4, "little"))
            file.write((document.group is not None).to_bytes(2, "little"))
            file.write((signature is not None).to_bytes(2, "little"))
            count += 1
            if checks:
                checks.add(document.lines, text)
    return count


def read_records(path: Path) -> np.ndarray:
    """The records, memory-mapped: RECORD [documents]."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=RECORD)
    return np.memmap(path, dtype=RECORD, mode="r")


def read_signatures(path: Path) -> np.ndarray:
    """The signatures, memory-mapped: uint32 [documents that are compared, NUM_PERMUTATIONS]."""
    if path.stat().st_size == 0:
        return np.empty((0, NUM_PERMUTATIONS), dtype=np.uint32)
    return np.memmap(path, dtype="<u4", mode="r").reshape(-1, NUM_PERMUTATIONS)


def _partitions(values: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of the records, partition by partition of a uniformly distributed field, in ascending partitions."""
    count = max(1, -(-len(values) * RECORD.itemsize // _PARTITION_BYTES))
    width = (1 << 64) // count + 1
    for part in range(count):
        low, high = np.uint64(part * width), np.uint64(min((part + 1) * width, (1 << 64) - 1))
        last = part == count - 1
        yield np.flatnonzero((values >= low) & ((values < high) | last))


def find_duplicates(records: np.ndarray) -> np.ndarray:
    """Bool [documents]: an equal document comes earlier in the corpus."""
    duplicate = np.zeros(len(records), dtype=bool)
    for indices in _partitions(records["high"]):
        part = records[indices]
        order = np.lexsort((indices, part["low"], part["high"]))
        part = part[order]
        same = (part["high"][1:] == part["high"][:-1]) & (part["low"][1:] == part["low"][:-1])
        duplicate[indices[order[1:][same]]] = True
    return duplicate


def hash_order(records: np.ndarray, order: np.ndarray, keep: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of the kept documents by their place in the order, partition by partition."""
    for indices in _partitions(order):
        indices = indices[keep[indices]]
        part = records[indices]
        yield indices[np.lexsort((indices, part["low"], part["high"], order[indices]))]
