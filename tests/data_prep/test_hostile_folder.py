"""Prepared folders made to do harm, their seal put right: refused in a sentence."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from data_prep.durable import file_facts, write_sealed
from data_prep.errors import PrepError
from data_prep.preparation import prepare
from data_prep.prepared import MANIFEST, PreparedCorpus
from data_prep.settings import ExampleSettings, PrepSettings

DATA = "train/data-00000-of-00001.arrow"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole")
    words = "the heart rate of a patient was measured before and after treatment".split()
    text = "\n\n".join("\n".join(" ".join(words[n:] + words[:n]) + f" {d} {n} ." for n in range(8)) for d in range(20))
    (path / "notes.txt").write_text(text)
    settings = PrepSettings(corpus=(str(path / "notes.txt"),), workers=1)
    return prepare(settings, ExampleSettings(sequence_length=32), path / "prepared")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole.folder, tmp_path / "prepared")


def sealed(folder, *names, **facts):
    """Seal the folder as if these files had been written so, and the manifest had these facts."""
    content = json.loads((folder / MANIFEST).read_text())
    del content["blake2b"]
    content["files"] |= file_facts(folder, names)
    write_sealed(folder / MANIFEST, content | facts)


def refused(folder, *words):
    with pytest.raises(PrepError) as error:
        PreparedCorpus(folder)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words), error.value


def rewritten(folder, change, name=DATA):
    """Change the record batches of the training part, or of another file."""
    with pa.ipc.open_stream((folder / name).read_bytes()) as reader:
        batches = list(reader)
    made = [change(batch) for batch in batches]
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, made[0].schema) as writer:
        for batch in made:
            writer.write_batch(batch)
    sealed(folder, name)


def documents(ids, sentences, starts, kind="uint16"):
    inner = pa.ListArray.from_arrays(pa.array(sentences, pa.int32()), pa.array(ids, kind))
    return pa.record_batch([pa.ListArray.from_arrays(pa.array(starts, pa.int32()), inner)], names=["input_ids"])


def test_the_whole_folder_is_opened(folder):
    sealed(folder, DATA)
    assert all(len(shard.ids) for shard in PreparedCorpus(folder).train)


@pytest.mark.parametrize("name", ["../outside.txt", "tokenizer/../../outside.txt", "/etc/hostname"])
def test_a_file_outside_the_folder_is_not_touched(name, folder):
    (folder.parent / "outside.txt").write_text("secret")
    sealed(folder, **{"files": {name: {"bytes": 6, "blake2b": "x"}}})
    refused(folder, "lies outside of its folder")


def test_a_link_out_of_the_folder_is_refused(folder):
    (folder / DATA).rename(folder.parent / "elsewhere")
    (folder / DATA).symlink_to(folder.parent / "elsewhere")
    refused(folder, "lies outside of its folder")


@pytest.mark.parametrize("facts", [
    {"files": []}, {"files": {"a": 1}}, {"files": {"a": {"bytes": "1", "blake2b": "x"}}}, {"train": None},
    {"train": {"documents": -1, "tokens": 5}}, {"next_sentence": "yes"}, {"identity": 5}, {"digest": None},
])  # fmt: skip
def test_a_manifest_of_another_form_is_refused(facts, folder):
    sealed(folder, **facts)
    refused(folder, MANIFEST, "does not describe a prepared corpus")


def test_ids_beyond_the_vocabulary_are_refused(folder):
    rewritten(folder, lambda batch: documents([5, 60_000, 7], [0, 2, 3], [0, 2]))
    refused(folder, "train holds ids beyond its vocabulary")


@pytest.mark.parametrize("make", [
    lambda batch: documents([5, 6, 7], [0, 1, 3], [0, 0, 2]),
    lambda batch: documents([5, 6, 7], [0, 0, 3], [0, 2]),
    lambda batch: documents([5, 6, 7], [0, 2, 3], [0, 2], "int64"),
    lambda batch: documents([5, None, 7], [0, 2, 3], [0, 2]),
    lambda batch: pa.record_batch([pa.array(["a"])], names=["input_ids"]),
    lambda batch: pa.record_batch([pa.array([[5]], pa.list_(pa.uint16()))], names=["input_ids"]),
])  # fmt: skip
def test_boundaries_that_are_none_are_refused(make, folder):
    rewritten(folder, make)
    refused(folder, "prepare the corpus again")


def test_a_column_whose_name_is_no_text_is_refused(folder):
    content = (folder / DATA).read_bytes()
    assert b"input_ids" in content
    (folder / DATA).write_bytes(content.replace(b"input_ids", b"input_i\xd2s"))
    sealed(folder, DATA)
    refused(folder, DATA, "cannot be read")


def test_offsets_that_point_outside_are_refused(folder):
    rewritten(folder, lambda batch: documents([5, 6, 7], [0, 2, 3], [0, 2]))
    content = (folder / DATA).read_bytes()
    offsets, outside = (np.array(values, np.int32).tobytes() for values in ([0, 2, 3], [0, 2, 1 << 30]))
    assert content.count(offsets) == 1
    (folder / DATA).write_bytes(content.replace(offsets, outside))
    sealed(folder, DATA)
    refused(folder, "prepare the corpus again")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", np.zeros(3).tobytes()])
def test_counts_that_are_none_are_refused(content, folder):
    (folder / "unigram_counts.npy").write_bytes(content)
    sealed(folder, "unigram_counts.npy")
    refused(folder, "unigram_counts.npy")


def test_counts_of_another_vocabulary_or_with_code_in_them_are_refused(folder):
    np.save(folder / "unigram_counts.npy", np.ones(3, dtype=np.int64))
    sealed(folder, "unigram_counts.npy")
    refused(folder, "unigram_counts.npy")
    np.save(folder / "unigram_counts.npy", np.array([object()]), allow_pickle=True)
    sealed(folder, "unigram_counts.npy")
    refused(folder, "unigram_counts.npy")


def with_value(name, value, row=3):
    """Changes one number of a table of pairs."""

    def change(batch):
        column = batch.column(name).to_numpy(zero_copy_only=False).copy()
        column[row] = value
        return batch.set_column(batch.schema.names.index(name), name, pa.array(column))

    return change


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("a_start", value) for value in (-1, 2**31 - 1)),
        *(("a_length", value) for value in (-1, 0, 31, 2**31 - 1)),
        *(("b_start", value) for value in (-1, 2**31 - 1)),
        *(("b_length", value) for value in (-1, 30, 2**31 - 1)),
        *(("label", value) for value in (-1, 2)),
    ],
)
def test_pairs_that_point_elsewhere_are_refused(part, name, value, folder):
    rewritten(folder, with_value(name, value), f"{part}_pairs/data-00000-of-00001.arrow")
    refused(folder, f"{part}_pairs does not belong to its {part}", "prepare the corpus again")


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.select(["a_start", "label"]),
        lambda batch: batch.set_column(1, "a_start", batch.column("a_start").cast("string")),
        lambda batch: batch.set_column(1, "a_start", batch.column("a_start").cast("int64")),
        lambda batch: batch.set_column(1, "a_start", pa.nulls(len(batch), "int32")),
    ],
)
def test_a_table_without_pairs_is_refused(change, folder):
    rewritten(folder, change, "train_pairs/data-00000-of-00001.arrow")
    refused(folder, "train_pairs", "prepare the corpus again")


def test_pairs_for_another_number_of_shards_are_refused(folder):
    name = "train_pairs/data-00000-of-00001.arrow"
    with pa.ipc.open_stream((folder / name).read_bytes()) as reader:
        (batch,) = reader
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    sealed(folder, name)
    refused(folder, "train_pairs does not belong to its train")
