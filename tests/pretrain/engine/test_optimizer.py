from itertools import product

import pytest
import torch

from model import BertConfig, BertForPreTraining
from pretrain.engine.optimizer import DepthRates, Optimizer, clip, decayed, peak_learning_rate


@pytest.fixture
def model():
    torch.manual_seed(0)
    return BertForPreTraining(BertConfig.from_preset("tiny", vocab_size=64, max_position_embeddings=16))


def test_decay_acts_on_weights_of_layers_and_embeddings_only(model):
    expected = {name for name, _ in model.named_parameters() if not name.endswith("bias") and "norm" not in name}
    assert set(decayed(model)) == expected
    assert all(parameter.ndim == 2 for parameter in decayed(model).values())


def test_every_parameter_is_optimized_once_the_tied_weight_too(model):
    for kind in ("adamw", "muon"):
        optimizer = Optimizer(model, kind, 1e-3, 0.01)
        held = [p for part in optimizer.parts for group in part.param_groups for p in group["params"]]
        assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))
        with_decay = {
            id(p) for part in optimizer.parts for g in part.param_groups for p in g["params"] if g["weight_decay"]
        }
        assert with_decay == {id(p) for p in decayed(model).values()}


@pytest.mark.parametrize("of_heads", [False, True])
def test_muon_takes_the_matrices_of_the_layers_and_if_asked_for_that_of_the_mlm_head(model, of_heads):
    inside = [p for name, p in model.named_parameters() if name.startswith("bert.layers.") and p.dim() == 2]
    assert len(inside) == 4 * model.config.num_hidden_layers
    expected = [*inside, model.mlm_head.dense.weight] if of_heads else inside
    muon = Optimizer(model, "muon", 1e-3, 0.01, of_heads=of_heads).parts[1]
    assert {id(p) for p in muon.param_groups[0]["params"]} == {id(p) for p in expected}


def test_decay_without_gradient_shrinks_weights_and_leaves_biases(model):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Optimizer(model, "adamw", 0.1, 0.5).step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if name in decayed(model) else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_the_learning_rate_that_is_set_is_the_one_that_acts(model):
    optimizer = Optimizer(model, "muon", 1e-3, 0.0)
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.set_learning_rate(0.0)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.set_learning_rate(0.1)
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_state_comes_back(model, kind):
    import copy

    twin = copy.deepcopy(model)
    first, second = Optimizer(model, kind, 1e-2, 0.01), Optimizer(twin, kind, 1e-2, 0.01)

    def step(owner, optimizer, seed):
        torch.manual_seed(seed)
        for parameter in owner.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()

    for seed in range(3):
        step(model, first, seed)
    twin.load_state_dict(model.state_dict())
    second.load_state_tensors({name: t.clone() for name, t in first.state_tensors().items()})
    step(model, first, 9)
    step(twin, second, 9)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_state_of_other_shapes_is_refused(model):
    optimizer = Optimizer(model, "adamw", 1e-3, 0.01)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = {name: tensor[:9] if "embeddings.word." in name and tensor.dim() else tensor
             for name, tensor in optimizer.state_tensors().items()}  # fmt: skip
    with pytest.raises(ValueError, match=r"bert\.embeddings\.word\.weight has another shape than its state"):
        optimizer.load_state_tensors(state)


def test_a_state_that_torch_s_muon_left_in_an_old_checkpoint_is_taken_up(model):
    names = [name for name, p in model.named_parameters() if any(p is matrix for matrix in model.layer_matrices())]
    theirs = torch.optim.Muon([model.get_parameter(name) for name in names], lr=0.01)
    for name in names:
        model.get_parameter(name).grad = torch.randn_like(model.get_parameter(name))
    theirs.step()
    old = {f"momentum_buffer/{name}": theirs.state[model.get_parameter(name)]["momentum_buffer"] for name in names}
    optimizer = Optimizer(model, "muon", 1e-3, 0.01)
    optimizer.load_state_tensors({name: tensor.clone() for name, tensor in old.items()})
    found = optimizer.state_tensors()
    assert old and all(torch.equal(found[name], tensor) for name, tensor in old.items())
    for name in names:
        model.get_parameter(name).grad = torch.zeros_like(model.get_parameter(name))
    optimizer.step()
    for name, tensor in old.items():
        torch.testing.assert_close(optimizer.state_tensors()[name], 0.95 * tensor)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_rates_by_depth_move_each_parameter_by_its_share(model, kind):
    import copy

    twin, rates = copy.deepcopy(model), DepthRates(model.config.num_hidden_layers, decay=0.5)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    one, other = Optimizer(model, kind, 1e-2, 0.1), Optimizer(twin, kind, 1e-2, 0.1, rates=rates)
    for owner, optimizer in ((model, one), (twin, other)):
        optimizer.set_learning_rate(1e-2)
        for number, parameter in enumerate(owner.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        optimizer.step()
    shares = {}
    for name, parameter in twin.named_parameters():
        share = shares[name] = 0.5 ** rates.group(name)
        expected = before[name] + share * (model.get_parameter(name) - before[name])
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-7)
    # Two layers: the head, the layers from the last to the first, the embeddings.
    assert shares["nsp_head.weight"] == shares["bert.pooler.dense.weight"] == 1
    assert shares["bert.layers.1.qkv.weight"] == 0.5 and shares["bert.layers.0.qkv.weight"] == 0.25
    assert shares["bert.embeddings.word.weight"] == 0.125


