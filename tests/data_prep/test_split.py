"""Who is held out, a duplicate, or teaches the vocabulary: against a plain version with dictionaries."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import records as on_disk
from data_prep import split
from data_prep.corpus_numbers import _groups
from data_prep.errors import PrepError
from data_prep.records import RECORD, read_records, record_documents
from data_prep.split import DUPLICATE, NEAR_DUPLICATE, TRAIN, VALIDATION, _drop, held_out_target, split_documents
from data_prep.text.corpus import Document

LENGTH = 16
texts = st.text("ab \n", min_size=1, max_size=6).map(lambda text: text * 40)
document_lists = st.lists(st.tuples(texts, st.sampled_from([None, None, "x", "y", "z"])), min_size=1, max_size=30)
ungrouped_lists = st.lists(texts, min_size=1, max_size=30).map(lambda found: [(text, None) for text in found])


@pytest.fixture(scope="session")
def records_of(tmp_path_factory):
    """(text, group) of each document -> their records, written to disk and read back."""
    path = tmp_path_factory.mktemp("records") / "documents.bin"

    def make(documents: list[tuple[str, str | None]]) -> np.ndarray:
        found = [Document(text.split("\n"), "made up", group) for text, group in documents]
        assert record_documents(found, path) == len(documents)
        return np.array(read_records(path))

    return make


def content_hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def place_in_order(text: str, group: str | None) -> int:
    whole = content_hash(text) if group is None else hashlib.blake2b(group.encode(), digest_size=8).digest()
    return int.from_bytes(whole[:8], "little")


def on_one_line(text: str) -> str:
    """A text without regard to where its lines end, by which it is told from others."""
    return text.replace("\n", " ")


def first_occurrences(documents: list[tuple[str, str | None]]) -> list[int]:
    first: dict[str, int] = {}
    for index, (text, _) in enumerate(documents):
        first.setdefault(on_one_line(text), index)
    return sorted(first.values())


def expected_held_out(documents: list[tuple[str, str | None]]) -> set[int] | None:
    """Indices held out by the rules in words, or None where a document has to be cut."""
    unique = first_occurrences(documents)
    size = {index: len(documents[index][0].encode()) for index in unique}
    total = sum(size.values())
    wanted = min(max(min(0.05 * total, 250_000 * 5), 500 * LENGTH * 5), 0.2 * total)
    target = int(wanted)
    members: dict[int, list[int]] = {}
    for index in unique:
        members.setdefault(place_in_order(*documents[index]), []).append(index)
    weights = [sum(size[index] for index in group) for group in members.values()]
    target = min(target, int(0.2 * sum(weight for weight in weights if weight <= 2 * target)))
    held, chosen = 0, set()
    for _, group in sorted(members.items()):
        weight = sum(size[index] for index in group)
        if held + weight <= 2 * target:
            held += weight
            chosen |= set(group)
        if held >= target:
            break
    if chosen or all(documents[index][1] is None for index in unique):
        return chosen or None
    _, smallest = min((sum(size[i] for i in group), place) for place, group in sorted(members.items()))
    return set(members[smallest])


def one_group(documents) -> bool:
    """Whether the documents that are left without duplicates are all of one (named) group."""
    groups = {documents[index][1] for index in first_occurrences(documents)}
    return len(groups) == 1 and groups != {None}


@given(document_lists)
def test_duplicates_are_all_but_the_first(records_of, documents):
    unique = first_occurrences(documents)
    duplicate = split.find_duplicates(records_of(documents))
    assert np.flatnonzero(~duplicate).tolist() == unique


@given(document_lists)
def test_the_split_is_that_of_the_rules_in_words(records_of, documents):
    records = records_of(documents)
    if one_group(documents):
        with pytest.raises(PrepError, match="--group-column"):
            split_documents(records, LENGTH)
        return
    found = split_documents(records, LENGTH)
    expected = expected_held_out(documents)
    assert set(np.flatnonzero(found.role == VALIDATION).tolist()) == (expected or set())
    unique = first_occurrences(documents)
    assert np.flatnonzero(found.role != DUPLICATE).tolist() == unique
    assert found.num_duplicates == len(documents) - len(unique)
    sizes = [len(text.encode()) for text, _ in documents]
    assert found.bytes == sum(sizes[index] for index in unique)
    assert (found.cut_document is None) == bool(expected)
    if expected:
        assert found.held_out_bytes == sum(sizes[index] for index in expected)
    else:
        assert sizes[found.cut_document] == max(sizes)
        assert 0 < found.cut_share < 0.5


@given(document_lists)
def test_a_group_and_a_text_are_on_one_side_only(records_of, documents):
    if one_group(documents):
        return
    role = split_documents(records_of(documents), LENGTH).role
    sides = {part: np.flatnonzero(role == part).tolist() for part in (TRAIN, VALIDATION)}
    for member in (0, 1):
        train, held_out = (
            {on_one_line(documents[i][member] or "") for i in sides[part]} - {""} for part in (TRAIN, VALIDATION)
        )
        assert not train & held_out


@given(ungrouped_lists, st.randoms(use_true_random=False))
def test_the_order_of_the_corpus_does_not_matter(records_of, documents, order):
    def held_out(listed):
        found = split_documents(records_of(listed), LENGTH)
        return {listed[i][0] for i in np.flatnonzero(found.role == VALIDATION)}, found.held_out_bytes

    # Which of two that differ in their line breaks comes first is up to the order.
    documents = [documents[index] for index in first_occurrences(documents)]
    shuffled = documents.copy()
    order.shuffle(shuffled)
    assert held_out(shuffled) == held_out(documents)


@given(document_lists, st.sampled_from([1, 32, 100, 320]), st.integers(0, 3000))
def test_small_partitions_give_the_same_answer(records_of, documents, partition_bytes, vocabulary_bytes):
    if one_group(documents):
        return
    records = records_of(documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "VOCABULARY_BYTES", vocabulary_bytes)
        whole = split_documents(records, LENGTH)
        patch.setattr(on_disk, "_PARTITION_BYTES", partition_bytes)
        parts = split_documents(records, LENGTH)
    assert parts.role.tolist() == whole.role.tolist()
    assert parts.in_vocabulary.tolist() == whole.in_vocabulary.tolist()
    assert (parts.cut_document, parts.held_out_bytes) == (whole.cut_document, whole.held_out_bytes)


edges = [k * ((1 << 64) // 7 + 1) + d for k in range(8) for d in (-1, 0, 1)] + [(1 << 63) - 1, 1 << 63]
hashes = st.one_of(
    st.sampled_from([e for e in edges if 0 <= e < 1 << 64] + [(1 << 64) - 1]), st.integers(0, (1 << 64) - 1)
)


@given(st.lists(st.tuples(hashes, hashes, hashes), min_size=7, max_size=7))
def test_no_hash_falls_between_two_partitions(values):
    """Seven records, seven partitions, hashes at their edges: each record comes exactly once, in order."""
    records = np.array([(high, low, order, 1, 0, 0, 0) for high, low, order in values], dtype=RECORD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_disk, "_PARTITION_BYTES", RECORD.itemsize)
        visited = np.concatenate(list(on_disk.hash_order(records, records["order"], np.ones(7, dtype=bool)))).tolist()
    assert visited == sorted(range(7), key=lambda i: (values[i][2], *values[i][:2], i))


@given(ungrouped_lists, st.integers(0, 3000))
def test_the_vocabulary_sees_training_documents_in_hash_order_up_to_its_budget(records_of, documents, budget):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "VOCABULARY_BYTES", budget)
        found = split_documents(records_of(documents), LENGTH)
    train = np.flatnonzero(found.role == TRAIN).tolist()
    expected, used = [], 0
    for index in sorted(train, key=lambda i: place_in_order(*documents[i])):
        if used < budget:
            expected.append(index)
        used += len(documents[index][0].encode())
    assert np.flatnonzero(found.in_vocabulary).tolist() == sorted(expected)


@given(document_lists, st.integers(1, 5))
def test_a_validation_corpus_of_its_own_is_the_held_out_part(records_of, documents, first):
    first = min(first, len(documents))
    found = split_documents(records_of(documents), LENGTH, num_validation=first)
    unique = first_occurrences(documents)
    # A text of the validation corpus that is also in the other one is dropped there.
    assert np.flatnonzero(found.role == VALIDATION).tolist() == [i for i in unique if i < first]
    assert np.flatnonzero(found.role == TRAIN).tolist() == [i for i in unique if i >= first]
    assert found.cut_document is None
    assert found.held_out_bytes == sum(len(documents[i][0].encode()) for i in unique if i < first)


def test_a_single_document_is_cut(records_of):
    found = split_documents(records_of([("word " * 1000, None)] * 2), LENGTH)
    assert (found.role.tolist(), found.cut_document) == ([TRAIN, DUPLICATE], 0)
    assert found.cut_share == pytest.approx(0.2)
    assert found.in_vocabulary.tolist() == [True, False]
    (sentence,) = found.sentences()
    assert "the last 20.0% of the largest one" in sentence and found.warnings() == []


def test_a_few_large_groups_are_not_cut(records_of):
    """Four hospitals with five or six letters, none of them small enough for the target: one of five goes."""
    documents = [(f"letter {n} " + "x" * 400_000, f"hospital {n % 4}") for n in range(21)]
    found = split_documents(records_of(documents), LENGTH)
    assert found.cut_document is None
    held_out = {documents[i][1] for i in np.flatnonzero(found.role == VALIDATION)}
    assert len(held_out) == 1
    assert held_out != {"hospital 0"}
    assert np.count_nonzero(found.role == VALIDATION) == 5
    assert found.warnings() == [] and found.sentences() == []


def test_where_far_more_is_held_out_than_wanted_it_is_said(records_of):
    documents = [(f"letter {n} " + "x" * 400_000, f"hospital {n % 2}") for n in range(20)]
    (warning,) = split_documents(records_of(documents), LENGTH).warnings()
    assert "50% of the text is held out" in warning and "--validation-corpus" in warning
    assert split_documents(records_of(documents), LENGTH, num_validation=10).warnings() == []


@pytest.mark.parametrize("group", [None, "of the giant"])
def test_a_giant_among_small_documents_leaves_most_of_them_in_training(records_of, group):
    """Five percent of all are more than the small ones together."""
    giant = ("word " * 4_000_000, group)
    small = [(f"letter {n:04d} " * 90, None if group is None else f"person {n}") for n in range(600)]
    found = split_documents(records_of([*small[:300], giant, *small[300:]]), LENGTH)
    held_out = np.flatnonzero(found.role == VALIDATION)
    assert 300 not in held_out
    total = sum(len(text) for text, _ in small)
    assert 0.19 * total <= found.held_out_bytes <= 0.21 * total


def test_one_group_only_is_refused(records_of):
    with pytest.raises(PrepError, match="--group-column.*--validation-corpus"):
        split_documents(records_of([("one text", "a"), ("another", "a")]), LENGTH)


@pytest.mark.parametrize(
    ("megabytes", "expected"),
    [(0.1, 20_000), (1, 200_000), (2, 320_000), (10, 500_000), (25, 1_250_000), (1000, 1_250_000)],
)
def test_how_much_is_held_out(megabytes, expected):
    """At most 20 % of a small corpus, 500 pairs of a middling one, then 5 %, then 250,000 tokens."""
    assert held_out_target(int(megabytes * 1e6), 128) == expected


def test_documents_of_one_size_are_held_out_up_to_the_target(records_of):
    documents = [(f"{number:08d}" * 100, None) for number in range(2_000)]
    found = split_documents(records_of(documents), LENGTH)
    target = held_out_target(1_600_000, LENGTH)
    assert target <= found.held_out_bytes < target + 800
    assert np.count_nonzero(found.role == VALIDATION) == found.held_out_bytes // 800


def test_records_are_40_bytes_and_tell_odd_characters_apart_but_not_line_breaks(records_of):
    records = records_of([("a\nb", None), ("a b", None), ("ab", None), ("a\nb", "g"), ("\ud800", None), ("é", None)])
    assert RECORD.itemsize == 40
    assert records["bytes"].tolist() == [3, 3, 2, 3, 3, 2]
    contents = list(zip(records["high"].tolist(), records["low"].tolist(), strict=True))
    assert len(set(contents)) == 4
    assert contents[0] == contents[1] == contents[3]
    assert records["grouped"].tolist() == [0, 0, 0, 1, 0, 0]
    assert len(set(records["order"].tolist())) == 6


def test_no_documents_give_no_records(tmp_path: Path):
    assert record_documents([], tmp_path / "none.bin") == 0
    assert len(read_records(tmp_path / "none.bin")) == 0


def test_what_is_alike_to_a_dropped_document_alone_is_kept():
    """What is alike to a dropped document alone is kept."""
    role = np.full(3, TRAIN, dtype=np.uint8)
    _drop(role, np.array([[0, 1], [1, 2]]))
    assert role.tolist() == [TRAIN, NEAR_DUPLICATE, TRAIN]


def test_documents_in_no_file_are_groups_of_their_own():
    """Documents that are in no file are groups of their own, where files are groups."""
    records = np.zeros(5, dtype=RECORD)
    records["order"], records["file"] = [10, 11, 12, 13, 14], [1, 1, 0, 0, 0]
    documents = SimpleNamespace(
        role=np.array([TRAIN, TRAIN, TRAIN, TRAIN, VALIDATION]), arrangement=SimpleNamespace(files=True)
    )
    found = _groups(SimpleNamespace(validation_corpus=None), documents, records)
    assert found == {"train": 3, "validation": 1}


def test_the_share_held_out_is_one_of_the_document_that_is_cut():
    """The share that is held out is one of the document that is cut."""
    records = np.zeros(2, dtype=RECORD)
    records["high"] = records["low"] = records["order"] = [1, 2]
    records["bytes"] = [6_000_000, 4_000_000]
    found = split_documents(records, 128)
    assert found.cut_document == 0
    assert found.cut_share == pytest.approx(held_out_target(10_000_000, 128) / 6_000_000)


def records_in(files, grouped=False):
    """Records of documents of a kilobyte each, of these files."""
    records = np.zeros(len(files), dtype=RECORD)
    records["high"] = records["low"] = np.arange(len(files))
    records["order"] = np.arange(len(files)) * 2**40
    records["bytes"], records["file"], records["grouped"] = 1000, files, grouped
    return records


def test_a_column_of_groups_says_what_stays_together():
    """A column of groups says what stays together, whatever the files are."""
    files = np.repeat(np.arange(1, 31), 4)
    assert split_documents(records_in(files), 128).arrangement.files
    found = split_documents(records_in(files, grouped=True), 128)
    assert not found.arrangement.files and found.sentences() == []


def test_documents_of_a_single_file_are_no_groups():
    """The documents of a single file are no groups, which needs no word."""
    found = split_documents(records_in([1] * 100), 128)
    assert not found.wanted.files and found.sentences() == []


def test_what_is_in_no_file_is_of_no_file(tmp_path):
    """What is in no file is of no file, also behind one."""
    files = ["a.txt", "a.txt", None, "b.txt", None]
    record_documents([Document([str(n)], "", None, file=file) for n, file in enumerate(files)], tmp_path / "r")
    found = read_records(tmp_path / "r")["file"].tolist()
    assert found[2] == found[4] == 0 and found[0] == found[1] > 0 and found[3] not in (0, found[0])
