"""Pinned memory: what is pinned, what is returned as it is, and what happens without CUDA."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict, UserDict, UserList, namedtuple
from typing import Any

import pytest

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import PinMemory as PinMemoryAdapter
from torchdata.datapipes.iter import IterableWrapper, PinMemory
from torchdata.datapipes.utils import pin_memory_fn

torch = pytest.importorskip("torch", reason="pinned memory is torch's")

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="there is no CUDA device")
needs_none = pytest.mark.skipif(CUDA, reason="this is about machines without a CUDA device")

Pair = namedtuple("Pair", "image label")


class Pinnable:
    """An object that knows how to pin itself."""

    def __init__(self) -> None:
        self.pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


def test_containers_keep_their_types_and_what_cannot_be_pinned_is_returned_as_it_is() -> None:
    items = [
        3,
        "text",
        b"bytes",
        None,
        {"a": [1, (2, "x")]},
        OrderedDict(b=1, a=2),
        Pair(1, "cat"),
        UserDict(a=1),
        UserList([1, 2]),
        range(3),
    ]
    for item in items:
        pinned = pin_memory_fn(item)
        assert pinned == item
        assert type(pinned) is type(item)


@pytest.mark.parametrize("device", [None, "cuda:1"])
def test_objects_pin_themselves(device: Any) -> None:
    assert pin_memory_fn({"nested": [Pair(Pinnable(), 1)]}, device)["nested"][0].image.pinned


def marked(item: Any, device: Any) -> Any:
    return item, device, threading.current_thread() is threading.main_thread()


def test_a_function_of_ones_own_is_called_in_a_thread_with_item_and_device() -> None:
    pipe = IterableWrapper(range(4)).pin_memory(device="cuda:1", pin_memory_fn=marked)
    assert list(pipe) == list(pipe) == [(item, "cuda:1", False) for item in range(4)]
    assert len(pipe) == 4
    assert not pipe.is_replicable()


def test_with_workers_it_stays_in_the_main_process() -> None:
    import os

    pipe = (
        IterableWrapper(range(6))
        .sharding_filter()
        .pin_memory(pin_memory_fn=lambda item, _: (item, os.getpid()))
    )
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        assert list(loader) == [(item, os.getpid()) for item in range(6)]


def test_the_adapter_appends_it_once() -> None:
    pipe = PinMemoryAdapter(device="cuda:1")(IterableWrapper(range(3)))
    assert isinstance(pipe, PinMemory)
    assert pipe.device == "cuda:1"
    assert PinMemoryAdapter()(pipe) is pipe


@needs_none
def test_without_cuda_the_error_names_the_pipe_and_the_remedy() -> None:
    with pytest.raises(
        RuntimeError, match=r"PinMemory needs a CUDA device.*take pin_memory out of the pipeline"
    ):
        list(IterableWrapper(range(3)).pin_memory())
    with pytest.raises(RuntimeError):
        pin_memory_fn(torch.ones(3))


def test_without_torch_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match="PyTorch is not installed; take pin_memory out"):
        list(IterableWrapper(range(3)).pin_memory())


def test_an_error_while_pinning_arrives_and_leaves_the_pipe_usable() -> None:
    def fails_on_two(item: int, _: Any) -> int:
        if item == 2:
            raise ValueError("cannot be pinned")
        return item

    pipe = IterableWrapper(range(4)).pin_memory(pin_memory_fn=fails_on_two)
    for _ in range(2):
        items = iter(pipe)
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(ValueError, match="cannot be pinned"):
            next(items)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PinMemory(3), TypeError, "PinMemory: source_datapipe"),
        (
            lambda: PinMemory(IterableWrapper([1]), pin_memory_fn=3),
            TypeError,
            "pin_memory_fn must be a function",
        ),
    ],
)
def test_wrong_arguments_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@needs_cuda
def test_tensors_are_pinned_ahead_of_use() -> None:
    pipe = IterableWrapper(range(4)).map(lambda n: {"image": torch.full((100, 100), n)}).pin_memory()
    for number, item in enumerate(pipe):
        assert item["image"].is_pinned()
        assert int(item["image"].to("cuda", non_blocking=True).max()) == number


@needs_cuda
def test_copies_from_pinned_memory_overlap_with_computing() -> None:
    batch = torch.ones(64 << 20, dtype=torch.uint8)
    weights = torch.ones(4096, 4096, device="cuda")
    copying = torch.cuda.Stream()

    def seconds(source: Any, *, copy: bool, compute: bool) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(10):
            if copy:
                with torch.cuda.stream(copying):
                    source.to("cuda", non_blocking=True)
            if compute:
                _ = weights @ weights
        torch.cuda.current_stream().wait_stream(copying)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    (pinned,) = IterableWrapper([batch]).pin_memory()
    seconds(pinned, copy=True, compute=True)  # warm
    copies, computes = (
        min(seconds(pinned, copy=copy, compute=not copy) for _ in range(5)) for copy in (True, False)
    )
    together = min(seconds(pinned, copy=True, compute=True) for _ in range(5))
    assert together < 0.9 * (copies + computes), (copies, computes, together)
