"""Deep classification heads, heads that are drawn again, and a frozen encoder."""

import json
import warnings

import pytest
import torch
import transformers
from safetensors import safe_open
from torch import nn

import model
from model import (
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    ModelError,
)
from model.blocks import Dropout

CLASSIFIERS = (BertForSequenceClassification, BertForTokenClassification, BertForMultipleChoice)
FLAT_HEAD = ("classifier.weight", "classifier.bias")


def deep_head(layers):
    """The names in the file of a head with hidden layers."""
    parts = [f"hidden.{index}" for index in range(layers)] + ["output"]
    return tuple(f"classifier.{part}.{kind}" for part in parts for kind in ("weight", "bias"))


@pytest.fixture
def make(sizes):
    """(class, fields of the config) -> a model in eval mode with every value away from its first one."""

    def build(kind, **changes):
        net = kind(model.BertConfig(**(sizes | changes))).eval()
        for parameter in net.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        return net

    return build


def sequential(net, activation, dropout):
    """The head of `net` layer by layer, with the same weights."""
    steps = []
    for index in range(net.config.classifier_hidden_layers):
        steps += [Dropout(dropout), linear_of(net, f"classifier.hidden.{index}"), activation]
    return nn.Sequential(*steps, Dropout(dropout), linear_of(net, "classifier.output")).eval()


def linear_of(net, name):
    weight, bias = (net.state_dict()[f"{name}.{kind}"] for kind in ("weight", "bias"))
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def head_input_and_logits(net, ids, types, mask):
    """What the head gets and what the model answers, a row for each sequence or for each real token."""
    encoded = net.bert(ids, mask, types)
    if isinstance(net, BertForMultipleChoice):
        rows = (values.view(3, 2, -1) for values in (ids, mask, types))
        return encoded.pooler_output, net(*rows).logits.view(-1, 1)
    logits = net(ids, mask, types).logits
    if isinstance(net, BertForTokenClassification):
        return encoded.last_hidden_state[mask.bool()], logits[mask.bool()]
    return encoded.pooler_output, logits


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize(
    ("layers", "name", "activation"),
    [(1, "relu", nn.ReLU()), (2, "gelu", nn.GELU()), (3, "gelu_new", nn.GELU(approximate="tanh"))],
)
def test_a_deep_head_is_dropout_linear_and_activation_in_a_row(kind, layers, name, activation, make, ragged):
    net = make(kind, classifier_hidden_layers=layers, hidden_act=name, classifier_dropout=0.3).double()
    expected = sequential(net, activation, 0.3)
    values, logits = head_input_and_logits(net, *ragged(6, 9, 61))
    torch.testing.assert_close(logits, expected(values), rtol=1e-12, atol=1e-12)
    draws = []
    for head in (net.classifier.train(), expected.train()):
        torch.manual_seed(3)
        draws.append(head(values))
    torch.testing.assert_close(draws[0], draws[1], rtol=1e-12, atol=1e-12)
    assert not torch.equal(draws[0], logits)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_deep_head_comes_back_from_its_folder_bit_for_bit(kind, make, ragged, tmp_path):
    net = make(kind, classifier_hidden_layers=2)
    net.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = {name for name in file.keys() if not name.startswith("bert.")}
    assert names == set(deep_head(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = kind.from_pretrained(tmp_path)
    batch = ragged(6, 9, 61)
    assert torch.equal(head_input_and_logits(again, *batch)[1], head_input_and_logits(net, *batch)[1])
    assert again.config == net.config and again.newly_initialised == ()


def test_transformers_refuses_a_folder_with_a_deep_head(make, tmp_path):
    make(BertForSequenceClassification, classifier_hidden_layers=1).save_pretrained(tmp_path)
    autos = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
    for auto in autos:
        with pytest.raises(ValueError, match="domain-bert"):
            getattr(transformers, auto).from_pretrained(tmp_path, local_files_only=True)


def test_transformers_opens_a_head_without_hidden_layers_with_equal_logits(make, ragged, tmp_path):
    net = make(BertForSequenceClassification, num_labels=4)
    net.save_pretrained(tmp_path)
    assert set(net.classifier.state_dict()) == {"linear.weight", "linear.bias"}
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["model_type"] == "bert" and "classifier_hidden_layers" not in values
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, local_files_only=True)
    ids, types, mask = ragged(4, 9, 61)
    torch.testing.assert_close(net(ids, mask, types).logits, theirs.eval()(ids, mask, types).logits)


@pytest.mark.parametrize("kind", [BertModel, BertForPreTraining])
def test_a_class_without_a_classifier_writes_a_folder_of_transformers(kind, make, tmp_path):
    net = make(kind, classifier_hidden_layers=2)
    net.save_pretrained(tmp_path)
    theirs = transformers.AutoModel.from_pretrained(tmp_path, local_files_only=True)
    encoder = getattr(net, "bert", net)
    assert torch.equal(theirs.embeddings.word_embeddings.weight, encoder.embeddings.word.weight)
    assert kind.from_pretrained(tmp_path).config.classifier_hidden_layers == 0


def test_the_encoder_under_a_deep_head_can_be_read_alone(make, tmp_path):
    net = make(BertForSequenceClassification, classifier_hidden_layers=2)
    net.save_pretrained(tmp_path)
    encoder = BertModel.from_pretrained(tmp_path)
    for (name, one), other in zip(net.bert.named_parameters(), encoder.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_a_pretrained_encoder_gets_a_deep_head(make, tmp_path):
    pretrained = make(BertForPreTraining)
    pretrained.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="no values for classifier.hidden.0.weight") as seen:
        net = BertForSequenceClassification.from_pretrained(tmp_path, classifier_hidden_layers=2, num_labels=5)
    assert len(seen) == 1 and net.newly_initialised == deep_head(2)
    for (name, one), other in zip(pretrained.bert.named_parameters(), net.bert.parameters(), strict=True):
        assert torch.equal(one, other), name
    for layer, shape in zip([*net.classifier.hidden, net.classifier.output], [(24, 24)] * 2 + [(5, 24)], strict=True):
        assert layer.weight.shape == shape and 0 < layer.weight.abs().max() <= 0.04
        assert not layer.bias.any()
    assert not torch.equal(net.classifier.hidden[0].weight, net.classifier.hidden[1].weight)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 0), (0, 2)])
