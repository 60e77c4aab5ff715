"""Which matrices Muon optimizes: those of the layers, and in a fresh BERT that of the MLM head."""

import pytest
import yaml
from safetensors.torch import load_file

from data_prep.settings import ExampleSettings
from model import BertConfig
from model.families import FAMILIES
from pretrain.engine.optimizer import Optimizer
from pretrain.engine.settings import PretrainError
from pretrain.resolve import resolve
from pretrain.run import main
from pretrain.settings import PretrainSettings

HEAD, LAYER = "mlm_head.dense.weight", "bert.layers.0.qkv.weight"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"objective": "mlm"}, "layers+head"),
        ({"objective": "mlm", "muon_matrices": "layers"}, "layers"),
        ({"objective": "mlm", "optimizer": "adamw"}, "layers"),
        ({"objective": "mlm", "family": "albert"}, "layers"),
        ({}, "layers+head"),
        ({"muon_matrices": "layers"}, "layers"),
        ({"optimizer": "adamw"}, "layers"),
        ({"family": "albert"}, "layers"),
        ({"objective": "mlm+sop"}, "layers"),
        ({"objective": "mlm+sbo", "examples": ExampleSettings(masking="span")}, "layers"),
        ({"family": "albert", "muon_matrices": "layers+head"}, "layers+head"),
        ({"objective": "electra"}, "layers"),
        ({"objective": "mlm", "init_from": "a-bert"}, "layers"),
        ({"init_from": "a-bert"}, "layers"),
        ({"init_from": "a-bert", "muon_matrices": "layers+head"}, "layers+head"),
        ({"objective": "mlm", "teacher": "a-bert"}, "layers"),
    ],
)
def test_that_of_the_head_is_muon_s_in_a_fresh_bert(given, expected):
    config = BertConfig.from_preset("tiny", 100) if {"init_from", "teacher"} & given.keys() else None
    assert resolve(PretrainSettings(device="cpu", **given), config).muon_matrices == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimizer": "adamw"}, "--muon-matrices layers+head is for --optimizer muon"),
        ({"objective": "electra"}, "--muon-matrices layers+head cannot be combined with --objective electra"),
    ],
)
def test_where_it_cannot_be_muon_s_a_sentence_says_so(given, said):
    with pytest.raises(PretrainError, match=said.replace("+", r"\+")):
        PretrainSettings(muon_matrices="layers+head", **given)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_it_is_the_dense_matrix_of_the_head(family):
    kind = FAMILIES[family]
    model = kind.pretraining(kind.config.from_preset("tiny", 100))
    (matrix,) = model.head_matrices()
    assert matrix is model.mlm_head.dense.weight
    without, beside = (
        {
            id(p)
            for group in Optimizer(model, "muon", 1e-3, 0.1, of_heads=it).parts[1].param_groups
            for p in group["params"]
        }
        for it in (False, True)
    )
    assert beside - without == {id(matrix)} and without < beside


def arguments(corpus, out, *more):
    small = ["--preset=tiny", "--sequence-length=24", "--batch-size=8", "--vocab-size=128", "--device=cpu"]
    given = [f"--corpus={corpus}", f"--out={out}", "--objective=mlm"]
    return [*given, "--budget=6steps", "--workers=1", "--threads=1", *small, *more]


def state_of(out):
    """The optimizer's, of the newest checkpoint, and what the settings say."""
    newest = max((out / "checkpoints").glob("step-*"))
    settings = yaml.safe_load((out / "settings.yaml").read_text())
    return load_file(newest / "training_state" / "optimizer.safetensors"), settings["muon_matrices"]


@pytest.mark.parametrize(
    ("more", "kind"),
    [([], "momentum_buffer"), (["--muon-matrices=layers"], "exp_avg"), (["--objective=mlm+sop"], "exp_avg")],
)
def test_a_run_does_as_its_settings_say(more, kind, corpus_file, tmp_path):
    """And so does its model card."""
    assert main(arguments(corpus_file, tmp_path / "run", *more)) == 0
    named = "layers+head" if kind == "momentum_buffer" else "layers"
    assert f"| muon_matrices | {named} |" in (tmp_path / "run" / "final" / "README.md").read_text()
    state, _ = state_of(tmp_path / "run")
    assert {name.split("/")[0] for name in state if name.endswith(HEAD)} - {"step", "exp_avg_sq"} == {kind}
    assert f"momentum_buffer/{LAYER}" in state


def test_a_run_of_an_older_version_goes_on_as_it_began(corpus_file, tmp_path, stopped_at):
    """Its settings do not name the matrices: they are those of the layers."""
    small = arguments(corpus_file, tmp_path / "run", "--checkpoint-every=3steps", "--keep-checkpoints=4")
    assert main([*small, "--muon-matrices=layers"]) == 0
    older = stopped_at(tmp_path / "run", 3)
    path = older / "settings.yaml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "muon_matrices" not in line))
    assert main([*small, f"--out={older}"]) == 0
    (state, _), (again, said) = state_of(tmp_path / "run"), state_of(older)
    assert said == "layers" and state.keys() == again.keys()
    assert all(state[name].equal(again[name]) for name in state)
