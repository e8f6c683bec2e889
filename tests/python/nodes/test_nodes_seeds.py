"""Each process of `ParallelMapper(method="process")` draws different random numbers, as torch's workers do."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from exiting import Exiting
from families import Mapped
from process_checks import nothing_is_left, wait_for  # noqa: F401 - a fixture for all tests here
from torchdata.nodes import IterableWrapper, Loader, ParallelMapper, SamplerWrapper


def draw(_item: Any) -> tuple[float, float, float]:
    return torch.rand((), dtype=torch.float64).item(), random.random(), float(np.random.rand())


class DrawsOnceReady:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: Any) -> tuple[float, float, float]:
        (self.folder / str(os.getpid())).touch()
        wait_for(lambda: len(list(self.folder.iterdir())) == 2)
        return draw(item)


def mapper(source: Any, function: Any, workers: int, context: str = "fork", **options: Any) -> ParallelMapper[Any]:
    return ParallelMapper(source, function, workers, method="process", multiprocessing_context=context, **options)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_process_draws_what_a_worker_of_torch_draws(context: str) -> None:
    torch.manual_seed(7)
    expected = [tuple(row) for row in DataLoader(Mapped(draw, 6), None, num_workers=1, multiprocessing_context="fork")]
    torch.manual_seed(7)
    with Loader(mapper(IterableWrapper(range(6)), draw, 1, context)) as loader:
        assert list(loader) == expected


def test_no_two_processes_draw_the_same_numbers(tmp_path: Path) -> None:
    with Loader(mapper(IterableWrapper([[n] for n in range(8)]), DrawsOnceReady(tmp_path), 2)) as loader:
        for column in zip(*loader, strict=True):
            assert len(set(column)) == 8


def test_processes_of_two_mappers_in_one_graph_draw_different_numbers() -> None:
    inner = mapper(IterableWrapper(range(4)), lambda item: (draw(item),), 1)
    with Loader(mapper(inner, lambda draws: (*draws, draw(None)), 1)) as loader:
        received = [one for pair in loader for one in pair]
    assert len(set(received)) == 8


def test_the_main_process_draws_the_same_numbers_as_without_processes() -> None:
    orders = []
    for method in ("thread", "process"):
        torch.manual_seed(3)
        source = SamplerWrapper(RandomSampler(range(10)))  # type: ignore[arg-type]
        with Loader(ParallelMapper(source, abs, 1, method=method, multiprocessing_context="fork")) as loader:  # type: ignore[arg-type]
            orders.append((list(loader), list(loader), torch.rand(()).item()))
    assert orders[0] == orders[1]


class DrawsAndExits:
    def __init__(self, folder: Path) -> None:
        self.exiting = Exiting(folder, {3: 1})

    def __call__(self, item: int) -> tuple[float, float, float]:
        self.exiting(item)
        return draw(item)


@pytest.mark.filterwarnings("ignore:.*A new process:RuntimeWarning")
def test_a_process_that_replaces_another_does_not_repeat_its_numbers(tmp_path: Path) -> None:
    node = mapper(IterableWrapper(range(8)), DrawsAndExits(tmp_path), 1, on_worker_exit="restart")
    with Loader(node) as loader:
        received = list(loader)
    assert len(list(tmp_path.iterdir())) == 1
    assert len(set(received)) == 8
