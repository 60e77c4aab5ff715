import math
from contextlib import nullcontext
from itertools import combinations

import numpy as np
import pytest
import torch

from data_prep.examples.packing import ShardExamples
from data_prep.preparation import prepare
from data_prep.prepared import PreparedCorpus
from data_prep.settings import PrepSettings
from pretrain.batches import BatchMaker
from pretrain.build import make_data, make_model
from pretrain.engine.distributed import World
from pretrain.engine.settings import Budget, PretrainError
from pretrain.evaluate import Evaluation
from pretrain.objectives import bert_objective, make_objective
from pretrain.resolve import resolve
from pretrain.settings import ExampleSettings, PretrainSettings


def settings_of(prepared, seed=1, masking="token", **changes):
    examples = ExampleSettings(sequence_length=48, seed=seed, masking=masking)
    chosen = {"preset": "tiny", "precision": "fp32", "device": "cpu", **changes}
    return resolve(PretrainSettings(prepared=str(prepared.folder), examples=examples, **chosen))


def evaluation_of(prepared, settings):
    objective = make_objective(settings, prepared)
    return make_data(settings, prepared, objective, World())[2]


def model_of(prepared, settings):
    return make_model(settings, prepared, make_objective(settings, prepared))


def test_a_fresh_model_starts_at_the_unigram_entropy(prepared):
    settings = settings_of(prepared)
    found = evaluation_of(prepared, settings)(model_of(prepared, settings), 10**6)
    assert found["mlm_loss"] == pytest.approx(found["unigram_entropy"], rel=0.02)
    assert found["nsp_loss"] == pytest.approx(math.log(2), rel=0.02)


def test_an_evaluation_repeats_exactly_and_leaves_the_mode_alone(prepared):
    settings = settings_of(prepared, dropout=0.5)
    model = model_of(prepared, settings).train()
    evaluation = evaluation_of(prepared, settings)
    assert evaluation(model, 50) == evaluation(model, 50)
    assert model.training
    model.eval()
    evaluation(model, 5)
    assert not model.training


def test_an_evaluation_that_does_not_fit_is_computed_in_smaller_parts(prepared, monkeypatch, capsys):
    settings = settings_of(prepared)
    model, evaluation = model_of(prepared, settings), evaluation_of(prepared, settings)
    expected = evaluation(model, 50)
    room, scores = 200, evaluation.objective.score_sums

    def scarce(model, batch):
        if batch.num_tokens > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return scores(model, batch)

    monkeypatch.setattr(evaluation.objective, "score_sums", scarce)
    assert evaluation(model, 50) == pytest.approx(expected, rel=1e-5)
    assert "Out of GPU memory" in capsys.readouterr().err and evaluation.maker.micro_batch_tokens <= room
    evaluation(model, 50)
    assert not capsys.readouterr().err, "the smaller size stays"
    room = 10
    with pytest.raises(PretrainError, match="too small for .* tokens at once"):
        evaluation(model, 50)


