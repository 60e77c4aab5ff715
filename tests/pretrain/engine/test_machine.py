"""Runs that move to another machine, and what is known of this one."""

import json
import os
import platform
import re
from dataclasses import replace

import pytest
import torch
import yaml

from data_prep.errors import UserError
from data_prep.settings import ExampleSettings
from pretrain.engine import device
from pretrain.engine.checkpoint import read_state
from pretrain.engine.counters import FIRST_LOSS_SCALE
from pretrain.engine.device import Machine, available_cores, default_threads
from pretrain.engine.stage import SETTINGS_FILE
from pretrain.pretraining import pretrain
from pretrain.resolve import automatic_batch_size
from pretrain.settings import PretrainSettings


def settings(prepared, out, steps, **changes):
    given = {"preset": "tiny", "batch_size": 8, "device": "auto", "evaluations": 1, "precision": "auto"}
    return PretrainSettings(prepared=str(prepared.folder), out=str(out), budget=f"{steps}steps", **given | changes)


@pytest.fixture
def no_bf16(monkeypatch):
    """A CPU without instructions for bfloat16, whatever this one has."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)


def begun_elsewhere(prepared, out, **facts):
    """A run of two steps whose settings were chosen on a machine with other things."""
    pretrain(settings(prepared, out, 2, device="cpu"))
    path = out / SETTINGS_FILE
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | facts))


def test_a_run_begun_in_bf16_goes_on_in_float32_where_there_is_no_bf16_and_says_so(
    prepared, tmp_path, capsys, no_bf16, monkeypatch
):
    out = tmp_path / "out"
    begun_elsewhere(prepared, out, precision="bf16")
    capsys.readouterr()
    pretrain(settings(prepared, out, 4))
    said = capsys.readouterr().out
    assert "begun in bf16, for which cpu has no instructions here: it goes on in fp32" in said
    results = json.loads((out / "results.json").read_text())
    assert results["steps"] == 4 and results["machines"][-1]["precision"] == "fp32"
    # Back where there is bf16.
    monkeypatch.setattr("pretrain.engine.device.computes_in_bf16", lambda device: True)
    pretrain(settings(prepared, out, 6))
    machines = json.loads((out / "results.json").read_text())["machines"]
    assert [machine["precision"] for machine in machines] == ["fp32", "bf16"]


def test_arithmetic_that_was_asked_for_stays_and_differs(prepared, tmp_path, no_bf16):
    begun_elsewhere(prepared, tmp_path / "out", precision="bf16")
    with pytest.raises(UserError, match="precision: bf16 before, fp32 now"):
        pretrain(settings(prepared, tmp_path / "out", 4, precision="fp32"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device that is to be missing")
def test_a_run_begun_on_a_gpu_goes_on_where_there_is_none(prepared, tmp_path, capsys, no_bf16):
    out = tmp_path / "out"
    begun_elsewhere(prepared, out, device="cuda", precision="fp16", micro_batch_tokens=65_536)
    pretrain(settings(prepared, out, 4))
    assert "begun on cuda, which is not there" in capsys.readouterr().out
    assert json.loads((out / "results.json").read_text())["machines"][-1]["precision"] == "fp32"
    newest = max((out / "checkpoints").iterdir())
    assert read_state(newest, ())["counters"]["loss_scale"] == FIRST_LOSS_SCALE
    # For the machine that it may go back to.
    found = yaml.safe_load((out / SETTINGS_FILE).read_text())
    assert (found["device"], found["precision"], found["micro_batch_tokens"]) == ("cuda", "fp16", 65_536)


@pytest.mark.slow
def test_a_counted_run_keeps_its_threads_and_a_timed_one_takes_the_machines(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for first, then, expected in (("1steps", "3steps", 1), ("2s", "3s", 2)):
        out = tmp_path / first
        given = settings(prepared, out, 1)
        pretrain(replace(given, budget=first, threads=1))
        pretrain(replace(given, budget=then))
        assert torch.get_num_threads() == expected
        assert yaml.safe_load((out / SETTINGS_FILE).read_text())["threads"] == 1
    pretrain(replace(given, out=str(tmp_path / "1steps"), budget="4steps", threads=2))
    assert torch.get_num_threads() == 2
    assert yaml.safe_load((tmp_path / "1steps" / SETTINGS_FILE).read_text())["threads"] == 2


def test_a_slow_machine_takes_half_as_many_examples_a_step_in_a_budget_of_time():
    usual = automatic_batch_size("cpu", 109)
    assert usual == 64
    # 440 and 1,050 steps of the usual size fit.
    assert automatic_batch_size("cpu", 109, seconds=240, speed=440 * 64 / 240) == 32
    assert automatic_batch_size("cpu", 109, seconds=600, speed=1050 * 64 / 600) == usual
    assert automatic_batch_size("cpu", 800, seconds=1, speed=1) == 8


@pytest.mark.slow
def test_the_batch_size_of_a_slow_machine_is_chosen_once(prepared, tmp_path):
    out = tmp_path / "out"
    given = replace(settings(prepared, out, 1), batch_size="auto", examples=ExampleSettings(sequence_length=128))
    pretrain(replace(given, budget="2s"))
    counted = tmp_path / "counted"
    pretrain(replace(given, out=str(counted), budget="1steps"))
    sizes = [yaml.safe_load((folder / SETTINGS_FILE).read_text())["batch_size"] for folder in (out, counted)]
    assert sizes[0] in (sizes[1], sizes[1] // 16 * 8) and sizes[1] > 32
    pretrain(replace(given, budget="3s"))
    assert yaml.safe_load((out / SETTINGS_FILE).read_text())["batch_size"] == sizes[0]


def test_results_name_the_machine_once_for_each_that_computed(prepared, tmp_path):
    out = tmp_path / "out"
    for steps in (2, 4):
        pretrain(settings(prepared, out, steps, threads=1, device="cpu"))
    (machine,) = json.loads((out / "results.json").read_text())["machines"]
    assert machine["from_step"] == 1 and machine["threads"] == 1
    assert machine["torch"] == torch.__version__ and machine["processor"]
    assert machine["instructions"] == torch.backends.cpu.get_cpu_capability()
    here = Machine.here("cpu")
    assert f"{here.processor} ({here.instructions}, " in str(here) and "1 thread on" in str(here)
    assert re.fullmatch(r"a GPU \((with|no) bf16\), .*", str(replace(here, processor="a GPU", instructions="")))


@pytest.mark.parametrize(
    ("model_name", "shown"),
    [
        ("model name\t: AMD EPYC\n", "AMD EPYC, family 26, model 2"),
        ("model name\t: Intel(R) Xeon(R) Processor\n", "Intel(R) Xeon(R) Processor, family 26, model 2"),
        ("model name\t: AMD EPYC 9654 96-Core Processor\n", "AMD EPYC 9654 96-Core Processor"),
        ("", platform.machine()),
    ],
)
def test_a_processor_without_a_number_is_named_with_its_family(tmp_path, model_name, shown):
    """Its successor often has the same name in a virtual machine."""
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\n{model_name}\n" * 2)
    assert device._processor(tmp_path / "cpuinfo") == shown


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
@pytest.mark.parametrize(("environment", "expected"), [({}, 1), ({"OMP_NUM_THREADS": "3"}, 3)])
def test_threads_follow_the_affinity_unless_they_are_given(environment, expected, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1})
    assert (available_cores(), default_threads()) == (1, expected)


def test_a_quota_of_the_container_counts(monkeypatch):
    """joblib is asked, which reads it; LOKY_MAX_CPU_COUNT is its own way to be told."""
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert available_cores() == default_threads() == 1
