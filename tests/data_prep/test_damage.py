"""A file of a prepared corpus with a bit flipped, cut short or removed: the corpus is refused, the file is named."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import PrepError
from data_prep.preparation import prepare
from data_prep.prepared import LOG, MANIFEST, PreparedCorpus, read_manifest
from data_prep.settings import ExampleSettings, PrepSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small prepared corpus with all that can be in one. A test that damages it mends it again."""
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 5))) for _ in range(200)]
    lines = [" ".join(rng.choices(words, k=rng.randint(3, 9))) + " ." for _ in range(400)]
    base = tmp_path_factory.mktemp("damage")
    (base / "corpus.txt").write_text("\n\n".join("\n".join(lines[i : i + 8]) for i in range(0, 400, 8)))
    prep = PrepSettings(corpus=(str(base / "corpus.txt"),), vocab_size=128, workers=1)
    return prepare(prep, ExampleSettings(sequence_length=32), base / "prepared", static_masks=1).folder


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOG)


def refusal(folder) -> str:
    with pytest.raises(PrepError) as error:
        PreparedCorpus(folder)
    return str(error.value)


def test_every_file_but_the_log_is_in_the_manifest(folder):
    found = {path.relative_to(folder).as_posix() for path in files_of(folder)}
    assert found == {MANIFEST, *read_manifest(folder)["files"]}
    kinds = {"train", "validation", "train_pairs", "validation_pairs", "static_masks", "static_masks_unlabelled"}
    assert {name.split("/")[0] for name in found} == kinds | {
        "tokenizer", "unigram_counts.npy", "validation_copied.npy", "prep_report.json", "prep_report.md", MANIFEST
    }  # fmt: skip
    for kind in kinds:
        assert {f"{kind}/state.json", f"{kind}/dataset_info.json"} < found


@settings(max_examples=25)
@given(st.data())
def test_a_flipped_bit_in_any_file_is_found(folder, data):
    for path in files_of(folder):
        before = path.read_bytes()
        damaged = bytearray(before)
        damaged[data.draw(st.integers(0, len(before) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        try:
            path.write_bytes(damaged)
            said = refusal(folder)
        finally:
            path.write_bytes(before)
        assert str(path) in said
        assert "prepare the corpus again" in said
    PreparedCorpus(folder)


def test_no_flipped_bit_of_the_manifest_passes(folder):
    """All over it: one bit of every third byte."""
    path = folder / MANIFEST
    before = path.read_bytes()
    try:
        for place in range(0, len(before), 3):
            path.write_bytes(before[:place] + bytes([before[place] ^ 1 << place % 8]) + before[place + 1 :])
            with pytest.raises(PrepError) as error:
                read_manifest(folder)
            assert str(path) in str(error.value)
    finally:
        path.write_bytes(before)


@settings(max_examples=10)
@given(st.data())
def test_any_file_cut_short_is_found(folder, data):
    for path in files_of(folder):
        before = path.read_bytes()
        try:
            path.write_bytes(before[: data.draw(st.integers(0, len(before) - 1))])
            said = refusal(folder)
        finally:
            path.write_bytes(before)
        assert str(path) in said
        assert f"remove {folder} and prepare the corpus again" in said


def test_any_missing_file_is_found(folder):
    for path in files_of(folder):
        before = path.read_bytes()
        path.unlink()
        try:
            said = refusal(folder)
        finally:
            path.write_bytes(before)
        assert (str(path) if path.name != MANIFEST else f"no {MANIFEST}") in said
        assert "prepare" in said


def test_the_manifest_of_the_first_format_is_refused_by_its_name(folder):
    """It has no seal, but is not damaged."""
    path = folder / MANIFEST
    before = path.read_bytes()
    content = json.loads(before) | {"format": 1}
    del content["blake2b"]
    try:
        path.write_text(json.dumps(content))
        said = refusal(folder)
    finally:
        path.write_bytes(before)
    assert said == f"{path} has format 1, this version reads 2: prepare the corpus again"


def test_preparing_into_a_damaged_corpus_names_the_damage_and_removes_nothing(folder, capsys):
    prep = PrepSettings(corpus=(str(folder.parent / "corpus.txt"),), vocab_size=128, workers=1)
    path = folder / "train" / "state.json"
    before = path.read_bytes()
    path.write_bytes(before[:-2])
    left = files_of(folder)
    try:
        with pytest.raises(PrepError) as error:
            prepare(prep, ExampleSettings(sequence_length=32), folder, static_masks=1)
    finally:
        path.write_bytes(before)
    assert str(path) in str(error.value)
    assert files_of(folder) == left
    assert "nothing to do" not in capsys.readouterr().out
