"""Model folders made to do harm: refused in a sentence, before they take memory, time or rights."""

import json
import os
import pickle
import resource
import shutil
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_prep.errors import PrepError
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertConfig, BertForPreTraining, BertForSequenceClassification, ModelError


@pytest.fixture
def folder(tmp_path, sizes):
    path = tmp_path / "cache" / "snapshots" / "main"
    BertForPreTraining(BertConfig(**sizes)).save_pretrained(path)
    return path


def changed(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refused(folder, *words, kind=BertForPreTraining):
    with pytest.raises(ModelError) as error:
        kind.from_pretrained(folder)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words), error.value


def largest_so_far() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


ABSURD = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
          "max_position_embeddings", "type_vocab_size"]  # fmt: skip


@pytest.mark.parametrize("value", [300, 10**6, 10**9, 10**30])
@pytest.mark.parametrize("name", ABSURD)
def test_sizes_of_the_config_are_compared_before_memory_is_taken(name, value, folder):
    changed(folder, **{name: value, **({"num_attention_heads": 2} if name == "hidden_size" else {})})
    before, began = largest_so_far(), time.monotonic()
    refused(folder)
    assert largest_so_far() - before < 300e6
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("name", "value"), [("num_labels", 10**9), ("classifier_hidden_layers", 10**6)])
def test_a_new_head_has_a_limit_too(name, value, folder):
    changed(folder, **{name: value})
    refused(folder, name, "over the limit", kind=BertForSequenceClassification)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": 1' + "0" * 5000 + "}", "{", "[]", '"bert"', "\ud800"])
def test_a_config_that_is_no_settings_is_refused(content, folder):
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    refused(folder, "config.json")


class Harm:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def test_code_in_a_pickle_is_not_run(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"bert": Harm(tmp_path / "harm")}))
    refused(folder, "pytorch_model.bin", "cannot be read as tensors")
    torch.save({"bert": Harm(tmp_path / "harm")}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "cannot be read as tensors")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_out_of_the_folder_is_refused_but_for_the_cache_of_the_hub(name, folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    os.rename(folder / name, outside / name)
    (folder / name).symlink_to(outside / name)
    refused(folder, name, "is a link out of its folder")
    cache = tmp_path / "models--owner--name"
    (cache / "snapshots").mkdir(parents=True)
    os.rename(outside, cache / "blobs")
    for depth in ("snapshots/hash", "snapshots/hash/generator"):
        cached = shutil.copytree(folder, cache / depth, symlinks=True, ignore=lambda *_: [name])
        (cached / name).symlink_to(os.path.relpath(cache / "blobs" / name, cached))
        BertForPreTraining.from_pretrained(cached)
    # Of another model, and from no snapshot.
    other = shutil.copytree(folder, tmp_path / "models--other" / "snapshots" / "hash", symlinks=True,
                            ignore=lambda *_: [name])  # fmt: skip
    (other / name).symlink_to(cache / "blobs" / name)
    refused(other, name, "is a link out of its folder")


def test_a_shard_is_never_looked_for_outside(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    os.rename(folder / "model.safetensors", tmp_path / "secret.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "../../../secret.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "secret.safetensors", "is missing")


@pytest.mark.parametrize("change", [
    lambda header, first: header[first].update(shape=[1 << 40, 1 << 40]),
    lambda header, first: header[first].update(data_offsets=[0, 1 << 50]),
    lambda header, first: header[first].update(data_offsets=[-4, 4]),
    lambda header, first: header[first].update(dtype="X64"),
    lambda header, first: header.pop(first),
    lambda header, first: header.update({"../x": header[first]}),
])  # fmt: skip
def test_a_header_that_lies_is_refused(change, folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header, "bert.embeddings.word_embeddings.weight")
    made_up = json.dumps(header).encode()
    path.write_bytes(len(made_up).to_bytes(8, "little") + made_up + content[8 + size :])
    refused(folder, "model.safetensors")


def test_a_header_longer_than_its_file_is_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + path.read_bytes()[8:])
    refused(folder, "model.safetensors")


@pytest.mark.parametrize("make", [
    lambda rows: torch.zeros(1).expand(rows, 24), lambda rows: torch.zeros(rows, 24).to_sparse(),
    lambda rows: torch.zeros(rows, 24, device="meta"),
], ids=["one value", "sparse", "no values"])  # fmt: skip
def test_a_pickle_of_tensors_without_values_is_refused(make, folder, sizes):
    rows = 10_000
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.embeddings.word_embeddings.weight"] = make(rows)
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    changed(folder, vocab_size=rows)
    refused(folder, "pytorch_model.bin holds tensors without values of their own", kind=BertForSequenceClassification)


@pytest.mark.parametrize("values", [{"id2label": {"9" * 5000: "a", "1": "b"}}, {"label2id": {"a": "9" * 5000}}])
def test_numbers_of_labels_without_end_are_refused(values, folder):
    changed(folder, **values)
    refused(folder, "give a mapping", kind=BertForSequenceClassification)


def test_half_a_character_in_an_index_is_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "\ud800"}}))
    refused(folder, "model.safetensors.index.json cannot be read as JSON")


def test_whole_numbers_are_no_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.to(torch.int8) for name, tensor in tensors.items()}, folder / "model.safetensors")
    refused(folder, "not floating-point numbers")


@pytest.mark.parametrize("content", [
    {"model": []}, {"model": {"type": "WordPiece"}}, {"model": {"type": "WordPiece", "vocab": [1]}}, {"normalizer": 5},
    {"model": {"type": "WordPiece", "vocab": {"[PAD]": "x"}}}, [], None, "[" * 100_000, {"extra": "\ud800"},
    {"added_tokens": [{"id": "9" * 5000, "content": "x"}]},
])  # fmt: skip
def test_a_tokenizer_of_another_form_is_refused(content, small_tokenizer, tmp_path):
    small_tokenizer.save(tmp_path, 48)
    path = tmp_path / "tokenizer.json"
    whole = json.loads(path.read_text())
    path.write_text(
        json.dumps(whole | content)
        if isinstance(content, dict)
        else content
        if isinstance(content, str)
        else json.dumps(content)
    )
    with pytest.raises(PrepError, match="tokenizer.json"):
        WordPieceTokenizer.load(tmp_path)


def test_a_tokenizer_that_is_a_link_out_of_its_folder_is_refused(small_tokenizer, tmp_path):
    small_tokenizer.save(tmp_path / "model", 48)
    os.rename(tmp_path / "model" / "vocab.txt", tmp_path / "passwd")
    (tmp_path / "model" / "vocab.txt").symlink_to(tmp_path / "passwd")
    with pytest.raises(PrepError, match="vocab.txt is a link out of its folder"):
        WordPieceTokenizer.load(tmp_path / "model")
