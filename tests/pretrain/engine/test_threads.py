"""How the number of threads follows what else runs: on machines of which only the speeds are known."""

import os
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.engine.settings import LoopSettings
from pretrain.engine.threads import IdleCores, Threads, busy

TOKENS = 7_000


class Trainer:
    """Takes steps on a machine that computes a given number of tokens a second, by the number of threads."""

    def __init__(self, most=2, may_change=True):
        self.in_use, self.free = most, None
        self.threads = Threads(most, may_change, self.use, self.idle)

    def use(self, number):
        self.in_use = number

    def idle(self):
        return None if self.free is None else max(0.0, self.free - self.in_use)

    def train(self, seconds, speeds):
        """Tokens a second that are reached."""
        used, tokens = 0.0, 0
        while used < seconds:
            step = TOKENS / speeds[self.in_use]
            self.threads.took(step, TOKENS)
            used, tokens = used + step, tokens + TOKENS
        return tokens / used


# Measured: benchmarks/threads.py on two machines.
ALONE = {1: 13_572, 2: 22_322}
BESIDE = {1: 15_591, 2: 2_498}


def test_alone_hardly_anything_is_lost_to_trials():
    assert Trainer().train(240, ALONE) > 0.97 * ALONE[2]


def test_beside_another_program_nearly_the_rate_of_one_thread_is_reached():
    assert Trainer().train(240, BESIDE) > 0.85 * BESIDE[1]
    assert Trainer().train(3600, BESIDE) > 0.93 * BESIDE[1]


def test_where_idle_cores_are_known_only_the_first_steps_beside_another_program_are_lost():
    trainer = Trainer()
    trainer.free = 1
    assert trainer.train(75, BESIDE) > 0.91 * BESIDE[1]
    assert trainer.train(240, BESIDE) == pytest.approx(BESIDE[1])


@pytest.mark.parametrize(("idle", "number"), [(None, 4), (3.9, 4), (2.2, 2), (0.0, 1), (7.0, 4)])
def test_it_sets_out_with_as_many_threads_as_there_are_idle_cores_for(idle, number):
    used = []
    with Threads(4, use=used.append, idle=lambda: idle) as threads:
        assert threads.number == used[-1] == number
    assert used[-1] == 4


def test_a_core_that_becomes_idle_is_used_within_seconds():
    trainer = Trainer()
    trainer.free = 1
    trainer.train(600, BESIDE)
    trainer.free = 2
    assert trainer.train(30, ALONE) > 0.9 * ALONE[2]
    assert trainer.threads.number == 2


def counters(folder, ticks):
    """A file as the kernel writes it; `ticks`: core -> user, nice, system, idle, waiting, irq, softirq, steal."""
    lines = ["cpu  1 2 3 4 5 6 7 8 0 0"]
    lines += [f"cpu{core} {' '.join(map(str, numbers))} 0 0" for core, numbers in ticks.items()]
    (folder / "stat").write_text("\n".join([*lines, "intr 7 0 0", "", "ctxt 5"]))
    return folder / "stat"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the cores of a process are known on Linux")
def test_idle_cores_are_those_of_this_process_that_nothing_needs(tmp_path):
    core = min(os.sched_getaffinity(0))
    other = max(os.sched_getaffinity(0)) + 1
    idle = IdleCores(counters(tmp_path, {core: [0] * 8, other: [0] * 8}))
    assert idle() is None, "no time has passed"
    # A fifth for others that give way, idle or waiting for a disk; the rest at work, or with another machine.
    counters(tmp_path, {core: [30, 5, 20, 10, 5, 5, 5, 20], other: [0, 0, 0, 100, 0, 0, 0, 0]})
    assert idle() == pytest.approx(0.2)
    counters(tmp_path, {core: [30, 5, 20, 60, 5, 5, 5, 20], other: [0, 0, 0, 100, 0, 0, 0, 0]})
    assert idle() == 1.0


def test_idle_cores_are_unknown_without_counters(tmp_path):
    idle = IdleCores(tmp_path / "stat")
    assert idle() is None
    assert idle() is None


