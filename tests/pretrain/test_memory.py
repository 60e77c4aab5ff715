"""What the process keeps of its memory."""

import ctypes
import resource

import pytest
import torch

from pretrain.memory import give_back

PAGES = 16 * 8 * 2**20 // resource.getpagesize()


def pages_of_sixteen_tensors() -> int:
    """How many pages the system has to give for 128 MB of tensors, which are freed again."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.ones(2**21) for _ in range(16)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_freed_tensors_are_used_again_until_their_memory_is_given_back():
    for _ in range(3):
        pages_of_sixteen_tensors()
    assert pages_of_sixteen_tensors() < 0.2 * PAGES
    give_back()
    assert pages_of_sixteen_tensors() > 0.5 * PAGES