def test_the_seed_of_the_run_does_not_touch_the_held_out_examples(prepared):
    one, other = (evaluation_of(prepared, settings_of(prepared, seed=seed)).examples for seed in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


def test_a_model_scores_the_same_whatever_masking_it_is_trained_with(corpus_file, tmp_path):
    # So small a vocabulary cuts most words into pieces.
    prep = PrepSettings(corpus=(str(corpus_file),), vocab_size=128, workers=1)
    prepared = prepare(prep, ExampleSettings(sequence_length=48), tmp_path / "prepared")
    token, *others = (settings_of(prepared, masking=name) for name in ("token", "whole-word", "span", "ngram"))
    model = model_of(prepared, token)
    found = evaluation_of(prepared, token)(model, 40)
    assert all(evaluation_of(prepared, other)(model, 40) == found for other in others)
    # In training no two mask alike.
    drawn = [make_data(s, prepared, make_objective(s, prepared), World())[1] for s in (token, *others)]
    examples = evaluation_of(prepared, token).examples[:40]
    masked = [maker.packed(examples).masked_positions for maker in drawn]
    assert not any(torch.equal(one, other) for one, other in combinations(masked, 2))


def test_numbers_equal_a_count_example_by_example(prepared):
    prepared, draw = PreparedCorpus(prepared.folder), np.random.default_rng(1)
    # The made-up text has hardly a copy.
    prepared.validation_copied = [draw.random(len(shard.ids)) < 0.3 for shard in prepared.validation]
    settings = settings_of(prepared)
    model = model_of(prepared, settings).eval()
    evaluation = evaluation_of(prepared, settings)
    nll, hits, unigram, frequent, nsp_hits, labels, fresh = [], [], [], [], [], [], []
    counts = prepared.unigram_counts
    probability = (counts + 1) / (counts.sum() + len(counts))
    for row in range(30):
        batch = evaluation.maker.packed(evaluation.examples[row : row + 1])
        with torch.no_grad():
            mlm, nsp = model.forward_packed(batch, batch.masked_positions)
        for logits, label in zip(mlm, batch.masked_targets.tolist(), strict=True):
            nll.append(-float(logits.log_softmax(-1)[label]))
            hits.append(int(logits.argmax()) == label)
            unigram.append(-math.log(probability[label]))
            frequent.append(label == int(counts.argmax()))
        example = evaluation.examples[row : row + 1]
        copied = prepared.validation_copied[int(example.shard[0])]
        a, b = int(example.a_start[0]), int(example.b_start[0])
        marks = [0, *copied[a : a + int(example.a_length[0])], 0, *copied[b : b + int(example.b_length[0])], 0]
        fresh += [not marks[position] for position in batch.masked_positions.tolist()]
        label = int(batch.pair_targets[0])
        if label >= 0:
            labels.append(label)
            nsp_hits.append(int(nsp[0].argmax()) == label)
    found = evaluation(model, 30)
    assert found["mlm_loss"] == pytest.approx(np.mean(nll), rel=1e-5)
    assert found["mlm_perplexity"] == pytest.approx(math.exp(np.mean(nll)), rel=1e-4)
    assert found["mlm_accuracy"] == pytest.approx(np.mean(hits))
    assert found["unigram_entropy"] == pytest.approx(np.mean(unigram))
    assert found["most_frequent_accuracy"] == pytest.approx(np.mean(frequent))
    assert found["nsp_accuracy"] == pytest.approx(np.mean(nsp_hits))
    assert found["nsp_majority"] == pytest.approx(max(np.mean(labels), 1 - np.mean(labels)))
    assert found["mlm_copied"] == pytest.approx(1 - np.mean(fresh))
    assert found["mlm_loss_without_copies"] == pytest.approx(np.mean(np.array(nll)[fresh]), rel=1e-5)
    assert found["mlm_accuracy_without_copies"] == pytest.approx(np.mean(np.array(hits)[fresh]))
    assert found["unigram_entropy_without_copies"] == pytest.approx(np.mean(np.array(unigram)[fresh]))


def test_a_corpus_whose_copies_were_not_marked_is_evaluated_without_them(corpus_file, tmp_path):
    prep = PrepSettings(corpus=(str(corpus_file),), workers=1)
    old = prepare(prep, ExampleSettings(sequence_length=48), tmp_path / "prepared")
    del old.manifest["files"]["validation_copied.npy"]
    settings = settings_of(old)
    found = evaluation_of(old, settings)(model_of(old, settings), 20)
    assert "mlm_loss" in found and not [name for name in found if "cop" in name]


def test_the_plan_keeps_to_its_shares_of_a_counted_budget(prepared):
    settings = settings_of(prepared)
    evaluation = evaluation_of(prepared, settings)
    model = model_of(prepared, settings)
    everything = len(evaluation.examples)
    small = evaluation.plan(model, Budget.parse("100steps"), 100.0, 10)
    assert small.during == small.final == min(64, everything) and small.reserve == 0
    large = evaluation.plan(model, Budget.parse("1Bsteps"), 1e9, 10)
    assert large.during == min(2000, everything) and large.final == everything


def test_held_out_text_without_a_labelled_pair_has_no_pair_numbers(prepared):
    settings = settings_of(prepared)
    evaluation = evaluation_of(prepared, settings)
    evaluation.examples.label[:] = -100
    found = evaluation(model_of(prepared, settings), 20)
    assert "mlm_loss" in found and not any(name.startswith("nsp") for name in found)


def test_masked_words_alone_have_no_pair_numbers(prepared):
    objective = bert_objective(prepared.unigram_counts, next_sentence=False)
    maker = BatchMaker(prepared.validation, prepared.tokenizer, "token", 4096)
    model = model_of(prepared, settings_of(prepared))
    found = Evaluation(ShardExamples.of(prepared, "validation", 48), objective, maker, nullcontext, World())(model, 20)
    assert not any(name.startswith("nsp") for name in found)
