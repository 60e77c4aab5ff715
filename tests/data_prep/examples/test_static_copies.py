"""The static export, opened by `datasets` and fed to models of transformers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from datasets import load_from_disk

from data_prep.examples.packing import Examples, pack
from data_prep.examples.pairs import example_keys, pairs
from data_prep.examples.static_copies import write_static_copies
from data_prep.settings import ExampleSettings

LENGTH, COPIES = 32, 2
SETTINGS = ExampleSettings(sequence_length=LENGTH, seed=3)
COLUMNS = ["input_ids", "token_type_ids", "attention_mask", "labels"]


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
def out(shards, small_tokenizer, tmp_path_factory):
    out = tmp_path_factory.mktemp("static")
    counts = write_static_copies(out, lambda: shards, small_tokenizer, SETTINGS, COPIES)
    assert counts == {folder.name: len(load_from_disk(str(folder))) for folder in sorted(out.iterdir())}
    return out


@pytest.fixture(scope="module", params=["static_masks", "static_masks_unlabelled"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def opened(out, name):
    return load_from_disk(str(out / name)).with_format("numpy")


@pytest.fixture(scope="module")
def unmasked(shards, small_tokenizer, name) -> list[tuple[list[int], list[int], int]]:
    """Ids, token types and label of each example of a folder before masking, in the order of the export."""
    found = []
    for epoch in range(COPIES):
        for shard in shards:
            rows = pairs(shard, LENGTH, SETTINGS.seed, epoch, small_tokenizer.starts_word)
            key = example_keys(shard.index, np.arange(len(rows)), SETTINGS.seed, epoch)
            batch = pack(shards, Examples.of(shard.index, rows, key), small_tokenizer.cls_id, small_tokenizer.sep_id)
            cuts = batch.sequence_starts[1:-1]
            ids, types = np.split(batch.input_ids, cuts), np.split(batch.token_type_ids, cuts)
            found += zip([i.tolist() for i in ids], [t.tolist() for t in types], rows.label.tolist(), strict=True)
    return [example for example in found if (example[2] == -100) == name.endswith("unlabelled")]


def test_columns_are_padded_to_the_sequence_length(opened, unmasked, name):
    assert opened.column_names == COLUMNS + ["next_sentence_label"] * (name == "static_masks")
    assert len(opened) == len(unmasked) > 50
    for name in COLUMNS[:4]:
        assert opened[:][name].shape == (len(unmasked), LENGTH)


def test_rows_are_the_examples_with_their_masks(opened, unmasked, small_tokenizer):
    table = opened[:]
    rows = zip(*(table[name].tolist() for name in COLUMNS), strict=True)
    assert table.get("next_sentence_label", np.full(len(unmasked), -100)).tolist() == [row[2] for row in unmasked]
    for (ids, types, attention, labels), (plain, plain_types, _) in zip(rows, unmasked, strict=True):
        padding = LENGTH - len(plain)
        assert attention == [1] * len(plain) + [0] * padding
        assert types == plain_types + [0] * padding
        masked = [place for place, target in enumerate(labels) if target != -100]
        assert len(masked) == max(1, round(0.15 * len(plain)))
        for place, (shown, target) in enumerate(zip(ids, labels, strict=True)):
            original = plain[place] if place < len(plain) else small_tokenizer.pad_id
            assert (target if place in masked else shown) == original
        assert not {plain[place] for place in masked} & {small_tokenizer.cls_id, small_tokenizer.sep_id}


def test_labels_of_both_kinds_occur_equally_often(out):
    labels = load_from_disk(str(out / "static_masks"))["next_sentence_label"]
    values, counts = np.unique(np.array(labels), return_counts=True)
    assert values.tolist() == [0, 1] and counts[0] == counts[1] > 20


def test_every_copy_has_masks_of_its_own(opened, unmasked):
    first = opened[:]["input_ids"][: len(unmasked) // 2].tolist()
    second = opened[:]["input_ids"][len(unmasked) // 2 :].tolist()
    same = sum(row in second for row in first)
    assert same < 0.1 * len(first)


@pytest.mark.parametrize("masking", ["token", "whole-word", "ngram"])
def test_the_masking_asked_for_is_the_one_written(shards, small_tokenizer, tmp_path, masking):
    """With whole words a word seldom has a mask on a part of it only (runs of over ten, lone long words)."""
    settings = ExampleSettings(sequence_length=LENGTH, masking=masking, seed=3)
    write_static_copies(tmp_path, lambda: shards, small_tokenizer, settings, 1)
    table = load_from_disk(str(tmp_path / "static_masks")).with_format("numpy")[:]
    labels, ids = table["labels"], table["input_ids"]
    plain = np.where(labels != -100, labels, ids)
    here, after = labels[:, :-1] != -100, labels[:, 1:] != -100
    torn = (~small_tokenizer.starts_word[plain[:, 1:]]) & (here != after) & (plain[:, :-1] > 4) & (plain[:, 1:] > 4)
    share = torn.any(axis=1).mean()
    assert share > 0.8 if masking == "token" else share < 0.5


def test_spans_are_written_as_runs_of_tokens(shards, small_tokenizer, tmp_path):
    def runs_a_row(masking):
        out = tmp_path / masking
        write_static_copies(out, lambda: shards, small_tokenizer, replace(SETTINGS, masking=masking), 1)
        table = load_from_disk(str(out / "static_masks")).with_format("numpy")[:]
        is_masked = table["labels"] != -100
        return (is_masked[:, 1:] & ~is_masked[:, :-1]).sum(1).mean()

    assert runs_a_row("span") < 0.6 * runs_a_row("token")


@pytest.mark.parametrize("size", [1, 64])
def test_transformers_trains_on_a_batch(opened, name, small_tokenizer, size):
    """Every batch has a loss, one of a single row too."""
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
    of_pairs = name == "static_masks"
    model = (transformers.BertForPreTraining if of_pairs else transformers.BertForMaskedLM)(config).eval()
    # A model that knows nothing: ln V for the words, ln 2 for the pairs.
    expected = math.log(small_tokenizer.vocab_size) + of_pairs * math.log(2)
    rows = opened.with_format("torch")
    for start in range(0, min(len(rows), 20 * size), size):
        assert abs(model(**rows[start : start + size]).loss.item() - expected) < (0.3 if size > 1 else 1)


def test_no_copies_write_nothing(shards, small_tokenizer, tmp_path):
    assert write_static_copies(tmp_path, lambda: shards, small_tokenizer, SETTINGS, 0) == {}
    assert not list(tmp_path.iterdir())


def test_a_corpus_without_pairs_has_the_unlabelled_folder_alone(shard_of, small_tokenizer, tmp_path):
    ids = np.random.default_rng(1).choice(np.flatnonzero(small_tokenizer.is_ordinary), 90).astype(np.uint16)
    counts = write_static_copies(tmp_path, lambda: [shard_of([[9]] * 10, ids, 0)], small_tokenizer, SETTINGS, 1)
    assert counts == {"static_masks": 0, "static_masks_unlabelled": 10}
    assert [folder.name for folder in tmp_path.iterdir()] == ["static_masks_unlabelled"]
