import pytest
import torch

from pretrain.engine.step import is_out_of_memory


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
