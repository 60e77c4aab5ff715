"""The prepared corpus: a folder of token ids and pairs, written once, opened memory-mapped, checked when read.

    prepared.json               what was prepared, from what, and the digest of every file; written last
    tokenizer/                  vocab.txt, tokenizer.json, tokenizer_config.json
    train/, validation/         documents as lists of sentences of ids; `datasets.load_from_disk` opens them
    train_pairs/                the sentence pairs of the first epoch, as integer rows
    validation_pairs/           the frozen held-out pairs
    unigram_counts.npy          how often each vocabulary entry occurs in train, int64 [V]
    prep_report.md, .json       what is in the data

A record batch of `train/` or `validation/` is one logical shard. Its column `input_ids` is a list of lists: the
values are all ids end to end, the inner offsets the sentences, the outer offsets the documents.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from .errors import PrepError
from .wordpiece import WordPieceTokenizer

FORMAT = 1
MANIFEST = "prepared.json"
# Facts about one run, not about the data: outside the digest.
LOG = "prep.log"
_DATA_FILE = "data-00000-of-00001.arrow"


@dataclass(frozen=True)
class Shard:
    """Documents that are paired with each other: ids [tokens], and where sentences and documents start.

    `sentence_starts` [sentences + 1] are offsets into `ids`, `document_starts` [documents + 1] into the sentences.
    """

    index: int
    ids: np.ndarray
    sentence_starts: np.ndarray
    document_starts: np.ndarray

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1


def write_shards(folder: Path, shards: Iterable[Shard], dtype: np.dtype) -> None:
    """Write shards as an Arrow stream, a record batch each, with the two files that `datasets` wants beside it."""
    import pyarrow as pa

    schema = pa.schema([("input_ids", pa.list_(pa.list_(pa.from_numpy_dtype(dtype))))])
    _write_stream(folder, schema, (_record_batch(shard, schema, dtype) for shard in shards))


def _record_batch(shard: Shard, schema, dtype: np.dtype):
    import pyarrow as pa

    sentences = pa.ListArray.from_arrays(
        pa.array(shard.sentence_starts.astype(np.int32)), pa.array(shard.ids.astype(dtype, copy=False))
    )
    documents = pa.ListArray.from_arrays(pa.array(shard.document_starts.astype(np.int32)), sentences)
    return pa.record_batch([documents], schema=schema)


def write_table(folder: Path, batches: Iterable[dict[str, np.ndarray]]) -> None:
    """Write batches of integer columns, [rows] or [rows, width] each, as a folder that `load_from_disk` opens."""
    import pyarrow as pa

    batches = iter(batches)
    first = next(batches)
    kinds = {name: pa.int32() if column.ndim == 1 else pa.list_(pa.int32()) for name, column in first.items()}
    schema = pa.schema(list(kinds.items()))
    rows = (pa.record_batch([_column(c) for c in batch.values()], schema=schema) for batch in chain([first], batches))
    _write_stream(folder, schema, rows)


def _column(values: np.ndarray):
    import pyarrow as pa

    flat = pa.array(values.reshape(-1).astype(np.int32))
    if values.ndim == 1:
        return flat
    return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]), flat)


def _write_stream(folder: Path, schema, batches: Iterable) -> None:
    """The layout of `Dataset.save_to_disk`, but with our own record batches (it would cut them at 1,000 rows)."""
    import pyarrow as pa

    folder.mkdir(parents=True, exist_ok=True)
    features = {field.name: _feature(field.type) for field in schema}
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    with pa.OSFile(str(folder / _DATA_FILE), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    fingerprint = file_digest(folder / _DATA_FILE)[:16]
    state = {"_data_files": [{"filename": _DATA_FILE}], "_fingerprint": fingerprint, "_format_columns": None,
             "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None}  # fmt: skip
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    write_json(folder / "state.json", state)
    write_json(folder / "dataset_info.json", info)


def _feature(arrow_type) -> dict:
    import pyarrow as pa

    if pa.types.is_list(arrow_type):
        return {"feature": _feature(arrow_type.value_type), "_type": "List"}
    return {"dtype": str(arrow_type), "_type": "Value"}


def _record_batches(folder: Path) -> list:
    import pyarrow as pa

    try:
        with pa.memory_map(str(folder / _DATA_FILE)) as source, pa.ipc.open_stream(source) as reader:
            return list(reader)
    except (OSError, pa.ArrowException) as error:
        raise PrepError(f"{folder / _DATA_FILE} cannot be read ({error}): prepare the corpus again") from error


def read_shards(folder: Path) -> list[Shard]:
    """Open the shards of `train/` or `validation/`, memory-mapped and without a copy."""
    shards = []
    for index, batch in enumerate(_record_batches(folder)):
        documents = batch.column(0)
        sentences = documents.values
        arrays = (sentences.values, sentences.offsets, documents.offsets)
        shards.append(Shard(index, *(array.to_numpy(zero_copy_only=True) for array in arrays)))
    return shards


def read_table(folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """The record batches written by `write_table`, their flat columns as numpy arrays."""
    for batch in _record_batches(folder):
        yield {name: batch.column(name).to_numpy() for name in batch.schema.names}


def write_json(path: Path, content: object) -> None:
    """Write JSON atomically: the file is there whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text atomically: the file is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def file_digest(path: Path) -> str:
    """blake2b (128 bits) of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def seal(folder: Path, facts: dict, files: Sequence[str]) -> None:
    """Write the manifest: from now on the folder is a prepared corpus."""
    digests = {name: {"bytes": (folder / name).stat().st_size, "blake2b": file_digest(folder / name)} for name in files}
    write_json(folder / MANIFEST, {"format": FORMAT, **facts, "files": digests})


class PreparedCorpus:
    """A prepared corpus opened for reading.

    Args:
        folder: the folder that `python -m data_prep.run` wrote; it may have been moved.
        verify: check the digest of every file (about a second a gigabyte), not the sizes alone.

    Raises:
        PrepError: not a prepared corpus, of another format, incomplete or damaged.
    """

    def __init__(self, folder: str | Path, verify: bool = True):
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self._check_files(verify)

    def _check_files(self, verify: bool) -> None:
        for name, fact in self.manifest["files"].items():
            path = self.folder / name
            remedy = f"remove {self.folder} and prepare the corpus again"
            if not path.is_file():
                raise PrepError(f"{path} is missing from the prepared corpus: {remedy}")
            if path.stat().st_size != fact["bytes"] or (verify and file_digest(path) != fact["blake2b"]):
                raise PrepError(f"{path} is damaged, it is not the file that was written: {remedy}")

    @cached_property
    def tokenizer(self) -> WordPieceTokenizer:
        return WordPieceTokenizer.load(self.folder / "tokenizer")

    @cached_property
    def train(self) -> list[Shard]:
        return read_shards(self.folder / "train")

    @cached_property
    def validation(self) -> list[Shard]:
        return read_shards(self.folder / "validation")

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """int64 [V]: how often each vocabulary entry occurs in the training part."""
        return np.load(self.folder / "unigram_counts.npy", allow_pickle=False)

    @property
    def digest(self) -> str:
        """Identity of the data: ids, boundaries and vocabulary, wherever the folder lies."""
        return self.manifest["digest"]

    @property
    def next_sentence(self) -> bool:
        """Whether the corpus allows the next-sentence objective: documents of several sentences, more than one."""
        return self.manifest["next_sentence"]


def read_manifest(folder: Path) -> dict:
    """The manifest of a prepared corpus.

    Raises:
        PrepError: there is none, it is no JSON, or its format is not the one of this version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise PrepError(f"{folder} is not a prepared corpus (no {MANIFEST}): prepare it with python -m data_prep.run")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        written, files = manifest["format"], manifest["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise PrepError(f"{path} is damaged: remove {folder} and prepare the corpus again") from error
    if written != FORMAT or not isinstance(files, dict):
        raise PrepError(f"{path} has format {written}, this version reads {FORMAT}: prepare the corpus again")
    return manifest
