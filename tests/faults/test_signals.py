"""SIGTERM, SIGINT, SIGHUP: what was done is saved, the run goes on with the command that is printed, nothing hangs."""

import fcntl
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from termios import TIOCSCTTY

import hooks
import pytest
from lives import ROOT, Forked, Life, one_thread
from runs import Seen, differences, rows_of

from pretrain.run import main

INTERRUPTED = 75


def stopped_after(life: Life, seen: Seen, step: int, number: int) -> int:
    """Send the signal after a step; returns the step that was saved."""
    assert life.wait_until(lambda: seen.last()[0] >= step)
    life.signal(number)
    assert life.wait(30) == INTERRUPTED, life.err
    assert "Traceback" not in life.err
    return seen.newest()


def test_sigint_and_then_sigterm_are_one_request(job, finished, tmp_path):
    """As a launcher sends them that is interrupted from the keyboard; the printed command goes on from there."""
    # The space has to be quoted where the command is printed.
    out = tmp_path / "an out"
    seen = Seen(out, job)
    with job.fork(out, tmp_path / "log") as life:
        assert life.wait_until(lambda: seen.last()[0] >= 4)
        life.signal(signal.SIGINT)
        life.signal(signal.SIGTERM)
        assert life.wait(30) == INTERRUPTED
        assert "Traceback" not in life.err
        assert (step := seen.newest()) == seen.last()[0]
    words = shlex.split(life.err.splitlines()[-1])
    assert words[:3] == ["python", "-m", "pretrain.run"]
    with Forked(words[2], words[3:], tmp_path / "again") as life:
        assert life.wait() == 0
        assert f"Resuming from {out / 'checkpoints' / f'step-{step:08d}'}." in life.out
    assert not differences(out, finished, same_checkpoints=False)


def test_an_evaluation_ends_at_once_and_is_made_anew(job, finished, tmp_path):
    out = tmp_path / "out"
    seen = Seen(out, job)
    with job.fork(out, tmp_path / "log", hooks.slow_evaluation) as life:
        assert life.wait_until(seen.evaluates)
        began = time.monotonic()
        step = stopped_after(life, seen, 7, signal.SIGTERM)
        # Any batch of it takes 2 seconds.
        assert time.monotonic() - began < 1.5
        assert step == 7 and seen.last() == (7, False)
    with job.fork(out, tmp_path / "again") as life:
        assert life.wait() == 0
    assert rows_of(out) == rows_of(finished)
    # The checkpoint of that step is from before its evaluation, and is not written twice.
    assert differences(out, finished) == ["checkpoints/step-00000007/training_state/state.json"]


def test_the_second_sigterm_ends_the_process_at_once(job, tmp_path):
    out = tmp_path / "out"
    with job.fork(out, tmp_path / "log", hooks.slow_steps) as life:
        assert life.wait_until(lambda: "Training" in life.out)
        time.sleep(0.3)
        life.signal(signal.SIGTERM)
        assert life.wait_until(lambda: "once more to stop at once" in life.err, seconds=1)
        life.signal(signal.SIGTERM)
        assert life.wait(1) == -signal.SIGTERM


def test_a_terminal_that_is_closed_costs_nothing(job, finished, tmp_path):
    out = tmp_path / "out"
    seen = Seen(out, job)
    person, terminal = pty.openpty()
    command = [sys.executable, "-m", job.module, *job.given(out)]
    options = {"env": one_thread(), "start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, TIOCSCTTY, 0)}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT, **options)
    os.close(terminal)
    deadline = time.monotonic() + 120
    while seen.last()[0] < 4:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.004)
    os.close(person)
    assert process.wait(30) == INTERRUPTED
    assert seen.newest() == seen.last()[0] < job.steps
    with job.fork(out, tmp_path / "again") as life:
        assert life.wait() == 0
    assert not differences(out, finished, same_checkpoints=False)


SIGNALLED = """
import signal, sys, time
from pretrain.engine.process import Interruption
time.monotonic = lambda: now
with Interruption() as interruption, interruption.deferred():
    for now in map(float, sys.argv[2:]):
        signal.raise_signal(int(sys.argv[1]))
        print(interruption.requested, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("launcher, times, survived", [
    ({}, ["0", "0.001", "60"], 1),
    ({"WORLD_SIZE": "2"}, ["0", "1", "60", "61"], 2),
])  # fmt: skip
def test_a_launcher_repeats_a_signal_within_seconds_and_a_person_means_it(number, launcher, times, survived):
    """Two of a kind end a process, but under a launcher those that come a second apart are one."""
    environment = {name: value for name, value in one_thread().items() if name != "WORLD_SIZE"} | launcher
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), *times]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert done.stdout == f"{number.name}\n" * survived
    assert done.returncode == -number and done.stderr.count("once more to stop at once") == 1


def test_shell_and_kernel_both_say_that_a_terminal_is_closed():
    command = [sys.executable, "-c", SIGNALLED, str(int(signal.SIGHUP)), "0", "0.0002", "1"]
    done = subprocess.run(command, env=one_thread(), capture_output=True, text=True, timeout=30)
    assert done.stdout == "SIGHUP\n" * 3 and "stopped by SIGHUP: what was saved before is there" in done.stderr


def is_importing(life: Life) -> bool:
    try:
        return "libtorch_cpu" in Path(f"/proc/{life.pid()}/maps").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_during_imports_leaves_no_traceback_and_no_folder(number, code, job, tmp_path):
    with job.start(tmp_path / "out", tmp_path / "log") as life:
        assert life.wait_until(lambda: is_importing(life))
        life.signal(number)
        assert life.wait(30) == code
        assert "Traceback" not in life.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_preparation_says_how_to_go_on(number, job, material, tmp_path):
    out, work = tmp_path / "out", tmp_path / "out" / "prepared" / ".work"
    source = (f"--corpus={material / 'made_up.txt'}", "--workers=1")
    preparing = job.changed(steps=1, evaluations=1, arguments=(*source, *job.arguments[1:]))
    with preparing.fork(out, tmp_path / "log") as life:
        assert life.wait_until(work.exists)
        life.signal(number)
        assert life.wait(30) == INTERRUPTED, life.err
        assert "Traceback" not in life.err
        assert life.err.splitlines()[-1].startswith(f"  python -m pretrain.run {shlex.quote(source[0])} ")
    with preparing.fork(out, tmp_path / "again") as life:
        assert life.wait() == 0, life.err
    assert not work.exists()


def test_the_handlers_found_are_put_back(job, finished, capsys):
    def mine(*facts): ...

    before = {number: signal.signal(number, mine) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for arguments, code in ((job.given(finished), 0), ([*job.given(finished), "--batch-size=24"], 2)):
            assert main(arguments) == code
            assert [signal.getsignal(number) for number in before] == [mine, mine]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "holds this run, finished" in capsys.readouterr().out


def test_a_fine_tuning_is_stopped_and_goes_on(finetune_job, finetuned, tmp_path):
    out = tmp_path / "out"
    seen = Seen(out, finetune_job)
    with finetune_job.fork(out, tmp_path / "log") as life:
        # In the second seed.
        step = stopped_after(life, seen, finetune_job.steps + 5, signal.SIGTERM)
        assert step == seen.last()[0] > finetune_job.steps
    words = shlex.split(life.err.splitlines()[-1])
    with Forked(words[2], words[3:], tmp_path / "again") as life:
        assert life.wait() == 0
        assert "seed-1 is finished" in life.out
    assert not differences(out, finetuned)
