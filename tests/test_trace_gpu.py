"""Whole training steps on a CUDA device of fake tensors: no GPU is needed, and none is used."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from model import BertConfig, BertForPreTraining
from pretrain import evaluate
from pretrain.batches import PretrainingBatch
from pretrain.engine.batches import moved
from pretrain.objectives import bert_objective

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# A process that traces takes ten seconds: one for each family.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fake_gpu():
    """benchmarks/fake_gpu.py; skips where this build of torch has no room for a CUDA device that is not there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        module = importlib.import_module("fake_gpu")
    if reason := module.obstacle():
        pytest.skip(reason)
    return module


@pytest.fixture(scope="module", params=["bert", "albert"])
def rows(fake_gpu, request):
    """The table of benchmarks/trace_gpu.py for a family, by arithmetic: each row by heading.

    A process of its own: autograd makes its threads once, for the devices that are there at the first backward pass.
    """
    command = [sys.executable, BENCHMARKS / "trace_gpu.py", "--presets=mini", "--lengths=64", "--tokens=16384"]
    command.append(f"--family={request.param}")
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCHMARKS.parent).stdout
    headings, _, *lines = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in printed.split("\n") if "|" in line
    )
    return {line[1]: dict(zip(headings, line, strict=True)) for line in lines}


@pytest.mark.parametrize(
    ("arithmetic", "implementation"), [("bf16", "varlen"), ("fp16", "varlen"), ("fp16 on a T4", "sdpa")]
)
def test_a_step_never_waits_for_the_gpu_and_takes_the_attention_that_it_has(rows, arithmetic, implementation):
    assert rows[arithmetic]["attention"] == implementation
    assert (rows[arithmetic]["waits"], rows[arithmetic]["reads"]) == ("0", "1")


@pytest.mark.parametrize("arithmetic", ["bf16", "fp16 on a T4"])
def test_the_memory_that_a_plan_computes_is_about_that_of_a_traced_step(rows, arithmetic):
    traced, computed = (float(rows[arithmetic][name]) for name in ("peak, GB", "computed, GB"))
    assert computed == pytest.approx(traced, rel=0.1)


def test_an_evaluation_waits_once_however_many_micro_batches_it_has(fake_gpu):
    config = BertConfig.from_preset("tiny", vocab_size=64, max_position_embeddings=16)
    ids = torch.zeros(16, dtype=torch.int64)
    batch = PretrainingBatch(
        input_ids=ids,
        token_type_ids=ids,
        position_ids=torch.arange(16),
        sequence_starts=torch.tensor([0, 16], dtype=torch.int32),
        max_sequence_length=16,
        masked_positions=ids[:1],
        masked_targets=ids[:1],
        most_masked=1,
        pair_targets=ids[:1],
    )
    with fake_gpu.fake_gpu((8, 0), bf16=True), fake_gpu.Trace() as trace, torch.no_grad():
        model = fake_gpu.on_gpu(lambda: BertForPreTraining(config)).eval()
        sums = [bert_objective(np.ones(64)).score_sums(model, moved(batch, fake_gpu.DEVICE)) for _ in range(3)]
        assert not trace.waits
        evaluate._added(sums)
    assert sum(trace.waits.values()) == 1


@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("a number is read", lambda x: x.sum().item()),
        ("a number is read", lambda x: bool((x > 0).any())),
        ("the size of the result", lambda x: x.nonzero()),
        ("by a mask", lambda x: x[x > 0]),
        ("copied to the host", lambda x: x.cpu()),
        ("copied to the host", lambda x: torch.empty(4).copy_(x)),
        ("memory that is not pinned", lambda x: torch.ones(4).to(x.device, non_blocking=True)),
        ("copied from the host", lambda x: torch.ones(4).pin_memory().to(x.device)),
    ],
)
def test_every_way_to_wait_is_found(fake_gpu, what, act):
    with fake_gpu.fake_gpu((8, 0), bf16=True), fake_gpu.Trace() as trace:
        act(torch.zeros(4, device=fake_gpu.DEVICE))
    assert [what in found for found, _ in trace.waits] == [True]


def test_memory_is_counted_while_it_is_held(fake_gpu):
    with fake_gpu.fake_gpu((8, 0), bf16=True), fake_gpu.Trace() as trace:
        first = torch.zeros(1024, device=fake_gpu.DEVICE)
        view = first[:10]
        second = first + 1
        del first
        assert trace.allocated == 8192
        del view
        third = torch.zeros(1, device=fake_gpu.DEVICE)
        assert trace.allocated == 4096 + 512
        del second, third
    assert (trace.allocated, trace.peak) == (0, 8192)
