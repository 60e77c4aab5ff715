"""Near duplicates are found, against exact Jaccard similarity, and do not lie on both sides of the split."""

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.near_duplicates import NUM_PERMUTATIONS, WINDOW, minhash, near_duplicates, sampled_windows
from data_prep.records import read_records, read_signatures, record_documents
from data_prep.split import NEAR_DUPLICATE, TRAIN, VALIDATION, SplitRules, split_documents
from data_prep.text.corpus import Document

WORDS = [f"{a}{b}{c}" for a in ("ba", "ke", "li", "mo", "su") for b in ("r", "nt", "st", "l") for c in "aeiou"]


def text(seed: int, words: int = 300) -> list[str]:
    return random.Random(seed).choices(WORDS, k=words)


def changed(words: list[str], share: float, seed: int) -> list[str]:
    """The same with new words in the place of a share of them, of at least one."""
    draw, words = random.Random(seed), list(words)
    for place in draw.sample(range(len(words)), max(1, round(share * len(words)))):
        words[place] = f"new{draw.randrange(1000)}"
    return words


def windows(words: list[str]) -> set[str]:
    joined = " ".join(words)
    return {joined[start : start + WINDOW] for start in range(len(joined) - WINDOW + 1)}


def jaccard(one: list[str], other: list[str]) -> float:
    one, other = windows(one), windows(other)
    return len(one & other) / len(one | other)


def signatures(texts: list[list[str]]) -> np.ndarray:
    return np.stack([minhash(" ".join(words).encode()) for words in texts])


def pairs_of(found: np.ndarray) -> np.ndarray:
    return near_duplicates(found, np.arange(len(found)))


def test_signatures_agree_as_often_as_windows_are_shared():
    for share in (0.005, 0.02, 0.05, 0.2):
        pairs = [(text(seed, 1_000), changed(text(seed, 1_000), share, seed + 999)) for seed in range(20)]
        estimated = [(minhash(" ".join(a).encode()) == minhash(" ".join(b).encode())).mean() for a, b in pairs]
        exact = [jaccard(a, b) for a, b in pairs]
        assert np.mean(estimated) == pytest.approx(np.mean(exact), abs=0.04), share


def test_nearly_all_pairs_above_the_threshold_are_found_and_none_far_below():
    originals = [text(seed) for seed in range(200)]
    copies = [changed(words, 0.01 + 0.0004 * seed, seed) for seed, words in enumerate(originals)]
    found = {tuple(pair) for pair in pairs_of(signatures(originals + copies)).tolist()}
    similarity = {(seed, seed + 200): jaccard(originals[seed], copies[seed]) for seed in range(200)}
    clear = [pair for pair, share in similarity.items() if share > 0.65]
    assert len(clear) > 40 and sum(pair in found for pair in clear) >= 0.97 * len(clear)
    assert not [pair for pair in found if similarity.get(pair, 0.0) < 0.3]


def test_every_one_of_many_copies_is_paired_with_one_before_it():
    copies = [changed(text(1), 0.01, seed) for seed in range(30)]
    found = pairs_of(signatures([text(2), *copies, text(3)]))
    assert set(found[:, 1].tolist()) == set(range(2, 31))
    assert (found[:, 0] < found[:, 1]).all() and found.min() == 1


@settings(max_examples=30)
@given(st.integers(0, 1000), st.sampled_from(["upper", "lines", "marks"]))
def test_case_line_breaks_and_marks_make_no_difference(seed, how):
    plain = " ".join(text(seed, 60))
    other = {"upper": plain.upper(), "lines": plain.replace(" ", "\n"), "marks": plain.replace(" ", ", ")}[how]
    assert np.array_equal(minhash(plain.encode()), minhash(other.encode()))


def test_short_texts_are_not_compared():
    assert minhash(b"") is None and minhash(b"a few words") is None and minhash(b" .,\n" * 100) is None
    assert minhash(" ".join(text(1, 100)).encode()).shape == (NUM_PERMUTATIONS,)


def test_a_signature_is_that_of_the_library(monkeypatch):
    """Made in parts, of a text longer than a chunk, it is that of all its windows at once; and it never changes."""
    from datasketch import MinHash

    from data_prep import near_duplicates as module

    words = " ".join(text(7, 5_000)).encode()
    monkeypatch.setattr(module, "_CHUNK", 4_000)
    whole = MinHash(NUM_PERMUTATIONS, seed=1, hashfunc=int, scheme="affine32")
    whole.update_batch([value for values in sampled_windows(words) for value in values.tolist()])
    assert np.array_equal(minhash(words), whole.hashvalues)
    monkeypatch.undo()
    pinned = [133482890, 15592211, 35158773]
    assert minhash(" ".join(text(7)).encode())[:3].tolist() == pinned


