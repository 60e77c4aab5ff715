"""How much next sentences count beside masked words, and how fast their head learns."""

import copy
import json

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from data_prep.examples.packing import ShardExamples
from model import BertConfig, BertForPreTraining
from pretrain.batches import BatchMaker, ExampleStream
from pretrain.engine.batches import Position
from pretrain.engine.optimizer import Optimizer
from pretrain.engine.settings import PretrainError
from pretrain.objectives import bert_objective
from pretrain.resolve import resolve
from pretrain.run import main
from pretrain.settings import PretrainSettings

OF_PAIRS = ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "nsp_head.weight", "nsp_head.bias")


@pytest.fixture
def model(prepared):
    torch.manual_seed(0)
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    return BertForPreTraining(BertConfig.from_preset("tiny", **sizes)).eval()


@pytest.fixture
def batch(prepared):
    examples, _ = next(ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1)).batches(24, Position()))
    return BatchMaker(prepared.train, prepared.tokenizer, "token", 10**9).packed(examples)


@pytest.mark.parametrize(
    ("given", "weight", "rate"),
    [
        ({}, 0.35, 0.03),
        ({"pair_weight": 2.0}, 2.0, 0.03),
        ({"pair_rate": 1.0}, 0.35, 1.0),
        ({"optimizer": "adamw"}, 1.0, 1.0),
        ({"optimizer": "adamw", "pair_rate": 0.3}, 1.0, 0.3),
        ({"objective": "mlm"}, 1.0, 1.0),
        ({"objective": "mlm+sop"}, 1.0, 1.0),
        ({"objective": "electra"}, 1.0, 1.0),
        ({"family": "albert"}, 1.0, 1.0),
        ({"init_from": "a-bert"}, 1.0, 1.0),
        ({"teacher": "a-bert"}, 1.0, 1.0),
    ],
)
def test_a_fresh_bert_that_learns_next_sentences_has_less_of_both(given, weight, rate):
    config = BertConfig.from_preset("tiny", 100) if {"init_from", "teacher"} & given.keys() else None
    settings = resolve(PretrainSettings(device="cpu", **given), config)
    assert settings.of_pairs == {"weight": weight, "rate": rate}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"pair_weight": 0.0},
            "--pair-weight 0 is out of range: give 0.01 to 100, or --objective mlm to learn nothing from pairs",
        ),
        ({"pair_rate": 11.0}, "--pair-rate 11 is out of range: give 0.01 to 10"),
        ({"pair_weight": float("nan")}, "--pair-weight nan is out of range"),
        (
            {"pair_weight": 0.5, "objective": "mlm"},
            "--pair-weight 0.5 is for --objective mlm+nsp or mlm+sop, which learn from pairs, not mlm: leave it "
            "out, or give --pair-weight auto if a --config names it",
        ),
        (
            {"pair_rate": 0.5, "objective": "electra"},
            "--pair-rate 0.5 is for --objective mlm+nsp or mlm+sop, which learn from pairs, not electra",
        ),
    ],
)
def test_what_cannot_be_is_said(given, said):
    with pytest.raises(PretrainError, match=said.replace("+", r"\+")):
        PretrainSettings(**given)


