"""The prepared corpus: a folder of token ids and pairs, written once, opened memory-mapped, checked when read.

    prepared.json               what was prepared, from what, the digests of every file and of itself; written last
    tokenizer/                  vocab.txt, tokenizer.json, tokenizer_config.json
    train/, validation/         documents as lists of sentences of ids; `datasets.load_from_disk` opens them
    train_pairs/                the sentence pairs of the first epoch, as integer rows
    validation_pairs/           the frozen held-out pairs
    unigram_counts.npy          how often each vocabulary entry occurs in train, int64 [V]
    validation_copied.npy       which held-out tokens lie in runs that stand in train too, bits of uint8
    prep_report.md, .json       what is in the data

A record batch of `train/` or `validation/` is one logical shard. Its column `input_ids` is a list of lists: the
values are all ids end to end, the inner offsets the sentences, the outer offsets the documents.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from .durable import (
    Damaged,
    check_files,
    file_digest,
    file_facts,
    flush_to_disk,
    read_object,
    read_sealed,
    write_json,
    write_sealed,
)
from .errors import PrepError
from .vocabulary.wordpiece import WordPieceTokenizer

FORMAT = 2
MANIFEST = "prepared.json"
# Facts about one run, not about the data: outside the digest.
LOG = "prep.log"
PAIR_COLUMNS = ("a_start", "a_length", "b_start", "b_length", "label")
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
            # Names of columns become text only when they are asked for, and may be none.
            _ = reader.schema.names
            return list(reader)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise PrepError(f"{folder / _DATA_FILE} cannot be read ({error}): prepare the corpus again") from error


def read_shards(folder: Path) -> list[Shard]:
    """Open the shards of `train/` or `validation/`, memory-mapped and without a copy."""
    return [_shard(folder, index, batch) for index, batch in enumerate(_record_batches(folder))]


def stream_shards(folder: Path) -> Iterator[Shard]:
    """The shards of `train/` or `validation/`, each in memory only as long as it is used."""
    import pyarrow as pa

    with pa.OSFile(str(folder / _DATA_FILE)) as source, pa.ipc.open_stream(source) as reader:
        for index, batch in enumerate(reader):
            yield _shard(folder, index, batch)


def _shard(folder: Path, index: int, batch) -> Shard:
    import pyarrow as pa

    place = f"record batch {index} of {folder / _DATA_FILE}"
    try:
        # Else offsets may point anywhere.
        batch.validate(full=True)
        documents = batch.columns[0] if batch.columns else None
        sentences = documents.values if isinstance(documents, pa.ListArray) else None
        if not isinstance(sentences, pa.ListArray):
            raise pa.ArrowInvalid(f"its columns are {batch.schema.types}")
        arrays = (sentences.values, sentences.offsets, documents.offsets)
        shard = Shard(index, *(array.to_numpy(zero_copy_only=True) for array in arrays))
    except pa.ArrowException as error:
        raise PrepError(f"{place} does not hold documents ({error}): prepare the corpus again") from error
    if shard.ids.dtype not in (np.uint16, np.uint32) or not all(
        starts[0] == 0 and np.all(np.diff(starts) > 0) for starts in (shard.sentence_starts, shard.document_starts)
    ):
        raise PrepError(f"{place} holds no documents of sentences of ids: prepare the corpus again")
    return shard


def read_pairs(folder: Path) -> list[dict[str, np.ndarray]]:
    """Of each shard the columns of its pairs (see `examples.pairs.Pairs.columns`), int32 [rows], memory-mapped."""
    return [_pairs(folder, index, batch) for index, batch in enumerate(_record_batches(folder))]


def _pairs(folder: Path, index: int, batch) -> dict[str, np.ndarray]:
    import pyarrow as pa

    try:
        batch.validate(full=True)
        return {name: batch.column(name).to_numpy(zero_copy_only=True) for name in PAIR_COLUMNS}
    except (pa.ArrowException, KeyError) as error:
        raise PrepError(
            f"record batch {index} of {folder / _DATA_FILE} does not hold pairs ({error}): prepare the corpus again"
        ) from error


def _fit(rows: Mapping[str, np.ndarray], shard: Shard, sequence_length: int) -> bool:
    """Whether pairs lie in their shard, are no longer than the sequence length, and have labels that are known."""
    if any(column.dtype != np.int32 for column in rows.values()):
        return False
    a_start, a_length, b_start, b_length, label = (rows[name].astype(np.int64) for name in PAIR_COLUMNS)
    return all(
        np.all(condition)
        for condition in (
            (a_start >= 0) & (a_length > 0) & (a_start + a_length <= len(shard.ids)),
            (b_start >= 0) & (b_length >= 0) & (b_start + b_length <= len(shard.ids)),
            a_length + b_length + 2 + (b_length > 0) <= sequence_length,
            np.isin(label, (0, 1, -100)),
        )
    )


def seal(folder: Path, facts: dict, files: Sequence[str]) -> None:
    """Write the manifest: from now on the folder is a prepared corpus, also after a power cut."""
    paths = [folder / name for name in files]
    for path in [*paths, *{path.parent for path in paths}, folder.parent]:
        flush_to_disk(path)
    write_sealed(folder / MANIFEST, {"format": FORMAT, **facts, "files": file_facts(folder, files)})


class PreparedCorpus:
    """A prepared corpus opened for reading.

    Args:
        folder: the folder that `python -m data_prep.run` wrote; it may have been moved.
        verify: check the digest of every file (about a second a gigabyte), not the sizes alone, and that ids and
            boundaries are such as a model can be trained on, whoever made the folder.

    Raises:
        PrepError: not a prepared corpus, of another format, incomplete or damaged.
    """

    def __init__(self, folder: str | Path, verify: bool = True):
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self._check_files(verify)
        if verify:
            self._check_data()

    def _check_files(self, verify: bool) -> None:
        try:
            check_files(self.folder, self.manifest["files"], contents=verify)
        except Damaged as error:
            raise _to_be_prepared_again(self.folder, error) from error

    def _check_data(self) -> None:
        vocab_size = self.tokenizer.vocab_size
        if self.unigram_counts.shape != (vocab_size,):
            raise _to_be_prepared_again(self.folder, Damaged("its unigram_counts.npy is not one of its vocabulary"))
        length = self.manifest["identity"]["sequence_length"]
        for part in ("train", "validation"):
            shards, tables = read_shards(self.folder / part), self.pairs(part)
            if any(len(shard.ids) and shard.ids.max() >= vocab_size for shard in shards):
                raise _to_be_prepared_again(self.folder, Damaged(f"{part} holds ids beyond its vocabulary"))
            if len(shards) != len(tables) or not all(map(_fit, tables, shards, repeat(length))):
                raise _to_be_prepared_again(self.folder, Damaged(f"{part}_pairs does not belong to its {part}"))

    @cached_property
    def tokenizer(self) -> WordPieceTokenizer:
        return WordPieceTokenizer.load(self.folder / "tokenizer")

    @cached_property
    def train(self) -> list[Shard]:
        return read_shards(self.folder / "train")

    @cached_property
    def validation(self) -> list[Shard]:
        return read_shards(self.folder / "validation")

    def pairs(self, part: str) -> list[dict[str, np.ndarray]]:
        """The stored pairs of each shard of a part (see `read_pairs`)."""
        return read_pairs(self.folder / f"{part}_pairs")

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """int64 [V]: how often each vocabulary entry occurs in the training part."""
        path = self.folder / "unigram_counts.npy"
        try:
            return np.load(path, allow_pickle=False).astype(np.int64, casting="safe", copy=False)
        except Exception as error:  # numpy reads the header as Python, which can fail in many ways.
            raise _to_be_prepared_again(self.folder, Damaged(f"{path} cannot be read ({error})")) from error

    @cached_property
    def validation_copied(self) -> list[np.ndarray] | None:
        """For each shard of held-out text which of its tokens are copies (see `copies.copied_tokens`), bool [tokens].

        None for a corpus that was prepared before they were counted.
        """
        path, sizes = self.folder / "validation_copied.npy", [len(shard.ids) for shard in self.validation]
        if path.name not in self.manifest["files"]:
            return None
        try:
            bits = np.load(path, allow_pickle=False)
            if bits.dtype != np.uint8 or bits.shape != (-(-sum(sizes) // 8),):
                raise ValueError(f"{bits.dtype} {bits.shape}")
        except Exception as error:  # numpy reads the header as Python, which can fail in many ways.
            raise _to_be_prepared_again(self.folder, Damaged(f"{path} cannot be read ({error})")) from error
        return np.split(np.unpackbits(bits, count=sum(sizes)).view(bool), np.cumsum(sizes)[:-1])

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
        PrepError: there is none, its format is not the one of this version, or it is not as it was written.
    """
    path = folder / MANIFEST
    if not path.is_file():
        # Where a run leaves its own.
        inside = folder / "prepared"
        is_there = (inside / MANIFEST).is_file()
        remedy = f"did you mean {inside}?" if is_there else "prepare it with python -m data_prep.run"
        raise PrepError(f"{folder} is not a prepared corpus (no {MANIFEST}): {remedy}")
    written = _format_of(path)
    # Another format may be sealed otherwise, or not at all.
    if written not in (None, FORMAT):
        raise PrepError(f"{path} has format {written}, this version reads {FORMAT}: prepare the corpus again")
    try:
        manifest = read_sealed(path)
    except Damaged as error:
        raise _to_be_prepared_again(folder, error) from error
    if not _is_manifest(manifest):
        raise _to_be_prepared_again(folder, Damaged(f"{path} does not describe a prepared corpus"))
    return manifest


def _is_manifest(content: dict) -> bool:
    """Whether everything that is read from a manifest is there, and of its kind."""
    kinds = {"identity": dict, "files": dict, "train": dict, "validation": dict, "digest": str, "tokenizer": str,
             "next_sentence": bool}  # fmt: skip
    if not all(isinstance(content.get(name), kind) for name, kind in kinds.items()):
        return False
    numbers = [content[part].get(name) for part in ("train", "validation") for name in ("documents", "tokens")]
    numbers.append(content["identity"].get("sequence_length"))
    facts = content["files"].values()
    return all(type(number) is int and number >= 0 for number in numbers) and all(
        isinstance(fact, dict) and type(fact.get("bytes")) is int and isinstance(fact.get("blake2b"), str)
        for fact in facts
    )


def _format_of(path: Path) -> int | None:
    """The format that a manifest names; None where it cannot be read."""
    content = read_object(path, format=int)
    return content and content["format"]


def _to_be_prepared_again(folder: Path, error: Damaged) -> PrepError:
    return PrepError(f"{error}: remove {folder} and prepare the corpus again")
