"""ALBERT beside transformers' AlbertModel and its classes, with the same weights, and beside a layer by hand."""

import json
import math
import random
import warnings

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

import model
from model import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertModel,
    ModelError,
    PackedBatch,
    flops_per_token,
    parameter_count,
)
from model.albert_names import ALBERT_NAMES
from model.families import family_of

SIZES = {
    "vocab_size": 61, "embedding_size": 10, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 20, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0,
}  # fmt: skip
CLASSES = sorted(name for name in model.__all__ if name.startswith("AlbertF"))


def ours_of(sizes):
    """The same arguments for our config."""
    return AlbertConfig.from_dict(sizes | {"model_type": "albert"})


@pytest.fixture
def twins(tmp_path):
    """(class name, sizes) -> transformers' model with random weights, ours read from its folder; float64."""

    def make(name, **changes):
        theirs = getattr(transformers, name)(transformers.AlbertConfig(**SIZES | changes))
        for parameter in theirs.parameters():
            # Biases and LayerNorms away from 0 and 1, or errors there would not show.
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        theirs.config._attn_implementation = "eager"
        theirs.save_pretrained(tmp_path / "theirs")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = getattr(model, name).from_pretrained(tmp_path / "theirs")
        return theirs.double().eval(), ours.double()

    return make


def close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp(min=1e-3)


def same_gradients(ours, theirs, tolerance):
    reference, seen = dict(theirs.named_parameters()), set()
    for name, parameter in ours.named_parameters():
        names = ALBERT_NAMES.of(name)
        seen.update(names)
        expected = torch.cat([reference[n].grad for n in names])
        assert (parameter.grad - expected).abs().max() <= tolerance * expected.abs().max() + 1e-15, name
    assert seen == set(reference)


def labels_for(ids, mask):
    labels = torch.where(torch.rand(ids.shape) < 0.4, ids, -100)
    labels[0, 0] = ids[0, 0]
    return labels.masked_fill(mask == 0, -100)


def pretraining_case(seed):
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 3])
    sizes = {
        "vocab_size": draw.randrange(30, 90),
        "embedding_size": draw.choice([4, 7, 30]),
        "hidden_size": heads * draw.choice([4, 10]),
        "num_hidden_layers": 1 + seed % 3,
        "num_attention_heads": heads,
        "intermediate_size": draw.randrange(8, 50),
        "max_position_embeddings": 32,
        "hidden_act": draw.choice(["gelu", "gelu_new", "relu"]),
    }
    return sizes, draw.randrange(2, 6), draw.randrange(2, 30)


@pytest.mark.parametrize("seed", range(6))
def test_pretraining_outputs_and_gradients_equal_transformers_packed_and_padded(seed, twins, ragged, pack):
    sizes, rows, columns = pretraining_case(seed)
    torch.manual_seed(seed)
    theirs, ours = twins("AlbertForPreTraining", **sizes)
    ids, types, mask = ragged(rows, columns, sizes["vocab_size"])
    labels, relation = labels_for(ids, mask), torch.randint(0, 2, (rows,))
    for dtype, of_outputs, of_gradients in ((torch.float64, 1e-8, 1e-8), (torch.float32, 1e-5, 1e-4)):
        theirs.to(dtype).zero_grad()
        ours.to(dtype).zero_grad()
        expected = theirs(ids, mask, types, labels=labels, sentence_order_label=relation)
        expected.loss.backward()

        padded = ours(ids, mask, types, labels=labels, sentence_order_label=relation)
        real = mask.bool()
        close(padded.prediction_logits[real], expected.prediction_logits[real], of_outputs)
        close(padded.sop_logits, expected.sop_logits, of_outputs)
        close(padded.loss, expected.loss, of_outputs)
        assert padded.keys() == list(expected.keys()) and not padded.prediction_logits[~real].any()
        padded.loss.backward()
        same_gradients(ours, theirs, of_gradients)

        ours.zero_grad()
        batch, packed_labels = pack(ids, types, mask), labels[real]
        masked = (packed_labels != -100).nonzero().squeeze(1)
        scores, order = ours.forward_packed(batch, masked)
        close(scores, expected.prediction_logits[labels != -100], of_outputs)
        (F.cross_entropy(scores, packed_labels[masked]) + F.cross_entropy(order, relation)).backward()
        same_gradients(ours, theirs, of_gradients)


