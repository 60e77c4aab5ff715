"""The static export, opened by `datasets` and fed to the BertForPreTraining of transformers."""

import math

import numpy as np
import pytest

from data_prep.packing import Examples, pack
from data_prep.pairs import example_keys, pairs
from data_prep.settings import ExampleSettings
from data_prep.static import write_static_copies

LENGTH, COPIES = 32, 2
SETTINGS = ExampleSettings(sequence_length=LENGTH, seed=3)
COLUMNS = ["input_ids", "token_type_ids", "attention_mask", "labels", "next_sentence_label"]


@pytest.fixture(scope="module")
def shards(shard_of, small_tokenizer):
    """Two shards of random words, some documents of one sentence."""
    draw = np.random.default_rng(4)
    ordinary = np.flatnonzero(small_tokenizer.is_ordinary)
    found = []
    for index in range(2):
        shape = [draw.integers(1, 20, draw.integers(1, 12)).tolist() for _ in range(25)]
        found.append(shard_of(shape, draw.choice(ordinary, sum(map(sum, shape))).astype(np.uint16), index))
    return found


@pytest.fixture(scope="module")
def opened(shards, small_tokenizer, tmp_path_factory):
    from datasets import load_from_disk

    folder = tmp_path_factory.mktemp("static") / "static_masks"
    write_static_copies(folder, lambda: shards, small_tokenizer, SETTINGS, COPIES)
    return load_from_disk(str(folder)).with_format("numpy")


@pytest.fixture(scope="module")
def unmasked(shards, small_tokenizer) -> list[tuple[list[int], list[int], int]]:
    """Ids, token types and label of each example before masking, in the order of the export."""
    found = []
    for epoch in range(COPIES):
        for shard in shards:
            rows = pairs(shard, LENGTH, SETTINGS.seed, epoch, small_tokenizer.starts_word)
            key = example_keys(shard.index, np.arange(len(rows)), SETTINGS.seed, epoch)
            batch = pack(
                shards, Examples.of(shard.index, rows, key), small_tokenizer.cls_id, small_tokenizer.sep_id
            )
            cuts = batch.sequence_starts[1:-1]
            ids, types = np.split(batch.input_ids, cuts), np.split(batch.token_type_ids, cuts)
            found += zip(
                [i.tolist() for i in ids], [t.tolist() for t in types], rows.label.tolist(), strict=True
            )
    return found


def test_columns_are_padded_to_the_sequence_length(opened, unmasked):
    assert opened.column_names == COLUMNS
    assert len(opened) == len(unmasked)
    for name in COLUMNS[:4]:
        assert opened[:][name].shape == (len(unmasked), LENGTH)
    assert opened[:]["next_sentence_label"].shape == (len(unmasked),)


def test_rows_are_the_examples_with_their_masks(opened, unmasked, small_tokenizer):
    table = opened[:]
    rows = zip(*(table[name].tolist() for name in COLUMNS), strict=True)
    for (ids, types, attention, labels, label), (plain, plain_types, plain_label) in zip(
        rows, unmasked, strict=True
    ):
        padding = LENGTH - len(plain)
        assert attention == [1] * len(plain) + [0] * padding
        assert types == plain_types + [0] * padding
        assert label == plain_label
        masked = [place for place, target in enumerate(labels) if target != -100]
        assert len(masked) == max(1, round(0.15 * len(plain)))
        for place, (shown, target) in enumerate(zip(ids, labels, strict=True)):
            original = plain[place] if place < len(plain) else small_tokenizer.pad_id
            assert (target if place in masked else shown) == original
        assert not {plain[place] for place in masked} & {small_tokenizer.cls_id, small_tokenizer.sep_id}


def test_labels_of_all_three_kinds_occur(opened):
    counts = np.unique(opened[:]["next_sentence_label"], return_counts=True)
    assert counts[0].tolist() == [-100, 0, 1]
    assert counts[1][1] == counts[1][2] > 20


def test_every_copy_has_masks_of_its_own(opened, unmasked):
    first = opened[:]["input_ids"][: len(unmasked) // 2].tolist()
    second = opened[:]["input_ids"][len(unmasked) // 2 :].tolist()
    same = sum(row in second for row in first)
    assert same < 0.1 * len(first)


@pytest.mark.parametrize("masking", ["token", "whole-word"])
def test_the_masking_asked_for_is_the_one_written(shards, small_tokenizer, tmp_path, masking):
    """With whole words a word seldom has a mask on a part of it only (runs of over ten, lone long words)."""
    from datasets import load_from_disk

    settings = ExampleSettings(sequence_length=LENGTH, masking=masking, seed=3)
    write_static_copies(tmp_path / "static", lambda: shards, small_tokenizer, settings, 1)
    table = load_from_disk(str(tmp_path / "static")).with_format("numpy")[:]
    labels, ids = table["labels"], table["input_ids"]
    plain = np.where(labels != -100, labels, ids)
    here, after = labels[:, :-1] != -100, labels[:, 1:] != -100
    torn = (
        (~small_tokenizer.starts_word[plain[:, 1:]])
        & (here != after)
        & (plain[:, :-1] > 4)
        & (plain[:, 1:] > 4)
    )
    share = torn.any(axis=1).mean()
    assert share < 0.5 if masking == "whole-word" else share > 0.8


def test_transformers_trains_on_a_batch(opened, small_tokenizer):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=small_tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
    )
    model = transformers.BertForPreTraining(config)
    loss = model(**opened.with_format("torch")[:64]).loss
    loss.backward()
    assert math.isfinite(loss.item())
    # A model that knows nothing: ln V for the words, ln 2 for the pairs.
    assert abs(loss.item() - math.log(small_tokenizer.vocab_size) - math.log(2)) < 0.3


def test_no_copies_write_nothing(shards, small_tokenizer, tmp_path):
    write_static_copies(tmp_path / "static", lambda: shards, small_tokenizer, SETTINGS, 0)
    assert not (tmp_path / "static").exists()
