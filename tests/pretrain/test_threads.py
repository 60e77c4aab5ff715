"""How the number of threads follows what else runs: on machines of which only the speeds are known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.threads import Threads

TOKENS = 7_000


class Trainer:
    """Takes steps on a machine that computes so many tokens a second, by the number of threads."""

    def __init__(self, most=2, may_change=True):
        self.in_use = most
        self.threads = Threads(most, may_change, self.use)

    def use(self, number):
        self.in_use = number

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


@given(cores=st.sampled_from([2, 3, 4, 8, 16]), taken=st.integers(0, 4))
@settings(max_examples=30)
def test_of_many_cores_those_that_others_take_are_left_to_them(cores, taken):
    """A thread beside another program has half a core, and all wait for it."""
    free = max(1, cores - taken)
    speeds = {n: 10_000 * (n if n <= free else n / 2) for n in range(1, cores + 1)}
    trainer = Trainer(cores)
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
