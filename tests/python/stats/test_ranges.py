"""Torch's profiler shows pipes as named ranges, even if profiling begins in the middle of an epoch."""

import os
import sys
from typing import Any

import pytest

from needing import needs
from torchdata.datapipes._pipe.ranges import ranges
from torchdata.datapipes.iter import IterableWrapper


def fail_at_3(item: int) -> int:
    if item == 3:
        raise ValueError("three")
    return item


@pytest.fixture
def torch() -> Any:
    needs("torch", "torch's profiler records the ranges")
    import torch

    return torch


def counts(profiler: Any) -> dict[str, int]:
    return {event.key: event.count for event in profiler.key_averages() if event.key.startswith("torchdata: ")}


def test_a_profiler_that_starts_within_an_epoch_shows_the_pipes_from_then_on(torch: Any) -> None:
    items = iter(IterableWrapper(range(10)).map(str))
    next(items)
    with torch.autograd.profiler.profile() as profiler:
        assert [next(items), next(items)] == ["1", "2"]
    assert list(items) == [str(number) for number in range(3, 10)]
    assert counts(profiler) == {"torchdata: IterableWrapper": 2, "torchdata: Mapper(str)": 2}


def test_an_error_ends_its_profiler_ranges_and_is_raised_unchanged(torch: Any) -> None:
    with torch.autograd.profiler.profile() as profiler, pytest.raises(ValueError, match="three"):
        list(IterableWrapper(range(6)).map(fail_at_3))
    assert counts(profiler) == {"torchdata: IterableWrapper": 4, "torchdata: Mapper(fail_at_3)": 4}


def test_a_forked_child_and_a_program_without_torch_have_no_profiler_ranges(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ranges() is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if ranges() is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    monkeypatch.delitem(sys.modules, "torch.autograd.profiler")
    assert ranges() is None
