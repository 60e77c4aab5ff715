"""Which documents are duplicates, which are held out, which teach the vocabulary.

Everything works on the records of the documents (see `records`), so memory is some tens of bytes a document.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from .errors import PrepError
from .examples.random_keys import keys
from .near_duplicates import near_duplicates, near_earlier_ones
from .records import find_duplicates, hash_order

# Bytes of UTF-8 text a token takes, about, in the languages measured (clinical English 4.9, novels 4.6, Korean 4.4).
BYTES_PER_TOKEN = 5
HELD_OUT_SHARE, HELD_OUT_TOKENS, HELD_OUT_PAIRS = 0.05, 250_000, 500
# No more than this share is wanted, however small the corpus. Whole documents may take up to twice as much, and the
# smallest of a few groups more: that is said from _MUCH on.
LARGEST_SHARE, _MUCH = 0.2, 0.25
VOCABULARY_BYTES = 500_000_000

TRAIN, VALIDATION, DUPLICATE, NEAR_DUPLICATE = 0, 1, 2, 3


@dataclass(frozen=True)
class SplitRules:
    """What must not lie on both sides of the split."""

    near_duplicates: Literal["group", "drop", "keep"] = "group"
    """group: near duplicates stay together. drop: the first is kept. keep: nothing is done about them."""
    group_by: Literal["auto", "file", "document"] = "auto"
    """file: all documents of a file stay together. auto: so they do if enough whole files can be held out."""
    is_sample: bool = False
    """The beginning of a corpus is often of one group, as the corpus is not: it is split as though it had none."""


@dataclass(frozen=True)
class Split:
    """The fate of every document, in corpus order.

    `role` uint8 [documents]: TRAIN, VALIDATION, DUPLICATE or NEAR_DUPLICATE; the last two are left out. `order` uint64
    [documents]: equal for documents that were kept on one side. `in_vocabulary` bool [documents]: among those that the
    vocabulary is trained on. `cut_document` is the index of the document whose last part is held out, where no whole
    document could be, else None. `cut_share` is the share of it that is held out.
    """

    role: np.ndarray
    order: np.ndarray
    in_vocabulary: np.ndarray
    cut_document: int | None
    cut_share: float
    bytes: int
    held_out_bytes: int
    num_near_duplicates: int
    """Documents that are nearly equal to another one."""
    arrangement: "Arrangement"
    """What was kept on one side."""
    wanted: "Arrangement"
    """What should have been."""
    is_chosen: bool
    """Whether the held-out text was chosen here, and not given."""

    @property
    def num_duplicates(self) -> int:
        return int(np.count_nonzero(self.role == DUPLICATE))

    @property
    def num_near_duplicates_dropped(self) -> int:
        return int(np.count_nonzero(self.role == NEAR_DUPLICATE))

    def sentences(self) -> list[str]:
        """What became of near duplicates and of files, and what was cut, for people."""
        found, share = [], self._alike()
        if dropped := self.num_near_duplicates_dropped:
            found.append(f"{share}; {dropped:,} of them were dropped.")
        elif self.arrangement.near_duplicates:
            found.append(f"{share}; those that are alike lie on one side of the split.")
        if self.arrangement.files:
            found.append("Whole files are held out (--group-by document: documents).")
        elif self.wanted.files:
            found.append(
                "Files are too few or too large to be held out whole: documents of one file lie on both sides of the "
                "split (--group-by file holds out the smallest)."
            )
        if self.cut_document is not None:
            found.append(
                f"No whole document is small enough to be held out: the last {self.cut_share:.1%} of the largest one "
                "is, and the rest of it is learned from."
            )
        return found

    def warnings(self) -> list[str]:
        """What makes the held-out part a bad one, each with a remedy."""
        found = []
        arrangement, wanted = self.arrangement.near_duplicates, self.wanted.near_duplicates
        if wanted and not arrangement and not self.num_near_duplicates_dropped:
            found.append(
                f"{self._alike()}, too many to lie on one side of the split, so evaluation will look better than it "
                "is: --near-duplicates drop keeps the first of them."
            )
        if self.is_chosen and self.held_out_bytes > _MUCH * self.bytes:
            found.append(
                f"{self.held_out_bytes / self.bytes:.0%} of the text is held out, as documents or groups are large "
                "beside it: give a --validation-corpus, more documents, or smaller groups."
            )
        return found

    def _alike(self) -> str:
        return f"{self.num_near_duplicates:,} documents share two thirds of their text with another one"


@dataclass(frozen=True)
class Arrangement:
    """What is kept on one side of a split, besides equal groups."""

    near_duplicates: bool
    files: bool


def held_out_target(total_bytes: int, sequence_length: int) -> int:
    """Bytes of text to hold out: min(5 %, 250,000 tokens), but enough for 500 pairs if that is under 20 %."""
    wanted = min(HELD_OUT_SHARE * total_bytes, HELD_OUT_TOKENS * BYTES_PER_TOKEN)
    enough = HELD_OUT_PAIRS * sequence_length * BYTES_PER_TOKEN
    return int(min(max(wanted, enough), LARGEST_SHARE * total_bytes))


def split_documents(
    records: np.ndarray,
    sequence_length: int,
    num_validation: int = 0,
    rules: SplitRules | None = None,
    signatures: np.ndarray | None = None,
) -> Split:
    """Decide the fate of every document.

    Documents are held out in hash order, groups as a whole, until the target is reached. One that would exceed twice
    the target is skipped (a novel among short stories); of the others, a fifth is held out at most. Where less than
    half of the target can be held out this way, near duplicates and files may lie on both sides. If nothing fits, the
    smallest group is held out, or, where there are no groups, the last part of the largest document.

    Args:
        records: RECORD [documents].
        num_validation: this many documents at the beginning are the validation corpus; nothing else is held out, and
            their near duplicates in the rest are dropped.
        rules: the default rules if None.
        signatures: uint32 [documents with a signature, NUM_PERMUTATIONS]; without them nothing is a near duplicate.

    Raises:
        PrepError: all documents are of one group.
    """
    records, rules = _without_a_single_group(records, rules or SplitRules())
    role = np.where(find_duplicates(records), DUPLICATE, TRAIN).astype(np.uint8)
    signed, pairs = np.empty(0, dtype=np.int64), np.empty((0, 2), dtype=np.int64)
    if signatures is not None and rules.near_duplicates != "keep":
        signed = np.flatnonzero(records["signed"])
        pairs = _pairs(near_duplicates, signatures, signed, role)
    if rules.near_duplicates == "drop":
        pairs = _drop_all(role, pairs, signed, signatures)
    elif num_validation:
        pairs = _drop_beside_validation(role, pairs, signed, signatures, num_validation)
    num_near = len(np.unique(pairs))
    pairs = pairs[(role[pairs] == TRAIN).all(axis=1)]
    sizes = np.where(role == TRAIN, records["bytes"], 0).astype(np.int64)
    total = int(sizes.sum())
    held, cut_document, cut_share = int(sizes[:num_validation].sum()), None, 0.0
    order, arrangements = records["order"], _arrangements(records, role, pairs, rules)
    arrangement = Arrangement(False, False)
    if num_validation:
        role[:num_validation][role[:num_validation] == TRAIN] = VALIDATION
    else:
        target = held_out_target(total, sequence_length)
        attempts = (_attempt(records, role, pairs, sizes, target, each) for each in arrangements)
        best = _first_that_suffices(attempts, target)
        role, order, held, arrangement = best.role, best.order, best.held, best.arrangement
        if held == 0:
            held = _hold_out_smallest_group(records, order, role, sizes, rules)
        if held == 0 and len(records):
            cut_document, held = int(sizes.argmax()), target
            cut_share = target / int(sizes[cut_document])
    in_vocabulary = _first_in_order(records, order, role == TRAIN, sizes)
    wanted = arrangement if num_validation else arrangements[0]
    return Split(role, order, in_vocabulary, cut_document, cut_share, total, held, num_near, arrangement, wanted,
                 is_chosen=not num_validation)  # fmt: skip


@dataclass(frozen=True)
class _Attempt:
    """What an arrangement comes to: the roles of the documents, their order, and the bytes held out."""

    arrangement: Arrangement
    role: np.ndarray
    order: np.ndarray
    held: int


def _attempt(records, role, pairs, sizes, target: int, arrangement: Arrangement) -> _Attempt:
    order = _kept_together(records, role, pairs, arrangement)
    found, held = _hold_out(records, order, role, sizes, target)
    return _Attempt(arrangement, found, order, held)


def _first_that_suffices(attempts: Iterable[_Attempt], target: int) -> _Attempt:
    """The first that holds out half of the target, else half of what the loosest does: that one is no better where
    giants leave little to hold out."""
    tried = []
    for attempt in attempts:
        tried.append(attempt)
        if 2 * attempt.held >= target:
            return attempt
    loosest = tried[-1]
    return next((attempt for attempt in tried if attempt.held and 2 * attempt.held >= loosest.held), loosest)


def _without_a_single_group(records: np.ndarray, rules: SplitRules) -> tuple[np.ndarray, SplitRules]:
    """A sample of one group as though it had none; everything else as it is."""
    by_file = rules.group_by == "file" and len(np.unique(records["file"])) == 1
    by_column = records["grouped"].all() and len(np.unique(records["order"])) == 1
    if not (rules.is_sample and (by_file or by_column)):
        return records, rules
    records = records.copy()
    records["order"], records["grouped"] = keys(0, "ungrouped", 0, np.arange(len(records))), False
    return records, replace(rules, group_by="document")


def _first_in_order(records, order, keep, sizes) -> np.ndarray:
    """Bool [documents]: those that teach the vocabulary, VOCABULARY_BYTES of them."""
    chosen, budget = np.zeros(len(records), dtype=bool), VOCABULARY_BYTES
    for indices in hash_order(records, order, keep):
        before = np.cumsum(sizes[indices]) - sizes[indices]
        chosen[indices[before < budget]] = True
        budget -= int(sizes[indices].sum())
        if budget <= 0:
            break
    return chosen


def _pairs(find: Callable[..., np.ndarray], signatures, signed: np.ndarray, role: np.ndarray) -> np.ndarray:
    """What `find` finds among the signed documents in training: int64 [pairs, 2], the earlier one first."""
    rows = np.flatnonzero(role[signed] == TRAIN)
    return signed[find(signatures, rows)]


def _drop(role: np.ndarray, pairs: np.ndarray) -> None:
    """Mark what is nearly equal to an earlier document that is kept."""
    # By the later document, so that the fate of the earlier one is known.
    for first, second in pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))].tolist():
        if role[first] == TRAIN:
            role[second] = NEAR_DUPLICATE


def _drop_all(role: np.ndarray, pairs: np.ndarray, signed: np.ndarray, signatures) -> np.ndarray:
    """Mark what is nearly equal to an earlier document that is kept; returns all pairs that were found.

    Those that are kept are compared again: what stood between two of them may be gone.
    """
    found = pairs
    _drop(role, pairs)
    while len(signed) and len(pairs := _pairs(near_earlier_ones, signatures, signed, role)):
        _drop(role, pairs)
        found = np.concatenate([found, pairs])
    return found


def _drop_beside_validation(
    role: np.ndarray, pairs: np.ndarray, signed: np.ndarray, signatures, num_validation: int
) -> np.ndarray:
    """Mark what is nearly equal to a validation document, also through others; returns all pairs that were found."""
    if len(signed):
        num_first = int(np.count_nonzero(role[signed[signed < num_validation]] == TRAIN))
        others = _pairs(partial(near_earlier_ones, num_first=num_first), signatures, signed, role)
        pairs = np.concatenate([pairs, others])
    alike = _components(pairs, len(role))
    near = np.isin(alike, alike[:num_validation][role[:num_validation] == TRAIN]) & (role == TRAIN)
    near[:num_validation] = False
    role[near] = NEAR_DUPLICATE
    return pairs


def _components(pairs: np.ndarray, count: int) -> np.ndarray:
    """Which of `count` documents pairs connect: the number of its component for each, int32 [count]."""
    # Slow to load, and needed by preparations alone.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(pairs), dtype=bool), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    return connected_components(graph, directed=False)[1]


def _arrangements(records, role, pairs, rules: SplitRules) -> list[Arrangement]:
    """What may be kept on one side, the most first."""
    files = records["file"][role == TRAIN]
    documents_of_files = np.bincount(files[files > 0]) if len(files) else files
    are_files_groups = np.count_nonzero(documents_of_files) > 1 and documents_of_files.max() > 1
    if rules.group_by == "file":
        by_file = [True]
    elif rules.group_by == "auto" and are_files_groups and not records["grouped"].any():
        by_file = [True, False]
    else:
        by_file = [False]
    found = [Arrangement(True, files) for files in by_file] if len(pairs) else []
    return [*found, *(Arrangement(False, files) for files in by_file)]


def _kept_together(records: np.ndarray, role: np.ndarray, pairs: np.ndarray, arrangement: Arrangement) -> np.ndarray:
    """The place of each document in the order, equal for those that must stay on one side: uint64 [documents]."""
    order, edges, used = records["order"], [], np.flatnonzero(role == TRAIN)
    if arrangement.near_duplicates:
        edges.append(pairs)
        by_order = used[np.argsort(order[used], kind="stable")]
        equal = np.flatnonzero(order[by_order[1:]] == order[by_order[:-1]])
        edges.append(np.stack([by_order[equal], by_order[equal + 1]], axis=1))
    if arrangement.files:
        file = records["file"]
        same = np.flatnonzero((file[1:] == file[:-1]) & (file[1:] > 0))
        edges.append(np.stack([same, same + 1], axis=1))
    if not edges:
        return order
    component = _components(np.concatenate(edges), len(order))
    first = np.full(len(order), np.iinfo(np.uint64).max)
    np.minimum.at(first, component[used], order[used])
    # The least of many is small, and would come first.
    several = np.bincount(component[used], minlength=len(order)) > 1
    first[several] = keys(0, "kept together", 0, first[several])
    return first[component]


def _groups(records, order, role, sizes) -> Iterator[tuple[np.ndarray, int]]:
    """Documents of equal `order` among those in training, in hash order: their indices and their bytes."""
    for indices in hash_order(records, order, role == TRAIN):
        place = order[indices]
        bounds = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1], [True]]))
        for begin, end in pairwise(bounds if len(indices) else ()):
            yield indices[begin:end], int(sizes[indices[begin:end]].sum())


def _hold_out(records, order, role, sizes, target: int) -> tuple[np.ndarray, int]:
    """The roles with held-out documents among them, whole groups together, and the bytes of these."""
    held, found = 0, role.copy()
    # The text of a giant that cannot be held out does not make the small ones fewer.
    target = min(target, int(LARGEST_SHARE * _bytes_that_fit(records, order, role, sizes, 2 * target)))
    for group, size in _groups(records, order, role, sizes):
        if held + size <= 2 * target:
            found[group] = VALIDATION
            held += size
        if held >= target:
            break
    return found, held


def _bytes_that_fit(records, order, role, sizes, most: int) -> int:
    """Bytes of all groups in training that have `most` bytes or fewer."""
    total = 0
    for indices in hash_order(records, order, role == TRAIN):
        place = order[indices]
        begins = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1]]))[: len(indices)]
        if len(indices):
            of_groups = np.add.reduceat(sizes[indices], begins)
            total += int(of_groups[of_groups <= most].sum())
    return total


def _hold_out_smallest_group(records, order, role, sizes, rules: SplitRules) -> int:
    """For a few large groups that never fit: a cut through a document would put its group on both sides."""
    if rules.group_by != "file" and not records["grouped"][role == TRAIN].any():
        return 0
    groups = list(_groups(records, order, role, sizes))
    if len(groups) == 1:
        what = "have the same value in the --group-column", "leave --group-column out"
        if rules.group_by == "file":
            what = "are of one file", "leave --group-by file out"
        raise PrepError(f"all documents {what[0]}, so none can be held out: give --validation-corpus, or {what[1]}")
    group, size = min(groups, key=lambda found: found[1])
    role[group] = VALIDATION
    return size
