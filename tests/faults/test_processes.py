"""Several processes are one run: the same numbers as one process, one writer, one voice, and no hanging."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial

import hooks
import numpy as np
import pytest
import torch
from drive import finish
from lives import Forked, one_thread
from runs import Job, Seen, differences, rows_of
from safetensors.torch import load_file

# Relative; sums of float32 numbers in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="session")
def even_job(job: Job) -> Job:
    """Without dropout, whose draws belong to a process's share."""
    return job.changed("--dropout=0", "--optimizer=adamw")


@pytest.fixture(scope="session")
def by_one(even_job, tmp_path_factory):
    return finish(even_job, tmp_path_factory.mktemp("by_one") / "out", Job.fork)


@pytest.mark.slow
def test_no_thread_of_a_world_is_left_when_it_is_left():
    """One that is left can abort a process that ends: once in ten times on a busy machine."""
    program = """
import time
from pathlib import Path
from torch import nn, ones
from pretrain.engine.distributed import joined

def threads():
    return sum("gloo" in (task / "comm").read_text() for task in Path("/proc/self/task").iterdir())

def train(world):
    world.parallel(nn.Linear(2, 2))(ones(1, 2)).sum().backward()
    return threads()

with joined("cpu") as world:
    before = train(world)
# The system may show a thread for a moment after it has been joined.
ends = time.monotonic() + 5
while threads() and time.monotonic() < ends:
    time.sleep(0.05)
assert before and not threads(), (before, threads())
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {**one_thread(), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", program]
    ranks = [subprocess.Popen(command, env={**world, "RANK": str(rank)}) for rank in range(2)]
    assert [rank.wait(60) for rank in ranks] == [0, 0]


def assert_close(found: object, expected: object, path: str = "") -> None:
    """Numbers within the tolerance, everything else equal."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_close(found[name], expected[name], f"{path}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for index, entry in enumerate(expected):
            assert_close(found[index], entry, f"{path}[{index}]")
    elif isinstance(expected, float):
        # Some losses are small differences of numbers around one.
        assert found == pytest.approx(expected, rel=TOLERANCE, abs=5e-7), path
    else:
        assert found == expected, path


def assert_same_training(out, by_one) -> None:
    """Every row of metrics, and the final weights, of every model that is in the folder.

    A weight moves by at most about the learning rate in a step of Adam, whatever its gradient. Other orders of
    summation differ by far less than a thousandth of that, also where a gradient is little more than rounding: Adam's
    epsilon (1e-6) keeps its quotient small.
    """
    assert_close(rows_of(out), rows_of(by_one))
    rates = [row["learning_rate"] for row in rows_of(by_one) if "learning_rate" in row]
    models = sorted(path.relative_to(by_one) for path in (by_one / "final").rglob("*.safetensors"))
    assert models == sorted(path.relative_to(out) for path in (out / "final").rglob("*.safetensors")) and models
    for model in models:
        weights, expected = load_file(out / model), load_file(by_one / model)
        assert weights.keys() == expected.keys()
        for name in expected:
            furthest = float((weights[name] - expected[name]).abs().max())
            assert furthest <= 100 * TOLERANCE * sum(rates), (model, name)


def test_two_processes_train_as_one_and_only_the_first_one_writes(even_job, by_one, tmp_path):
    out = tmp_path / "out"
    with even_job.changed(processes=2).fork(out, tmp_path / "log", hooks.main_alone_writes) as life:
        # A launcher may end the first process soon after the others have ended.
        assert life.wait_until(lambda: life.codes[1] is not None) and (out / "results.json").exists()
        assert life.wait() == 0, life.err
        lines = Counter(line for line in life.out.splitlines() if line)
    assert_same_training(out, by_one)
    names, expected = ({path.relative_to(folder) for path in folder.rglob("*")} for folder in (out, by_one))
    assert names == expected
    assert set(lines.values()) == {1}
    assert "2 processes share each step." in lines
    results = json.loads((out / "results.json").read_text())
    assert results["processes"] == 2 and {machine["processes"] for machine in results["machines"]} == {2}


