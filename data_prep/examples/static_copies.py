"""Statically masked copies of a corpus, as `datasets` folders for models of transformers.

    static_masks/               windows with a next-sentence label, for BertForPreTraining
    static_masks_unlabelled/    windows without one, for BertForMaskedLM

They stand apart because the loss of transformers is the mean over the labels of a batch: without any it is no number.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from ..prepared import Shard, write_table
from ..settings import ExampleSettings
from ..vocabulary.wordpiece import WordPieceTokenizer
from . import Ints
from .masking import MaskingRules, mask
from .packing import Examples, pack
from .pairs import UNLABELLED, example_keys, pairs

_ROWS_AT_ONCE = 4_096


FOLDERS = {"static_masks": True, "static_masks_unlabelled": False}
"""Names, and whether the windows in them are labelled."""


def write_static_copies(
    out: Path,
    shards: Callable[[], Iterable[Shard]],
    tokenizer: WordPieceTokenizer,
    settings: ExampleSettings,
    copies: int,
) -> dict[str, int]:
    """Write the pairs and masks of the first `copies` epochs, padded to the sequence length; nothing for 0 copies.

    Columns, named as the arguments of transformers' models: input_ids, token_type_ids, attention_mask, labels
    (lists of `sequence_length` integers; -100 in labels where nothing is predicted) and, of windows that have one,
    next_sentence_label (an integer).

    Args:
        out: where the folders go; one without rows is not made.
        shards: gives them again for each copy.

    Returns:
        How many rows each folder has.
    """
    if not copies:
        return {}
    return {
        name: _write(out / name, _batches(shards, tokenizer, settings, copies, is_labelled))
        for name, is_labelled in FOLDERS.items()
    }


def _write(folder: Path, batches: Iterator[dict[str, Ints]]) -> int:
    """Write a table unless it is empty; returns how many rows it has."""
    count = 0

    def counted() -> Iterator[dict[str, Ints]]:
        nonlocal count
        for batch in batches:
            count += len(batch["input_ids"])
            yield batch

    rows = counted()
    if first := next(rows, None):
        write_table(folder, chain([first], rows))
    return count


def _batches(
    shards: Callable[[], Iterable[Shard]],
    tokenizer: WordPieceTokenizer,
    settings: ExampleSettings,
    copies: int,
    is_labelled: bool,
) -> Iterator[dict[str, Ints]]:
    rules = MaskingRules.of(tokenizer, settings.masking)
    for epoch in range(copies):
        for shard in shards():
            rows = pairs(shard, settings.longest, settings.seed, epoch, tokenizer.starts_word)
            key = example_keys(shard.index, np.arange(len(rows)), settings.seed, epoch)
            examples = Examples.of(0, rows, key)[(rows.label != UNLABELLED) == is_labelled]
            for start in range(0, len(examples), _ROWS_AT_ONCE):
                part = examples[start : start + _ROWS_AT_ONCE]
                columns = _padded(shard, part, tokenizer, rules, settings.longest)
                yield columns | ({"next_sentence_label": part.label} if is_labelled else {})


def _padded(
    shard: Shard, examples: Examples, tokenizer: WordPieceTokenizer, rules: MaskingRules, length: int
) -> dict[str, Ints]:
    packed = pack([shard], examples, tokenizer.cls_id, tokenizer.sep_id)
    types, starts = packed.token_type_ids, packed.sequence_starts
    ids, positions, targets = mask(packed.input_ids, types, starts, examples.key, rules)
    labels = np.full(len(ids), UNLABELLED)
    labels[positions] = targets
    row = np.repeat(np.arange(len(examples)), np.diff(starts))

    def pad(values: Ints, filler: int) -> Ints:
        table = np.full((len(examples), length), filler)
        table[row, packed.position_ids] = values
        return table

    return {
        "input_ids": pad(ids, tokenizer.pad_id),
        "token_type_ids": pad(types, 0),
        "attention_mask": pad(np.ones_like(ids), 0),
        "labels": pad(labels, UNLABELLED),
    }
