"""The process that computes: what torch's kernels and the C library keep of its memory, what a run leaves as it was."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# Numbers of glibc's malloc.h, and the largest threshold that it takes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_FREE, _LARGEST_IN_HEAP = 512 * 2**20, 32 * 2**20


def settle() -> None:
    """Arrange the process; to be called before torch is loaded. What the environment says already stays.

    oneDNN and torch's layer over it each keep 1,024 kernels with their scratch memory, one for every new shape: up to
    gigabytes. The shapes that come again (see `model.attention`) are fewer; here they keep 512.

    glibc gives the end of its heap back to the system whenever a large tensor there is freed, and takes it again for
    the next one, page by page and zeroed. Here it keeps up to 512 MB of it. Other C libraries are left as they are.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "512")
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _MOST_FREE)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)


@contextmanager
def left_as_found() -> Iterator[None]:
    """After the block torch has the number of threads, and its generators the state, that it had before."""
    import torch

    threads = torch.get_num_threads()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(gpus):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