def split_of(tmp_path, documents: list[Document], rules: SplitRules, num_validation: int = 0):
    record_documents(documents, tmp_path / "records", None, tmp_path / "signatures")
    records, signed = read_records(tmp_path / "records"), read_signatures(tmp_path / "signatures")
    return split_documents(records, 16, num_validation, rules, signed)


def documents_of(texts: list[list[str]], files: int | None = None, groups: bool = False) -> list[Document]:
    """Documents of a text each, the n-th in file n * files // len(texts), or in a group of its own."""
    return [
        Document([" ".join(words)], "made up", f"g{n}" if groups else None,
                 file=f"{n * files // len(texts)}.txt" if files else None)
        for n, words in enumerate(texts)
    ]  # fmt: skip


@pytest.mark.parametrize("groups", [False, True])
def test_no_near_duplicate_lies_on_the_other_side(tmp_path, groups):
    texts = [text(seed) for seed in range(300)]
    texts += [changed(words, 0.005, seed) for seed, words in enumerate(texts)]
    random.Random(1).shuffle(texts)
    documents = documents_of(texts, groups=groups)
    kept = split_of(tmp_path, documents, SplitRules("keep"))
    role = split_of(tmp_path, documents, SplitRules("group")).role
    alike = [(a, b) for a, b in pairs_of(signatures(texts)).tolist() if jaccard(texts[a], texts[b]) > 0.6]
    assert len(alike) >= 290
    assert sum(kept.role[a] != kept.role[b] for a, b in alike) > 10
    assert sum(role[a] != role[b] for a, b in alike) == 0
    assert (role == VALIDATION).sum() > 10


def test_groups_that_are_joined_by_near_duplicates_stay_together(tmp_path):
    """Ten documents a group, and in each group one that is nearly one of the next group."""
    texts = [text(seed) for seed in range(400)]
    for number in range(0, 400, 20):
        texts[number] = changed(texts[number + 10], 0.005, number)
    documents = [Document([" ".join(words)], "made up", f"g{n // 10}") for n, words in enumerate(texts)]
    found = split_of(tmp_path, documents, SplitRules("group"))
    sides = found.role.reshape(20, 20)
    assert (sides == sides[:, :1]).all() and len(np.unique(sides)) == 2
    assert len(np.unique(found.order)) == 20


