"""Layers through torch.compile: equal to the layers as they are, and what happens where they cannot be compiled."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from data_prep.errors import Interrupted, UserError
from data_prep.prepared import PreparedCorpus
from model import BertConfig, BertForPreTraining
from model.encoder import EncoderLayer
from pretrain.build import make_data, make_model
from pretrain.engine.compilation import compile_layers
from pretrain.engine.distributed import World
from pretrain.engine.step import Learner, backward, rehearse
from pretrain.objectives import make_objective
from pretrain.pretraining import pretrain, resolved
from pretrain.resolve import compiles
from pretrain.run import main
from pretrain.settings import PretrainSettings

ON_A_GPU = PretrainSettings(prepared="prepared", budget="10m", device="cuda", precision="bf16")


@pytest.mark.parametrize(("changes", "processes", "expected"), [
    ({}, 1, True),
    ({}, 2, False),
    ({"compile": "layers"}, 2, True),
    ({"compile": "none"}, 1, False),
    ({"budget": "599s"}, 1, False),
    ({"budget": "599s", "compile": "layers"}, 1, True),
    ({"budget": "1000epochs"}, 1, False),
    ({"precision": "fp16"}, 1, False),
    ({"dropout": 0.1}, 1, False),
    ({"device": "cpu"}, 1, False),
    ({"detect_anomaly": True}, 1, False),
])  # fmt: skip
def test_long_runs_of_a_gpu_are_compiled_and_others_where_it_is_asked_for(changes, processes, expected):
    assert compiles(replace(ON_A_GPU, **changes), processes) == expected


@pytest.fixture
def small():
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    return BertForPreTraining(config)


class Wrapped(RuntimeError):
    inner_exception = ValueError("the cause\nand more")


@pytest.mark.parametrize(("error", "reason"), [
    (RuntimeError("No compiler was found\nand more"), "No compiler was found"),
    (FileNotFoundError(2, "No such file"), "[Errno 2] No such file"),
    (AssertionError(), "AssertionError"),
    (Wrapped("of a backend"), "the cause"),
])  # fmt: skip
def test_layers_that_cannot_be_compiled_stay_as_they_are(error, reason, small):
    def fails():
        raise error

    assert compile_layers(small, fails) == reason
    assert all(layer.compiled is None for layer in small.bert.layers)


@pytest.mark.parametrize("kind", [Interrupted, UserError])
def test_what_a_person_is_to_hear_is_no_reason(kind, small):
    def stops():
        raise kind("a sentence")

    with pytest.raises(kind):
        compile_layers(small, stops)


@pytest.mark.parametrize(("options", "sentence"), [
    (["--detect-anomaly"], "--detect-anomaly looks into the layers, which needs --compile none: give that too"),
    (["--device=cpu"], "--compile layers is for a CUDA GPU, and the run would compute on cpu"),
])  # fmt: skip
def test_where_layers_are_not_compiled_it_is_one_sentence(random_prepared, tmp_path, capsys, options, sentence):
    out = tmp_path / "out"
    assert main([f"--prepared={random_prepared}", f"--out={out}", "--compile=layers", *options]) == 2
    assert sentence in capsys.readouterr().err and not out.exists()


def learner_of(prepared, out):
    """A learner of a run on the CPU, and two batches of different sizes."""
    asked = PretrainSettings(prepared=str(prepared), out=str(out), budget="2steps", batch_size=8, preset="tiny",
                             objective="electra", device="cpu", precision="fp32", threads=1)  # fmt: skip
    settings, corpus = resolved(asked, out), PreparedCorpus(prepared)
    objective = make_objective(settings, corpus)
    _, _, held_out = make_data(settings, corpus, objective, World())
    batches = [next(iter(held_out.maker.micro_batches(held_out.examples[:count]))) for count in (8, 13)]
    return Learner(settings, make_model(settings, corpus, objective), objective, seed=3), batches


def gradients(learner, batch) -> dict[str, torch.Tensor]:
    losses: dict[str, torch.Tensor] = {}
    backward(learner, batch, 0, learner.counts(batch), losses)
    found = {name: p.grad for name, p in learner.model.named_parameters() if p.grad is not None} | losses
    learner.optimizer.zero_grad()
    return found


@pytest.mark.slow
def test_compiled_layers_compute_the_same_gradients_for_any_size(random_prepared, tmp_path, monkeypatch):
    """Of two encoders, whose last layers compute some of their tokens and all of them."""
    # All but the last stage, in which kernels are made: here that takes a C++ compiler and half a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    learner, batches = learner_of(random_prepared, tmp_path / "out")
    expected = [gradients(learner, batch) for batch in batches]
    assert compile_layers(learner.model, partial(rehearse, learner, batches[0])) is None
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = gradients(learner, batches[0])
        # A pass without gradients is not compiled, which would be an error here.
        with torch.no_grad():
            learner.loss_sums(batches[1])
    torch.testing.assert_close(found, expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients(learner, batches[1]), expected[1], rtol=1e-4, atol=1e-5)
    assert learner.counters.step == 0 and learner.largest_computed == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_compiled_run_on_a_gpu_learns_the_same_and_goes_on_without(random_prepared, tmp_path, capsys):
    losses = []
    for compile in ("none", "layers"):
        out = tmp_path / compile
        asked = PretrainSettings(prepared=str(random_prepared), out=str(out), budget="4steps", preset="tiny",
                                 batch_size=8, compile=compile, evaluations=1)  # fmt: skip
        pretrain(asked)
        assert ("The layers were compiled in" in capsys.readouterr().out) == (compile == "layers")
        results = json.loads((out / "results.json").read_text())
        assert results["machines"][-1].get("compiled", False) == (compile == "layers")
        losses.append(results["validation"]["mlm_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    pretrain(replace(asked, budget="6steps", compile="none"))
    assert json.loads((out / "results.json").read_text())["steps"] == 6
    assert EncoderLayer.compiled is None
