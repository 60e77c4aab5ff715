"""How processes that were started together know each other, whatever those before them have left."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from pretrain.engine import distributed
from pretrain.engine.distributed import World, agreed_name
from pretrain.engine.settings import PretrainError


def life(store, size, order):
    """The name that each of `size` processes, begun in an order, takes for all of them."""
    with ThreadPoolExecutor(size) as pool:
        found = {}
        for rank in order:
            found[rank] = pool.submit(agreed_name, store, rank, size)
            time.sleep(0.06)
        return [found[rank].result(timeout=20) for rank in range(size)]


@pytest.mark.parametrize("seed", range(4))
def test_all_agree_on_a_name_that_no_life_before_had(seed):
    store, drawn, names = dist.HashStore(), random.Random(seed), []
    for size in (3, 2, 4, 3):
        found = life(store, size, drawn.sample(range(size), size))
        assert len(set(found)) == 1
        names.append(found[0])
    assert len(set(names)) == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_whose_peer_was_of_the_life_before_waits_for_the_one_of_today(rank):
    store = dist.HashStore()
    life(store, 2, (0, 1))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(agreed_name, store, rank, 2)
        time.sleep(0.3)
        assert not first.done()
        assert agreed_name(store, 1 - rank, 2) == first.result(timeout=20)


def test_who_finds_nobody_says_so(monkeypatch):
    monkeypatch.setattr(distributed, "_TIMEOUT", distributed.timedelta(seconds=0.2))
    with pytest.raises(PretrainError, match=r"2 of 2 processes did not answer the first one"):
        agreed_name(dist.HashStore(), 0, 3)
    with pytest.raises(PretrainError, match="the first process does not answer"):
        agreed_name(dist.HashStore(), 1, 3)


def test_processes_that_find_other_devices_are_refused():
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        found = [
            pool.submit(distributed._connect, World(rank, 2, store), device, dist.PrefixStore("group", store))
            for rank, device in enumerate(("cpu", "cuda"))
        ]
        for each in found:
            with pytest.raises(PretrainError, match=r"some processes find a GPU and others none \(cpu and cuda\)"):
                each.result(timeout=20)
