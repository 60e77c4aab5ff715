"""What the models return, beside transformers, and how torch finds the tensors in it; shapes that do not agree."""

import subprocess
import sys

import pytest
import torch
from torch.utils import _pytree

import model
from model import BertConfig, BertForSequenceClassification, BertModel, ModelError, PackedBatch
from model.outputs import Output


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForQuestionAnswering", "BertForPreTraining"])
def test_an_output_is_asked_for_values_as_one_of_transformers(name, twins, ragged, sizes):
    ours, theirs = twins(name, sizes)
    ids, types, mask = ragged(3, 9, sizes["vocab_size"])
    for options in ({}, {"output_hidden_states": True, "output_attentions": True}):
        output, expected = (net(ids, mask, types, **options) for net in (ours, theirs))
        for key in ("loss", "logits", "start_logits", "prediction_logits", "hidden_states", "attentions", "nothing"):
            assert (key in output) == (key in expected), key
            assert (output.get(key) is None) == (expected.get(key) is None)
        assert output.get("nothing", 3) == 3
        assert [key for key, _ in output.items()] == list(expected.keys())
        assert [id(value) for value in output.values()] == [id(value) for value in output.to_tuple()]


def kinds(base):
    """All classes below a class."""
    return [found for kind in base.__subclasses__() for found in (kind, *kinds(kind))]


@pytest.mark.parametrize("kind", kinds(Output), ids=lambda kind: kind.__name__)
def test_torch_finds_all_tensors_of_an_output(kind):
    names = list(kind.__dataclass_fields__)
    output = kind(**{name: torch.tensor(float(place)) for place, name in enumerate(names)})
    output.hidden_states, output.attentions = (torch.tensor(7.0), torch.tensor(8.0)), None
    leaves, form = _pytree.tree_flatten(output)
    tensors = [leaf for leaf in leaves if leaf is not None]
    expected = [part for value in output.values() for part in (value if isinstance(value, tuple) else (value,))]
    assert [id(leaf) for leaf in tensors] == [id(value) for value in expected]
    back = _pytree.tree_unflatten([None if leaf is None else leaf + 1 for leaf in leaves], form)
    assert type(back) is kind and back.keys() == output.keys() and back.hidden_states == (8.0, 9.0)


PROGRAM = """
import sys
import torch
from torch.nn.parallel import DistributedDataParallel
from model import BertConfig, BertForSequenceClassification

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(3)
net = BertForSequenceClassification(BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
ids, labels = torch.randint(0, 100, (4, 8)), torch.tensor([0, 1, 1, 0])
net(ids, labels=labels).loss.backward()
expected = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
wrapped, mine = DistributedDataParallel(net, static_graph=True), slice(2 * rank, 2 * rank + 2)
for _ in range(2):
    net.zero_grad()
    wrapped(ids[mine], labels=labels[mine]).loss.backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-6, rtol=1e-4)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_static_graph_of_two_processes_averages_the_gradients(tmp_path):
    """DistributedDataParallel averages those alone that it finds a way to from what the forward returns."""
    commands = [[sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")] for rank in range(2)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said


@pytest.mark.parametrize("masked", [False, True])
def test_inputs_whose_shapes_do_not_agree(sizes, masked):
    net, ids = BertModel(BertConfig(**sizes)).eval(), torch.arange(12).view(3, 4)
    mask = torch.ones(3, 4, dtype=torch.long) if masked else None
    for types in (torch.zeros(3, 8, dtype=torch.long), torch.zeros(4, 3, dtype=torch.long), torch.zeros(12).long()):
        with pytest.raises(ModelError, match=r"token_type_ids have the shape .*; give that of input_ids, \[3, 4\]"):
            net(ids, mask, types)
    for odd in (torch.ones(4), torch.ones(4, 4), torch.ones(3, 1, 1, 4)):
        with pytest.raises(ModelError, match=r"attention_mask have the shape"):
            net(ids, odd)
    for odd in (torch.arange(4), torch.zeros(2, 2, 2).long()):
        with pytest.raises(ModelError, match=r"input_ids have the shape .*; give \[N, L\]"):
            net(odd, mask)
    # One row for all of them, as in transformers.
    one = torch.tensor([[0, 0, 1, 1]])
    assert torch.equal(net(ids, mask, one)[0], net(ids, mask, one.expand(3, 4))[0])
    with pytest.raises(ModelError, match="a PackedBatch has token types of its own and no padding; give it alone"):
        net(PackedBatch.from_padded(ids), torch.ones(3, 4))


def test_the_lower_layers_are_frozen_by_a_slice(sizes):
    net = BertForSequenceClassification(BertConfig(**sizes))
    for layer in net.bert.layers[:1]:
        layer.requires_grad_(False)
    assert [layer.qkv.weight.requires_grad for layer in net.bert.layers] == [False, True]
    assert list(net.bert.layers[-1:]) == [net.bert.layers[-1]]
    shared = model.AlbertModel(model.AlbertConfig(**sizes)).layers
    assert list(shared[:3]) == [shared[0]] and not list(shared[1:])
