"""Batches computed side by side: the same, in the same order, with the threads and the memory that were promised."""

import gc
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.parallel import in_parallel
from finetune.vectors.embedder import Embedder


@pytest.fixture
def use_threads():
    """Sets torch's threads for the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 2**32))
def test_results_come_in_the_order_of_the_batches(count, threads, seed):
    random_of, before = random.Random(seed), torch.get_num_threads()
    waits = [random_of.random() / 500 for _ in range(count)]

    def late(number):
        time.sleep(waits[number])
        return number, torch.is_inference_mode_enabled()

    try:
        torch.set_num_threads(threads)
        found = list(in_parallel(late, range(count), "cpu"))
        assert torch.get_num_threads() == threads
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == threads
    finally:
        torch.set_num_threads(before)
    assert found == [(number, True) for number in range(count)]


@pytest.mark.parametrize(
    ("threads", "batches", "at_once", "each"),
    [(1, 9, 1, 1), (2, 9, 2, 1), (4, 9, 4, 1), (16, 20, 8, 2), (20, 20, 8, 2), (4, 1, 1, 4)],
)
def test_threads_are_shared_out_among_the_batches(use_threads, threads, batches, at_once, each):
    use_threads(threads)
    together = threading.Barrier(at_once, timeout=20)

    def compute(number):
        if number < at_once:
            together.wait()  # raises if fewer are computed at once
        return torch.get_num_threads(), threading.get_ident()

    found = list(in_parallel(compute, range(batches), "cpu"))
    assert {number for number, _ in found} == {each}
    assert len({name for _, name in found}) == at_once


def test_calls_that_overlap_leave_the_threads_as_they_were(use_threads):
    use_threads(16)
    begun, may_end = threading.Event(), threading.Event()

    def first(batch):
        begun.set()
        return may_end.wait(10)

    def second(batch):
        # The first call ends while this one is under way.
        may_end.set()
        one.join(10)
        return torch.get_num_threads()

    one = threading.Thread(target=lambda: list(in_parallel(first, range(3), "cpu")))
    one.start()
    assert begun.wait(10)
    assert set(in_parallel(second, range(3), "cpu")) == {2}
    assert torch.get_num_threads() == 16
    with ThreadPoolExecutor(1) as another:
        assert another.submit(torch.get_num_threads).result() == 16


def test_no_more_batches_are_made_than_are_needed(use_threads):
    use_threads(2)
    made = taken = 0

    def batches():
        nonlocal made
        for number in range(50):
            made += 1
            yield number

    for _ in in_parallel(lambda number: number, batches(), "cpu"):
        taken += 1
        assert made - taken <= 2
    assert made == taken == 50


@pytest.mark.parametrize("threads", [1, 2])
def test_a_mistake_is_raised_in_its_turn_and_no_thread_is_left(use_threads, threads):
    use_threads(threads)

    def batches():
        yield from range(6)
        raise OSError("the seventh is not there")

    def compute(number):
        if number == 3:
            raise ValueError("the fourth")
        return number

    running, found = threading.active_count(), []
    with pytest.raises(ValueError, match="the fourth"):
        found.extend(in_parallel(compute, range(6), "cpu"))
    with pytest.raises(OSError, match="the seventh"):
        list(in_parallel(str, batches(), "cpu"))
    # Whoever asks no further leaves none either.
    for _ in in_parallel(str, range(50), "cpu"):
        break
    gc.collect()
    assert threading.active_count() == running


def test_vectors_are_equal_to_the_bit_whatever_the_number_of_threads(encoder, use_threads):
    texts = [f"{'heart rate of the patient ' * (n * 7 % 5)}was {n} [mask] stable, {n * n}." for n in range(60)]
    embedder, found = Embedder(encoder, device="cpu", micro_batch_tokens=64), []
    for threads in (1, 2, 3):
        use_threads(threads)
        found.append(embedder.embed(texts))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