def test_layers_begin_to_learn_one_after_the_other(model):
    rates = DepthRates(model.config.num_hidden_layers, unfrozen=0.6)
    optimizer = Optimizer(model, "adamw", 1e-2, 0.1, rates=rates)
    names = {"nsp_head.weight": 0, "bert.layers.1.qkv.weight": 0.2, "bert.layers.0.qkv.weight": 0.4,
             "bert.embeddings.word.weight": 0.6}  # fmt: skip
    for used in (0.0, 0.1, 0.21, 0.41, 0.61, 1.0):
        before = {name: model.get_parameter(name).detach().clone() for name in names}
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.set_learning_rate(1e-2, used)
        optimizer.step()
        for name, begins in names.items():
            assert torch.equal(model.get_parameter(name), before[name]) == (used < begins), (name, used)


def test_a_layer_begins_with_its_epoch_whatever_the_share_comes_out_as():
    """One layer an epoch, for any number of layers and of epochs."""
    for layers, more in product(range(1, 25), range(1, 9)):
        epochs = layers + 1 + more
        rates = DepthRates(layers, unfrozen=(layers + 1) / epochs)
        for below, epoch in product(range(layers + 2), range(epochs)):
            assert (rates.share(below, epoch / epochs) == 1.0) == (epoch >= below), (layers, epochs, below, epoch)


def test_clipping_is_by_the_norm_of_all_gradients_together(model):
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    before = torch.cat([p.grad.flatten() for p in parameters])
    norm = clip(parameters, 1.0)
    after = torch.cat([p.grad.flatten() for p in parameters])
    assert float(norm) == pytest.approx(float(before.norm()), rel=1e-5)
    torch.testing.assert_close(after, before / before.norm(), rtol=1e-4, atol=1e-8)
    # Smaller ones stay as they are.
    assert float(clip(parameters, 2.0)) == pytest.approx(1.0, rel=1e-4)
    assert torch.equal(torch.cat([p.grad.flatten() for p in parameters]), after)


def test_the_default_peak_falls_with_width():
    for kind in ("adamw", "muon"):
        peaks = [peak_learning_rate(kind, hidden) for hidden in (128, 256, 512, 768, 1024)]
        assert peaks == sorted(peaks, reverse=True)


def test_beta2_is_that_of_adamw(model):
    """Beside torch's own optimizer without decay, over three steps."""
    import copy

    twin = copy.deepcopy(model)
    ours = Optimizer(model, "adamw", 1e-2, 0.0, beta2=0.9)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, betas=(0.9, 0.9), eps=1e-6, weight_decay=0.0)
    usual = Optimizer(other := copy.deepcopy(model), "adamw", 1e-2, 0.0)
    for step in range(3):
        for owner, optimizer in ((model, ours), (twin, theirs), (other, usual)):
            draw = torch.Generator().manual_seed(step)
            for parameter in owner.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=draw)
            optimizer.step()
    for one, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(model.nsp_head.weight, other.nsp_head.weight, atol=1e-4)


def test_beside_muon_all_else_takes_0_65_of_the_rate(model):
    optimizer = Optimizer(model, "muon", 1e-3, 0.0)
    optimizer.set_learning_rate(1e-2)
    adamw, muon = optimizer.parts
    assert [group["lr"] for group in adamw.param_groups] == pytest.approx([0.65e-2] * len(adamw.param_groups))
    assert [group["lr"] for group in muon.param_groups] == [1e-2]