@pytest.mark.parametrize(
    "name", ["AlbertForMaskedLM", "AlbertForSequenceClassification", "AlbertForTokenClassification"]
)
def test_task_logits_losses_and_gradients_equal_transformers(name, twins, ragged):
    theirs, ours = twins(name, **({} if name == "AlbertForMaskedLM" else {"num_labels": 3}))
    ids, types, mask = ragged(4, 11, 61)
    labels = torch.tensor([0, 2, 1, 2])
    if "Sequence" not in name:
        labels = torch.randint(0, 3, (4, 11)).masked_fill(mask == 0, -100)
    expected, output = theirs(ids, mask, types, labels=labels), ours(ids, mask, types, labels=labels)
    rows = mask.bool() if expected.logits.dim() == 3 else slice(None)
    close(output.logits[rows], expected.logits[rows], 1e-8)
    close(output.loss, expected.loss, 1e-8)
    expected.loss.backward()
    output.loss.backward()
    same_gradients(ours, theirs, 1e-8)


def test_question_answering_and_multiple_choice_equal_transformers(twins, ragged):
    theirs, ours = twins("AlbertForQuestionAnswering")
    ids, types, mask = ragged(4, 11, 61)
    places = {"start_positions": torch.tensor([0, 3, 40, 10]), "end_positions": torch.tensor([2, 5, 1, 10])}
    expected, output = theirs(ids, None, types, **places), ours(ids, None, types, **places)
    close(output.loss, expected.loss, 1e-8)
    close(output.end_logits, expected.end_logits, 1e-8)
    theirs, ours = twins("AlbertForMultipleChoice")
    ids, types, mask = (values.view(3, 4, 9) for values in ragged(12, 9, 61))
    expected = theirs(ids, mask, types, labels=torch.tensor([3, 0, 1]))
    output = ours(ids, mask, types, labels=torch.tensor([3, 0, 1]))
    close(output.logits, expected.logits, 1e-8)
    close(output.loss, expected.loss, 1e-8)


def test_hidden_states_and_attentions_equal_transformers(twins, ragged):
    theirs, ours = twins("AlbertModel")
    ids, types, mask = ragged(4, 11, 61)
    asked = {"output_hidden_states": True, "output_attentions": True}
    expected, output = theirs(ids, mask, types, **asked), ours(ids, mask, types, **asked)
    real = mask.bool()
    close(output.pooler_output, expected.pooler_output, 1e-8)
    assert len(output.hidden_states) == 4 and len(output.attentions) == 3
    for state, reference in zip(output.hidden_states, expected.hidden_states, strict=True):
        close(state[real], reference[real], 1e-8)
    for weights, reference in zip(output.attentions, expected.attentions, strict=True):
        close(weights.transpose(1, 2)[real], reference.transpose(1, 2)[real], 1e-8)


