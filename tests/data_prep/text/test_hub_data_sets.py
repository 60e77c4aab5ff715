import datetime
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.errors import PrepError
from data_prep.preparation import prepare
from data_prep.settings import ExampleSettings, PrepSettings
from data_prep.text.corpus import Corpus

ROWS = [
    {"text": "First text.\nIts second line.", "who": "a"},
    {"text": "  ", "who": "b"},
    {"text": 'Third, with "quotes"', "who": "a"},
]


def test_a_data_set_folder_is_read_without_a_network(tmp_path, refused):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    corpus = Corpus([f"hub:{tmp_path / 'set'}"], group_column="who")
    documents = list(corpus.documents())
    assert [document.lines for document in documents] == [
        ["First text.", "Its second line."],
        ['Third, with "quotes"'],
    ]
    assert [document.source for document in documents] == ["set:1", "set:3"]
    assert [document.group for document in documents] == ["a", "a"]
    assert (corpus.total_bytes, corpus.bad_rows.count, corpus.digest()) == (0, 1, corpus.digest())
    refused(f"hub:{tmp_path / 'set'}:test", 'hub:set:test has no split "test"; write one of train')
    refused(f"hub:{tmp_path / 'nothing'}", "nothing cannot be opened")
    refused("hub:", "hub: names no data set")


CONFIGURATIONS = "- config_name: letters\n  data_files: a.jsonl\n- config_name: notes\n  data_files: b.jsonl\n"


def test_a_configuration_is_asked_for_behind_a_colon(tmp_path, refused):
    (tmp_path / "set").mkdir()
    for name in "ab":
        (tmp_path / "set" / f"{name}.jsonl").write_text(json.dumps({"text": f"The text of {name}."}))
    card, place = tmp_path / "set" / "README.md", f"hub:{tmp_path / 'set'}"
    card.write_text(f"---\nconfigs:\n{CONFIGURATIONS}---\n")
    for name, text in (("notes", "The text of b."), ("letters:train", "The text of a.")):
        assert [document.lines for document in Corpus([f"{place}:{name}"]).documents()] == [[text]]
    refused(place, "hub:set has 2 configurations; write one of letters, notes after the first colon")
    refused(f"{place}:train", 'hub:set:train has no configuration "train"; write one of letters, notes')
    refused(f"{place}:x:train", 'hub:set:x:train has no configuration "x"; write one of letters, notes')
    refused(f"{place}:notes:test", 'hub:set:notes:test has no split "test"; write one of train')
    card.write_text(f"---\nconfigs:\n{CONFIGURATIONS}  default: true\n---\n")
    for name in ("", ":train", ":notes"):
        assert [document.lines for document in Corpus([f"{place}{name}"]).documents()] == [["The text of b."]]


