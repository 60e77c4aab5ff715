"""Learning some rows of a word embedding, beside a training of all of them by torch's AdamW."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from model import BertConfig, BertForSequenceClassification
from model.some_rows import SomeRows, learning

VOCABULARY, STEPS = 61, 6


def trained(model, batches):
    """The model after a step on each batch [N, L], without weight decay, which the other rows have not."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-2, weight_decay=0.0)
    for ids in batches:
        model(ids, labels=ids[:, 0] % 2).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.sets(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_what_is_learned_is_what_all_rows_learn(sizes, words, seed):
    torch.manual_seed(seed)
    every = BertForSequenceClassification(BertConfig(**sizes)).double()
    some, before = copy.deepcopy(every), every.bert.embeddings.word.weight.detach().clone()
    words = torch.tensor(sorted(words))
    some.learn_words(words.flip(0).repeat(2))
    assert some.bert.embeddings.word.weight.shape[0] == len({0, *words.tolist()})
    batches = words[torch.randint(len(words), (STEPS, 3, 8))]
    trained(every, batches), trained(some, batches)
    table = some.bert.embeddings.word.table
    torch.testing.assert_close(table, every.bert.embeddings.word.weight.detach())
    others = [row for row in range(VOCABULARY) if row not in words]
    assert torch.equal(table[others], before[others]) and not torch.equal(table[words], before[words])
    # Any word is read where nothing is learned.
    ids = torch.randint(VOCABULARY, (4, 8))
    torch.testing.assert_close(some(ids).logits, every(ids).logits)


def test_a_folder_has_all_rows_in_the_middle_of_a_training_too(sizes, tmp_path):
    model = BertForSequenceClassification(BertConfig(**sizes))
    of_all = model.num_parameters, model.num_bytes
    model.learn_words(torch.tensor([7, 3]))
    assert (model.num_parameters, model.num_bytes) == of_all
    table = model.bert.embeddings.word.table
    table.copy_(torch.arange(VOCABULARY)[:, None].expand_as(table))
    model.train()
    with torch.no_grad():
        model.bert.embeddings.word.weight.copy_(torch.tensor([100.0, 103.0, 107.0])[:, None].expand(3, -1))
    model.save_pretrained(tmp_path)
    found = load_file(tmp_path / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    expected = torch.arange(VOCABULARY, dtype=torch.float32)
    expected[[0, 3, 7]] += 100
    assert torch.equal(found[:, 0], expected)
    assert model.training


def test_a_word_that_is_not_learned_is_no_other_one_in_training(sizes):
    model = BertForSequenceClassification(BertConfig(**sizes)).train()
    model.learn_words(torch.tensor([7, 3]))
    with pytest.raises(IndexError):
        model(torch.tensor([[7, 4]]))


def test_the_row_of_padding_stays():
    word = SomeRows(nn.Embedding(VOCABULARY, 4, padding_idx=1), torch.tensor([1, 5])).train()
    word(torch.tensor([1, 5, 5])).sum().backward()
    assert word.weight.grad.sum(1).tolist() == [0, 0, 8]


def test_all_are_learned_where_some_would_save_nothing():
    class Scaled(nn.Embedding):
        """Computes something of its own."""

    whole, scaled = nn.Embedding(100, 4), Scaled(100, 4)
    assert isinstance(learning(whole, torch.arange(74)), SomeRows)
    assert learning(whole, torch.arange(75)) is whole
    assert learning(scaled, torch.arange(5)) is scaled
