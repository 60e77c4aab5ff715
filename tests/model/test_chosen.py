"""The last layer for the tokens that are read alone, beside the whole layer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PackedBatch,
)
from model.batch import Chosen, rounded

LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 0)


def tiny(**changes):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**{"vocab_size": 50, "max_position_embeddings": 8} | sizes | none | changes)


def batch_of(lengths):
    ids = torch.randint(1, 50, (sum(lengths),))
    positions = torch.cat([torch.arange(length) for length in lengths])
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return PackedBatch(ids, ids % 2, positions, starts, max(lengths))


@st.composite
def masked_batches(draw):
    """Lengths, and some of their tokens in any order, first tokens among them: int64 [M]."""
    lengths = draw(LENGTHS)
    masked = draw(st.lists(st.integers(0, sum(lengths) - 1), unique=True))
    return lengths, torch.tensor(masked, dtype=torch.int64)


@settings(max_examples=60, deadline=None)
@given(masked_batches())
def test_chosen_tokens_are_sequence_by_sequence_and_found_again(drawn):
    lengths, masked = drawn
    batch = batch_of(lengths)
    chosen = Chosen.of(batch, masked)
    assert chosen.tokens[chosen.others].tolist() == masked.tolist()
    starts = batch.sequence_starts.tolist()
    assert [t for t, n in zip(chosen.tokens[chosen.first].tolist(), lengths, strict=True) if n] == [
        start for start, n in zip(starts, lengths, strict=False) if n
    ]
    counts = [1 + sum(begin <= m < begin + n for m in masked) for begin, n in zip(starts, lengths, strict=False)]
    assert chosen.sequence_starts.diff().tolist() == counts
    assert chosen.longest >= max(counts)
    rows = chosen.layout().pad(torch.arange(1, 1 + sum(counts))).tolist()
    assert [[place for place in row if place] for row in rows] == [
        part.tolist() for part in torch.arange(1, 1 + sum(counts)).split(counts)
    ]


@settings(max_examples=40, deadline=None)
@given(masked_batches(), st.sampled_from(["sdpa", "dense", "chunked"]), st.booleans())
def test_what_is_read_and_every_gradient_are_those_of_the_whole_layer(drawn, implementation, counted):
    lengths, masked = drawn
    batch, most = batch_of(lengths), None
    if counted:
        owner = torch.bucketize(masked, batch.sequence_starts[1:].long(), right=True)
        most = int(owner.bincount(minlength=1).max())
    encoder = BertModel(tiny()).double()
    whole = encoder.encode(batch)
    expected = whole.last_hidden_state[masked], whole.pooler_output
    encoder.attention_implementation = implementation
    some = encoder.encode(batch, at=masked, most_at=most)
    found = some.last_hidden_state, some.pooler_output
    has_tokens = torch.tensor(lengths)[:, None] > 0
    weights = [torch.randn_like(value) for value in expected]
    gradients = []
    for values in (expected, found):
        hidden, pooled = values
        loss = (hidden * weights[0]).sum() + (pooled * weights[1])[has_tokens.squeeze(1)].sum()
        gradients.append(torch.autograd.grad(loss, list(encoder.parameters())))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found[1] * has_tokens, expected[1] * has_tokens, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert torch.isfinite(found[1]).all()


@settings(max_examples=20, deadline=None)
@given(LENGTHS)
def test_rows_that_round_a_shape_up_change_no_state_and_no_gradient(lengths):
    batch = batch_of([length + 5 for length in lengths])
    encoder = BertModel(tiny(max_position_embeddings=16)).double()
    results = []
    for encoder.attention_implementation in ("sdpa", "dense", "chunked"):
        encoded = encoder.encode(batch, output_hidden_states=True)
        states = (encoder.encode(batch).last_hidden_state, encoded.pooler_output, *encoded.hidden_states)
        loss = sum((state.flatten() ** 2).sum() for state in (*states[:2], states[3]))
        results.append((*states, *torch.autograd.grad(loss, list(encoder.parameters()))))
    for found in results[1:]:
        for ours, theirs in zip(found, results[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [BertForPreTraining, BertForMaskedLM, BertForSequenceClassification])
def test_asking_for_hidden_states_or_attentions_changes_no_score(kind):
    net = kind(tiny()).eval()
    ids = torch.randint(1, 50, (3, 6))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]])
    plain, full = net(ids, mask), net(ids, mask, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(plain[0], full[0])
    assert len(full.hidden_states) == 3 and full.hidden_states[-1].shape == (3, 6, 16)
    assert [weights.shape for weights in full.attentions] == [(3, 2, 6, 6)] * 2


class Adapter(torch.nn.Module):
    """A low-rank addition to a linear layer, put in its place (Hu et al. 2022)."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = torch.nn.Linear(16, 2, bias=False), torch.nn.Linear(2, 48, bias=False)

    def forward(self, hidden):
        return self.base(hidden) + self.up(self.down(hidden))


