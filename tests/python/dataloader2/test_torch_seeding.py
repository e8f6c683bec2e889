"""Workers seed torch and all devices as `torch.manual_seed` does, and take no longer than `torch.manual_seed`."""

import random
import sys
import traceback

import pytest

from process_checks import loader, nothing_is_left  # noqa: F401
from torchdata.dataloader2.random import SeedGenerator
from torchdata.datapipes._pipe.state.generators import seed_torch
from torchdata.datapipes.iter import IterableWrapper

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def draws(_=None):
    import numpy.random
    import torch

    return torch.rand(3).tolist(), numpy.random.random(3).tolist(), [random.random() for _ in range(3)]


def expected(epoch_seeds):
    python_seed, torch_seed, numpy_seed = epoch_seeds
    random.seed(python_seed)
    torch.manual_seed(torch_seed)
    np.random.seed(numpy_seed >> 32)
    return draws()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_draw_what_the_libraries_draw_after_their_own_seeding(method):
    with loader(IterableWrapper(range(2)).sharding_filter().map(draws), multiprocessing_context=method) as dl:
        generator = SeedGenerator(11)
        dl.seed(11)
        for _ in range(3):
            workers = [generator.spawn(index) for index in range(2)]
            seeds = [[worker.generate_seed() for _ in range(3)] for worker in workers]
            assert list(dl) == [expected(own) for own in seeds]
            generator.seed(generator.generate_shared_seed())


def test_every_device_is_seeded_and_by_torch_itself(monkeypatch):
    seeded = {}
    for name in ("cuda", "xpu", "mtia"):
        module = getattr(torch, name, None)
        if module is not None:
            monkeypatch.setattr(module, "_is_in_bad_fork", lambda: False)
            monkeypatch.setattr(module, "manual_seed_all", lambda seed, name=name: seeded.update({name: seed}))
    seed_torch(torch, 2**64 - 5)
    assert seeded
    assert set(seeded.values()) == {2**64 - 5}
    assert torch.initial_seed() == 2**64 - 5


@pytest.mark.parametrize("limit", [None, 7])
def test_no_text_of_the_stack_is_made_and_the_limit_is_the_users_again(monkeypatch, limit):
    if limit is not None:
        monkeypatch.setattr(sys, "tracebacklimit", limit, raising=False)
    texts = []

    def fails(_seed):
        texts.append(traceback.format_stack())
        raise RuntimeError("no such device")

    monkeypatch.setattr(torch, "manual_seed", fails)
    with pytest.raises(RuntimeError, match="no such device"):
        seed_torch(torch, 1)
    assert texts == [[]]
    assert getattr(sys, "tracebacklimit", None) == limit