def layer_by_hand(layer, hidden, num_heads):
    """Attention and feed-forward of one sequence, hidden [L, H], in plain products."""
    length, size = hidden.shape
    query, key, value = (part.view(length, num_heads, -1).transpose(0, 1) for part in layer.qkv(hidden).chunk(3, 1))
    weights = (query @ key.mT / math.sqrt(size // num_heads)).softmax(-1)
    context = (weights @ value).transpose(0, 1).reshape(length, size)
    hidden = layer.attention_norm(hidden + layer.attention_output(context))
    return layer.output_norm(hidden + layer.output(F.gelu(layer.intermediate(hidden), approximate="tanh")))


def test_a_layer_is_applied_again_and_again():
    config = ours_of(SIZES)
    ours, once = (AlbertModel(config.changed(num_hidden_layers=n)).double().eval() for n in (3, 1))
    once.load_state_dict(ours.state_dict())
    ids = torch.randint(0, 61, (1, 12))
    embeddings, layer = ours.embeddings, ours.layers[0]
    embedded = embeddings.word(ids[0]) + embeddings.position(torch.arange(12)) + embeddings.token_type.weight[0]
    hidden = embeddings.projection(embeddings.norm(embedded))
    close(once(ids).last_hidden_state[0], layer_by_hand(layer, hidden, 3), 1e-12)
    for _ in range(3):
        hidden = layer_by_hand(layer, hidden, 3)
    close(ours(ids).last_hidden_state[0], hidden, 1e-12)
    assert len(list(ours.layers.parameters())) == 12 == len(list(once.layers.parameters()))


@pytest.mark.parametrize(
    ("name", "sizes", "millions"),
    [
        ("base", {"hidden_size": 768, "num_hidden_layers": 12}, 11.7),
        ("large", {"hidden_size": 1024, "num_hidden_layers": 24}, 17.7),
    ],
)
def test_the_published_sizes(name, sizes, millions):
    config = AlbertConfig.from_preset(name, 30000)
    assert {key: getattr(config, key) for key in sizes} == sizes and config.embedding_size == 128
    with torch.device("meta"):
        ours, whole = AlbertModel(config), AlbertForPreTraining(config)
        theirs = transformers.AlbertModel(transformers.AlbertConfig.from_dict(config.to_dict()))
    count = sum(parameter.numel() for parameter in ours.parameters())
    assert count == sum(parameter.numel() for parameter in theirs.parameters())
    assert round(count / 1e6, 1) == millions
    assert parameter_count(config) == sum(parameter.numel() for parameter in whole.parameters())


@pytest.mark.parametrize("name", model.PRESETS)
def test_embeddings_are_narrower_than_the_layers_in_every_preset(name):
    config = AlbertConfig.from_preset(name, 500, hidden_dropout_prob=0.1)
    assert (config.num_hidden_layers, config.hidden_size) == model.PRESETS[name]
    assert config.embedding_size == (128 if config.hidden_size >= 256 else config.hidden_size // 2)
    assert config.hidden_act == "gelu_new" and config.intermediate_size == 4 * config.hidden_size
    assert str(config.embedding_size) in config.shape and "shared" in config.shape


@pytest.mark.parametrize("name", [*CLASSES, "AlbertModel"])
def test_every_class_writes_what_its_namesake_writes(name, tmp_path):
    ours = getattr(model, name)(ours_of(SIZES))
    ours.save_pretrained(tmp_path / "a")
    theirs, info = getattr(transformers, name).from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    theirs.save_pretrained(tmp_path / "b")
    first, second = (load_file(tmp_path / side / "model.safetensors") for side in "ab")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = getattr(model, name).from_pretrained(tmp_path / "b")
    for one, other in zip(ours.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert family_of(tmp_path / "b").config is AlbertConfig


@pytest.mark.parametrize("auto", ["AutoModel", "AutoModelForMaskedLM", "AutoModelForPreTraining"])
def test_transformers_opens_our_folder_with_equal_numbers(auto, ragged, tmp_path):
    ours = AlbertForPreTraining(ours_of(SIZES)).eval()
    for parameter in ours.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    ours.save_pretrained(tmp_path)
    theirs, info = getattr(transformers, auto).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    ids, types, mask = ragged(3, 9, 61)
    real = mask.bool()
    expected, output = theirs.eval()(ids, mask, types), ours(ids, mask, types)
    if auto == "AutoModel":
        encoded = ours.bert(ids, mask, types)
        torch.testing.assert_close(encoded.last_hidden_state[real], expected.last_hidden_state[real])
        torch.testing.assert_close(encoded.pooler_output, expected.pooler_output)
    else:
        theirs_words = expected.logits if "logits" in expected else expected.prediction_logits
        torch.testing.assert_close(output.prediction_logits[real], theirs_words[real])
    if "sop_logits" in expected:
        torch.testing.assert_close(output.sop_logits, expected.sop_logits)


def test_a_bare_encoder_of_transformers_gets_heads(tmp_path):
    theirs = transformers.AlbertModel(transformers.AlbertConfig(**SIZES))
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="predictions.bias.*sop_classifier.classifier.weight"):
        full = AlbertForPreTraining.from_pretrained(tmp_path)
    assert torch.equal(full.bert.pooler.dense.weight, theirs.pooler.weight)
    assert torch.equal(full.bert.embeddings.projection.weight, theirs.encoder.embedding_hidden_mapping_in.weight)


def test_a_classifier_of_three_labels_is_pretrained_further_and_opens_in_transformers(tmp_path):
    AlbertForSequenceClassification(ours_of(SIZES | {"num_labels": 3})).save_pretrained(tmp_path / "labels")
    with pytest.warns(UserWarning, match="sop_classifier"):
        further = AlbertForPreTraining.from_pretrained(tmp_path / "labels")
    further.save_pretrained(tmp_path / "further")
    theirs = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "further")
    assert torch.equal(theirs.sop_classifier.classifier.weight, further.nsp_head.weight)


def test_a_second_decoder_is_refused(tmp_path):
    theirs = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**SIZES))
    tensors = {name: value.clone() for name, value in theirs.state_dict().items()}
    tensors["predictions.decoder.weight"] += 1
    theirs.config.save_pretrained(tmp_path)
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="predictions.decoder.weight differs from albert.embeddings.word"):
        AlbertForMaskedLM.from_pretrained(tmp_path)


