import copy
import dataclasses
import re
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from data_prep.examples.packing import ShardExamples
from finetune.batches import BatchMaker as TextBatchMaker
from finetune.batches import encode_texts
from finetune.tasks.classification import ClassificationObjective
from model import BertConfig, BertForPreTraining, BertForSequenceClassification
from pretrain.batches import BatchMaker, ExampleStream
from pretrain.engine.anomaly import watched
from pretrain.engine.batches import Position
from pretrain.engine.counters import LossScale
from pretrain.engine.settings import PretrainError
from pretrain.engine.step import LossSums
from pretrain.objectives import bert_objective

STEP = 12
# Modules of a tiny model that multiply by a matrix.
LINEAR = [
    *(f"bert.layers.{k}.{name}" for k in (0, 1) for name in ("qkv", "attention_output", "intermediate", "output")),
    "bert.pooler.dense", "mlm_head.dense", "nsp_head",
]  # fmt: skip


@pytest.fixture(scope="module")
def fresh(prepared):
    torch.manual_seed(0)
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    return BertForPreTraining(BertConfig.from_preset("tiny", **sizes))


@pytest.fixture(scope="module")
def maker(prepared):
    return BatchMaker(prepared.train, prepared.tokenizer, "token", 10**9)


@pytest.fixture(scope="module")
def batch(prepared, maker):
    stream = ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1))
    return maker.packed(next(stream.batches(6, Position()))[0])


@pytest.fixture(scope="module")
def labelled(prepared):
    texts = [("the patient was treated", None), ("heart and liver", None), ("a high dose of the drug", None)]
    encoded = encode_texts(texts, np.array([0, 1, 0]), prepared.tokenizer, 48, "head")
    return TextBatchMaker(encoded, prepared.tokenizer, 10**9).packed(np.arange(3))


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def plain(module):
    return module


def compute(model, batch, *, objective=None, precision=nullcontext, wrap=plain, scale=None):
    """Losses of a forward and a backward pass that is watched."""
    loss_sums = wrap(LossSums(model, objective or bert_objective(np.ones(model.config.vocab_size))))
    with watched(loss_sums, lambda: STEP, (scale or LossScale(False)).can_shrink):
        with precision():
            sums = loss_sums(batch)
        torch.stack(list(sums.values())).sum().backward()
    return sums


def complaint(model, batch, **options):
    """What is said to be not finite."""
    with pytest.raises(PretrainError) as found:
        compute(model, batch, **options)
    message = str(found.value)
    assert "--learning-rate" in message and "\n" not in message
    return re.fullmatch(r"step 12: (.+) is not finite \(.+", message)[1]


def replaced(model, name, change):
    """A copy of the model in which `change` of the module stands in its place."""
    model = copy.deepcopy(model)
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, change(model.get_submodule(name)))
    return model


class Spoiled(torch.autograd.Function):
    """Nothing forward; backward every gradient is `value`."""

    @staticmethod
    def forward(ctx, inputs, value):
        ctx.value = value
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.full_like(gradient, ctx.value), None


class SpoiledBefore(nn.Module):
    """A module whose first inputs get spoiled gradients."""

    def __init__(self, module, value, which=0):
        super().__init__()
        self.module, self.value, self.which = module, value, which

    def forward(self, *inputs):
        inputs = list(inputs)
        inputs[self.which] = Spoiled.apply(inputs[self.which], self.value)
        return self.module(*inputs)


def spoiled_weight(linear, value):
    """A linear layer with a good gradient of its input and a spoiled one of its weight."""
    linear = copy.deepcopy(linear)
    forward, weight = linear.forward, linear.weight

    def with_spoiled_weight(*inputs):
        linear._parameters["weight"] = Spoiled.apply(weight, value)
        outputs = forward(*inputs)
        linear._parameters["weight"] = weight
        return outputs

    linear.forward = with_spoiled_weight
    return linear


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_weight_that_is_not_finite_is_named_and_not_what_it_spoils(fresh, batch, data):
    model = copy.deepcopy(fresh)
    name = data.draw(st.sampled_from([name for name, _ in model.named_parameters()]))
    weight = model.get_parameter(name).detach().view(-1)
    weight[data.draw(st.integers(0, len(weight) - 1))] = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    assert complaint(model, batch) == f"the weight {name}"