def test_two_processes_train_a_relative_of_bert_as_one(even_job, tmp_path):
    relative = ("--family=albert", "--objective=mlm+sop", "--masking=ngram")
    job = even_job.changed(*relative, steps=6, evaluations=1)
    one = finish(job, tmp_path / "one", Job.fork)
    two = finish(job.changed(processes=2), tmp_path / "two", Job.fork)
    assert_same_training(two, one)


def test_another_number_of_processes_goes_on_with_the_same_run(even_job, by_one, tmp_path):
    out = tmp_path / "out"
    seen = Seen(out, even_job)
    for processes, step in ((1, 4), (2, 8)):
        with even_job.changed(processes=processes).fork(out, tmp_path / f"log-{processes}") as life:
            assert life.wait_until(lambda step=step: seen.last()[0] >= step)
            # One that is asked to stop asks the others.
            life.signal_rank(processes - 1, signal.SIGTERM)
            assert life.wait(30) == 75
            assert set(life.codes) == {75}
            assert life.err.count("Resume with") == 1
            assert seen.newest() == seen.last()[0]
    finish(even_job.changed(processes=3), out, Job.fork)
    assert_same_training(out, by_one)


@pytest.mark.slow
def test_two_processes_draw_what_one_draws_from_a_generator(even_job, tmp_path):
    job = even_job.changed("--objective=electra", steps=8, evaluations=1)
    one = finish(job, tmp_path / "one", Job.fork)
    two = finish(job.changed(processes=2), tmp_path / "two", Job.fork)
    assert_same_training(two, one)


def test_fewer_examples_than_processes(even_job, tmp_path):
    job = even_job.changed("--batch-size=2", steps=6, evaluations=1)
    one = finish(job, tmp_path / "one", Job.fork)
    three = finish(job.changed(processes=3), tmp_path / "three", Job.fork)
    assert_same_training(three, one)


OF_SPANS = ("--objective=mlm+sbo", "--masking=span")
"""With a head that only training has."""


@pytest.mark.slow
def test_two_processes_learn_span_boundaries_as_one(even_job, tmp_path):
    job = even_job.changed(*OF_SPANS)
    one = finish(job, tmp_path / "one", Job.fork)
    two = finish(job.changed(processes=2), tmp_path / "two", Job.fork)
    assert_same_training(two, one)
    heads, expected = (load_file(max(out.rglob("heads.safetensors"))) for out in (two, one))
    assert heads.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(heads[name], expected[name], rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (2, OF_SPANS), (1, ("--objective=mlm", "--packing=full-sentences", "--masking=whole-word")),
        (1, ("--family=albert", "--objective=mlm+sop", "--masking=ngram")), (1, ("--teacher",)),
    ],
)  # fmt: skip
def test_a_relative_is_learned_to_the_bit_through_a_kill(processes, options, job, tmp_path):
    if options == ("--teacher",):
        options = (f"--teacher={finish(job.changed(steps=3), tmp_path / 'teacher', Job.fork) / 'final'}",)
        # The teacher brings the size of its student.
        job = replace(job, arguments=tuple(each for each in job.arguments if not each.startswith("--preset")))
    job = job.changed(*options, processes=processes, steps=10)
    undisturbed = finish(job, tmp_path / "undisturbed", Job.fork)
    out = tmp_path / "out"
    seen = Seen(out, job)
    with job.fork(out, tmp_path / "log", hooks.short_grace) as life:
        assert life.wait_until(lambda: seen.last()[0] >= 6)
        life.kill_rank(processes - 1)
        assert life.wait() != 0
    finish(job, out, Job.fork)
    assert differences(out, undisturbed) == []


