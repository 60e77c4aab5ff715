"""Encoded blocks to the data of a prepared corpus: logical shards, pairs and numbers, a shard at a time."""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from .copies import copied_tokens
from .encode import Block, BlockStore, id_dtype
from .errors import PrepError
from .examples.packing import HELD_OUT_SEED
from .examples.pairs import pairs
from .examples.static_copies import write_static_copies
from .memory import give_back
from .prepared import Shard, read_shards, stream_shards, write_shards, write_table
from .report import PartNumbers, decoded_examples, text_numbers
from .settings import ExampleSettings
from .vocabulary.wordpiece import WordPieceTokenizer

PARTS = ("train", "validation")
# Of text, about 70,000 windows of 128 tokens: enough partners for each; memory grows with it.
SHARD_BYTES = 42_000_000


@dataclass(frozen=True)
class Totals:
    """What all blocks of a part hold."""

    bytes: int = 0
    """Of text."""
    documents: int = 0
    words: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Self:
        total = cls()
        for block in blocks:
            total = cls(
                total.bytes + block.bytes,
                total.documents + len(block.document_sentences),
                total.words + block.words,
                total.tokens + len(block.ids),
            )
        return total


def assemble(
    out: Path,
    blocks: BlockStore,
    tokenizer: WordPieceTokenizer,
    examples: ExampleSettings,
    static_masks: int,
    num_shown: int,
    sources: Mapping[str, str],
) -> dict:
    """Write shards, pairs, unigram counts and static copies; returns the numbers of the report.

    Args:
        static_masks: how many masked copies to write.
        num_shown: how many examples the report shows.
        sources: what the text of each part is from, for messages.

    Raises:
        PrepError: a part is without a token, or a document too long.
    """
    totals = {part: Totals.of(blocks.blocks(part)) for part in PARTS}
    for part, purpose in zip(PARTS, ("learn from", "evaluate on"), strict=True):
        if not totals[part].tokens:
            raise PrepError(f"nothing is left to {purpose} in {sources[part]}: give more text")
        shards = assemble_shards(blocks.blocks(part), totals[part])
        write_shards(out / part, shards, id_dtype(tokenizer.vocab_size))
    give_back()
    train, validation = (PartNumbers(tokenizer.vocab_size, examples.longest) for _ in PARTS)
    shown = _write_pairs(out, "train", examples, examples.seed, tokenizer, train, num_shown)
    _write_pairs(out, "validation", examples, HELD_OUT_SEED, tokenizer, validation, 0)
    copied = np.concatenate(copied_tokens(stream_shards(out / "train"), read_shards(out / "validation")))
    _save(out / "unigram_counts.npy", train.counts)
    _save(out / "validation_copied.npy", np.packbits(copied))
    copies = write_static_copies(out, partial(stream_shards, out / "train"), tokenizer, examples, static_masks)
    return {
        "train": train.of_text(),
        "validation": validation.of_text(),
        "copied": {"tokens": int(copied.sum()), "share": float(copied.mean())},
        "text": text_numbers(train, validation, totals["train"].words, tokenizer),
        "pairs": train.of_pairs(),
        "labelled_held_out": validation.labelled,
        "static": copies,
        "examples": shown,
    }


def _save(path: Path, values: np.ndarray) -> None:
    # Into memory first: what numpy raises on a full disk does not say so.
    np.save(stored := io.BytesIO(), values)
    path.write_bytes(stored.getvalue())


def assemble_shards(blocks: Iterable[Block], total: Totals, shard_bytes: int = SHARD_BYTES) -> Iterator[Shard]:
    """Consecutive blocks joined to logical shards of two documents or more.

    There are as many as can have `shard_bytes` of text each, and they are about equally large: what is left is divided
    again after each, and is never less than half a shard.

    Args:
        total: of all blocks.
    """
    size = target = total.bytes / max(1, total.bytes // shard_bytes)
    joined: list[Block] = []
    index, left_bytes, left_documents = 0, total.bytes, total.documents
    for block in blocks:
        joined.append(block)
        here = Totals.of(joined)
        is_whole = here.bytes >= target and here.documents >= 2
        rest_is_enough = left_bytes - here.bytes >= size / 2 and left_documents - here.documents >= 2
        if is_whole and rest_is_enough:
            yield _join(index, joined)
            index, joined = index + 1, []
            left_bytes, left_documents = left_bytes - here.bytes, left_documents - here.documents
            target = left_bytes / max(1, round(left_bytes / size))
    if joined:
        yield _join(index, joined)


def _join(index: int, blocks: list[Block]) -> Shard:
    def offsets(name: str) -> np.ndarray:
        lengths = np.concatenate([getattr(block, name) for block in blocks])
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    ids = np.concatenate([block.ids for block in blocks])
    if len(ids) >= 1 << 31:
        raise PrepError(f"a document has {len(ids):,} tokens, over the limit of 2^31: cut it into several")
    return Shard(index, ids, offsets("sentence_lengths"), offsets("document_sentences"))


def _write_pairs(
    out: Path,
    part: str,
    examples: ExampleSettings,
    seed: int,
    tokenizer: WordPieceTokenizer,
    numbers: PartNumbers,
    num_shown: int,
) -> list[dict]:
    """Write the pairs of an epoch and count them; returns the first `num_shown` as a person can read them."""
    shown = []

    def tables() -> Iterator[dict[str, np.ndarray]]:
        for shard in stream_shards(out / part):
            found = pairs(shard, examples.longest, seed, 0, tokenizer.starts_word)
            numbers.add(shard, found)
            if shard.index == 0:
                shown.extend(decoded_examples(shard, found, tokenizer, examples.masking, seed, num_shown))
            yield {"shard": np.full(len(found), shard.index)} | found.columns()

    write_table(out / f"{part}_pairs", tables())
    return shown