def test_transformers_defaults_are_ours():
    theirs, ours = transformers.AlbertConfig(), AlbertConfig()
    values = vars(ours) | {"classifier_dropout_prob": ours.classifier_dropout}
    for name in values.keys() - {"id2label", "label2id", "classifier_hidden_layers", "classifier_dropout"}:
        assert getattr(theirs, name) == values[name], name
    assert set(ours.to_dict("AlbertModel")) <= set(theirs.to_dict())


@pytest.mark.parametrize("dropout", [None, 0.0, 0.3])
def test_config_json_says_the_same_to_transformers(dropout):
    ours = AlbertConfig(
        classifier_dropout=dropout, hidden_dropout_prob=0.2, id2label={0: "a", 1: "b", 2: "c"}, num_labels=3
    )
    theirs = transformers.AlbertConfig.from_dict(json.loads(json.dumps(ours.to_dict("AlbertForPreTraining"))))
    assert theirs.classifier_dropout_prob == (0.2 if dropout is None else dropout)
    assert (theirs.id2label, theirs.embedding_size) == ({0: "a", 1: "b", 2: "c"}, 128)
    again = AlbertConfig.from_dict(theirs.to_dict())
    assert again == ours.changed(classifier_dropout=theirs.classifier_dropout_prob)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_groups": 2}, "num_hidden_groups is 2, and here all layers share the weights of one"),
        ({"inner_group_num": 2}, "inner_group_num is 2, .* use an ALBERT whose inner_group_num is 1"),
        ({"embedding_size": 0}, "embedding_size is 0; give a whole number of at least 1"),
        ({"embedding_size": 10**12}, "embedding_size is 1e.12, over the limit"),
        ({"classifier_dropout_prob": 1.5}, "classifier_dropout is 1.5"),
        ({"model_type": "bert"}, "model_type is 'bert', and only \"albert\""),
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        AlbertConfig.from_dict(SIZES | {"model_type": "albert"} | changes)


def test_a_deep_head_keeps_the_family_and_transformers_refuses_it(tmp_path):
    ours = AlbertForSequenceClassification(ours_of(SIZES).changed(classifier_hidden_layers=1)).eval()
    ours.save_pretrained(tmp_path)
    assert family_of(tmp_path).sequence_classification is AlbertForSequenceClassification
    again = AlbertForSequenceClassification.from_pretrained(tmp_path)
    ids = torch.randint(0, 61, (2, 9))
    assert torch.equal(ours(ids).logits, again(ids).logits) and again.config == ours.config
    with pytest.raises(ValueError, match="domain-albert"):
        transformers.AutoConfig.from_pretrained(tmp_path)


def test_flops_of_a_training_batch_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    config = AlbertConfig.from_preset("mini", 512, hidden_size=128, embedding_size=48, num_hidden_layers=3)
    net = AlbertForPreTraining(config)
    net.attention_implementation = "dense"
    # Sizes that are not rounded up.
    batch = PackedBatch.from_padded(torch.randint(0, 512, (16, 48)))
    masked = torch.cat([torch.arange(5, 20) + 48 * row for row in range(16)])
    with FlopCounterMode(display=False) as counter:
        net.forward_packed(batch, masked, most_masked=15)
    estimate = flops_per_token(config, 48, masked_fraction=15 / 48) * 16 * 48 / 3
    assert abs(counter.get_total_flops() / estimate - 1) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize(("hidden", "embedded", "num_heads"), [(128, 64, 2), (256, 128, 4), (96, 128, 3)])
def test_the_layer_of_a_fresh_model_looks_at_neighbours_through_the_projection(hidden, embedded, num_heads):
    sizes = {"hidden_size": hidden, "embedding_size": embedded, "num_attention_heads": num_heads}
    length = 96
    config = AlbertConfig(
        vocab_size=300, num_hidden_layers=2, intermediate_size=64, max_position_embeddings=length, **sizes
    )
    ours = AlbertModel(config).eval()
    plain = AlbertModel(config).eval()
    ours.look_at_neighbours()
    ids = torch.randint(0, 300, (8, length))
    output = ours(ids, output_attentions=True, output_hidden_states=True)
    first = output.attentions[0]
    random_weights = plain(ids, output_attentions=True).attentions[0]
    # What enters the layer is as large as what leaves it.
    assert float(output.hidden_states[0].square().mean()) == pytest.approx(1, rel=0.1)

    def mean(weights, head, distance):
        return float(weights[:, head].diagonal(distance, 1, 2).mean())

    for head, offset in zip(range(num_heads), (1, -1, 2, -2), strict=False):
        assert mean(first, head, offset) > 2 * mean(first, head, -offset)
        assert mean(first, head, offset) > 5 / length > 2 * mean(random_weights, head, offset)
