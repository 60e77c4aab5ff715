"""Model folders: to transformers and back, old and foreign ones, damaged ones."""

import json
import os
import shutil
import warnings

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import model
from model import BertForMaskedLM, BertForPreTraining, BertForSequenceClassification, BertModel, ModelError


@pytest.fixture
def ours(sizes):
    net = BertForPreTraining(model.BertConfig(**sizes)).eval()
    for parameter in net.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    return net


@pytest.fixture
def folder(ours, tmp_path):
    ours.save_pretrained(tmp_path / "ours")
    return tmp_path / "ours"


@pytest.fixture
def example(ragged):
    return ragged(3, 9, 61)


def rewrite(folder, change):
    """Apply a function to the dictionary of tensors in model.safetensors."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", {"format": "pt"})


def test_saved_folder_has_the_layout_of_transformers(folder, sizes):
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert file.metadata() == {"format": "pt"}
    assert len(names) == 14 + 16 * sizes["num_hidden_layers"]
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize(
    ("auto", "missing"),
    [
        ("AutoModel", set()),
        ("AutoModelForMaskedLM", set()),
        ("AutoModelForPreTraining", set()),
        ("AutoModelForSequenceClassification", {"classifier.weight", "classifier.bias"}),
    ],
)
def test_transformers_opens_our_folder_with_equal_numbers(auto, missing, ours, folder, example):
    theirs, info = getattr(transformers, auto).from_pretrained(
        folder, output_loading_info=True, local_files_only=True, attn_implementation="eager"
    )
    assert set(info["missing_keys"]) == missing and not info["mismatched_keys"]
    if auto == "AutoModelForPreTraining":
        assert not info["unexpected_keys"]
    ids, types, mask = example
    real = mask.bool()
    expected, output = theirs.eval()(ids, mask, types), ours(ids, mask, types)
    for name in ("prediction_logits", "seq_relationship_logits"):
        if name in expected:
            rows = real if name == "prediction_logits" else slice(None)
            torch.testing.assert_close(output[name][rows], expected[name][rows])
    if auto == "AutoModelForMaskedLM":
        torch.testing.assert_close(output.prediction_logits[real], expected.logits[real])
    if auto == "AutoModel":
        encoded = ours.bert(ids, mask, types)
        torch.testing.assert_close(encoded.last_hidden_state[real], expected.last_hidden_state[real])
        torch.testing.assert_close(encoded.pooler_output, expected.pooler_output)


@pytest.mark.parametrize("name", sorted(name for name in model.__all__ if name.startswith(("BertM", "BertF"))))
def test_every_class_writes_what_its_namesake_writes(name, sizes, tmp_path):
    ours = getattr(model, name)(model.BertConfig(**sizes))
    ours.save_pretrained(tmp_path / "a")
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "a")
    theirs.save_pretrained(tmp_path / "b")
    first, second = (load_file(tmp_path / side / "model.safetensors") for side in "ab")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = getattr(model, name).from_pretrained(tmp_path / "b")
    for one, other in zip(ours.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def old_release(folder):
    """A folder of 2019: pickled, gamma and beta, a decoder beside the embedding, position_ids."""
    tensors = load_file(folder / "model.safetensors")
    old = {}
    for name, value in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[name] = value
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = old["cls.predictions.bias"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(20)[None]
    torch.save(old, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def sharded(folder):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    places = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "model.safetensors").unlink()


def without_main_bias(folder):
    def change(tensors):
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
        return tensors

    rewrite(folder, change)


@pytest.mark.parametrize("form", [old_release, sharded, without_main_bias])
def test_other_forms_of_a_folder_give_the_same_model(form, ours, folder):
    form(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = BertForPreTraining.from_pretrained(folder)
    for (name, one), other in zip(ours.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_heads_that_are_missing_are_drawn_anew_listed_and_reproducible(ours, folder, sizes):
    nets = []
    for _ in range(2):
        torch.manual_seed(5)
        with pytest.warns(UserWarning, match="no values for classifier.weight, classifier.bias: they start") as seen:
            nets.append(BertForSequenceClassification.from_pretrained(folder, num_labels=5))
        assert len(seen) == 1
    weight = nets[0].classifier.linear.weight
    assert weight.shape == (5, 24) and 0 < weight.abs().max() <= 0.04
    assert torch.equal(weight, nets[1].classifier.linear.weight)
    assert not nets[0].classifier.linear.bias.any()
    assert nets[0].newly_initialised == ("classifier.weight", "classifier.bias")
    assert nets[0].config.num_labels == 5 and not nets[0].training
    assert torch.equal(nets[0].bert.layers[1].qkv.weight, ours.bert.layers[1].qkv.weight)
    assert BertForPreTraining.from_pretrained(folder).newly_initialised == ()


def test_a_bare_encoder_gets_heads(sizes, tmp_path):
    bare = BertModel(model.BertConfig(**sizes), add_pooling_layer=False)
    bare.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="bert.pooler.dense.weight"):
        full = BertForPreTraining.from_pretrained(tmp_path)
    assert len(full.newly_initialised) == 9
    assert (full.mlm_head.norm.weight == 1).all() and not full.mlm_head.bias.any()
    assert torch.equal(full.bert.embeddings.word.weight, bare.embeddings.word.weight)


def test_arguments_change_the_config(folder):
    net = BertModel.from_pretrained(folder, hidden_dropout_prob=0.25)
    assert net.embeddings.dropout.p == 0.25
    with pytest.raises(ModelError, match="no field dropout"):
        BertModel.from_pretrained(folder, dropout=0.1)


def change_config(**changes):
    def damage(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def replace_file(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def remove(name):
    return lambda folder: (folder / name).unlink()


def change_tensor(name, change):
    return lambda folder: rewrite(folder, lambda tensors: tensors | {name: change(tensors)})


def drop_tensor(name):
    return lambda folder: rewrite(folder, lambda tensors: {k: v for k, v in tensors.items() if k != name})


def pickle_of(value):
    def damage(folder):
        (folder / "model.safetensors").unlink()
        torch.save(value, folder / "pytorch_model.bin")

    return damage


def pickle_bytes(content):
    def damage(folder):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return damage


def index_of(content):
    def damage(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(content)

    return damage


def several_pickles(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin.index.json").write_text("{}")


WORDS, QUERY = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.1.attention.self.query.weight"
DAMAGES = {
    "no folder": (shutil.rmtree, "is not a folder"),
    "no config": (remove("config.json"), "config.json is missing"),
    "broken config": (replace_file("config.json", b"{"), "config.json cannot be read as JSON"),
    "config not text": (replace_file("config.json", b"\xff\xfe"), "config.json cannot be read as JSON"),
    "config a list": (replace_file("config.json", b"[]"), "config.json holds no settings"),
    "another model": (change_config(model_type="gpt2"), "config.json: model_type is 'gpt2'"),
    "a wrong type": (change_config(hidden_size="24"), "config.json: hidden_size is '24'"),
    "no weights": (remove("model.safetensors"), "holds no weights"),
    "empty weights": (
        replace_file("model.safetensors", b""),
        "model.safetensors cannot be read as safetensors",
    ),
    "foreign weights": (replace_file("model.safetensors", b"PK" * 99), "model.safetensors cannot be read"),
    "vocabulary": (change_config(vocab_size=99), r"word_embeddings.weight has shape \(61, 24\).*\(99, 24\)"),
    "absurd vocabulary": (change_config(vocab_size=10**12), "vocab_size is 1e.12, over the limit"),
    "a vocabulary of hundreds of digits": (change_config(vocab_size=10**400), "vocab_size is a number of hundreds of"),
    "a range of hundreds of digits": (change_config(initializer_range=10**400), "initializer_range is 1000"),
    "large vocabulary": (change_config(vocab_size=10**7), r"word_embeddings.weight has shape \(61, 24\)"),
    "fewer layers": (
        change_config(num_hidden_layers=1),
        "holds 16 tensors that config.json does not ask for",
    ),
    "more layers": (change_config(num_hidden_layers=3), "lacks 16 tensors that config.json asks for"),
    "one tensor gone": (drop_tensor(QUERY), "lacks 1 tensors.*layer.1.attention.self.query.weight"),
    "another shape": (
        change_tensor(QUERY, lambda t: torch.ones(24, 12)),
        r"query.weight has shape \(24, 12\)",
    ),
    "whole numbers": (change_tensor(QUERY, lambda t: t[QUERY].long()), "not floating-point"),
    "untied": (change_tensor("cls.predictions.decoder.weight", lambda t: t[WORDS] + 1), "untied"),
    "two biases": (change_tensor("cls.predictions.decoder.bias", lambda t: torch.ones(61)), "untied"),
    "empty pickle": (pickle_bytes(b""), "pytorch_model.bin cannot be read as tensors"),
    "foreign pickle": (
        pickle_bytes(b"hello there, not a pickle"),
        "pytorch_model.bin cannot be read as tensors",
    ),
    "pickled code": (pickle_of(os.getcwd), "pytorch_model.bin cannot be read as tensors"),
    "pickled list": (pickle_of([torch.ones(1)]), "something other than named tensors"),
    "broken index": (index_of("{}"), "is not an index"),
    "a shard without a name": (index_of('{"weight_map": {"a": "b\\u0000.safetensors"}}'), "is not an index"),
    "several pickles": (several_pickles, "several .bin files, which are not read"),
    "lost shard": (index_of('{"weight_map": {"a": "b.safetensors"}}'), "b.safetensors, named by"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_folder_is_one_clear_error(case, folder):
    damage, message = DAMAGES[case]
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        BertForPreTraining.from_pretrained(folder)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_file_cut_anywhere_is_refused(name, folder):
    if name == "pytorch_model.bin":
        torch.save(load_file(folder / "model.safetensors"), folder / name)
        (folder / "model.safetensors").unlink()
    whole = (folder / name).read_bytes()
    for part in range(0, 20):
        (folder / name).write_bytes(whole[: len(whole) * part // 20])
        with pytest.raises(ModelError, match=name):
            BertModel.from_pretrained(folder)


def test_a_decoder_copy_does_not_matter_to_a_class_without_it(folder):
    change_tensor("cls.predictions.decoder.weight", lambda tensors: tensors[WORDS] + 1)(folder)
    BertModel.from_pretrained(folder)
    with pytest.raises(ModelError):
        BertForMaskedLM.from_pretrained(folder)


def test_modules_of_ones_own_are_refused_before_anything_is_written(sizes, tmp_path):
    net = BertForSequenceClassification(model.BertConfig(**sizes))
    net.classifier = torch.nn.Linear(24, 3)
    assert net(torch.arange(6).view(2, 3)).logits.shape == (2, 3)
    with pytest.raises(ModelError, match="no place for its parameter classifier.weight; keep modules of your own"):
        net.save_pretrained(tmp_path / "folder")
    net = BertModel(model.BertConfig(**sizes))
    net.layers[1].qkv = torch.nn.utils.parametrizations.weight_norm(net.layers[1].qkv)
    with pytest.raises(ModelError, match=r"parameter bert\.layers\.1\.qkv\.parametrizations"):
        net.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_sizes_that_are_not_the_configs_are_refused_before_anything_is_written(sizes, tmp_path):
    net = BertForSequenceClassification(model.BertConfig(**sizes, num_labels=3))
    net.config.num_labels = 5
    with pytest.raises(
        ModelError, match=r"classifier.* has shape \(3, 24\), but the model's config asks for \(5, 24\)"
    ):
        net.save_pretrained(tmp_path / "folder")
    net.config.num_labels = 3
    net.bert.embeddings.word = torch.nn.Embedding(sizes["vocab_size"] + 8, 24)
    with pytest.raises(ModelError, match="embeddings.word.weight has shape"):
        net.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    net.config.vocab_size += 8
    net.save_pretrained(tmp_path / "folder")
    assert BertModel.from_pretrained(tmp_path / "folder").embeddings.word.num_embeddings == sizes["vocab_size"] + 8


def test_weights_are_float32_whatever_the_default_is(folder):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert {parameter.dtype for parameter in BertModel.from_pretrained(folder).parameters()} == {torch.float32}
    finally:
        torch.set_default_dtype(before)


def test_a_failed_save_leaves_the_old_files_and_nothing_else(ours, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full_disk(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    ours.bert.embeddings.word.weight.data.zero_()
    with pytest.raises(OSError, match="no space"):
        ours.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
