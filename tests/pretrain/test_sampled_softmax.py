"""A sampled softmax against the full one, and a share of targets that falls: what a step predicts, and among what."""

import copy

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.examples.packing import ShardExamples
from data_prep.settings import ExampleSettings
from model import BertConfig, BertForPreTraining
from pretrain import masked_words
from pretrain.batches import BatchMaker, ExampleStream, TrainingPlan
from pretrain.build import make_data
from pretrain.engine.batches import Position
from pretrain.engine.distributed import World
from pretrain.masked_words import cross_entropy_sum
from pretrain.objectives import bert_objective
from pretrain.pretraining import resolved
from pretrain.run import main
from pretrain.sampled_softmax import EntrySampler, entries, inclusion
from pretrain.settings import PretrainSettings

SIZE = 300


@pytest.fixture(scope="module")
def counts():
    return np.random.default_rng(0).integers(0, 1000, SIZE)


def by_the_formula(logits, targets, weights):
    """-l[t] + log(exp(l[t]) + sum over s != t of w[s] exp(l[s])) of all entries, in float64."""
    rows = torch.arange(len(targets))
    others = torch.from_numpy(weights).double().repeat(len(targets), 1)
    others[rows, targets] = 1.0
    return ((others * logits.exp()).sum(1).log() - logits[rows, targets]).sum()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 300), st.integers(0, 99), st.floats(0.1, 8))
def test_loss_and_gradient_are_those_of_the_formula(rows, drawn, seed, spread):
    torch.manual_seed(seed)
    counts = np.random.default_rng(seed).integers(0, 1000, SIZE)
    weights = EntrySampler(counts, seed, drawn).draw(seed)
    full = (torch.randn(rows, SIZE, dtype=torch.float64) * spread).requires_grad_()
    targets = torch.randint(SIZE, (rows,))
    chosen = entries(weights, targets.numpy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masked_words._SCORES_AT_ONCE, "cpu", 500)
        ours = cross_entropy_sum(full.float()[:, chosen.ids], chosen.targets, chosen.log_weights)
    (gradient,) = torch.autograd.grad(ours, full)
    expected = by_the_formula(full, targets, weights)
    (expected_gradient,) = torch.autograd.grad(expected, full)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-3)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


def test_the_sum_under_the_softmax_is_estimated_without_bias(counts):
    exponentials = np.exp(np.random.default_rng(1).normal(size=SIZE) * 2)
    sampler = EntrySampler(counts, 3, drawn=60)
    sums = np.array([(sampler.draw(step) * exponentials).sum() for step in range(4000)])
    error = sums.std() / np.sqrt(len(sums))
    assert sums.std() > 0.05 * sums.mean() and abs(sums.mean() - exponentials.sum()) < 4 * error


def test_entries_are_drawn_as_often_as_they_should_be_and_stand_for_what_is_left_out(counts):
    sampler = EntrySampler(counts, 3, drawn=60)
    draws = np.array([sampler.draw(step) for step in range(4000)])
    share, expected = (draws > 0).mean(0), sampler.probability
    # Of 300 binomial shares over 4,000 draws none is five standard deviations off, and half are one third of it.
    errors = abs(share - expected) / np.sqrt(np.maximum(expected * (1 - expected), 1e-9) / 4000)
    assert errors.max() < 5 and 0.5 < np.median(errors) < 0.85
    assert np.allclose(draws[draws > 0], np.broadcast_to(1 / expected, draws.shape)[draws > 0])
    assert (sampler.draw(7) == draws[7]).all() and (EntrySampler(counts, 4, 60).draw(7) != draws[7]).any()


@settings(max_examples=100)
@given(st.lists(st.integers(0, 10**7), min_size=2, max_size=200), st.floats(0, 1))
def test_probabilities_are_roots_of_counts_and_add_up(found, share):
    found = np.array(found)
    drawn = max(1, round(share * len(found)))
    probability = inclusion(found, drawn)
    assert probability.sum() == pytest.approx(drawn) and probability.max() <= 1
    uncertain = probability < 1
    ratio = probability[uncertain] / np.sqrt(np.maximum(found[uncertain], 1))
    assert np.allclose(ratio, ratio[:1]) and (np.diff(probability[np.argsort(found)]) >= -1e-12).all()


def test_a_vocabulary_that_is_drawn_whole_is_scored_in_full(counts):
    chosen = entries(EntrySampler(counts, 1, drawn=SIZE).draw(0), np.array([5, 7]))
    assert len(chosen.ids) == SIZE and (chosen.log_weights == 0).all()


@pytest.fixture(scope="module")
def material(prepared):
    """A model, an objective, the examples of a global batch, and a plan that samples."""
    torch.manual_seed(0)
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    no_dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    model = BertForPreTraining(BertConfig.from_preset("tiny", **sizes, **no_dropout)).double()
    stream = ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1))
    examples, _ = next(stream.batches(24, Position()))
    plan = TrainingPlan((0.4, 0.15), EntrySampler(prepared.unigram_counts, 1, drawn=40))
    return model, bert_objective(prepared.unigram_counts), examples, plan


