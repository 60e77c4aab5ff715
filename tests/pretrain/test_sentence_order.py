"""Sentence order prediction: what its pairs are, how they are labelled, and a run that learns it with any family."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from data_prep.examples.packing import HELD_OUT_SEED, Examples, ShardExamples
from data_prep.examples.pairs import Reason, pairs
from data_prep.examples.random_keys import keys
from data_prep.preparation import prepare
from data_prep.settings import ExampleSettings, PrepSettings
from model import BertConfig, BertForPreTraining
from model.families import FAMILIES
from pretrain.build import make_data
from pretrain.engine.distributed import World
from pretrain.engine.settings import PretrainError
from pretrain.objectives import make_objective
from pretrain.pretraining import pretrain
from pretrain.report import Trouble
from pretrain.resolve import resolve
from pretrain.sentence_order import SentenceOrder, SentenceOrderBatches, in_some_order
from pretrain.settings import PretrainSettings

pytestmark = pytest.mark.usefixtures("pictures")

ALL_START = np.ones(40, dtype=bool)
documents = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=12)


def settings_of(prepared, out="unused", **changes):
    given = {
        "budget": "24steps", "preset": "tiny", "batch_size": 8, "log_every": 4, "evaluations": 2, "device": "cpu",
        "precision": "fp32", "checkpoint_every": "8steps", "keep_checkpoints": 9, "objective": "mlm+sop",
        "examples": ExampleSettings(sequence_length=48),
    }  # fmt: skip
    return PretrainSettings(prepared=str(prepared.folder), out=str(out), **{**given, **changes})


def data_of(prepared, **changes):
    settings = resolve(settings_of(prepared, **changes))
    objective = make_objective(settings, prepared)
    return objective, *make_data(settings, prepared, objective, World())


@given(documents, st.integers(8, 60), st.integers(0, 99), st.integers(0, 3))
def test_pairs_without_exchange_are_the_same_windows_and_every_b_follows_its_a(shard_of, shape, length, seed, epoch):
    shard = shard_of(shape)
    given = shard, length, seed, epoch, ALL_START
    exchanged, kept = pairs(*given), pairs(*given, exchange=False)
    assert (kept.b_start == kept.a_start + kept.a_length)[kept.b_length > 0].all()
    assert np.array_equal(kept.a_start, exchanged.a_start) and np.array_equal(kept.a_length, exchanged.a_length)
    assert np.array_equal(kept.label, np.where(kept.b_length > 0, 0, -100))
    assert np.array_equal(kept.reason == Reason.LABELLED, kept.label == 0)
    # Each token once, in windows of one document.
    ends = kept.a_start + kept.a_length + kept.b_length
    assert kept.a_start.tolist() == [0, *ends[:-1].tolist()] and ends[-1] == len(shard.ids)
    bounds = shard.sentence_starts[shard.document_starts]
    document = np.searchsorted(bounds, kept.a_start, side="right")
    assert np.array_equal(document, np.searchsorted(bounds, ends - 1, side="right"))


def segment(shards, examples, row, which):
    start, length = (int(getattr(examples, f"{which}_{what}")[row]) for what in ("start", "length"))
    return shards[int(examples.shard[row])].ids[start : start + length].tolist()


def test_segments_joined_in_their_order_give_the_text_and_half_of_them_are_exchanged(prepared):
    _, stream, maker, _ = data_of(prepared)
    found, used = [], []
    for epoch in range(12):
        examples = in_some_order(stream.shard_examples(0, epoch))
        for row in range(len(examples)):
            a, b = (segment(prepared.train, examples, row, which) for which in "ab")
            used += b + a if examples.label[row] == 1 else a + b
            assert bool(b) == (examples.label[row] >= 0)
        found.append(examples)
    assert used == prepared.train[0].ids.tolist() * 12
    labels = np.concatenate([examples.label for examples in found])
    assert 0.45 < (labels[labels >= 0] == 1).mean() < 0.55
    # In the next epoch others are exchanged.
    assert not np.array_equal(found[0].label[:50], found[1].label[:50])


def many(count):
    """Pairs that follow each other, with keys as those of a corpus."""
    rows = np.arange(count)
    a, b = rows % 4 + 1, rows % 3 + 1
    columns = {"a_start": 10 * rows, "a_length": a, "b_start": 10 * rows + a, "b_length": b, "label": 0 * rows}
    return Examples(shard=0 * rows, **columns, key=keys(1, "example", 0, 0, rows))


def test_labels_are_half_and_half_by_count_and_known_by_neither_length_nor_place():
    before = many(100_000)
    after = in_some_order(before)
    exchanged = after.label == 1
    assert exchanged.mean() == pytest.approx(0.5, abs=0.01)
    assert np.array_equal(after.lengths(), before.lengths())
    for length in range(1, 5):
        assert exchanged[before.a_length == length].mean() == pytest.approx(0.5, abs=0.015)
    assert np.array_equal(after.a_start < after.b_start, ~exchanged)
    # A key decides alone, in whatever company.
    some = np.array([5, 99, 70_000])
    assert np.array_equal(in_some_order(before[some]).label, after.label[some])


def test_an_example_of_one_segment_or_of_two_documents_has_no_label():
    before = many(1000)
    before.label[::3], before.label[1::3] = 1, -100
    after = in_some_order(before)
    assert (after.label[0::3] == -100).all() and (after.label[1::3] == -100).all()
    assert np.array_equal(after.a_start[0::3], before.a_start[0::3]) and set(after.label[2::3].tolist()) == {0, 1}


def test_a_batch_says_the_label_and_holds_the_segments_in_that_order(prepared):
    _, stream, maker, _ = data_of(prepared)
    assert isinstance(maker, SentenceOrderBatches)
    examples = stream.shard_examples(0)[:60]
    batch = maker.packed(examples)
    assert {0, 1} <= set(batch.pair_targets.tolist())
    original = batch.input_ids.clone()
    original[batch.masked_positions] = batch.masked_targets
    cls, sep = prepared.tokenizer.cls_id, prepared.tokenizer.sep_id
    for row, (start, end) in enumerate(zip(batch.sequence_starts, batch.sequence_starts[1:], strict=False)):
        a, b = (segment(prepared.train, examples, row, which) for which in "ab")
        if batch.pair_targets[row] == 1:
            a, b = b, a
        assert original[start:end].tolist() == [cls, *a, sep, *([*b, sep] if b else [])]


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_a_batch_is_learned_by_heart(prepared, family):
    objective, stream, maker, _ = data_of(prepared)
    batch = maker.packed(stream.shard_examples(0)[:8])
    torch.manual_seed(0)
    config = FAMILIES[family].config.from_preset("tiny", prepared.tokenizer.vocab_size, max_position_embeddings=48)
    # The last loss is to tell what was learned, not what that step dropped.
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model = objective.model_class(FAMILIES[family])(config)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=3e-3), []
    counts = objective.counts(batch)
    for _ in range(50):
        optimizer.zero_grad()
        sums = objective.loss_sums(model, batch)
        means = {name: total / counts[name] for name, total in sums.items()}
        sum(means.values()).backward()
        optimizer.step()
        losses.append({name: float(mean.detach()) for name, mean in means.items()})
    assert all(losses[-1][name] < 0.5 * losses[0][name] for name in ("mlm", "sop"))


def test_held_out_examples_are_frozen_and_evaluated_beside_the_majority(prepared):
    objective, *_, evaluation = data_of(prepared)
    other = data_of(prepared, examples=ExampleSettings(sequence_length=48, seed=7))[-1]
    for one, another in zip(vars(evaluation.examples).values(), vars(other.examples).values(), strict=True):
        assert np.array_equal(one, another)
    assert evaluation.shard_examples.seed == HELD_OUT_SEED and not evaluation.shard_examples.stored
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig.from_preset("tiny", prepared.tokenizer.vocab_size))
    found = evaluation(model, 60)
    labels = in_some_order(evaluation.examples[:60]).label
    ones = (labels[labels >= 0] == 1).mean()
    assert found["sop_majority"] == pytest.approx(max(ones, 1 - ones)) and found == evaluation(model, 60)


def test_held_out_windows_are_those_of_next_sentences(prepared):
    """Their A's, for some B's of those are exchanged between documents."""
    ours, theirs = (data_of(prepared, objective=name)[-1].examples for name in ("mlm+sop", "mlm+nsp"))
    for name in ("shard", "a_start", "a_length", "key"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    return pretrain(settings_of(prepared, tmp_path_factory.mktemp("order") / "run", dropout=0.1))


def test_a_bert_trains_and_is_evaluated_beside_its_baselines(finished):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert all({"mlm_loss", "sop_loss"} < row.keys() for row in rows if "learning_rate" in row)
    found = json.loads((finished / "results.json").read_text())["validation"]
    assert {name for name in found if name.startswith(("sop", "nsp"))} == set(SentenceOrder.metrics)
    assert 0.5 <= found["sop_majority"] < 0.7 and found["sop_loss"] == pytest.approx(0.69, abs=0.1)
    # The pair head has learned: it is not where it was drawn.
    assert BertForPreTraining.from_pretrained(finished / "final").nsp_head.bias.abs().min() > 0
    card = (finished / "final" / "README.md").read_text()
    assert "masked words (MLM) and the order of sentences (SOP)" in card and "| SOP accuracy |" in card
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_it_goes_on_to_the_bit(finished, prepared, stopped_at, capsys):
    stopped = stopped_at(finished, 8)
    pretrain(settings_of(prepared, stopped, dropout=0.1))
    assert f"Resuming from {stopped}/checkpoints/step-00000008." in capsys.readouterr().out
    ours, theirs = (load_file(out / "final" / "model.safetensors") for out in (stopped, finished))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_order_that_is_guessed_is_said_at_the_end(prepared):
    objective = make_objective(settings_of(prepared), prepared)
    found = {"mlm_loss": 5.0, "unigram_entropy": 6.9, "sop_accuracy": 0.51, "sop_majority": 0.5, "sop_loss": 0.69}
    rows = [{"step": step, "validation": found} for step in (10, 20)]
    shares = iter([0.5, 1.0])
    trouble = Trouble(objective, lambda: next(shares))
    assert not trouble.found(rows[:1])
    assert "SOP is still at chance (51.0% right, 50.0% by always one answer)" in trouble.found(rows)[0]
    better = Trouble(objective, lambda: 1.0)
    assert not better.found([replace_found(row, sop_accuracy=0.6) for row in rows])


def replace_found(row, **changes):
    return {**row, "validation": row["validation"] | changes}


@pytest.mark.parametrize("document, length", [("line", 48), ("blank-line", 12)])
def test_it_is_off_where_no_example_has_two_sentences_and_that_is_said(document, length, tmp_path, capsys):
    """Every document has one sentence, or no two of one document fit into an example."""
    lines = [f"the heart rate was {n} after {n * 7} days ." + "\n" * (n % 2) for n in range(400)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    prep = PrepSettings(corpus=(str(tmp_path / "lines.txt"),), document=document, line="sentence", workers=1)
    examples = ExampleSettings(sequence_length=length)
    prepared = prepare(prep, examples, tmp_path / "prepared")
    capsys.readouterr()
    out = pretrain(settings_of(prepared, tmp_path / "run", budget="2steps", evaluations=1, examples=examples))
    printed = capsys.readouterr().out
    assert "Sentence-order prediction is off: no example holds two sentences of a document." in printed
    assert json.loads((out / "results.json").read_text())["validation"]["sop_accuracy"] is None


def test_one_document_is_enough(tmp_path):
    """Next sentences need two."""
    lines = [f"the heart rate of patient {n} was {n * 7} after {n % 9} days ." for n in range(400)]
    (tmp_path / "one.txt").write_text("\n".join(lines))
    prep = PrepSettings(corpus=(str(tmp_path / "one.txt"),), document="file", line="sentence", workers=1)
    prepared = prepare(prep, ExampleSettings(sequence_length=48), tmp_path / "prepared")
    assert not prepared.next_sentence
    objective, stream, *_ = data_of(prepared)
    assert objective.name == "mlm+sop" and (stream.shard_examples(0).label == 0).mean() > 0.9


@pytest.mark.parametrize("other", ["mlm+nsp", "mlm"])
def test_a_run_does_not_go_on_with_another_objective(other, finished, prepared, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    with pytest.raises(PretrainError, match="objective: mlm.sop before, " + other.replace("+", ".")):
        pretrain(settings_of(prepared, out, dropout=0.1, objective=other))


def test_other_objectives_have_the_examples_they_had(prepared):
    _, stream, maker, _ = data_of(prepared, objective="mlm+nsp")
    assert stream.shard_examples.stored and not isinstance(maker, SentenceOrderBatches)
    computed = replace(stream.shard_examples, stored=())
    assert np.array_equal(computed(0).label, stream.shard_examples(0).label)
    kept = ShardExamples.of(prepared, "train", 48, 1, exchange=False)
    assert not kept.stored and set(kept(0).label.tolist()) <= {0, -100}
