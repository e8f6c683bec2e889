"""Pinning memory keeps the types of containers, returns other objects unchanged, and raises an error without CUDA."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict, UserDict, UserList, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from refusals import refuses
from resuming import with_state
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, PinMemory
from torchdata.datapipes.state import is_restorable, save_state
from torchdata.datapipes.utils import pin_memory_fn

torch = pytest.importorskip("torch", reason="only torch pins memory")

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="the test needs a CUDA device")
needs_none = pytest.mark.skipif(CUDA, reason="the test needs a machine without a CUDA device")

Pair = namedtuple("Pair", "image label")


class Pinnable:
    def __init__(self) -> None:
        self.pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


def test_containers_keep_their_types_and_other_objects_are_returned_unchanged() -> None:
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
def test_objects_with_a_pin_memory_method_are_pinned_by_it(device: Any) -> None:
    assert pin_memory_fn({"nested": [Pair(Pinnable(), 1)]}, device)["nested"][0].image.pinned


def marked(item: Any, device: Any) -> Any:
    return item, device, threading.current_thread() is threading.main_thread()


def test_the_user_s_function_is_called_in_a_thread_with_item_and_device() -> None:
    pipe = IterableWrapper(range(4)).pin_memory(device="cuda:0", pin_memory_fn=marked)
    assert list(pipe) == list(pipe) == [(item, "cuda:0", False) for item in range(4)]
    assert len(pipe) == 4
    assert not pipe.is_replicable()


def test_pin_memory_runs_in_the_main_process_even_with_workers() -> None:
    import os

    pipe = IterableWrapper(range(6)).sharding_filter().pin_memory(pin_memory_fn=lambda item, _: (item, os.getpid()))
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        assert list(loader) == [(item, os.getpid()) for item in range(6)]


@needs_none
def test_without_cuda_the_error_names_the_pipe_and_the_remedy() -> None:
    with pytest.raises(RuntimeError, match=r"PinMemory needs a CUDA device.*remove pin_memory from the pipeline"):
        list(IterableWrapper(range(3)).pin_memory())
    for device in (None, "cuda:1"):
        with pytest.raises(RuntimeError, match=r"pin_memory_fn needs a CUDA device, .* only where torch.cuda"):
            pin_memory_fn({"image": [torch.ones(3)]}, device)


def test_without_torch_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match="PyTorch is not installed; remove pin_memory"):
        list(IterableWrapper(range(3)).pin_memory())


test_wrong_arguments_are_named = refuses(
    (lambda: PinMemory(3), TypeError, "PinMemory: source_datapipe"),
    (lambda: PinMemory(IterableWrapper([1]), pin_memory_fn=3), TypeError, "pin_memory_fn must be a function"),
)


class Gpus:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chosen: dict[int, int] = {}
        self.pinned: list[tuple[int, int, bool]] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", self.current)
        monkeypatch.setattr(torch.cuda, "set_device", self.choose)
        monkeypatch.setattr(torch.cuda, "device", self.within)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: self.pin(tensor))

    def current(self) -> int:
        return self.chosen.get(threading.get_ident(), 0)

    def choose(self, device: Any) -> None:
        number = device if isinstance(device, int) else torch.device(device).index
        if number > 3:
            raise RuntimeError(f"invalid device ordinal {number}")
        self.chosen[threading.get_ident()] = number

    @contextmanager
    def within(self, device: Any) -> Iterator[None]:
        before = self.current()
        self.choose(device)
        yield
        self.choose(before)

    def pin(self, tensor: Any) -> Any:
        in_main = threading.current_thread() is threading.main_thread()
        self.pinned.append((int(tensor.flatten()[0]), self.current(), in_main))
        return tensor


@pytest.mark.parametrize(("device", "number"), [(None, 2), ("cuda", 2), ("cuda:3", 3), (1, 1)])
def test_the_thread_pins_for_the_device_of_its_pipe(monkeypatch: pytest.MonkeyPatch, device: Any, number: int) -> None:
    gpus = Gpus(monkeypatch)
    gpus.choose(2)
    devices_of_the_source = []

    def made(n: int) -> dict[str, Any]:
        devices_of_the_source.append(gpus.current())
        return {"image": torch.full((2, 2), n)}

    items = list(IterableWrapper(range(3)).map(made).pin_memory(device=device))
    assert [int(item["image"].sum()) for item in items] == [0, 4, 8]
    assert gpus.pinned == [(n, number, False) for n in range(3)]
    assert devices_of_the_source == [number] * 3
    assert gpus.current() == 2


def test_items_that_were_saved_after_pinning_are_pinned_when_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(monkeypatch)
    pipe = IterableWrapper([torch.tensor(n) for n in range(4)]).pin_memory(device=1)
    items = iter(pipe)
    assert int(next(items)) == 0
    state = save_state(pipe)
    assert is_restorable(pipe)
    pipe.shutdown()  # The pipe's thread would otherwise continue to pin tensors.
    restored = with_state(IterableWrapper([torch.tensor(n) for n in range(4)]).pin_memory(device=1), state)
    gpus.pinned.clear()
    assert list(map(int, restored)) == [1, 2, 3]
    assert [(item, device) for item, device, _ in gpus.pinned if item > 0] == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("cpu", ValueError, "PinMemory: device must be a CUDA device such as 'cuda:0', but got 'cpu'"),
        ("cuda:7", RuntimeError, "invalid device ordinal 7"),
    ],
)
def test_a_missing_device_ends_the_iteration_with_an_error(
    monkeypatch: pytest.MonkeyPatch, device: str, error: type[Exception], message: str
) -> None:
    Gpus(monkeypatch)
    pipe = IterableWrapper(range(3)).pin_memory(device=device)
    for _ in range(2):
        with pytest.raises(error, match=message):
            list(pipe)


@needs_cuda
def test_tensors_are_pinned_ahead_of_use() -> None:
    pipe = IterableWrapper(range(4)).map(lambda n: {"image": torch.full((100, 100), n)}).pin_memory()
    for number, item in enumerate(pipe):
        assert item["image"].is_pinned()
        assert int(item["image"].to("cuda", non_blocking=True).max()) == number
