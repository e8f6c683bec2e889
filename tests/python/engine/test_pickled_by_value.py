"""Objects of classes that were created at run time are sent by value."""

import collections
import dataclasses
import datetime
import enum
import multiprocessing
import threading
import types
from typing import Any

import numpy as np
import pytest

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import save_state


def message(**values: Any) -> Any:
    cls = type("Message", (types.SimpleNamespace,), {"__slots__": list(values)})
    made = cls()
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Messages:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return message(stamp=index, data=[1.0])


def array() -> Any:
    class Array(np.ndarray): ...

    made = np.arange(3).view(Array)
    made.unit = "m"
    return made


def day() -> Any:
    class Day(datetime.datetime): ...

    made = Day(2026, 1, 1)
    made.label = "new year"
    return made


def error() -> Any:
    class Error(ValueError):
        __slots__ = ("code",)

    made = Error("failed")
    made.code = 5
    return made


LOST = r"class .*{} would arrive without its values {}: .*leaves them out"


@pytest.mark.parametrize("loader", ["DataLoader2", "StatefulDataLoader"])
def test_a_message_whose_slots_its_base_does_not_pickle_is_an_error(loader: str) -> None:
    make: Any = DataLoader2.from_dataset
    if loader == "StatefulDataLoader":
        pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")
        from torchdata.stateful_dataloader import StatefulDataLoader as make
    made = make(Messages(), batch_size=None, num_workers=1)
    with pytest.raises(Exception, match=LOST.format("Message", "data, stamp")):
        list(made)


@pytest.mark.parametrize(
    ("make", "name", "value"), [(array, "Array", "unit"), (day, "Day", "label"), (error, "Error", "code")]
)
def test_an_attribute_that_a_base_written_in_c_does_not_pickle_is_an_error(
    loopback: Any, make: Any, name: str, value: str
) -> None:
    with pytest.raises(Exception, match=LOST.format(name, value)):
        loopback.one(make())


def whole() -> list[Any]:
    class Slots:
        __slots__ = ("value",)

    class Derived(Slots):
        __slots__ = ("other",)

    class Space(types.SimpleNamespace): ...

    class Ordered(collections.OrderedDict):
        __slots__ = ("value",)

    class Queue(collections.deque):
        __slots__ = ("value",)

    @dataclasses.dataclass(slots=True, frozen=True)
    class Frozen:
        value: int

    class Without(Slots):
        def __init__(self) -> None:
            self.cache = [1]

        def __getstate__(self) -> Any:
            return None, {"value": self.value}

    class Color(enum.Enum):
        RED = 5

    items: list[Any] = [Slots(), Derived(), Space(), Ordered(a=1), Queue([1]), Without()]
    for item in items:
        item.value = 5
    items[1].other = 6
    return [*items, Frozen(5), Color.RED]


def test_objects_of_local_classes_arrive_with_all_their_values(loopback: Any) -> None:
    for item in whole():
        received = loopback.one(item)
        assert received.value == 5
        assert getattr(received, "other", 6) == 6


def test_each_object_of_a_class_is_looked_at(loopback: Any) -> None:
    class Array(np.ndarray): ...

    item = np.arange(3).view(Array)
    loopback.one(item)
    item.unit = "m"
    with pytest.raises(Exception, match=LOST.format("Array", "unit")):
        loopback.one(item)


def test_a_state_that_would_lose_values_raises_an_error() -> None:
    pipe = IterableWrapper([message(stamp=0), message(stamp=1)], deepcopy=False).shuffle()
    next(iter(pipe))
    with pytest.raises(TypeError, match=LOST.format("Message", "stamp")):
        save_state(pipe)


def test_a_dataset_that_would_lose_values_on_the_way_to_a_spawned_worker_raises_an_error() -> None:
    pipe = IterableWrapper([message(stamp=0)], deepcopy=False).map(lambda item: item.stamp)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "fork")) as loader:
        assert list(loader) == [0]
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "spawn"))
    with pytest.raises(TypeError, match=LOST.format("Message", "stamp")):
        list(loader)


def counted(total: Any, held: Any = None) -> Any:
    def count(item: int) -> int:
        with total.get_lock():
            total.value += item
        return item if held is None else 0

    return count


def test_a_local_function_with_a_lock_of_multiprocessing_runs_in_spawned_workers() -> None:
    total = multiprocessing.get_context("spawn").Value("i", 0)
    service, pipe = MultiProcessingReadingService(2, "spawn"), IterableWrapper(range(4)).sharding_filter()
    assert list(DataLoader2(pipe.map(counted(total)), reading_service=service)) == [0, 1, 2, 3]
    assert total.value == 6
    with pytest.raises(TypeError, match="Mapper cannot be pickled: its attribute 'fn'"):
        list(DataLoader2(pipe.map(counted(total, threading.Lock())), reading_service=service))
