"""Statically masked copies of a corpus, as a `datasets` folder for the BertForPreTraining of transformers."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from .masking import MaskingRules, mask
from .packing import Examples, pack
from .pairs import UNLABELLED, example_keys, pairs
from .prepared import Shard, write_table
from .settings import ExampleSettings
from .wordpiece import WordPieceTokenizer

_ROWS_AT_ONCE = 4_096


def write_static_copies(
    folder: Path,
    shards: Callable[[], Iterable[Shard]],
    tokenizer: WordPieceTokenizer,
    settings: ExampleSettings,
    copies: int,
) -> None:
    """Write the pairs and masks of the first `copies` epochs, padded to the sequence length; nothing for 0 copies.

    Columns, named as the arguments of transformers' model: input_ids, token_type_ids, attention_mask, labels
    (lists of `sequence_length` integers; -100 in labels where nothing is predicted) and next_sentence_label (an
    integer; -100 where a window has no second segment).

    Args:
        shards: gives them anew for each copy.
    """
    if copies:
        write_table(folder, _batches(shards, tokenizer, settings, copies))


def _batches(shards, tokenizer, settings: ExampleSettings, copies: int) -> Iterator[dict[str, np.ndarray]]:
    rules = MaskingRules.of(tokenizer, settings.masking)
    for epoch in range(copies):
        for shard in shards():
            rows = pairs(shard, settings.sequence_length, settings.seed, epoch, tokenizer.starts_word)
            key = example_keys(shard.index, np.arange(len(rows)), settings.seed, epoch)
            examples = Examples.of(0, rows, key)
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                part = examples[start : start + _ROWS_AT_ONCE]
                yield _padded(shard, part, tokenizer, rules, settings.sequence_length)


def _padded(shard: Shard, examples: Examples, tokenizer, rules: MaskingRules, length: int) -> dict[str, np.ndarray]:
    packed = pack([shard], examples, tokenizer.cls_id, tokenizer.sep_id)
    types, starts = packed.token_type_ids, packed.sequence_starts
    ids, positions, targets = mask(packed.input_ids, types, starts, examples.key, rules)
    labels = np.full(len(ids), UNLABELLED)
    labels[positions] = targets
    row = np.repeat(np.arange(len(examples)), np.diff(starts))

    def pad(values: np.ndarray, filler: int) -> np.ndarray:
        table = np.full((len(examples), length), filler)
        table[row, packed.position_ids] = values
        return table

    return {
        "input_ids": pad(ids, tokenizer.pad_id),
        "token_type_ids": pad(types, 0),
        "attention_mask": pad(np.ones_like(ids), 0),
        "labels": pad(labels, UNLABELLED),
        "next_sentence_label": examples.label,
    }