def gradients(prepared, material, tokens, step):
    model, objective, examples, plan = material
    model = copy.deepcopy(model)
    maker = BatchMaker(prepared.train, prepared.tokenizer, "token", tokens, plan=plan)
    maker.begin(step, 0.2)
    total = 0.0
    for batch in maker.micro_batches(examples):
        loss = objective.loss_sums(model, batch)["mlm"]
        loss.backward()
        total += loss.item()
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tokens", [300, 1])
def test_a_step_is_the_same_however_it_is_divided(prepared, material, tokens):
    whole, expected = gradients(prepared, material, 10**9, step=3)
    parts, found = gradients(prepared, material, tokens, step=3)
    other, _ = gradients(prepared, material, 10**9, step=4)
    assert parts == pytest.approx(whole, rel=1e-6) and other != pytest.approx(whole, rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)


def test_the_share_of_targets_falls_over_the_budget(prepared, material):
    _, _, examples, plan = material
    maker = BatchMaker(prepared.train, prepared.tokenizer, "token", 10**9, plan=plan)
    lengths = examples.lengths()
    for used, share in ((0.0, 0.4), (0.5, 0.275), (1.0, 0.15)):
        maker.begin(0, used)
        batch = maker.packed(examples)
        wanted = np.maximum(1, np.rint(share * lengths)).sum()
        assert len(batch.masked_positions) == wanted
    without = BatchMaker(prepared.train, prepared.tokenizer, "token", 10**9).packed(examples)
    # At the end of the budget the very tokens are masked that BERT would mask.
    assert batch.masked_positions.equal(without.masked_positions) and without.entries is None


def test_a_run_samples_and_its_held_out_results_know_nothing_of_it(prepared, material, tmp_path, monkeypatch):
    # Of a small vocabulary nothing is sampled.
    monkeypatch.setattr("pretrain.build.DRAWN", 20)
    model, objective, examples, _ = material
    found = {}
    for softmax in ("sampled", "full"):
        chosen = PretrainSettings(prepared=str(prepared.folder), preset="tiny", device="cpu", precision="fp32",
                                  softmax=softmax, examples=ExampleSettings(sequence_length=48))  # fmt: skip
        _, maker, evaluation = make_data(resolved(chosen, tmp_path / "run"), prepared, objective, World())
        maker.begin(0, 0.0)
        found[softmax] = (maker.packed(examples).entries is not None, evaluation(model, 50))
    assert found["sampled"][0] and not found["full"][0]
    assert found["sampled"][1] == found["full"][1]


def run(prepared, out, budget, *more):
    given = {"prepared": prepared.folder, "out": out, "budget": budget, "preset": "tiny", "sequence-length": 48,
             "batch-size": 8, "device": "cpu", "precision": "fp32", "evaluations": 2, "schedule": "warmup-stable-decay",
             "warmup": 0}  # fmt: skip
    return main([*(f"--{name}={value}" for name, value in given.items()), *more])


def test_a_run_that_samples_is_watched_and_learns_the_same(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr("pretrain.build.DRAWN", 20)
    weights = []
    for more in ([], ["--detect-anomaly"]):
        assert run(prepared, tmp_path / f"run-{len(more)}", "4steps", "--softmax=sampled", *more) == 0
        weights.append((tmp_path / f"run-{len(more)}" / "final" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_a_run_of_an_older_version_goes_on_with_what_it_did(prepared, tmp_path):
    out = tmp_path / "run"
    assert run(prepared, out, "8steps", "--mask-share=0.15", "--softmax=full") == 0
    path = out / "settings.yaml"
    older = {k: v for k, v in yaml.safe_load(path.read_text()).items() if k not in ("mask_share", "softmax")}
    path.write_text(yaml.safe_dump(older))
    assert run(prepared, out, "12steps") == 0
    settings_now = yaml.safe_load(path.read_text())
    assert settings_now["mask_share"] == 0.15 and settings_now["softmax"] == "full"
    assert run(prepared, tmp_path / "new", "2steps") == 0
    settings_now = yaml.safe_load((tmp_path / "new" / "settings.yaml").read_text())
    assert settings_now["mask_share"] == [0.4, 0.15] and settings_now["softmax"] == "sampled"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--mask-share=0.4,0.3,0.2", "--mask-share has 3 numbers"),
        ("--mask-share=15", "--mask-share 15.0 is out of range"),
        ("--mask-share=0.4,0", "--mask-share 0.0 is out of range"),
        ("--mask-share=some", "'some' is not a number or several with commas or auto"),
        ("--softmax=half", "'half' is not one of auto, full, sampled"),
    ],
)
def test_mistakes_are_refused(given, words, prepared, tmp_path, capsys):
    assert run(prepared, tmp_path / "run", "2steps", given) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1 and not (tmp_path / "run").exists()
