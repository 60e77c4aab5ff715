"""Packing, padding, and what attention sees of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import BertConfig, BertForPreTraining, BertModel, ModelError, PackedBatch
from model.attention import attend, choose_kernel, plan_attention
from model.batch import PaddingLayout

rectangles = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**35 - 1))
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 0)


def packed(lengths, vocabulary=50):
    tokens = sum(lengths)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    positions = torch.cat([torch.arange(length) for length in lengths])
    ids = torch.randint(1, vocabulary, (tokens,))
    return PackedBatch(ids, torch.zeros_like(ids), positions, starts, max(lengths))


def mask_of(rows, columns, bits):
    return torch.tensor([[bits >> (row * columns + column) & 1 for column in range(columns)] for row in range(rows)])


@settings(max_examples=60, deadline=None)
@given(rectangles)
def test_from_padded_and_pad_are_inverse_for_any_mask(rectangle):
    rows, columns, bits = rectangle
    mask = mask_of(rows, columns, bits)
    ids = torch.arange(1, rows * columns + 1).view(rows, columns)
    batch = PackedBatch.from_padded(ids, attention_mask=mask)
    kept = mask.clone()
    kept[mask.sum(1) == 0, 0] = 1
    assert batch.input_ids.tolist() == ids[kept.bool()].tolist()
    assert batch.position_ids.tolist() == [c for row in kept.tolist() for c, bit in enumerate(row) if bit]
    assert batch.sequence_starts.tolist() == [0, *kept.sum(1).cumsum(0).tolist()]
    assert batch.sequence_starts.dtype == torch.int32
    assert batch.max_sequence_length == int(kept.sum(1).max())
    assert (batch.num_sequences, batch.num_tokens) == (rows, int(kept.sum()))
    assert torch.equal(batch.pad(batch.input_ids), ids * kept)


@settings(max_examples=40, deadline=None)
@given(LENGTHS)
def test_pad_passes_gradients_to_the_right_token(lengths):
    layout = packed(lengths).layout()
    values = torch.randn(sum(lengths), 2, 3, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros(len(lengths), max(lengths), 2, 3, dtype=torch.float64)
    for row, part in enumerate(values.detach().split(lengths)):
        expected[row, : lengths[row]] = part
    assert torch.equal(layout.pad(values), expected)
    torch.autograd.gradcheck(layout.pad, values)


def test_equal_lengths_are_views_without_any_index():
    layout = packed([4, 4, 4]).layout()
    values = torch.randn(12, 5)
    assert layout == PaddingLayout(3, 4) and layout.key_mask is None
    assert layout.pad(values).data_ptr() == values.data_ptr()
    assert PackedBatch.from_padded(torch.ones(3, 4, dtype=torch.int64), None, torch.ones(3, 4)).padded == PaddingLayout(
        3, 4
    )


def test_to_moves_every_tensor():
    batch = packed([2, 3]).to("meta")
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 4 and all(tensor.is_meta for tensor in tensors)
    ids = torch.ones(2, 3, dtype=torch.int64)
    rectangle = PackedBatch.from_padded(ids, attention_mask=mask_of(2, 3, 0b001011)).to("meta").padded
    assert all(tensor.is_meta for tensor in (rectangle.slots, rectangle.tokens, rectangle.padding))


def brute_force(qkv, lengths):
    """Attention one sequence, one head, one query at a time."""
    out = torch.zeros_like(qkv[:, 0])
    start = 0
    for length in lengths:
        for head in range(qkv.shape[2]):
            query, key, value = qkv[start : start + length, :, head].unbind(1)
            for row in range(length):
                weights = torch.exp(key @ query[row] / qkv.shape[-1] ** 0.5)
                out[start + row, head] = (weights / weights.sum()) @ value
        start += length
    return out


def plan(lengths, kernel, heads, dropout=0.0):
    batch = packed(lengths)
    return plan_attention(batch, kernel, heads, dropout, batch.layout())


@settings(max_examples=25, deadline=None)
@given(LENGTHS, st.integers(1, 3))
def test_sdpa_dense_and_chunked_equal_brute_force_in_value_and_gradient(lengths, heads):
    qkv = torch.randn(sum(lengths), 3, heads, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(sum(lengths), heads, 4, dtype=torch.float64)
    results = []
    for attention in (
        lambda: brute_force(qkv, lengths),
        lambda: attend(qkv, plan(lengths, "sdpa", heads))[0],
        lambda: attend(qkv, plan(lengths, "dense", heads))[0],
        lambda: attend(qkv, plan(lengths, "chunked", heads))[0],
    ):
        out = attention()
        results.append((out, *torch.autograd.grad((out * weight).sum(), qkv)))
    for out, grad in results[1:]:
        torch.testing.assert_close(out, results[0][0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(grad, results[0][1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("implementation", ["sdpa", "dense", "chunked"])
def test_attention_dropout_is_honoured_and_keeps_the_mean(implementation):
    lengths = [5, 3]
    qkv = torch.randn(8, 3, 2, 4)
    with_dropout = plan(lengths, implementation, 2, dropout=0.3)
    drawn = torch.stack([attend(qkv, with_dropout)[0] for _ in range(3000)])
    assert drawn.std(0).min() > 0
    expected, _ = attend(qkv, plan(lengths, implementation, 2))
    torch.testing.assert_close(drawn.mean(0), expected, rtol=0, atol=0.1)


def tiny(**changes):
    changes = {"num_attention_heads": 2, "max_position_embeddings": 8, "num_hidden_layers": 2} | changes
    return BertConfig(vocab_size=50, hidden_size=16, intermediate_size=32, **changes)


def test_a_row_of_padding_and_an_empty_sequence_stay_finite_and_touch_nobody():
    encoder = BertModel(tiny()).double().eval()
    ids = torch.randint(1, 50, (3, 6))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [0] * 6, [1] * 6])
    output = encoder(ids, mask)
    assert all(torch.isfinite(value).all() for value in output.to_tuple())
    for row, length in ((0, 4), (2, 6)):
        alone = encoder(ids[row : row + 1, :length])
        torch.testing.assert_close(output.last_hidden_state[row, :length], alone.last_hidden_state[0])
    empty = encoder(packed([4, 0, 3, 0]))
    assert empty.pooler_output.shape == (4, 16) and torch.isfinite(empty.pooler_output).all()


def test_a_batch_without_masked_tokens_and_an_empty_batch_give_gradients_to_all():
    net = BertForPreTraining(tiny())
    none, start = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    for batch, sequences in (
        (packed([3, 2]), 2),
        (PackedBatch(none, none, none, start, 0), 0),
    ):
        net.zero_grad()
        scores, relation = net.forward_packed(batch, none)
        assert scores.shape == (0, 50) and relation.shape == (sequences, 2)
        (scores.sum() + relation.sum()).backward()
        assert all(parameter.grad is not None for parameter in net.parameters())


def test_the_forward_reads_no_tensor_back():
    """Meta tensors have no values: any .item() or data-dependent branch would raise."""
    with torch.device("meta"):
        net = BertForPreTraining(tiny())
    net.attention_implementation = "sdpa"
    batch = packed([3, 5, 2])
    scores, relation = net.forward_packed(batch.to("meta"), torch.tensor([1, 4], device="meta"))
    assert scores.shape == (2, 50) and relation.shape == (3, 2)


def test_auto_takes_the_function_that_can_run():
    batch, long = packed([4, 6]), packed([600])
    common = {"dropout": 0.0, "head_size": 8}
    assert choose_kernel("auto", batch, torch.float32, **common) == "sdpa"
    assert choose_kernel("auto", batch, torch.bfloat16, **common) == "chunked"
    assert choose_kernel("auto", long, torch.bfloat16, **common) == "sdpa"
    asked = ["chunked", "sdpa", "dense"]
    assert [choose_kernel(kernel, long, torch.bfloat16, **common) for kernel in asked] == asked
    for any_batch in (batch, long):
        assert choose_kernel("auto", any_batch, torch.float32, dropout=0.1, head_size=8) == "chunked"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert choose_kernel("auto", batch, torch.float32, **common) == "chunked"
    # Nearly all weights dropped: no level for it.
    assert choose_kernel("auto", batch, torch.float32, dropout=0.999, head_size=8) == "dense"
    with pytest.raises(ModelError, match="cannot drop nearly all"):
        choose_kernel("chunked", batch, torch.float32, dropout=0.999, head_size=8)
    with pytest.raises(ModelError, match="needs a CUDA device"):
        choose_kernel("varlen", batch, torch.bfloat16, **common)
    with pytest.raises(ModelError, match="'fused' is not known"):
        BertModel(tiny()).attention_implementation = "fused"


def test_calls_that_do_not_fit_the_model_say_so():
    encoder = BertModel(tiny())
    with pytest.raises(ModelError, match="9 tokens is longer than max_position_embeddings 8"):
        encoder(torch.ones(1, 9, dtype=torch.int64))
    with pytest.raises(ModelError, match="9 tokens"):
        encoder(packed([3, 9]))
    for odd in (50, -100):
        with pytest.raises(ModelError, match=f"token id {odd} is outside the vocabulary of 50"):
            encoder(torch.tensor([[1, odd]]))
    with pytest.raises(ModelError, match="token type 2 is not known; give types from 0 to 1"):
        encoder(torch.tensor([[1, 5]]), token_type_ids=torch.tensor([[0, 2]]))
    for mask in (None, torch.zeros(2, 0)):
        with pytest.raises(ModelError, match="have no tokens"):
            encoder(torch.zeros(2, 0, dtype=torch.int64), mask)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="varlen attention runs on CUDA only")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_varlen_equals_sdpa_on_cuda(dtype):
    lengths = [60, 128, 1, 77]
    batch = packed(lengths).to("cuda")
    config = BertConfig(50, 128, 2, 2, 256, max_position_embeddings=128)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    encoder = BertModel(config).cuda()
    results = []
    for name in ("sdpa", "varlen"):
        encoder.attention_implementation = name
        encoder.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            output = encoder(batch)
        (output.last_hidden_state.float().square().sum() + output.pooler_output.float().sum()).backward()
        gradient = encoder.layers[0].qkv.weight.grad.clone()
        results.append((output.last_hidden_state.float(), gradient))
    for value, reference in zip(results[1], results[0], strict=True):
        assert (value - reference).abs().max() < 0.02 * reference.abs().max()
