"""A BERT whose layers share their weights (Lan et al. 2020, section 3.1), handed in without a change of the product."""

import copy
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from data_prep.preparation import prepare
from data_prep.settings import ExampleSettings, PrepSettings
from finetune.finetuning import finetune
from finetune.predictor import Classifier
from finetune.settings import FinetuneSettings
from finetune.vectors.embedder import Embedder
from model import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PackedBatch,
)  # fmt: skip
from model.config import parameter_count
from model.encoder import EncoderLayer, Layers
from model.families import FAMILIES, Family
from model.tasks import BertForVectors
from pretrain.fill_mask import MaskFiller
from pretrain.pretraining import pretrain
from pretrain.settings import PretrainSettings


class SharedConfig(BertConfig):
    model_type = "shared-bert"
    num_stored_layers = 1


class SharedLayers(Layers):
    def __init__(self, config):
        nn.ModuleList.__init__(self, [EncoderLayer(config)])
        self.times = config.num_hidden_layers

    def in_order(self):
        return [self[0]] * self.times


class SharedModel(BertModel):
    config_class, layers_class = SharedConfig, SharedLayers


class SharedForPreTraining(BertForPreTraining):
    config_class, encoder_class = SharedConfig, SharedModel


class SharedForMaskedLM(BertForMaskedLM):
    config_class, encoder_class = SharedConfig, SharedModel


class SharedClassifier(BertForSequenceClassification):
    config_class, encoder_class = SharedConfig, SharedModel


class SharedForVectors(BertForVectors):
    config_class, encoder_class = SharedConfig, SharedModel


@pytest.fixture(autouse=True)
def family(monkeypatch):
    others = BertForTokenClassification, BertForMultipleChoice, BertForQuestionAnswering
    made = Family(SharedConfig, SharedForPreTraining, SharedForMaskedLM, SharedClassifier, *others, SharedForVectors)
    monkeypatch.setitem(FAMILIES, SharedConfig.model_type, made)


def small(vocab_size=100):
    sizes = {"num_hidden_layers": 3, "hidden_size": 32, "max_position_embeddings": 32}
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    torch.manual_seed(1)
    return SharedForPreTraining(SharedConfig.from_preset("tiny", vocab_size=vocab_size, **sizes, **dropout))


def test_it_is_a_bert_whose_layers_are_equal():
    shared = small()
    bert = BertForPreTraining(BertConfig.from_dict(shared.config.to_dict() | {"model_type": "bert"}))
    state = shared.state_dict()
    for number in range(3):
        state |= {name.replace("layers.0.", f"layers.{number}."): copy.deepcopy(v) for name, v in state.items()}
    bert.load_state_dict(state)
    ids = torch.randint(5, 100, (4, 20))
    results = []
    for model in (shared, bert):
        scores, pair = model.forward_packed(PackedBatch.from_padded(ids), torch.arange(0, 80, 7))
        (scores.square().sum() + pair.square().sum()).backward()
        results.append((scores, pair))
    assert all(map(torch.equal, *results))
    ours, theirs = dict(shared.named_parameters()), dict(bert.named_parameters())
    for name, parameter in ours.items():
        copies = [theirs[name.replace("layers.0.", f"layers.{number}.")] for number in range(3)]
        expected = sum(p.grad for p in copies) if "layers." in name else theirs[name].grad
        assert torch.allclose(parameter.grad, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())), name
    assert parameter_count(shared.config) == sum(p.numel() for p in shared.parameters())


def test_from_its_folder_it_is_pretrained_fine_tuned_and_asked(tmp_path):
    draw = np.random.default_rng(0)
    words = "the heart rate of a patient was measured before and after treatment".split()
    lines = [" ".join(draw.choice(words, draw.integers(4, 9))) + " ." for _ in range(400)]
    (tmp_path / "notes.txt").write_text("\n\n".join("\n".join(lines[n : n + 8]) for n in range(0, 400, 8)))
    prep = PrepSettings(corpus=(str(tmp_path / "notes.txt"),), workers=1)
    prepared = prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "prepared")
    fresh = small(prepared.tokenizer.vocab_size)
    fresh.save_pretrained(tmp_path / "fresh")
    prepared.tokenizer.save(tmp_path / "fresh", 32)
    settings = PretrainSettings(
        prepared=str(prepared.folder), init_from=str(tmp_path / "fresh"), out=str(tmp_path / "run"), budget="6steps",
        batch_size=8, optimizer="muon", evaluations=2, device="cpu", precision="fp32",
        examples=ExampleSettings(sequence_length=32),
    )  # fmt: skip
    final = pretrain(settings) / "final"
    assert json.loads((final / "config.json").read_text())["model_type"] == "shared-bert"
    stored = load_file(final / "model.safetensors")
    assert {name.split(".")[3] for name in stored if ".layer." in name} == {"0"}
    assert not torch.equal(stored["bert.encoder.layer.0.output.dense.weight"], fresh.bert.layers[0].output.weight)
    assert MaskFiller(final)(["the heart [MASK] ."], top_k=3)
    rows = "\n".join(f'{{"text": "{line}", "label": "{"long" if len(line) > 35 else "short"}"}}' for line in lines)
    (tmp_path / "labels.jsonl").write_text(rows)
    made = finetune(
        FinetuneSettings(
            model=str(final), train=str(tmp_path / "labels.jsonl"), out=str(tmp_path / "labels"), budget="4steps",
            seeds=1, evaluations=1, device="cpu", precision="fp32",
        )
    )  # fmt: skip
    classifier = Classifier.load(made / "final", device="cpu")
    assert type(classifier.model) is SharedClassifier
    assert {"long", "short"} == classifier.predict(lines[:1])[0]["probabilities"].keys()
    embedder = Embedder(made / "final", device="cpu", layer=2)
    tokenizer = embedder.tokenizer
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode(lines[:1])[0], tokenizer.sep_id]])
    states = classifier.model.bert(ids, output_hidden_states=True).hidden_states[2]
    assert type(embedder.model) is SharedModel and tuple(states[0, 0].shape) == (embedder.dimension,)
    assert np.abs(embedder.embed(lines[:1]) - states.mean(1).detach().numpy()).max() < 1e-5
    pooled = SharedForVectors.from_pretrained(final)(ids).pooler_output.detach().numpy()
    assert np.abs(Embedder(final, device="cpu").embed(lines[:1]) - pooled).max() < 1e-5