@pytest.mark.parametrize(("threads", "budget", "idle", "expected"), [
    (4, "3epochs", 4.0, None), (4, "3epochs", 3.6, None), (2, "1h", 2.0, None),
    (4, "3epochs", 2.9, "about 1 of the 4 cores.* half as fast as 3, or less.* go on with --threads 3"),
    (4, "9steps", 0.1, "about 4 of the 4 cores.* half as fast as 1, or less.* go on with --threads 1"),
    (2, "9steps", 1.0, "about 3 of the 4 cores.*: 2 of them may be half as fast as 1, or less"),
    (2, "auto", 1.0, "about 3 of the 4 cores.*: 2 of them"), (8, "9steps", 4.0, None), (8, "9steps", 3.0, "8 of them"),
    (4, "1h", 1.0, "about 3 of the 4 cores, .* a share of them only"),
])  # fmt: skip
def test_cores_that_others_use_are_said(threads, budget, idle, expected, monkeypatch):
    monkeypatch.setattr("pretrain.engine.threads.available_cores", lambda: 4)
    monkeypatch.setattr("pretrain.engine.threads._LOOK", 0)
    asked = LoopSettings(threads=threads, budget=budget, device="cpu")
    found = busy(asked, lambda: idle)
    assert found is None if expected is None else re.search(expected, found)
    assert busy(replace(asked, device="cuda"), lambda: idle) is None


@pytest.mark.parametrize(("load", "expected"), [(1.0, False), (2.0, True)])
def test_where_no_core_is_counted_the_load_tells(load, expected, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load * os.cpu_count(), 0.0, 0.0))
    asked = LoopSettings(threads=1, budget="9steps", device="cpu")
    assert ("a share of them only" in (busy(asked, lambda: 1 / 0) or "")) == expected
    assert bool(busy(replace(asked, threads=2), lambda: None)) == expected


def test_a_program_that_comes_and_goes_is_followed():
    trainer = Trainer()
    trainer.train(60, ALONE)
    assert trainer.threads.number == 2
    trainer.train(30, BESIDE)
    assert trainer.threads.number == trainer.in_use == 1
    trainer.train(150, ALONE)
    assert trainer.threads.number == 2
    assert trainer.train(60, ALONE) > 0.95 * ALONE[2]


def test_a_machine_that_is_slower_for_any_number_of_threads_is_left_in_peace():
    trainer = Trainer()
    trainer.train(600, ALONE)
    slow = {number: speed / 3 for number, speed in ALONE.items()}
    assert trainer.train(600, slow) > 0.97 * slow[2]
    assert trainer.threads.number == 2


@given(cores=st.sampled_from([2, 3, 4, 8, 16]), taken=st.integers(0, 4), known=st.booleans())
@settings(max_examples=60)
def test_of_many_cores_those_that_others_take_are_left_to_them(cores, taken, known):
    """A thread beside another program has half a core, and all wait for it."""
    free = max(1, cores - taken)
    speeds = {n: 10_000 * (n if n <= free else n / 2) for n in range(1, cores + 1)}
    trainer = Trainer(cores)
    trainer.free = free if known else None
    trainer.train(3000, speeds)
    assert speeds[trainer.threads.number] >= 0.75 * max(speeds.values())


def test_a_number_that_is_hardly_faster_is_not_chosen():
    trainer = Trainer()
    trainer.train(600, {1: 10_500, 2: 10_000})
    assert trainer.threads.number == 2


@pytest.mark.parametrize(("most", "may_change"), [(2, False), (1, True)])
def test_threads_that_may_not_change_do_not(most, may_change):
    trainer = Trainer(most, may_change)
    trainer.train(100, BESIDE)
    assert trainer.in_use == most


def test_at_the_end_there_are_as_many_threads_as_at_first():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with Threads(2) as threads:
            while threads.number == 2:
                threads.took(*((0.4, 7_000) if torch.get_num_threads() == 2 else (0.1, 7_000)))
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("budget", "processes", "may_change"),
    [("1m", 1, True), ("10steps", 1, False), ("2epochs", 1, False), ("1m", 2, False)],
)
def test_the_number_of_threads_changes_only_where_no_bit_depends_on_it(budget, processes, may_change):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = Threads.of(LoopSettings(budget=budget, device="cpu"), processes)
        assert found.may_change == may_change
        # What this machine does beside is left out.
        with Threads(found.most, found.may_change, idle=lambda: None) as threads:
            for _ in range(12):
                # So slow with two threads that another program must have a core.
                threads.took(1.0 if torch.get_num_threads() == 2 else 0.1, 1_000)
            assert torch.get_num_threads() == (1 if may_change else 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