@pytest.mark.parametrize("name", LINEAR)
def test_the_first_output_that_overflows_is_named(fresh, batch, name):
    model = copy.deepcopy(fresh)
    nn.init.constant_(model.get_submodule(name).weight, 3e38)
    nn.init.constant_(model.get_submodule(name).bias, 3e38)
    assert complaint(model, batch) == f"the output of {name}"


@pytest.mark.parametrize("layer", [0, 1])
def test_attention_that_overflows_is_named_by_the_module_that_is_given_its_result(fresh, batch, layer):
    model = copy.deepcopy(fresh)
    with torch.no_grad():
        model.bert.layers[layer].qkv.weight *= 1e25
    assert complaint(model, batch) == f"the input of bert.layers.{layer}.attention_output"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", LINEAR)
def test_the_first_gradient_that_is_not_finite_is_named(fresh, batch, name, value):
    model = replaced(fresh, name, lambda module: SpoiledBefore(module, value))
    assert complaint(model, batch) == f"the gradient of the input of {name}"


@pytest.mark.parametrize("name", LINEAR)
def test_a_weight_whose_gradient_alone_is_not_finite_is_named(fresh, batch, name):
    model = replaced(fresh, name, lambda module: spoiled_weight(module, torch.nan))
    assert complaint(model, batch) == f"the gradient of {name}.weight"


def test_a_gradient_with_an_infinite_norm_is_named(fresh, batch):
    model = replaced(fresh, "mlm_head.dense", lambda module: spoiled_weight(module, 1e30))
    assert complaint(model, batch) == "the norm of the gradient of mlm_head.dense.weight"


@pytest.mark.parametrize("spoiled", [SpoiledBefore, spoiled_weight])
def test_a_gradient_that_overflows_under_a_loss_scale_is_no_anomaly_until_the_scale_is_1(fresh, batch, spoiled):
    model = replaced(fresh, "bert.pooler.dense", lambda module: spoiled(module, torch.inf))
    compute(model, batch, scale=LossScale(True))
    assert "the gradient of" in complaint(model, batch, scale=LossScale(True, value=1.0))
    nn.init.constant_(model.bert.layers[0].qkv.bias, torch.nan)
    assert complaint(model, batch, scale=LossScale(True)) == "the weight bert.layers.0.qkv.bias"


def test_a_gradient_that_only_the_tied_decoder_spoils_is_told_from_that_of_the_embedding(fresh, batch):
    spoiled = partial(SpoiledBefore, value=torch.nan, which=1)
    assert complaint(replaced(fresh, "mlm_head", spoiled), batch) == "the gradient of the input of mlm_head"


def test_a_loss_that_is_not_finite_is_named(fresh, labelled):
    weights = torch.tensor([3e38, 3e38])
    model = BertForSequenceClassification(fresh.config)
    assert complaint(model, labelled, objective=ClassificationObjective(weights)) == "the label loss"


class Chain(nn.Module):
    """Four modules in a row, of which one is a square root of 0; its slope is infinite."""

    def __init__(self, place, inside):
        super().__init__()
        self.place, self.inside = place, inside
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        if inside:
            self.parts[place] = Root()

    def forward(self, inputs):
        for number, part in enumerate(self.parts):
            inputs = part(inputs)
            if number == self.place and not self.inside:
                inputs = (inputs - inputs.detach()).sqrt()
        return inputs


class Root(nn.Module):
    def forward(self, inputs):
        return (inputs - inputs.detach()).sqrt()