@pytest.mark.parametrize("at", [None, torch.tensor([3, 6])])
def test_an_adapter_around_the_three_projections_gives_what_merged_weights_give(at):
    adapted, merged, batch = BertModel(tiny()), BertModel(tiny()), batch_of([5, 1, 7])
    merged.load_state_dict(adapted.state_dict())
    for ours, plain in zip(adapted.layers, merged.layers, strict=True):
        ours.qkv = adapter = Adapter(ours.qkv)
        with torch.no_grad():
            plain.qkv.weight += adapter.up.weight @ adapter.down.weight
    found, expected = (net.encode(batch, at=at) for net in (adapted, merged))
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state)
    torch.testing.assert_close(found.pooler_output, expected.pooler_output)
    found.pooler_output.square().sum().backward()
    assert all(layer.qkv.down.weight.grad.abs().sum() > 0 for layer in adapted.layers)


def test_the_last_layer_computes_no_more_than_it_has_to():
    net = BertForPreTraining(tiny())
    rows = []
    net.bert.layers[-1].intermediate.register_forward_hook(lambda module, given, result: rows.append(len(result)))
    batch, masked = batch_of([7, 3, 5]), torch.tensor([2, 8, 9])
    net.forward_packed(batch, masked, most_masked=2)
    assert rows == [3 + 3]
    # Shapes of plain products on the CPU come again.
    net.attention_implementation = "dense"
    net.bert.layers[0].intermediate.register_forward_hook(lambda module, given, result: rows.append(len(result)))
    net.forward_packed(batch, masked, most_masked=2)
    assert rows[1:] == [15, 6]
    rows.clear()
    net.forward_packed(batch_of([7] * 50), torch.arange(1, 350, 3), most_masked=3)
    net.bert.encode(batch_of([7] * 50))
    assert rows == [352, 176, 352, 352] and (rounded(350), rounded(50 + 117)) == (352, 176)


@pytest.mark.parametrize("kind", [BertForTokenClassification, BertForQuestionAnswering, BertForPreTraining])
def test_heads_compute_numbers_of_rows_that_come_again_where_products_are_compiled(kind):
    net, batch, at = kind(tiny()), batch_of([7] * 50), torch.arange(1, 350, 3)
    head = {BertForTokenClassification: "classifier", BertForQuestionAnswering: "qa_outputs"}.get(
        kind, "mlm_head.dense"
    )
    rows = []
    net.get_submodule(head).register_forward_hook(lambda module, given, result: rows.append(len(result)))

    def scores():
        return net.forward_packed(batch, at)[0] if kind is BertForPreTraining else net.logits_at(batch, at)

    exact = scores()
    with torch.autocast("cpu", torch.bfloat16):
        found = scores()
    assert rows == [117, rounded(117)] == [117, 120] and found.shape == exact.shape
    torch.testing.assert_close(found.float(), exact, rtol=0, atol=0.02 * exact.abs().max().item())
    gradients = [torch.autograd.grad(part.float().square().sum(), list(net.parameters()), allow_unused=True)
                 for part in (exact, found)]  # fmt: skip
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05 * ours.abs().max().item() + 1e-6)


@given(st.integers(0, 10**6))
def test_a_rounded_size_is_little_larger(count):
    size = rounded(count)
    assert count <= size < max(count + 1, min(count + 128, 1.125 * count)) and rounded(size) == size


def test_few_sizes_remain():
    assert len({rounded(count) for count in range(8192)}) < 128


@pytest.mark.skipif(not torch.cuda.is_available(), reason="varlen attention runs on CUDA only")
def test_varlen_gives_what_the_whole_layer_gives_on_cuda():
    config = tiny(hidden_size=128, intermediate_size=256, max_position_embeddings=128)
    batch, masked = batch_of([60, 128, 1, 77]).to("cuda"), torch.tensor([3, 61, 5, 200, 188], device="cuda")
    encoder = BertModel(config).cuda()
    encoder.attention_implementation = "varlen"
    with torch.autocast("cuda", dtype=torch.bfloat16):
        whole, some = encoder.encode(batch), encoder.encode(batch, at=masked)
    expected = whole.last_hidden_state[masked]
    assert (some.last_hidden_state - expected).abs().max() < 0.02 * expected.abs().max()
    torch.testing.assert_close(some.pooler_output, whole.pooler_output, rtol=0.02, atol=0.02)