def test_a_data_set_that_breaks_off_is_one_sentence(tmp_path):
    """The second of two shards is damaged."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet"):
        parquet.write_table(pyarrow.table({"text": [f"Row {n} of a data set." for n in range(50)]}), folder / name)
    corpus = Corpus([f"hub:{folder}"])
    assert sum(1 for _ in corpus.documents()) == 100
    shard = bytearray((folder / "train-00001-of-00002.parquet").read_bytes())
    shard[4:400] = bytes(396)
    (folder / "train-00001-of-00002.parquet").write_bytes(shard)
    with pytest.raises(PrepError, match="^hub:set broke off after row 50 .*same command again"):
        list(corpus.documents())


def test_pictures_beside_the_text_are_not_opened(tmp_path):
    """Neither Pillow nor a picture that is whole is needed."""
    import datasets

    rows = {"text": ["One caption.", "Another."], "picture": [{"bytes": b"damaged", "path": None}] * 2}
    features = datasets.Features(text=datasets.Value("string"), picture=datasets.Image())
    made = datasets.Dataset.from_dict(rows, features=features)
    made.to_parquet(tmp_path / "set" / "train.parquet")
    made.save_to_disk(tmp_path / "saved")
    for name in ("set", "saved"):
        assert [document.lines for document in Corpus([f"hub:{tmp_path / name}"]).documents()] == [
            ["One caption."],
            ["Another."],
        ]


def hub_set(folder: Path, rows: int = 600) -> Path:
    """A data set of two shards, with a column that is not asked for."""
    folder.mkdir()
    texts = [f"Row {n} of a data set. It has {n % 7} more sentences than the last. So it is." for n in range(rows)]
    for shard, part in enumerate((texts[: rows // 2], texts[rows // 2 :])):
        days = [datetime.date(2020, 1, 1 + n % 28) for n in range(len(part))]
        table = pyarrow.table({"text": part, "day": days, "rest": ["x" * 1000] * len(part)})
        parquet.write_table(table, folder / f"train-0000{shard}-of-00002.parquet")
    return folder


def test_a_data_set_is_read_once_and_later_from_its_copy(tmp_path):
    corpus = Corpus([f"hub:{hub_set(tmp_path / 'set')}"], group_column="day")
    other = Corpus([f"hub:{tmp_path / 'set'}"], group_column="day")
    expected, digest = list(corpus.documents()), corpus.digest()
    [said] = corpus.fetch(tmp_path / "copies")
    assert "hub:set is on this machine now" in said
    [copy] = (tmp_path / "copies").glob("*.gz")
    written = copy.stat().st_mtime_ns
    # Another run finds the copy.
    (tmp_path / "copies" / "unfinished.tmp").write_bytes(b"cut")
    other.fetch(tmp_path / "copies")
    (tmp_path / "copies" / "unfinished.tmp").unlink()
    assert [*(tmp_path / "copies").glob("*.gz")] == [copy] and copy.stat().st_mtime_ns == written
    shutil.rmtree(tmp_path / "set")
    assert list(corpus.documents()) == expected and corpus.digest() == digest
    assert corpus.bytes_read == corpus.total_bytes == copy.stat().st_size
    assert list(other.documents()) == expected


def test_a_damaged_copy_of_a_data_set_is_made_again(tmp_path):
    name = f"hub:{hub_set(tmp_path / 'set')}"
    first, again = Corpus([name]), Corpus([name])
    first.fetch(tmp_path / "copies")
    expected = list(first.documents())
    [copy] = (tmp_path / "copies").glob("*.gz")
    whole = copy.read_bytes()
    copy.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    again.fetch(tmp_path / "copies")
    assert copy.read_bytes() == whole and list(again.documents()) == expected


def test_a_data_set_that_was_written_again_is_read_again(tmp_path):
    first = Corpus([f"hub:{hub_set(tmp_path / 'set')}"])
    first.fetch(tmp_path / "copies")
    shutil.rmtree(tmp_path / "set")
    again = Corpus([f"hub:{hub_set(tmp_path / 'set', rows=80)}"])
    again.fetch(tmp_path / "copies")
    assert len(list(first.documents())) == 600 and len(list(again.documents())) == 80


def test_a_preparation_reads_a_data_set_once(tmp_path, monkeypatch):
    import datasets

    read, original = [], datasets.IterableDataset.__iter__

    def counted(self):
        for row in original(self):
            read.append(1)
            yield row

    monkeypatch.setattr(datasets.IterableDataset, "__iter__", counted)
    prep = PrepSettings(corpus=(f"hub:{hub_set(tmp_path / 'set')}",), vocab_size=128, workers=1)
    prepared = prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")
    assert 600 <= len(read) <= 600 + 200 and not (tmp_path / "out" / ".work").exists()
    # It is found again, after a look at the beginning, and the same as from files.
    read.clear()
    prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")
    assert len(read) <= 200
    files = replace(prep, corpus=(str(tmp_path / "set"),))
    assert prepare(files, ExampleSettings(sequence_length=32), tmp_path / "other").digest == prepared.digest


def test_what_was_prepared_of_a_data_set_that_was_written_again_is_no_longer_it(tmp_path):
    examples = ExampleSettings(sequence_length=32)
    prep = PrepSettings(corpus=(f"hub:{hub_set(tmp_path / 'set')}",), vocab_size=128, workers=1)
    prepare(prep, examples, tmp_path / "out")
    shutil.rmtree(tmp_path / "set")
    hub_set(tmp_path / "set", rows=500)
    with pytest.raises(PrepError, match="prepared otherwise .the text is another"):
        prepare(prep, examples, tmp_path / "out")


def test_a_data_set_that_breaks_off_leaves_nothing(tmp_path):
    prep = PrepSettings(corpus=(f"hub:{hub_set(tmp_path / 'set')}",), vocab_size=128, workers=1)
    path = tmp_path / "set" / "train-00001-of-00002.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(400) + whole[404:])
    with pytest.raises(PrepError, match="^hub:set broke off after row 300 .*; give the same command again$"):
        prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    path.write_bytes(whole)
    prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")


def test_a_saved_data_set_is_read(tmp_path, read):
    import datasets

    saved = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"a": saved, "b": saved.select([2])}).save_to_disk(tmp_path / "saved")
    assert read(f"hub:{tmp_path / 'saved'}:b") == [['Third, with "quotes"']]
