"""The prepared folder: round trips without a copy, `datasets` as a second reader, damage of every kind."""

import gc
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.durable import write_json
from data_prep.errors import PrepError
from data_prep.prepared import (
    LOG,
    PAIR_COLUMNS,
    PreparedCorpus,
    Shard,
    read_pairs,
    read_shards,
    seal,
    write_shards,
    write_table,
)

DATA = "data-00000-of-00001.arrow"
shard_shapes = st.lists(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


def numbered_shards(shard_of, shapes, dtype: str) -> list[Shard]:
    """Shards whose ids count down from the largest that fits."""
    top = np.iinfo(dtype).max
    ids = [(top - np.arange(sum(map(sum, shape)))).astype(dtype) for shape in shapes]
    return [shard_of(shape, i, number) for number, (shape, i) in enumerate(zip(shapes, ids, strict=True))]


def rows_of(shards: list[Shard]) -> list[list[list[int]]]:
    """The documents of all shards as lists of sentences of ids."""
    found = []
    for shard in shards:
        bounds, documents = shard.sentence_starts.tolist(), shard.document_starts.tolist()
        sentences = [shard.ids[start:end].tolist() for start, end in zip(bounds[:-1], bounds[1:], strict=True)]
        found += [sentences[start:end] for start, end in zip(documents[:-1], documents[1:], strict=True)]
    return found


@settings(max_examples=25)
@given(shard_shapes, st.sampled_from(["uint16", "uint32"]))
def test_shards_come_back_as_written(tmp_path_factory, shard_of, shapes, dtype):
    folder = tmp_path_factory.mktemp("shards") / "train"
    shards = numbered_shards(shard_of, shapes, dtype)
    write_shards(folder, shards, np.dtype(dtype))
    found = read_shards(folder)
    assert len(found) == len(shards)
    for one, other in zip(found, shards, strict=True):
        assert one.index == other.index
        assert one.ids.dtype == np.dtype(dtype)
        for name in ("ids", "sentence_starts", "document_starts"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()


def test_shards_are_opened_memory_mapped_without_a_copy(tmp_path, shard_of):
    shapes = [[[1_000] * 100] * 2, [[500] * 50] * 3]
    write_shards(tmp_path / "train", numbered_shards(shard_of, shapes, "uint16"), np.dtype(np.uint16))
    gc.collect()
    before = pa.total_allocated_bytes()
    shards = read_shards(tmp_path / "train")
    assert pa.total_allocated_bytes() - before < 10_000
    with pa.memory_map(str(tmp_path / "train" / DATA)) as source, pa.ipc.open_stream(source) as reader:
        batches = list(reader)
    for shard, batch in zip(shards, batches, strict=True):
        for array in (shard.ids, shard.sentence_starts, shard.document_starts):
            assert not array.flags.owndata
            assert not array.flags.writeable
        assert shard.ids.dtype == np.uint16
        # One buffer of the file holds all ids: 2 bytes each, end to end.
        values = batch.column(0).values.values
        assert len(values) == len(shard.ids)
        assert shard.ids.tolist() == values.to_pylist()
    assert (tmp_path / "train" / DATA).stat().st_size < 2 * 275_000 + 10_000


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_datasets_opens_the_shards_and_sees_the_same_documents(tmp_path, shard_of, dtype):
    from datasets import load_from_disk

    shapes = [[[3, 1], [2]], [[4], [1, 1, 5], [2, 2]]]
    shards = numbered_shards(shard_of, shapes, dtype)
    write_shards(tmp_path / "train", shards, np.dtype(dtype))
    opened = load_from_disk(str(tmp_path / "train"))
    assert opened.column_names == ["input_ids"]
    assert list(opened["input_ids"]) == rows_of(shards)
    assert opened.features["input_ids"].feature.feature.dtype == dtype
    assert opened.data.column(0).num_chunks == len(shards)


def test_datasets_opens_a_table_and_sees_the_same_rows(tmp_path):
    from datasets import load_from_disk

    draw = np.random.default_rng(0)
    batches = [{"label": draw.integers(-100, 2, n), "ids": draw.integers(0, 9, (n, 5))} for n in (3, 1, 1_200)]
    write_table(tmp_path / "pairs", iter(batches))
    opened = load_from_disk(str(tmp_path / "pairs"))
    for name in ("label", "ids"):
        assert list(opened[name]) == np.concatenate([batch[name] for batch in batches]).tolist()
    assert opened.column_names == ["label", "ids"]


def test_pairs_come_back_shard_by_shard(tmp_path):
    tables = [{name: np.arange(rows) - 100 for name in ("shard", *PAIR_COLUMNS)} for rows in (5, 0, 3)]
    write_table(tmp_path / "pairs", tables)
    found = read_pairs(tmp_path / "pairs")
    assert [list(columns) for columns in found] == [list(PAIR_COLUMNS)] * 3
    for columns, written in zip(found, tables, strict=True):
        assert all(columns[name].tolist() == written[name].tolist() for name in PAIR_COLUMNS)


def test_the_same_shards_give_the_same_bytes(tmp_path, shard_of):
    for name in ("one", "two"):
        shards = numbered_shards(shard_of, [[[3, 1], [2]], [[4], [1]]], "uint16")
        write_shards(tmp_path / name, shards, np.dtype(np.uint16))
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == [DATA, "dataset_info.json", "state.json"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        assert str(tmp_path).encode() not in (tmp_path / "one" / name).read_bytes()


# Whole folders


def small_shard(shard_of) -> Shard:
    return shard_of([[3, 1], [2]], np.arange(10, 16, dtype=np.uint16))


@pytest.fixture(scope="module")
def original(tmp_path_factory, shard_of, small_tokenizer) -> Path:
    """A small prepared corpus, sealed."""
    folder = tmp_path_factory.mktemp("original") / "prepared"
    for part in ("train", "validation"):
        write_shards(folder / part, [small_shard(shard_of)], np.dtype(np.uint16))
        rows = dict.fromkeys(PAIR_COLUMNS, np.zeros(1)) | {"a_length": np.ones(1)}
        write_table(folder / f"{part}_pairs", [rows])
    small_tokenizer.save(folder / "tokenizer", 32)
    np.save(folder / "unigram_counts.npy", np.arange(small_tokenizer.vocab_size))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    (folder / LOG).write_text("a date")
    numbers = {part: {"documents": 2, "tokens": 6} for part in ("train", "validation")}
    facts = {
        "digest": "abc",
        "identity": {"sequence_length": 8},
        "tokenizer": small_tokenizer.digest(),
        "next_sentence": True,
    }
    seal(folder, facts | numbers, files)
    return folder


@pytest.fixture
def prepared(original, tmp_path) -> Path:
    """A copy somewhere else, to be damaged."""
    return shutil.copytree(original, tmp_path / "moved")


def test_a_moved_folder_opens(prepared, shard_of, small_tokenizer):
    corpus = PreparedCorpus(prepared)
    assert corpus.digest == "abc"
    assert corpus.next_sentence is True
    assert corpus.tokenizer.vocabulary == small_tokenizer.vocabulary
    assert corpus.unigram_counts.tolist() == list(range(small_tokenizer.vocab_size))
    expected = rows_of([small_shard(shard_of)])
    assert rows_of(corpus.train) == rows_of(corpus.validation) == expected
    assert len(corpus.manifest["files"]) == 5 * 3 + 1


def test_the_log_may_differ(prepared):
    before = PreparedCorpus(prepared).digest
    (prepared / LOG).write_text("another date, and longer")
    assert PreparedCorpus(prepared).digest == before


FILES = [f"train/{DATA}", "validation/state.json", "tokenizer/vocab.txt", "unigram_counts.npy"]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_truncated_file_is_named(prepared, name, verify):
    path = prepared / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PrepError, match="damaged") as error:
        PreparedCorpus(prepared, verify)
    assert str(path) in str(error.value)
    path.unlink()
    with pytest.raises(PrepError, match="missing") as error:
        PreparedCorpus(prepared, verify)
    assert str(path) in str(error.value)


def test_an_arrow_file_that_is_none_is_named(prepared):
    path = prepared / "train" / DATA
    path.write_bytes(b"\x00" * path.stat().st_size)
    corpus = PreparedCorpus(prepared, verify=False)
    with pytest.raises(PrepError, match="prepare the corpus again") as error:
        _ = corpus.train
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "3", "{}", '{"format": 1}'])
def test_a_foreign_or_half_written_folder_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "prepared.json").write_text(content)
    with pytest.raises(PrepError, match="prepare") as error:
        PreparedCorpus(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PrepError, match="not a prepared corpus"):
        PreparedCorpus(tmp_path / "nowhere")


def test_the_folder_of_a_run_names_the_one_inside(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "run" / "prepared")
    with pytest.raises(PrepError, match=f"did you mean {tmp_path / 'run' / 'prepared'}"):
        PreparedCorpus(tmp_path / "run")


def test_another_format_is_refused(prepared):
    manifest = json.loads((prepared / "prepared.json").read_text()) | {"format": 99}
    write_json(prepared / "prepared.json", manifest)
    with pytest.raises(PrepError, match="format 99"):
        PreparedCorpus(prepared)