def test_dropped_near_duplicates_leave_the_first_of_each(tmp_path):
    texts = [changed(text(seed // 3), 0.005, seed) for seed in range(90)]
    found = split_of(tmp_path, documents_of(texts), SplitRules("drop"))
    assert np.flatnonzero(found.role == NEAR_DUPLICATE).tolist() == [n for n in range(90) if n % 3]
    assert found.num_near_duplicates == 90 and "60 of them were dropped" in found.sentences()[0]
    assert found.warnings() == []


def test_near_duplicates_of_a_validation_corpus_are_not_learned(tmp_path):
    validation = [text(seed) for seed in range(10)]
    training = [text(seed) for seed in range(100, 140)] + [changed(words, 0.005, 1) for words in validation]
    found = split_of(tmp_path, documents_of(validation + training), SplitRules("group"), num_validation=10)
    assert found.role.tolist() == [VALIDATION] * 10 + [TRAIN] * 40 + [NEAR_DUPLICATE] * 10


def form_letters(seed: int) -> list[list[str]]:
    """Of five forms, each with as much of its own as makes two of a form alike or just not."""
    rng = random.Random(seed)
    forms = [text(seed * 10 + number, 200) for number in range(5)]
    return [forms[rng.randrange(5)] + text(1_000 + seed * 200 + n, rng.randrange(60, 130)) for n in range(200)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("num_validation", [0, 40])
def test_what_was_dropped_hides_no_other_near_duplicate(tmp_path, seed, num_validation):
    """Beside brute force: what shares a band, and agrees in half of the signature, is found whatever stands between."""
    texts = form_letters(seed)
    signed = signatures(texts)
    bands = signed.reshape(len(texts), -1, 3)
    agree = (signed[:, None] == signed[None]).mean(axis=-1) >= 0.5
    alike = agree & (bands[:, None] == bands[None]).all(axis=-1).any(axis=-1)
    rules = SplitRules("group" if num_validation else "drop")
    role = split_of(tmp_path, documents_of(texts), rules, num_validation).role
    kept = role != NEAR_DUPLICATE
    assert 20 < kept.sum() < len(texts) - 20
    if num_validation:
        assert not alike[:num_validation, num_validation:][:, kept[num_validation:]].any()
    else:
        assert alike[np.ix_(kept, kept)].sum() == kept.sum(), "only with itself"


def test_a_corpus_of_one_text_over_and_over_is_still_split_and_says_so(tmp_path):
    texts = [changed(text(1), 0.005, seed) for seed in range(100)]
    found = split_of(tmp_path, documents_of(texts), SplitRules("group"))
    assert 5 <= (found.role == VALIDATION).sum() <= 40
    (warning,) = found.warnings()
    assert "too many to lie on one side" in warning and found.sentences() == []


def test_many_alike_are_held_out_no_sooner_than_others(tmp_path):
    """A tenth of the text is ten copies of each of some documents; about as much of what is held out is."""
    texts = [text(seed, 60) for seed in range(1800)]
    texts += [changed(text(10_000 + seed // 10, 60), 0.01, seed) for seed in range(200)]
    found = split_of(tmp_path, documents_of(texts), SplitRules())
    held_out = np.flatnonzero(found.role == VALIDATION)
    assert found.arrangement.near_duplicates and len(held_out) > 80
    assert (held_out >= 1800).mean() < 0.35


def test_a_block_that_stands_in_every_file_does_not_join_the_files(tmp_path):
    block, texts = text(5), []
    for number in range(60):
        texts += [block, *(text(100 * number + place) for place in range(10, 19))]
    texts[-1] = changed(texts[1], 0.005, 1)
    found = split_of(tmp_path, documents_of(texts, files=60), SplitRules())
    assert found.arrangement.files and found.arrangement.near_duplicates
    sides = [set(role[role < 2].tolist()) for role in found.role.reshape(60, 10)]
    assert all(len(side) == 1 for side in sides) and sides[0] == sides[-1]


def test_a_giant_is_no_reason_to_part_near_duplicates(tmp_path):
    texts = [text(1, 60_000)] + [changed(text(10 + seed // 2), 0.01, seed) for seed in range(98)]
    found = split_of(tmp_path, documents_of(texts), SplitRules())
    sides = found.role[1:].reshape(49, 2)
    assert (sides[:, 0] == sides[:, 1]).all() and 2 < (sides == VALIDATION).sum() < 60
    assert found.warnings() == [] and "those that are alike lie on one side" in found.sentences()[0]


def test_what_is_near_a_validation_document_through_another_one_is_not_learned(tmp_path):
    original = text(1)
    first, second = changed(original, 0.02, 1), changed(original, 0.02, 2)
    rest = [changed(original, 0.02, seed) for seed in range(3, 30)] + [text(seed) for seed in range(100, 110)]
    found = split_of(tmp_path, documents_of([first, second, *rest]), SplitRules(), num_validation=2)
    assert found.role.tolist() == [VALIDATION] * 2 + [NEAR_DUPLICATE] * 27 + [TRAIN] * 10


def test_a_file_is_a_group_where_enough_files_can_be_held_out(tmp_path):
    texts = [text(seed) for seed in range(400)]
    found = split_of(tmp_path, documents_of(texts, files=40), SplitRules())
    sides = found.role.reshape(40, 10)
    assert (sides == sides[:, :1]).all() and len(np.unique(sides)) == 2
    assert found.sentences() == ["Whole files are held out (--group-by document: documents)."]
    apart = split_of(tmp_path, documents_of(texts, files=40), SplitRules(group_by="document"))
    assert apart.role.tolist() == split_of(tmp_path, documents_of(texts), SplitRules()).role.tolist()
    assert apart.sentences() == []


def test_two_large_files_are_no_groups_unless_it_is_asked_for(tmp_path):
    documents = documents_of([text(seed) for seed in range(400)], files=2)
    found = split_of(tmp_path, documents, SplitRules())
    by_file = found.role.reshape(2, 200)
    assert (by_file == VALIDATION).any(axis=1).all() and "too few or too large" in found.sentences()[0]
    asked = split_of(tmp_path, documents, SplitRules(group_by="file")).role.reshape(2, 200)
    assert sorted(asked[:, 0].tolist()) == [TRAIN, VALIDATION] and (asked == asked[:, :1]).all()


def test_memory_is_some_bytes_a_document(tmp_path):
    """Signatures lie on disk; what is held while they are compared is far less than they are."""
    draw = np.random.default_rng(1)
    found = draw.integers(0, 1 << 32, (30_000, NUM_PERMUTATIONS), dtype=np.uint32)
    found[1::2] = found[::2]
    found.astype("<u4").tofile(tmp_path / "signatures")
    signed = read_signatures(tmp_path / "signatures")
    tracemalloc.start()
    pairs = pairs_of(signed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(pairs) == 15_000
    assert peak < 160 * len(found) < found.nbytes