def test_another_number_of_hidden_layers_is_another_head(before, after, make, tmp_path):
    make(BertForSequenceClassification, classifier_hidden_layers=before).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="start at random"):
        net = BertForSequenceClassification.from_pretrained(tmp_path, classifier_hidden_layers=after)
    assert net.newly_initialised == (deep_head(after) if after else FLAT_HEAD)


@pytest.mark.parametrize("layers", [0, 2])
def test_a_classifier_for_three_labels_starts_anew_for_five_only_when_asked(layers, make, tmp_path):
    saved = make(BertForSequenceClassification, num_labels=3, classifier_hidden_layers=layers)
    saved.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"has shape \(3, 24\).*ask for \(5, 24\).*new_head=True"):
        BertForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = BertForSequenceClassification.from_pretrained(tmp_path, new_head=True, num_labels=5)
    assert net.newly_initialised == (deep_head(layers) if layers else FLAT_HEAD)
    assert net.config.num_labels == 5
    for (name, one), other in zip(saved.bert.named_parameters(), net.bert.parameters(), strict=True):
        assert torch.equal(one, other), name
    for parameter in net.classifier.parameters():
        assert parameter.abs().max() <= 0.04


def test_a_new_head_is_drawn_even_where_the_old_one_fits(make, tmp_path):
    saved = make(BertForQuestionAnswering)
    saved.save_pretrained(tmp_path)
    net = BertForQuestionAnswering.from_pretrained(tmp_path, new_head=True)
    assert net.newly_initialised == ("qa_outputs.weight", "qa_outputs.bias")
    assert net.qa_outputs.weight.abs().max() <= 0.04 and not net.qa_outputs.bias.any()


def test_a_new_head_spares_pooler_and_pretraining_heads(make, tmp_path):
    saved = make(BertForPreTraining)
    saved.save_pretrained(tmp_path)
    net = BertForPreTraining.from_pretrained(tmp_path, new_head=True)
    assert net.newly_initialised == ()
    for (name, one), other in zip(saved.named_parameters(), net.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_a_pooler_that_nobody_asked_to_renew_is_still_warned_of(make, tmp_path):
    make(BertForTokenClassification).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="no values for bert.pooler.dense.weight, bert.pooler.dense.bias: they"):
        net = BertForSequenceClassification.from_pretrained(tmp_path, new_head=True)
    assert net.newly_initialised == ("bert.pooler.dense.weight", "bert.pooler.dense.bias", *FLAT_HEAD)


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertForTokenClassification])
def test_a_frozen_encoder_gets_no_gradient_and_does_not_move(kind, make, ragged):
    net = make(kind, classifier_hidden_layers=1).train()
    net.freeze_encoder()
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
    ids, types, mask = ragged(4, 9, 61)
    labels = torch.randint(0, 2, (4,) if kind is BertForSequenceClassification else (4, 9))
    net(ids, mask, types, labels=labels).loss.backward()
    optimizer.step()
    for name, parameter in net.named_parameters():
        frozen = name.startswith(("bert.embeddings.", "bert.layers."))
        assert (parameter.grad is None) == frozen, name
        assert torch.equal(parameter, before[name]) == frozen, name
