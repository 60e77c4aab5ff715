from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.engine.out_of_memory import fitting, is_out_of_memory
from pretrain.engine.settings import PretrainError


def raised_by(act) -> BaseException:
    with pytest.raises(Exception) as caught:
        act()
    return caught.value


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.77 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "MPS backend out of memory (MPS allocated: 17.98 GiB, other allocations: 1.2 MiB, max allowed: 18.13 GiB)",
    ],
)
def test_every_library_of_a_gpu_may_say_in_its_words_that_memory_is_out(message):
    assert is_out_of_memory(RuntimeError(message))


def test_the_error_of_torchs_own_allocator_counts_whatever_it_says():
    assert is_out_of_memory(torch.OutOfMemoryError("no room"))


def test_a_mistake_in_the_code_is_no_lack_of_memory():
    assert not is_out_of_memory(raised_by(lambda: torch.ones(2, 3) @ torch.ones(2, 3)))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_only_errors_of_the_computation_count_not_a_text_that_speaks_of_one():
    assert not is_out_of_memory(ValueError("a row reads: CUDA out of memory"))
    assert not is_out_of_memory(KeyboardInterrupt("CUDA out of memory"))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 2000), st.integers(1, 100))
def test_what_does_not_fit_is_computed_in_halves_down_to_the_longest_sequence(lengths, at_once, room):
    maker = SimpleNamespace(micro_batch_tokens=at_once, remedy="shorter sequences")
    tried = []

    def compute():
        tried.append(maker.micro_batch_tokens)
        # A sequence that is longer than a micro-batch is one by itself.
        if max(max(lengths), min(sum(lengths), maker.micro_batch_tokens)) > room:
            raise torch.OutOfMemoryError("no room")
        return "found"

    if max(lengths) > room:
        with pytest.raises(PretrainError, match=f"too small for {max(lengths)} tokens at once"):
            fitting(compute, maker, np.array(lengths), torch.device("cpu"))
    else:
        assert fitting(compute, maker, np.array(lengths), torch.device("cpu")) == "found"
        assert tried[-1] == maker.micro_batch_tokens
        assert all(after >= before // 4 for before, after in zip(tried[1:], tried[2:], strict=False))
    assert len(tried) < 15


def test_another_error_is_not_held_back():
    maker = SimpleNamespace(micro_batch_tokens=100, remedy="shorter sequences")
    with pytest.raises(RuntimeError, match="must match"):
        fitting(lambda: torch.ones(2) + torch.ones(3), maker, np.ones(1, np.int64), torch.device("cpu"))
