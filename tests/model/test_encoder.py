"""Initial values, tied weights, dropout."""

import math

import pytest
import torch
import torch.nn.functional as F

from model import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    PackedBatch,
    parameter_count,
)
from model.attention import plan_attention

TRUNCATED_STD = 0.8796
"""Standard deviation of a standard normal truncated at two."""


def batch_of(net, rows=8, columns=16):
    ids = torch.randint(0, net.config.vocab_size, (rows, columns))
    return ids, torch.randint(0, net.config.vocab_size, ids.shape), torch.randint(0, 2, (rows,))


def test_the_first_loss_is_that_of_guessing():
    net = BertForPreTraining(BertConfig.from_preset("tiny", vocab_size=4096))
    ids, labels, relation = batch_of(net, 16, 64)
    loss = net.eval()(ids, labels=labels, next_sentence_label=relation).loss
    guess = math.log(4096) + math.log(2)
    assert abs(loss.item() - guess) < 0.02 * guess


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_weights_are_normal_truncated_at_two_deviations(std):
    net = BertForPreTraining(BertConfig.from_preset("tiny", vocab_size=3000, initializer_range=std))
    matrices = 0
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            matrices += 1
            assert parameter.abs().max() <= 2 * std, name
            if parameter.numel() > 5000:
                assert abs(parameter.std().item() / (TRUNCATED_STD * std) - 1) < 0.03, name
                assert parameter.abs().max() > 1.9 * std, name
    assert matrices == 3 + 2 * 4 + 3


def test_the_word_embedding_is_one_parameter_with_gradients_from_both_uses():
    config = BertConfig.from_preset("tiny", vocab_size=500)
    net = BertForPreTraining(config).double().eval()
    assert sum(parameter.numel() for parameter in net.parameters()) == parameter_count(config)
    assert sum(parameter.shape == (500, 128) for parameter in net.parameters()) == 1
    ids, labels, relation = batch_of(net)
    word = net.bert.embeddings.word.weight

    def loss(as_input, as_output):
        hidden = torch.func.functional_call(net.bert, {"embeddings.word.weight": as_input}, (ids,)).last_hidden_state
        return F.cross_entropy(net.mlm_head(hidden, as_output).flatten(0, 1), labels.flatten())

    as_input, as_output = (word.detach().clone().requires_grad_() for _ in range(2))
    loss(as_input, as_output).backward()
    scores = net(ids).prediction_logits
    F.cross_entropy(scores.flatten(0, 1), labels.flatten()).backward()
    assert as_input.grad.abs().max() > 0 and as_output.grad.abs().max() > 0
    torch.testing.assert_close(word.grad, as_input.grad + as_output.grad)


def differing_places(config):
    """Which hidden states of two training forwards with the same weights differ."""
    net = BertModel(config).train()
    ids = torch.randint(0, config.vocab_size, (4, 16))
    first, second = (net(ids, output_hidden_states=True).hidden_states for _ in range(2))
    return [not torch.equal(a, b) for a, b in zip(first, second, strict=True)]


def test_dropout_acts_in_training_where_it_is_set_and_never_in_eval():
    sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes["intermediate_size"] = 64
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    assert differing_places(BertConfig(**sizes, **none)) == [False, False, False]
    assert differing_places(BertConfig(**sizes, **none | {"hidden_dropout_prob": 0.1})) == [True, True, True]
    attention_only = BertConfig(**sizes, **none | {"attention_probs_dropout_prob": 0.1})
    assert differing_places(attention_only) == [False, True, True]
    net = BertForPreTraining(BertConfig(**sizes)).eval()
    ids, _, _ = batch_of(net)
    assert torch.equal(net(ids).prediction_logits, net(ids).prediction_logits)


def test_every_dropout_of_the_recipe_is_there():
    """With dropout close to 1 only what bypasses it is left, which shows each place apart."""
    config = BertConfig(50, 32, 1, 2, 64, hidden_dropout_prob=0.999999, attention_probs_dropout_prob=0.0)
    layer = BertModel(config).train().layers[0]
    hidden = torch.randn(6, 32)
    batch = PackedBatch.from_padded(torch.ones(1, 6, dtype=torch.int64))
    plan = plan_attention(batch, "sdpa", num_heads=2)
    out, _ = layer(hidden, plan)
    twice = F.layer_norm(F.layer_norm(hidden, (32,), eps=1e-12), (32,), eps=1e-12)
    torch.testing.assert_close(out, twice)


def test_classifier_dropout_overrides_hidden_dropout():
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    net = BertForSequenceClassification(BertConfig(**sizes, hidden_dropout_prob=0.3))
    assert net.classifier.dropout.p == 0.3
    net = BertForSequenceClassification(BertConfig(**sizes, hidden_dropout_prob=0.3, classifier_dropout=0.0))
    assert net.classifier.dropout.p == 0.0


def test_the_model_compiles_without_graph_breaks():
    explained = torch._dynamo.explain(BertForPreTraining(BertConfig.from_preset("tiny", 64)).forward_packed)
    ids = torch.arange(12)
    batch = PackedBatch(ids, ids * 0, ids % 4, torch.tensor([0, 5, 9, 12]).int(), 5)
    assert explained(batch, ids[:3], 2).graph_break_count == 0