def test_full_sentences_are_shared_as_windows_are(even_job, tmp_path):
    job = even_job.changed("--objective=mlm", "--packing=full-sentences", steps=6, evaluations=1)
    one = finish(job, tmp_path / "one", Job.fork)
    two = finish(job.changed(processes=2), tmp_path / "two", Job.fork)
    assert_same_training(two, one)


@pytest.mark.slow
def test_gradients_and_evaluations_of_random_batches_do_not_depend_on_the_processes(material, tmp_path):
    found = {}
    for processes in (1, 2, 3):
        path = tmp_path / f"{processes}.pt"
        arguments = [str(material / "encoder" / "prepared"), str(path)]
        with Forked("shares", arguments, tmp_path / f"log-{processes}", processes) as life:
            assert life.wait() == 0, life.err
        found[processes] = torch.load(path)
    for processes in (2, 3):
        for case, expected in zip(found[processes], found[1], strict=True):
            assert_close(case["losses"], expected["losses"])
            assert_close(case["held_out"], expected["held_out"])
            assert case["counts"] == expected["counts"]
            assert case["gradients"].keys() == expected["gradients"].keys()
            largest = max(float(g.abs().max()) for g in expected["gradients"].values())
            for name, gradient in expected["gradients"].items():
                torch.testing.assert_close(case["gradients"][name], gradient, rtol=0, atol=2e-6 * largest)


def test_one_process_prepares_and_the_others_wait(job, material, tmp_path):
    source = (f"--corpus={material / 'made_up.txt'}", "--workers=1")
    preparing = job.changed(steps=1, evaluations=1, processes=2, arguments=(*source, *job.arguments[1:]))
    with preparing.fork(tmp_path / "out", tmp_path / "log") as life:
        assert life.wait() == 0, life.err
        assert life.out.count("Prepared ") == 1 and life.out.count("Trained a vocabulary") == 1
    prepared = (tmp_path / "out" / "prepared", material / "encoder" / "prepared")
    assert not differences(*prepared)


