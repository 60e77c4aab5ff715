import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model import BertConfig, BertModel
from model.initialisation import POSITION_SCALE, rotation, sinusoids

LENGTH = 96


def encoder(hidden_size=128, num_heads=4, seed=0):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 300, "max_position_embeddings": LENGTH, "num_hidden_layers": 2, "intermediate_size": 64}
    model = BertModel(BertConfig(**sizes, hidden_size=hidden_size, num_attention_heads=num_heads)).eval()
    model.look_at_neighbours()
    return model


def test_positions_a_fixed_distance_apart_are_alike():
    position = encoder().embeddings.position.weight.detach()
    assert float(position.square().mean().sqrt()) == pytest.approx(POSITION_SCALE, rel=1e-3)
    products = position @ position.T
    for distance in (1, 5, 20):
        diagonal = products.diagonal(distance)
        assert float(diagonal.std()) < 1e-5 < float((products.diagonal(0)[: len(diagonal)] - diagonal).min())


@given(st.integers(-30, 30), st.integers(1, 40).map(lambda half: 2 * half))
def test_a_rotation_goes_on_by_its_distance(distance, width):
    positions = sinusoids(LENGTH, width)
    moved = positions @ rotation(distance, width).T
    kept = range(max(0, -distance), min(LENGTH, LENGTH - distance))
    assert torch.allclose(moved[list(kept)], positions[[p + distance for p in kept]], atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("hidden_size, num_heads", [(128, 2), (128, 4), (240, 5)])
def test_heads_of_a_fresh_first_layer_look_at_their_neighbours(hidden_size, num_heads):
    model = encoder(hidden_size, num_heads)
    first, second = model(torch.randint(0, 300, (8, LENGTH)), output_attentions=True).attentions

    def mean(weights, head, distance):
        return float(weights[:, head].diagonal(distance, 1, 2).mean())

    for head, offset in zip(range(num_heads), (1, -1, 2, -2, 3), strict=False):
        assert mean(first, head, offset) > 2 * mean(first, head, -offset)
        assert mean(first, head, offset) > 5 / LENGTH > 2 * mean(second, head, offset)


def test_heads_of_any_width_can_start():
    # The last sine has no cosine, and nothing to be turned with.
    assert encoder(hidden_size=33, num_heads=3).layers[0].qkv.weight.isfinite().all()
