"""Layers that a run takes over, against transformers with the others taken out."""

import pytest
import torch
from transformers import BertForPreTraining as TheirBert

from model import BertConfig, BertForPreTraining, ModelError
from pretrain.layers import every_second, kept_layers
from pretrain.settings import PretrainSettings


@pytest.mark.parametrize(("count", "expected"), [
    (1, [0]), (2, [0]), (3, [0]), (4, [0, 3]), (6, [0, 2, 5]), (12, [0, 2, 4, 7, 9, 11]),
    (24, [0, 2, 4, 6, 8, 10, 13, 15, 17, 19, 21, 23]),
])  # fmt: skip
def test_every_second_layer(count, expected):
    assert every_second(count) == expected


@pytest.mark.parametrize("count", range(4, 60))
def test_half_of_any_number_begins_with_the_first_ends_with_the_last_and_leaves_even_gaps(count):
    layers = every_second(count)
    assert len(layers) == count // 2 and (layers[0], layers[-1]) == (0, count - 1)
    gaps = {later - earlier for earlier, later in zip(layers, layers[1:], strict=False)}
    assert max(gaps) - min(gaps) <= 1 and min(gaps) >= 1


@pytest.mark.parametrize("layers", [[0], [3], [0, 3], [1, 2, 3], [0, 1, 2, 3]])
def test_a_model_of_some_layers_is_that_of_transformers_without_the_others(layers, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 48}
    model = BertForPreTraining(BertConfig(vocab_size=50, max_position_embeddings=16, initializer_range=0.3, **sizes))
    model.save_pretrained(tmp_path)
    theirs = TheirBert.from_pretrained(tmp_path).eval()
    theirs.bert.encoder.layer = torch.nn.ModuleList(theirs.bert.encoder.layer[number] for number in layers)
    ours = model.of_layers(layers).eval()
    assert ours.config.num_hidden_layers == len(layers)
    ids = torch.randint(50, (3, 11))
    with torch.no_grad():
        found, expected = ours(ids), theirs(ids)
    torch.testing.assert_close(found.prediction_logits, expected.prediction_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.seq_relationship_logits, expected.seq_relationship_logits, rtol=1e-4, atol=1e-4)


def test_layers_that_are_not_there_are_refused():
    model = BertForPreTraining(
        BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=48)
    )
    for numbers in ([4], [0, -1]):
        with pytest.raises(ModelError, match="the model has 0 to 3"):
            model.of_layers(numbers)
    for count in (5, -1):
        with pytest.raises(ModelError, match="the model has 4"):
            model.bert.first_layers(count)


@pytest.mark.parametrize(("given", "expected"), [
    ("all", [0, 1, 2, 3]), ("half", [0, 3]), (2, [2]), ((1, 3), [1, 3]),
])  # fmt: skip
def test_what_is_kept_is_what_is_asked_for(given, expected):
    assert kept_layers(PretrainSettings(init_from="bert", keep_layers=given), 4) == expected