@pytest.mark.parametrize("torchrun", [True, False])
def test_a_mistake_in_the_corpus_is_said_once(torchrun, job, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    source = (f"--corpus={tmp_path / 'empty.txt'}", "--workers=1")
    job = job.changed(processes=3, arguments=(*source, *job.arguments[1:]))
    with job.fork(tmp_path / "out", tmp_path / "log", torchrun=torchrun) as life:
        assert life.wait(30) == 2
        assert life.codes == [2, 2, 2]
        assert life.err.count("error:") == 1 and "empty.txt" in life.err and "Traceback" not in life.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("hook, said, torchrun", [
    (hooks.second_process_fails, "error: the moon is full: wait for a day", False),
    (hooks.second_process_has_a_fault, "ValueError: a fault of the program", True),
])  # fmt: skip
def test_a_process_that_fails_says_why_once_and_ends_the_others(hook, said, torchrun, job, tmp_path):
    with job.changed(processes=2).fork(tmp_path / "out", tmp_path / "log", hook, torchrun) as life:
        assert life.wait_until(lambda: life.codes[1] is not None)
        failed = time.monotonic()
        assert life.wait(20) != 0
        assert time.monotonic() - failed < 8
        assert all(life.codes)
        assert life.err.count(said) == 1
        assert life.err.count("error:") + life.err.count("Traceback") == 1


@pytest.mark.parametrize("killed, said", [
    (0, "the first process of this run has ended"),
    (1, "another process of this run ended without a word"),
])  # fmt: skip
def test_without_torchrun_a_process_that_is_killed_ends_the_others_with_one_sentence(killed, said, job, tmp_path):
    """With the first one goes the store in which the others look for its reason."""
    seen = Seen(tmp_path / "out", job)
    job = job.changed(processes=3)
    with job.fork(tmp_path / "out", tmp_path / "log", hooks.short_grace, torchrun=False) as life:
        assert life.wait_until(lambda: seen.last()[0] >= 3)
        life.kill_rank(killed)
        life.wait(20)
        assert sorted(life.codes) == [-signal.SIGKILL, 2, 2]
        assert life.err.count(said) == life.err.count("error:") == 1 and "Traceback" not in life.err


def test_without_torchrun_the_first_process_ends_last(job, finished, tmp_path):
    """All ask it whether the run is finished, and it has nothing left to do when it has answered."""
    with job.changed(processes=3).fork(finished, tmp_path / "log", torchrun=False) as life:
        assert life.wait(30) == 0 and life.codes == [0, 0, 0], life.err
        assert not life.err and "holds this run, finished" in life.out


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_process_was_killed(job, finished_by_two, tmp_path):
    out = tmp_path / "out"
    seen = Seen(out, job)
    with job.changed(processes=2).start(out, tmp_path / "log", restarts=1) as life:
        assert life.wait_until(lambda: seen.last()[0] >= 5)
        life.kill_rank(1)
        assert life.wait() == 0, life.err
        assert life.out.count("Resuming from") == 1
        assert life.is_gone()
    assert not differences(out, finished_by_two)


@pytest.mark.slow
def test_two_processes_fine_tune_as_one_with_a_teacher(finetune_job, tmp_path):
    job = finetune_job.changed("--dropout=0", "--seeds=1", steps=6, evaluations=2)
    teacher = finish(job, tmp_path / "teacher", Job.fork) / "final"
    one, two = (
        finish(job.changed(f"--teacher={teacher}", processes=number), tmp_path / str(number), Job.fork) / "seed-1"
        for number in (1, 2)
    )
    assert_close(rows_of(two), rows_of(one))
    with np.load(two / "probabilities.npz") as a, np.load(one / "probabilities.npz") as b:
        np.testing.assert_allclose(a["validation"], b["validation"], atol=1e-4)
    assert "soft_loss" in rows_of(two)[0]


@pytest.mark.slow
def test_two_processes_begin_again_together_where_nothing_was_learned_also_after_a_kill(finetune_job, tmp_path):
    given = ("--learning-rate=1", "--seeds=1", "--checkpoint-every=4steps")
    job = finetune_job.changed(*given, steps=14, evaluations=1, processes=2)
    fork = partial(Job.fork, before=hooks.judged_soon)
    undisturbed = finish(job, tmp_path / "undisturbed", fork)
    results = json.loads((undisturbed / "seed-1" / "results.json").read_text())
    assert [restart["learning_rate"] for restart in results["restarts"]] == [1.0, 0.3]
    out = tmp_path / "out"
    with fork(job, out, tmp_path / "log") as life:
        assert life.wait_until(lambda: (out / "seed-1" / "restarts.json").exists() and Seen(out, job).newest() >= 4)
        life.kill_rank(1)
        assert life.wait() != 0
    finish(job, out, fork)
    assert differences(out, undisturbed) == []


@pytest.mark.slow
def test_a_script_of_two_processes_prepares_once_and_catches_its_mistakes_in_both(material, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import os
from data_prep import UserError, prepare
from pretrain import pretrain

os.chdir({str(tmp_path)!r})
heard = []
for corpus in ("nothere.txt", {str(material / "made_up.txt")!r}):
    try:
        prepared = prepare(corpus=corpus, out="prepared", workers=1)
    except UserError as error:
        heard.append(str(error))
for preset in ("nano", "tiny"):
    try:
        pretrain(prepared=prepared, preset=preset, budget="1steps", device="cpu", threads=1, out="run")
    except UserError as error:
        heard.append(str(error))
open("heard-" + os.environ["RANK"], "w").write("\\n".join(heard))
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0 and "Warning" not in found.stderr, found.stderr
    assert found.stdout.count("Prepared ") == 1 and (tmp_path / "run" / "results.json").exists()
    one, other = ((tmp_path / f"heard-{rank}").read_text() for rank in (0, 1))
    assert one == other and one.startswith("nothere.txt does not exist") and "--preset 'nano' is unknown" in one
