"""Span boundaries: a brute-force loop over the spans, runs from beginning to end, and folders without their head."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import BertForPreTraining as TheirBert

from data_prep.examples.packing import ShardExamples
from data_prep.settings import ExampleSettings
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertConfig, BertForPreTraining
from pretrain.batches import BatchMaker, ExampleStream, TrainingPlan
from pretrain.build import make_data, make_model
from pretrain.engine.batches import Position
from pretrain.engine.distributed import World
from pretrain.engine.optimizer import Optimizer
from pretrain.fill_mask import MaskFiller
from pretrain.masked_words import MaskedWords, log_unigram
from pretrain.next_sentence import NextSentence
from pretrain.objectives import make_objective
from pretrain.resolve import resolve
from pretrain.run import main
from pretrain.sampled_softmax import entries
from pretrain.settings import PretrainSettings
from pretrain.span_boundary import (
    MOST_TARGETS,
    SpanBatchMaker,
    SpanBoundary,
    SpanBoundaryObjective,
    Spans,
    with_span_boundary_head,
)

SpanBert = with_span_boundary_head(BertForPreTraining)


@pytest.fixture(scope="module")
def examples(prepared):
    stream = ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1, next_sentence=False))
    return next(stream.batches(24, Position()))[0]


@pytest.fixture(scope="module")
def objective(prepared):
    counts = prepared.unigram_counts
    parts = [MaskedWords(counts), SpanBoundary(counts)]
    return SpanBoundaryObjective(parts, off=[NextSentence()], batch_maker=SpanBatchMaker)


def batch_of(prepared, examples, masking="span", share=0.15):
    maker = SpanBatchMaker(prepared.train, prepared.tokenizer, masking, 10**9, plan=TrainingPlan((share, share)))
    maker.begin(0, 0.0)
    return maker.packed(examples)


def tiny(prepared, **changes) -> SpanBert:
    torch.manual_seed(0)
    none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48, "hidden_size": 64}
    return SpanBert(BertConfig.from_preset("tiny", **sizes, **none, initializer_range=0.1, **changes))


def targets_of(batch, tokenizer) -> list[tuple[int, int, int, int]]:
    """Of each target its place, how far inside the span it is, and the places beside the span."""
    masked, found, place = set(batch.masked_positions.tolist()), [], 0
    special = {tokenizer.cls_id, tokenizer.sep_id}
    while place < batch.num_tokens:
        end = place
        while end in masked:
            end += 1
        if end > place and not {int(batch.input_ids[place - 1]), int(batch.input_ids[end])} & special:
            found += [(p, p - place, place - 1, end) for p in range(place, end)][:20]
        place = max(end, place + 1)
    return found


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_loss_and_gradients_are_those_of_a_loop_over_the_spans(prepared, examples, objective, share):
    batch, model = batch_of(prepared, examples, share=share), tiny(prepared)
    head, words = model.span_boundary_head, model.bert.embeddings.word.weight
    truth = dict(zip(batch.masked_positions.tolist(), batch.masked_targets.tolist(), strict=True))
    states = model.bert.encode(batch).last_hidden_state
    losses = []
    for place, offset, left, right in targets_of(batch, prepared.tokenizer):
        read = torch.cat([states[left], states[right], head.position.weight[offset]])
        hidden = F.layer_norm(F.gelu(head.first.weight @ read + head.first.bias), (64,), eps=1e-12)
        hidden = F.layer_norm(F.gelu(head.second.weight @ hidden + head.second.bias), (64,), eps=1e-12)
        losses.append(-(words @ hidden + head.bias).log_softmax(0)[truth[place]])
    expected = torch.stack(losses).sum()
    found = objective.loss_sums(model, batch)["sbo"]
    assert objective.counts(batch)["sbo"] == len(losses) > 20
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if "pooler" not in n), strict=True)
    ours, theirs = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (found, expected))
    for name, one, other in zip(names, ours, theirs, strict=True):
        # The norms of the loop have no parameters.
        if "span_boundary_head" not in name or "norm" not in name:
            assert (one is None) == (other is None), name
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * float(other.abs().max()), msg=name)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(masking=st.sampled_from(["span", "token"]), share=st.floats(0.05, 0.9), first=st.integers(0, 20))
def test_what_is_predicted_is_what_the_loop_finds(prepared, examples, masking, share, first):
    batch = batch_of(prepared, examples[first : first + 4], masking, share)
    tokenizer, places = prepared.tokenizer, batch.masked_positions
    spans = Spans.of(batch, (tokenizer.cls_id, tokenizer.sep_id))
    beside = (spans.boundaries[side] for side in (spans.left, spans.right))
    found = zip(*(t.tolist() for t in (places[spans.masked], spans.offset, *beside)), strict=True)
    assert list(found) == targets_of(batch, tokenizer)
    read = torch.cat([places, spans.boundaries])
    assert len(read.unique()) == len(read)
    per_example = np.histogram(read.numpy(), batch.sequence_starts.numpy())[0]
    assert spans.most_read == per_example.max()


def test_of_a_long_span_the_first_twenty_tokens_are_predicted_and_beside_a_special_token_none(prepared):
    maker = BatchMaker(prepared.train, prepared.tokenizer, "span", 10**9)
    stream = ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1, next_sentence=False))
    examples = next(stream.batches(64, Position()))[0]
    longest = examples[np.argsort(examples.lengths())[-1:]]
    batch, length = maker.packed(longest), int(longest.lengths()[0])
    assert length > 30
    for places, count in ((range(2, 28), MOST_TARGETS), (range(1, 9), 0), (range(20, length - 1), 0), ([5], 1)):
        masked = torch.tensor(list(places))
        chosen = replace(batch, masked_positions=masked, masked_targets=batch.input_ids[masked])
        spans = Spans.of(chosen, maker.rules.fixed_ids)
        assert len(spans.masked) == count
        assert spans.offset.tolist() == list(range(count))


def test_a_sample_of_all_entries_is_the_whole_vocabulary(prepared, examples, objective):
    batch, model = batch_of(prepared, examples), tiny(prepared)
    everything = np.ones(prepared.tokenizer.vocab_size, dtype=np.float32)
    sampled = replace(batch, entries=entries(everything, batch.masked_targets.numpy()))
    ours, all_of_them = objective.loss_sums(model, sampled), objective.loss_sums(model, batch)
    for name in ("mlm", "sbo"):
        assert float(ours[name].detach()) == pytest.approx(float(all_of_them[name].detach()), rel=1e-5)


@pytest.mark.parametrize("masking", ["span", "token"])
def test_a_batch_without_targets_gives_every_parameter_a_gradient(prepared, objective, masking):
    """A process that has no example takes part in the sums of gradients."""
    maker, model = SpanBatchMaker(prepared.train, prepared.tokenizer, masking, 4096), tiny(prepared)
    objective.freeze_unused(model)
    batch = maker.empty_batch()
    assert objective.counts(batch) == {"mlm": 0, "sbo": 0}
    sum(objective.loss_sums(model, batch).values()).backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_muon_leaves_the_head_to_adamw(prepared):
    model = tiny(prepared)
    adamw, muon = Optimizer(model, "muon", 1e-3, 0.1).parts
    of_muon, of_adamw = ({id(p) for group in part.param_groups for p in group["params"]} for part in (muon, adamw))
    assert of_muon == {id(p) for p in model.layer_matrices()}
    assert {id(p) for p in model.span_boundary_head.parameters()} <= of_adamw


def test_no_folder_has_the_head_and_each_opening_draws_one(prepared, tmp_path):
    model = tiny(prepared)
    model.save_pretrained(tmp_path)
    plain = BertForPreTraining.from_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == {
        name for own in plain.state_dict() for name in plain.names.of(own)
    }
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForPreTraining"]
    _, loading = TheirBert.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["unexpected_keys"] and not loading["mismatched_keys"] and not loading["missing_keys"]
    torch.manual_seed(5)
    opened = SpanBert.from_pretrained(tmp_path)
    assert opened.newly_initialised == ()
    head, saved = opened.span_boundary_head, model.span_boundary_head
    assert not torch.equal(head.first.weight, saved.first.weight) and head.second_norm.weight.eq(1).all()
    assert float(head.first.weight.detach().std()) == pytest.approx(0.1 * 0.88, rel=0.1) and not head.bias.any()
    assert torch.equal(opened.bert.embeddings.word.weight, model.bert.embeddings.word.weight)


def settings_of(prepared, **changes):
    examples = ExampleSettings(sequence_length=48, masking="span")
    chosen = {"preset": "tiny", "precision": "fp32", "device": "cpu", "objective": "mlm+sbo", **changes}
    return resolve(PretrainSettings(prepared=str(prepared.folder), examples=examples, **chosen))


def test_a_model_that_gets_new_entries_gets_a_head_that_knows_the_frequencies_of_all(prepared, tmp_path):
    whole = prepared.tokenizer
    fewer = WordPieceTokenizer(whole.vocabulary[:-3], whole.lowercase, whole.strip_accents)
    config = BertConfig.from_preset("tiny", vocab_size=fewer.vocab_size, max_position_embeddings=48)
    BertForPreTraining(config).save_pretrained(tmp_path)
    fewer.save(tmp_path, 48)
    chosen = replace(settings_of(prepared), preset="auto", init_from=str(tmp_path), keep_layers="all")
    bias = make_model(chosen, prepared, make_objective(chosen, prepared)).span_boundary_head.bias
    np.testing.assert_allclose(bias.detach().numpy(), log_unigram(prepared.unigram_counts), rtol=1e-5)


def test_masked_words_are_scored_on_the_same_tokens_as_in_every_run(prepared):
    both, words = settings_of(prepared), settings_of(prepared, objective="mlm")
    model = make_model(both, prepared, make_objective(both, prepared)).eval()
    found, expected = (
        make_data(chosen, prepared, make_objective(chosen, prepared), World())[2](model, 60) for chosen in (both, words)
    )
    assert expected.keys() < found.keys()
    assert {name: found[name] for name in expected} == expected
    # Spans are those of the masks of spans, the baselines those of word frequencies, by hand.
    evaluation = make_data(both, prepared, make_objective(both, prepared), World())[2]
    examples = evaluation.examples[:60]
    batch = SpanBatchMaker(prepared.validation, prepared.tokenizer, "span", 10**9).packed(examples)
    truth = dict(zip(batch.masked_positions.tolist(), batch.masked_targets.tolist(), strict=True))
    targets = np.array([truth[place] for place, *_ in targets_of(batch, prepared.tokenizer)])
    assert found["sbo_unigram_entropy"] == pytest.approx(-log_unigram(prepared.unigram_counts)[targets].mean())
    most = prepared.unigram_counts.argmax()
    assert found["sbo_most_frequent_accuracy"] == pytest.approx((targets == most).mean())
    # A fresh head knows as much.
    assert found["sbo_loss"] == pytest.approx(found["sbo_unigram_entropy"], rel=0.02)


def arguments(prepared, out, **options):
    given = {"prepared": prepared.folder, "out": out, "budget": "16steps", "preset": "tiny", "sequence-length": 48}
    given |= {"batch-size": 8, "log-every": 4, "evaluations": 2, "dropout": 0.1, "device": "cpu", "precision": "fp32"}
    given |= {"objective": "mlm+sbo", "masking": "span", "checkpoint-every": "8steps", "keep-checkpoints": 9} | options
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("span") / "run"
    assert main(arguments(prepared, out)) == 0
    return out


def test_a_batch_is_learned_by_heart(prepared, examples, objective):
    batch, model = batch_of(prepared, examples), tiny(prepared)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=3e-3), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = objective.loss_sums(model, batch)["sbo"] / objective.counts(batch)["sbo"]
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_a_run_says_what_it_learned(finished):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert all({"mlm_loss", "sbo_loss"} < row.keys() for row in rows if "learning_rate" in row)
    found = json.loads((finished / "results.json").read_text())["validation"]
    assert found["sbo_loss"] == pytest.approx(found["sbo_unigram_entropy"], abs=0.3) and found["nsp_loss"] is None
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    card = (finished / "final" / "README.md").read_text()
    assert "masked words (MLM) and the tokens of spans from their boundaries (SBO)" in card and "| SBO loss" in card


def test_its_model_is_a_plain_bert_and_fills_masks(finished):
    _, loading = TheirBert.from_pretrained(finished / "final", output_loading_info=True)
    assert not loading["unexpected_keys"] and not loading["missing_keys"]
    assert not list((finished / "final").rglob("heads.safetensors"))
    assert len(MaskFiller(finished / "final")(["the [MASK] was measured"], 3)[0][0]) == 3
    for checkpoint in (finished / "checkpoints").iterdir():
        assert (checkpoint / "training_state" / "heads.safetensors").exists()
        assert not any("span" in name for name in load_file(checkpoint / "model.safetensors"))


def test_it_goes_on_to_the_bit_with_its_head(finished, prepared, stopped_at, capsys):
    stopped = stopped_at(finished, 8)
    assert main(arguments(prepared, stopped)) == 0
    assert f"Resuming from {stopped}/checkpoints/step-00000008." in capsys.readouterr().out
    last = "checkpoints/step-00000016/training_state"
    for name in (
        "final/model.safetensors",
        *(f"{last}/{n}.safetensors" for n in ("heads", "optimizer")),
    ):
        ours, theirs = (load_file(out / name) for out in (stopped, finished))
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours), name


def test_a_model_that_is_continued_gets_a_head_that_knows_word_frequencies(finished, prepared, tmp_path, capsys):
    out = tmp_path / "run"
    given = arguments(prepared, out, budget="1steps", preset=None, **{"init-from": finished / "final"})
    assert main([*given, "--learning-rate=1e-9"]) == 0
    assert "at random" not in capsys.readouterr().out
    found = json.loads((out / "results.json").read_text())["validation"]
    assert found["sbo_loss"] == pytest.approx(found["sbo_unigram_entropy"], rel=0.05)
    before = json.loads((finished / "results.json").read_text())["validation"]
    assert found["mlm_loss"] == pytest.approx(before["mlm_loss"], rel=0.2)


def test_a_plan_of_a_run(prepared, tmp_path, capsys):
    assert main([*arguments(prepared, tmp_path / "run"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "SBO loss" in printed and not (tmp_path / "run").exists()


@pytest.mark.parametrize("masking", ["token", "whole-word", "ngram"])
def test_other_maskings_are_refused_before_anything_is_written(masking, prepared, tmp_path, capsys):
    assert main(arguments(prepared, tmp_path / "run", masking=masking)) == 2
    said = capsys.readouterr().err
    assert f"--masking {masking}: give --masking span" in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_go_on_with_another_objective(finished, prepared, tmp_path, capsys):
    out = shutil.copytree(finished, tmp_path / "run")
    assert main(arguments(prepared, out, objective="mlm", budget="24steps")) == 2
    assert "objective: mlm+sbo before, mlm now" in capsys.readouterr().err


def test_spans_without_their_boundaries_train_as_well(prepared, tmp_path):
    for masking, objective in (("span", "mlm"), ("ngram", "mlm+nsp")):
        out = tmp_path / masking
        assert main(arguments(prepared, out, budget="2steps", masking=masking, objective=objective)) == 0
        assert not list(out.rglob("heads.safetensors"))
        assert "sbo_loss" not in json.loads((out / "results.json").read_text())["validation"]


def test_a_held_out_batch_maker_takes_the_place_of_the_usual_one(prepared, examples):
    """The same inputs and masked positions, whatever is made of them."""
    usual = BatchMaker(prepared.train, prepared.tokenizer, "token", 10**9).packed(examples)
    ours = SpanBatchMaker(prepared.train, prepared.tokenizer, "token", 10**9).packed(examples)
    assert all(torch.equal(getattr(ours, name), getattr(usual, name)) for name in ("input_ids", "masked_positions"))
