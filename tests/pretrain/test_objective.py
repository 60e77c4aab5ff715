"""The objective of BERT beside that of transformers, and what is counted of a batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertForPreTraining as TheirBert

from data_prep.examples.packing import ShardExamples
from model import BertConfig, BertForPreTraining
from pretrain.batches import BatchMaker, ExampleStream
from pretrain.engine.batches import Position
from pretrain.engine.device import Precision
from pretrain.masked_words import MaskedWords
from pretrain.next_sentence import NextSentence
from pretrain.objective import PretrainingObjective

PARTS = (MaskedWords(np.ones(1)), NextSentence())


@pytest.fixture
def model(prepared):
    torch.manual_seed(0)
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return BertForPreTraining(BertConfig.from_preset("tiny", **sizes, **dropout))


@pytest.fixture
def examples(prepared):
    stream = ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1))
    return next(stream.batches(24, Position()))[0]


@pytest.fixture
def maker(prepared):
    return BatchMaker(prepared.train, prepared.tokenizer, "token", 10**9)


def test_the_loss_is_that_of_transformers(examples, maker, model, tmp_path):
    model.save_pretrained(tmp_path)
    theirs = TheirBert.from_pretrained(tmp_path).eval()
    labelled = examples[examples.label >= 0]
    batch = maker.packed(labelled)
    objective = PretrainingObjective(PARTS)
    sums, counts = objective.loss_sums(model.eval(), batch), objective.counts(batch)
    ours = sum(float(sums[name].detach()) / counts[name] for name in sums)
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.masked_positions] = batch.masked_targets
    with torch.no_grad():
        labels_padded = batch.pad(labels + 1000) - 1000
        labels_padded[labels_padded == -1000] = -100
        expected = theirs(
            input_ids=batch.pad(batch.input_ids),
            token_type_ids=batch.pad(batch.token_type_ids),
            attention_mask=batch.pad(torch.ones_like(batch.input_ids)),
            labels=labels_padded,
            next_sentence_label=batch.pair_targets,
        )
    assert ours == pytest.approx(float(expected.loss), rel=1e-5)


def test_counts_are_the_targets_of_both_labels(examples, maker):
    batch = maker.packed(examples)
    counts = PretrainingObjective(PARTS).counts(batch)
    assert counts["mlm"] == len(batch.masked_positions)
    labels = batch.pair_targets.tolist()
    assert counts["nsp"] == labels.count(0) + labels.count(1) and {0, 1} <= set(labels)
    assert PretrainingObjective(PARTS[:1], off=PARTS[1:]).counts(batch) == {"mlm": counts["mlm"]}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_sums_of_words_that_are_no_copies_are_as_exact_as_those_of_all(examples, maker, model, precision):
    """Hundreds of nats, added up in half precision, would be wrong by one or two."""
    batch = maker.packed(examples[:200])
    fresh = torch.ones(len(batch.masked_targets))
    fresh[::3] = 0.0
    with Precision("cpu", precision)():
        found, some, rest = (
            PretrainingObjective(PARTS).score_sums(model, replace(batch, fresh=each))
            for each in (torch.ones_like(fresh), fresh, 1 - fresh)
        )
    assert found["fresh_loss"].dtype == torch.float32 and float(found["mlm_loss"]) > 500
    for name in ("loss", "correct"):
        assert float(found[f"fresh_{name}"]) == pytest.approx(float(found[f"mlm_{name}"]), rel=1e-6)
        together = float(some[f"fresh_{name}"]) + float(rest[f"fresh_{name}"])
        assert together == pytest.approx(float(found[f"mlm_{name}"]), rel=1e-6)
