"""Attention in chunks, beside the written-out reference with the same weights dropped."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention import dense_attention
from model.chunks import chunked_attention, chunks_of

HEADS, SIZE, COLUMNS = 6, 4, 3


@st.composite
def rectangles(draw):
    """Lengths of sequences, columns of keys, the most queries of a head or None, and the weights of a chunk."""
    lengths = draw(st.lists(st.integers(0, 10), min_size=1, max_size=7))
    longest = max(1, -(-max(lengths) // COLUMNS) * COLUMNS)
    return lengths, longest, draw(st.none() | st.integers(1, 12)), draw(st.integers(1, 4000))


def mask_of(lengths, longest):
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return (mask | ~mask.any(1, keepdim=True))[:, None, None]  # [N, 1, 1, L]


@settings(max_examples=300, deadline=None)
@given(rectangles())
def test_chunks_hold_every_head_once_and_every_key_and_are_as_large_as_fits(drawn):
    lengths, longest, most_queries, most_weights = drawn
    chunks = chunks_of(lengths, HEADS, longest, COLUMNS, most_queries, most_weights)
    every = range(len(lengths) * HEADS)
    assert [head for chunk in chunks for head in every[chunk.rows]] == list(every)

    def keys_of(first, count):
        most = max(1, *lengths[first : first + count])
        return min(longest, -(-most // COLUMNS) * COLUMNS)

    def fits(first, count, heads):
        keys = keys_of(first, count)
        return count * heads * keys * (most_queries or keys) <= most_weights

    for chunk in chunks:
        first, count = chunk.rows.start // HEADS, max(1, len(every[chunk.rows]) // HEADS)
        assert chunk.keys == slice(keys_of(first, count))
        assert chunk.queries == (chunk.keys if most_queries is None else slice(most_queries))
        heads = len(every[chunk.rows]) // count
        assert heads == max([1, *(some for some in (2, 3, 6) if fits(first, count, some))])
        assert fits(first, count, heads) or (count, heads) == (1, 1)
        if heads == HEADS:
            assert first + 2 * count > len(lengths) or not fits(first, 2 * count, HEADS)


def drawn_parts(lengths, longest, most_queries, dtype=torch.float64):
    """query, key, value, and a gradient that is zero in padding."""
    num_queries = most_queries or longest
    shapes = [(len(lengths), HEADS, count, SIZE) for count in (num_queries, longest, longest)]
    parts = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    grad = torch.randn(shapes[0]).to(dtype)
    if most_queries is None:
        grad *= (torch.arange(longest) < torch.tensor(lengths)[:, None])[:, None, :, None]
    return parts, grad


def read(values, lengths, longest):
    """The rows of [N, A, L, D] that are no padding."""
    return values.transpose(1, 2)[torch.arange(longest) < torch.tensor(lengths)[:, None]]


@settings(max_examples=100, deadline=None)
@given(rectangles(), st.sampled_from([0.0, 0.1, 0.5, 255 / 256]), st.integers(0, 2**31))
def test_value_and_gradients_are_the_reference_s_with_the_same_weights_dropped(drawn, dropout, seed):
    lengths, longest, most_queries, most_weights = drawn
    (query, key, value), grad = drawn_parts(lengths, longest, most_queries)
    mask, chunks = mask_of(lengths, longest), chunks_of(lengths, HEADS, longest, COLUMNS, most_queries, most_weights)

    def attended(value):
        torch.manual_seed(seed)
        return chunked_attention(query, key, value, mask, dropout, chunks)

    # With the unit matrix for a value, the result is the weights.
    kept = attended(torch.eye(longest, dtype=value.dtype).expand(*value.shape[:2], -1, -1)).detach() != 0
    _, weights = dense_attention(query, key, value, mask)
    expected = (weights * kept / (1 - dropout)) @ value
    found = attended(value)
    gradients = [torch.autograd.grad(result, (query, key, value), grad) for result in (expected, found)]
    if most_queries is None:
        found, expected = (read(result, lengths, longest) for result in (found, expected))
    else:
        of_tokens = torch.tensor(lengths) > 0
        found, expected = found[of_tokens], expected[of_tokens]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    has_query = most_queries is None
    for number, (theirs, ours) in enumerate(zip(*gradients, strict=True)):
        if number > 0 or has_query:
            theirs, ours = read(theirs, lengths, longest), read(ours, lengths, longest)
        else:
            theirs, ours = theirs[of_tokens], ours[of_tokens]
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_narrower_numbers_are_near_those_of_64_bits(dtype, dropout):
    lengths = [70, 33, 5, 128]
    parts, grad = drawn_parts(lengths, 128, None, dtype)
    results = []
    for kind in (dtype, torch.float64):
        torch.manual_seed(1)
        of_kind = [part.detach().to(kind).requires_grad_() for part in parts]
        chunks = chunks_of(lengths, HEADS, 128, COLUMNS, most_weights=40_000)
        found = chunked_attention(*of_kind, mask_of(lengths, 128), dropout, chunks)
        gradients = torch.autograd.grad(found, of_kind, grad.to(kind))
        results.append([read(value, lengths, 128) for value in (found, *gradients)])
    for ours, reference in zip(*results, strict=True):
        close = 8 * torch.finfo(dtype).eps * reference.abs().max().item()
        torch.testing.assert_close(ours.double(), reference, rtol=0, atol=close)


@pytest.mark.parametrize("dropout", [0.1, 0.3])
def test_each_weight_is_dropped_as_often_and_on_its_own(dropout):
    query = key = torch.zeros(2, HEADS, 16, SIZE)
    value = torch.eye(16).expand(2, HEADS, -1, -1)
    chunks = chunks_of([16, 16], HEADS, 16, COLUMNS, most_weights=1000)
    times = 2000
    drawn = torch.stack([chunked_attention(query, key, value, None, dropout, chunks) == 0 for _ in range(times)])
    count = drawn.flatten(1).float()
    # Six standard deviations of a binomial, for each of 3,072 weights, and for each with its neighbour.
    both = count[:, 1:] * count[:, :-1]
    for drops, share in ((count, dropout), (both, dropout**2)):
        assert (drops.mean(0) - share).abs().max() < 6 * (share * (1 - share) / times) ** 0.5


def test_without_gradients_it_is_the_reference_too():
    parts, _ = drawn_parts([16] * 4, 16, None)
    expected = dense_attention(*parts, None)[0].detach()
    chunks = chunks_of([16] * 4, HEADS, 16, COLUMNS)
    for without_gradients in (torch.no_grad, torch.inference_mode):
        with without_gradients():
            torch.testing.assert_close(chunked_attention(*parts, None, 0.0, chunks), expected)


def test_the_backward_pass_computes_in_the_numbers_of_the_forward_pass():
    parts, grad = drawn_parts([16] * 4, 16, None, torch.float32)
    found = chunked_attention(*parts, None, 0.1, chunks_of([16] * 4, HEADS, 16, COLUMNS))
    expected = torch.autograd.grad(found, parts, grad, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = torch.autograd.grad(found, parts, grad)
    assert all(map(torch.equal, gradients, expected))
