"""Settings: presets, checks, config.json, and the counts."""

import json

import pytest
import torch
import transformers

from model import (
    PRESETS,
    BertConfig,
    BertForPreTraining,
    ModelError,
    PackedBatch,
    flops_per_token,
    parameter_count,
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    # The sizes published for the original release with its vocabulary of 30,522 (pretraining heads included).
    [
        ("tiny", 4.4e6),
        ("mini", 11.2e6),
        ("small", 28.8e6),
        ("medium", 41.4e6),
        ("base", 110.1e6),
        ("large", 336e6),
    ],
)
def test_presets_have_the_published_sizes(name, parameters):
    config = BertConfig.from_preset(name, vocab_size=30522)
    assert (config.num_hidden_layers, config.hidden_size) == PRESETS[name]
    assert config.hidden_size == 64 * config.num_attention_heads == config.intermediate_size // 4
    with torch.device("meta"):
        net = BertForPreTraining(config)
    assert sum(parameter.numel() for parameter in net.parameters()) == parameter_count(config)
    assert abs(parameter_count(config) / parameters - 1) < 0.02


def test_preset_changes_and_mistakes():
    config = BertConfig.from_preset("mini", 1000, hidden_size=128, hidden_dropout_prob=0)
    assert (config.num_attention_heads, config.intermediate_size) == (2, 512)
    assert isinstance(config.hidden_dropout_prob, float)
    with pytest.raises(ModelError, match="no model size 'huge'; choose one of tiny, micro, mini"):
        BertConfig.from_preset("huge", 1000)
    with pytest.raises(ModelError, match="no field hiden_size"):
        BertConfig.from_preset("mini", 1000, hiden_size=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 100}, "hidden_size 100 is not divisible by num_attention_heads 12"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": "12"}, "num_hidden_layers is '12'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"intermediate_size": 10.0}, "intermediate_size is 10.0"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob is -0.1"),
        ({"classifier_dropout": 2}, "classifier_dropout is 2"),
        ({"classifier_hidden_layers": -1}, "classifier_hidden_layers is -1; give a whole number of at least 0"),
        ({"classifier_hidden_layers": True}, "classifier_hidden_layers is True"),
        ({"classifier_hidden_layers": 1.0}, "classifier_hidden_layers is 1.0"),
        ({"initializer_range": 0}, "initializer_range is 0"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps is '1e-12'"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not known; choose one of gelu"),
        ({"pad_token_id": 30522}, "pad_token_id is 30522"),
        ({"problem_type": "ranking"}, "problem_type 'ranking'"),
        ({"id2label": {0: "a", 2: "b"}}, "num_labels is 2"),
        ({"id2label": ["a", "b"]}, "id2label is"),
    ],
)
def test_a_wrong_value_is_refused_by_name(changes, message):
    with pytest.raises(ModelError, match=message):
        BertConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_labels": 4},
        {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "num_labels": 3},
        {
            "hidden_dropout_prob": 0,
            "classifier_dropout": 0.2,
            "pad_token_id": None,
            "problem_type": "regression",
        },
    ],
)
def test_config_json_says_the_same_to_transformers(changes):
    ours = BertConfig(**changes)
    values = ours.to_dict("BertModel")
    theirs = transformers.BertConfig.from_dict(values)
    assert theirs.architectures == ["BertModel"] and values["model_type"] == "bert"
    for name in vars(ours):
        if name not in ("id2label", "label2id", "classifier_hidden_layers"):
            assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.num_labels == ours.num_labels
    if ours.id2label:
        assert (theirs.id2label, theirs.label2id) == (ours.id2label, ours.label2id)
    again = BertConfig.from_dict(theirs.to_dict() | {"some_later_key": 1})
    assert again.changed(id2label=None, num_labels=ours.num_labels) == ours.changed(id2label=None)


def test_config_json_has_no_key_that_transformers_does_not_know_but_for_a_deep_head():
    known = set(transformers.BertConfig().to_dict())
    assert set(BertConfig(id2label={0: "no", 1: "yes"}).to_dict("BertModel")) <= known
    deep = BertConfig(classifier_hidden_layers=2, num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
    values = json.loads(json.dumps(deep.to_dict("BertForSequenceClassification")))
    assert set(values) - known == {"classifier_hidden_layers"}
    assert (values["model_type"], values["classifier_hidden_layers"]) == ("domain-bert", 2)
    assert BertConfig.from_dict(values) == deep


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"add_cross_attention": True}, "add_cross_attention is true"),
    ],
)
def test_a_config_of_another_model_is_refused(change, message):
    with pytest.raises(ModelError, match=message):
        BertConfig.from_dict(BertConfig().to_dict() | change)


def test_label_numbers_are_those_of_the_names():
    numbers = {"no": 1, "yes": 0, "perhaps": "2"}
    config = BertConfig.from_dict({"model_type": "bert", "label2id": numbers})
    assert config.id2label == {0: "yes", 1: "no", 2: "perhaps"} and config.num_labels == 3
    both = BertConfig.from_dict(config.to_dict() | {"label2id": {"no": 0, "yes": 1, "perhaps": 2}})
    assert both.label2id == config.label2id == {"yes": 0, "no": 1, "perhaps": 2}
    assert BertConfig.from_dict(both.to_dict()) == both
    for wrong in (["no", "yes"], {"no": "first"}, {"no": 0, "yes": None}):
        with pytest.raises(ModelError, match="label2id is .*; give a mapping from names to label numbers"):
            BertConfig(label2id=wrong)


def test_label_names_follow_a_change_of_their_number():
    config = BertConfig(id2label={0: "no", 1: "yes"})
    assert config.label2id == {"no": 0, "yes": 1}
    assert config.changed(num_labels=3).id2label is None
    assert config.changed(num_labels=2).id2label == {0: "no", 1: "yes"}
    renamed = config.changed(id2label={0: "a", 1: "b", 2: "c"})
    assert renamed.num_labels == 3 and renamed.label2id == {"a": 0, "b": 1, "c": 2}


def test_names_set_by_a_script_are_saved_both_ways_round():
    config = BertConfig(id2label={0: "no", 1: "yes"})
    config.id2label = {0: "off", 1: "on"}
    written = config.to_dict()
    assert written["id2label"] == {"0": "off", "1": "on"} and written["label2id"] == {"off": 0, "on": 1}


def test_flops_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    config = BertConfig.from_preset("tiny", 512, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    net = BertForPreTraining(config)
    net.attention_implementation = "dense"
    # Sizes that are not rounded up.
    length = 48
    ids = torch.randint(0, 512, (16, length))
    with FlopCounterMode(display=False) as counter:
        net(ids)
    estimate = flops_per_token(config, length, masked_fraction=1.0) * 16 * length / 3
    assert abs(counter.get_total_flops() / estimate - 1) < 1e-6


def test_flops_of_a_training_batch_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    config = BertConfig.from_preset("tiny", 512, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    net = BertForPreTraining(config)
    net.attention_implementation = "dense"
    batch = PackedBatch.from_padded(torch.randint(0, 512, (16, 48)))
    masked = torch.cat([torch.arange(5, 20) + 48 * row for row in range(16)])
    with FlopCounterMode(display=False) as counter:
        net.forward_packed(batch, masked, most_masked=15)
    estimate = flops_per_token(config, 48, masked_fraction=15 / 48) * 16 * 48 / 3
    assert abs(counter.get_total_flops() / estimate - 1) < 1e-6