class Total:
    def loss_sums(self, model, batch):
        return {"total": model(batch).sum()}


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_square_root_of_nothing_is_found_inside_a_module_and_between_two(place):
    for inside, expected in ((True, f"input of parts.{place}"), (False, f"output of parts.{place}")):
        torch.manual_seed(0)
        found = complaint(Chain(place, inside), torch.ones(2, 3), objective=Total())
        assert found == f"the gradient of the {expected}"


def test_names_are_the_same_in_bf16_and_under_distributed_data_parallel(fresh, batch, process_group):
    bf16 = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    for precision in (nullcontext, bf16):
        options = {"precision": precision, "wrap": DistributedDataParallel}
        backward = replaced(fresh, "bert.layers.1.output", partial(SpoiledBefore, value=torch.inf))
        assert complaint(backward, batch, **options) == "the gradient of the input of bert.layers.1.output"
        forward = copy.deepcopy(fresh)
        nn.init.constant_(forward.bert.layers[1].output.weight, torch.nan)
        assert complaint(forward, batch, **options) == "the weight bert.layers.1.output.weight"


def test_fine_tuning_is_watched_with_the_encoder_frozen_or_not(fresh, labelled):
    model = BertForSequenceClassification(fresh.config)
    for _ in range(2):
        for name in ("bert.pooler.dense", "classifier.linear"):
            spoiled = replaced(model, name, lambda module: spoiled_weight(module, torch.nan))
            found = complaint(spoiled, labelled, objective=ClassificationObjective())
            assert found == f"the gradient of {name}.weight"
        frozen = copy.deepcopy(model)
        nn.init.constant_(frozen.bert.layers[1].qkv.bias, torch.nan)
        found = complaint(frozen, labelled, objective=ClassificationObjective())
        assert found == "the weight bert.layers.1.qkv.bias"
        model.freeze_encoder()


def test_a_number_of_the_examples_that_is_not_finite_is_named(fresh, labelled):
    model = BertForSequenceClassification(fresh.config)
    spoiled = dataclasses.replace(labelled, weights=torch.tensor([1.0, torch.nan, 1.0]))
    assert complaint(model, spoiled, objective=ClassificationObjective()) == "the input of the model"


def test_an_evaluation_is_watched_too(fresh, batch):
    model = copy.deepcopy(fresh)
    nn.init.constant_(model.bert.layers[0].output.weight, torch.nan)
    with pytest.raises(PretrainError, match=r"the weight bert\.layers\.0\.output\.weight"):
        with watched(LossSums(model, bert_objective(np.ones(model.config.vocab_size))), lambda: STEP):
            bert_objective(np.ones(model.config.vocab_size)).score_sums(model.eval(), batch)


@pytest.mark.parametrize("precision", [nullcontext, partial(torch.autocast, "cpu", dtype=torch.bfloat16)])
def test_watching_changes_no_number_and_leaves_nothing(fresh, batch, maker, precision):
    found = []
    for is_watched in (True, False):
        torch.manual_seed(0)
        model = copy.deepcopy(fresh)
        loss_sums = LossSums(model, bert_objective(np.ones(model.config.vocab_size)))
        for part in (batch, maker.empty_batch()):
            with watched(loss_sums, lambda: STEP) if is_watched else nullcontext():
                with precision():
                    sums = loss_sums(part)
                torch.stack(list(sums.values())).sum().backward()
        found.append([*(value.detach() for value in sums.values()), *(p.grad for p in model.parameters())])
    assert all(one.equal(other) for one, other in zip(*found, strict=True))


def test_nothing_is_watched_after_the_block(fresh, batch):
    model = copy.deepcopy(fresh)
    compute(model, batch)
    nn.init.constant_(model.bert.layers[0].qkv.weight, torch.nan)
    sums = LossSums(model, bert_objective(np.ones(model.config.vocab_size)))(batch)
    sums["mlm"].backward()
    assert sums["mlm"].isnan() and model.nsp_head.weight._backward_hooks in (None, {})
