"""What the process keeps of its memory."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: what other tests have left in the heap would serve the tensors too.
PROGRAM = """
import random
import resource

import pretrain
import torch
from data_prep.memory import give_back

sizes = random.Random(1)


def pages_a_page_of_tensors():
    chosen = [sizes.randrange(2**15, 3 * 2**20) for _ in range(24)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.empty(size).fill_(1) for size in chosen]
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (4 * sum(chosen) / resource.getpagesize())


for _ in range(10):
    pages_a_page_of_tensors()
print(sum(pages_a_page_of_tensors() for _ in range(20)) / 20)
give_back()
print(pages_a_page_of_tensors())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_freed_tensors_are_used_again_until_their_memory_is_given_back():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    # Pages that the system has to give for every page of tensors of ever new sizes.
    kept, given_back = map(float, done.stdout.split())
    assert kept < 0.02
    assert given_back > 0.5
