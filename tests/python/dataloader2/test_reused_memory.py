"""With `splits`, items are not buffered for other shards if their source will overwrite the memory of the items."""

import array
import ctypes
import datetime
import io
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

from process_checks import nothing_is_left  # noqa: F401
from resuming import begun, epochs_of
from reused_memory import WRAPPED, Reused, Slotted, is_even_at_first, value
from torchdata.dataloader2 import DataLoader2
from torchdata.dataloader2.services import common_parts, reused_objects
from torchdata.dataloader2.services.reused_objects import ReusedObjects
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.alone


class Blocks:
    def __iter__(self) -> Iterator[Any]:
        block = numpy.zeros((8, 2))
        for first in range(0, 80, 8):
            block[:] = numpy.arange(first, first + 8)[:, None]
            yield from block


REUSING: dict[str, Callable[[], Any]] = {
    **{f"{form}, {arrays}": partial(Reused, form, arrays) for form in WRAPPED for arrays in (1, 2, 7)},
    "blocks": Blocks,
}


def epochs_with(loader: Callable[[], DataLoader2[Any]], is_shared: bool, patch: pytest.MonkeyPatch) -> list[list[Any]]:
    with patch.context() as patched:
        if not is_shared:
            patched.setattr(common_parts, "filters_with_common_part", lambda _graph: [])
        return epochs_of(begun(loader()))


@pytest.mark.parametrize("source", REUSING)
def test_memory_that_the_source_overwrites_does_not_wait(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in (lambda pipe: pipe.filter(is_even_at_first).map(value), lambda pipe: pipe.map(value).batch(3)):

        def loader(after: Any = after) -> DataLoader2[Any]:
            return DataLoader2(after(IterableWrapper(REUSING[source]()).sharding_filter()), splits=6)

        assert epochs_with(loader, True, monkeypatch) == epochs_with(loader, False, monkeypatch)


def examined(items: list[Any], waiting: range) -> bool:
    reused = ReusedObjects(waiting.__contains__, lambda: waiting.start)
    for position, item in enumerate(items):
        assert reused.examine(item, position) is item
    return reused.is_found


def test_items_with_memory_of_their_own_can_wait() -> None:
    shared = (1, "a", None, range(3), len, Path("x"), numpy.float64(2.0))
    items = [
        item
        for number in range(3000)
        for item in (number, [number], {"a": numpy.zeros(2), "b": shared}, bytearray(2), memoryview(b"abc"))
    ]
    assert not examined(items, range(len(items)))
    rows = [*numpy.zeros((9000, 2)), *numpy.frombuffer(b"12345678" * 3)]
    assert not examined(rows, range(len(rows)))
    again = [[1]] * 9000
    assert examined(again, range(8998, 8999))
    assert not examined(again, range(9000, 9001))


def test_items_of_common_libraries_can_wait(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    polars, torch = pytest.importorskip("polars"), pytest.importorskip("torch")
    file = io.BytesIO()
    image.new("RGB", (8, 8)).save(file, "JPEG")
    frame = pandas.DataFrame({"a": range(9), "b": ["x"] * 9})
    rows = numpy.memmap(tmp_path / "rows", dtype="float64", mode="w+", shape=(9, 2))
    kinds: list[Callable[[int], Any]] = [
        lambda _: image.new("RGB", (2, 2)),
        lambda _: image.open(io.BytesIO(file.getvalue())),
        lambda _: image.open(io.BytesIO(file.getvalue())).convert("L"),
        lambda number: frame[number : number + 1],
        lambda number: frame.iloc[number],
        lambda number: arrow.table({"a": [number]}),
        lambda number: polars.DataFrame({"a": [number]}),
        lambda _: torch.zeros(3),
        lambda number: rows[number],
        lambda number: array.array("i", [number]),
        lambda _: [*range(5000)],
        lambda number: [datetime.date(2020, 1, 1 + number)] * 5000,
        lambda _: [{"box": [1.0, 2.0], "parts": [[3.0]]} for _ in range(200)],
        lambda number: Slotted(numpy.zeros(number + 1)),
    ]
    for number, made in enumerate(kinds):
        items = [made(each) for each in range(9)]
        for item in items:
            getattr(item, "__dict__", None)
        assert not examined(items, range(9)), number
        assert examined([items[0], (1, items[0])], range(1)), number


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else []


def test_items_that_cannot_be_examined_completely_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not examined([nested(500)], range(1))
    assert examined([[nested(500) for _ in range(3)]], range(1))
    assert examined([[[] for _ in range(2000)]], range(1))
    assert examined([iter(())], range(1))
    assert examined([ctypes.pointer(ctypes.c_int(1))], range(1))
    assert examined([(ctypes.c_int * 2)()], range(1))
    assert not examined([type("Known", (deque,), {})()], range(1))
    monkeypatch.setattr(reused_objects, "_KNOWN", frozenset())
    assert examined([type("Unknown", (deque,), {})()], range(1))
    assert not examined([type("Python", (), {})(), Slotted(1)], range(1))


def test_a_tensor_over_the_memory_of_a_waiting_item_is_found() -> None:
    torch = pytest.importorskip("torch")
    array = numpy.zeros(4)
    assert examined([torch.from_numpy(array), torch.from_numpy(array)], range(1))
    assert not examined([torch.zeros(4), torch.zeros(4)], range(2))