def test_the_gradient_is_that_of_the_words_and_as_much_of_that_of_the_pairs(model, batch, prepared):
    def gradient(*names, weight=1.0):
        twin = copy.deepcopy(model)
        sums = bert_objective(prepared.unigram_counts, weight=weight).loss_sums(twin, batch)
        sum(sums[name] for name in names).backward()
        return {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}

    words, pairs, both = gradient("mlm"), gradient("nsp"), gradient("mlm", "nsp", weight=0.25)
    assert both.keys() == words.keys() | pairs.keys()
    for name, found in both.items():
        expected = words.get(name, 0) + 0.25 * pairs.get(name, torch.zeros_like(found))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_pooler_and_head_move_by_their_share_and_nothing_else_does(model, kind, prepared):
    twin = copy.deepcopy(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rates = bert_objective(prepared.unigram_counts, rate=0.1).rates(twin)
    for owner, given in ((model, None), (twin, rates)):
        optimizer = Optimizer(owner, kind, 1e-2, 0.1, rates=given)
        optimizer.set_learning_rate(1e-2)
        for number, parameter in enumerate(owner.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        optimizer.step()
    for name, parameter in twin.named_parameters():
        share = 0.1 if name in OF_PAIRS else 1.0
        expected = before[name] + share * (model.get_parameter(name) - before[name])
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-7)


def test_the_best_model_is_judged_by_what_is_learned():
    assert bert_objective(np.ones(1), weight=4.0).judge({"mlm_loss": 1.0, "nsp_loss": 2.0}) == [9.0]


def test_where_all_learn_alike_there_are_no_rates(model, prepared):
    assert bert_objective(prepared.unigram_counts).rates(model) is None
    assert bert_objective(prepared.unigram_counts, next_sentence=False, rate=0.1).rates(model) is None


def arguments(corpus, out, *more):
    small = ["--preset=tiny", "--sequence-length=48", "--batch-size=8", "--vocab-size=128", "--device=cpu"]
    return [f"--corpus={corpus}", f"--out={out}", "--budget=6steps", "--workers=1", "--threads=1", *small, *more]


OBJECTIVES = pytest.mark.parametrize("more", [[], ["--objective=mlm+sop", "--family=albert"]], ids=["nsp", "sop"])


@OBJECTIVES
def test_a_run_learns_pairs_at_the_rate_that_its_settings_name(more, corpus_file, tmp_path):
    """After one step from the same start, weights differ by as much as the rates do."""
    found = {}
    for rate in (1.0, 0.5, 0.1):
        out = tmp_path / str(rate)
        assert main([*arguments(corpus_file, out, *more), "--budget=1steps", f"--pair-rate={rate}"]) == 0
        assert f"| pair_rate | {rate} |" in (out / "final" / "README.md").read_text()
        found[rate] = load_file(next((out / "checkpoints").glob("step-*")) / "model.safetensors")
    assert found[1.0].keys() == found[0.1].keys()
    moved = {name: found[1.0][name] - found[0.1][name] for name in found[1.0]}
    some = {name: found[0.5][name] - found[0.1][name] for name in found[1.0]}
    of_pairs = {name for name in moved if moved[name].any()}
    parts = ("pooler", "seq_relationship", "sop_classifier")
    assert of_pairs and all(any(part in name for part in parts) for name in of_pairs)
    for name in of_pairs:
        torch.testing.assert_close(some[name], moved[name] * 0.4 / 0.9, rtol=1e-2, atol=1e-7)


def test_a_run_of_an_older_version_goes_on_as_it_began(corpus_file, tmp_path, stopped_at):
    """Its settings name neither weight nor rate: both are 1."""
    small = arguments(corpus_file, tmp_path / "run", "--checkpoint-every=3steps", "--keep-checkpoints=4")
    assert main([*small, "--muon-matrices=layers", "--pair-weight=1", "--pair-rate=1"]) == 0
    older = stopped_at(tmp_path / "run", 3)
    path = older / "settings.yaml"
    lines = path.read_text().splitlines(True)
    kept = [line for line in lines if not line.startswith(("muon_matrices", "pair_weight", "pair_rate"))]
    assert len(kept) == len(lines) - 3
    path.write_text("".join(kept))
    assert main([*small, f"--out={older}"]) == 0
    said = yaml.safe_load(path.read_text())
    assert (said["pair_weight"], said["pair_rate"]) == (1, 1)
    one, other = (load_file(folder / "final" / "model.safetensors") for folder in (tmp_path / "run", older))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@OBJECTIVES
def test_a_run_weighs_pairs_as_its_settings_say(more, corpus_file, tmp_path):
    """A loss is written down without its weight, as that of held-out examples is."""
    first, held_out, name = {}, {}, "sop_loss" if more else "nsp_loss"
    for weight in (1.0, 0.25):
        out = tmp_path / str(weight)
        given = [*arguments(corpus_file, out, *more), "--budget=1steps", "--log-every=1"]
        assert main([*given, f"--pair-weight={weight}"]) == 0
        assert f"| pair_weight | {weight} |" in (out / "final" / "README.md").read_text()
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        first[weight] = next(row for row in rows if "learning_rate" in row)
        held_out[weight] = next(row["validation"] for row in rows if "validation" in row)
    assert first[0.25][name] == pytest.approx(first[1.0][name], rel=1e-3)
    assert first[0.25]["mlm_loss"] == pytest.approx(first[1.0]["mlm_loss"], rel=1e-3)
    assert 0.5 < held_out[0.25][name] < 1.0


def test_where_nothing_is_learned_from_pairs_the_card_says_nothing_of_them(corpus_file, tmp_path):
    """Also where the corpus has none."""
    alone = tmp_path / "alone.txt"
    alone.write_text("\n".join(corpus_file.read_text().split("\n\n")[0].split("\n") * 40))
    for number, (corpus, more) in enumerate([(corpus_file, "--objective=mlm"), (alone, "--pair-weight=2")]):
        out = tmp_path / str(number)
        assert main([*arguments(corpus, out, more), "--budget=1steps"]) == 0
        assert "pair_" not in (out / "final" / "README.md").read_text()


def test_settings_of_a_run_serve_another_objective(corpus_file, tmp_path, capsys):
    """Which has no pairs: a sentence says how."""
    small = arguments(corpus_file, tmp_path / "run", "--budget=1steps")
    assert main(small) == 0
    again = [f"--config={tmp_path}/run/settings.yaml", f"--out={tmp_path}/again", "--objective=mlm"]
    assert main(again) == 2
    assert "leave it out, or give --pair-weight auto if a --config names it" in capsys.readouterr().err
    assert main([*again, "--pair-weight=auto", "--pair-rate=auto"]) == 0


def test_a_run_that_was_stopped_goes_on_with_both(corpus_file, tmp_path, stopped_at, capsys):
    given = ["--pair-weight=0.5", "--pair-rate=0.1", "--checkpoint-every=3steps", "--keep-checkpoints=4"]
    small = arguments(corpus_file, tmp_path / "run", *given)
    assert main(small) == 0
    stopped = stopped_at(tmp_path / "run", 3)
    assert main([*small, f"--out={stopped}", "--pair-rate=0.2"]) == 2
    assert "pair_rate: 0.1 before, 0.2 now" in capsys.readouterr().err
    assert main([*small, f"--out={stopped}"]) == 0
    one, other = (load_file(folder / "final" / "model.safetensors") for folder in (tmp_path / "run", stopped))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
