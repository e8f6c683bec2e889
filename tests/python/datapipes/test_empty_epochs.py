"""An epoch without items causes one warning, unless an empty epoch is expected."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper


class Once:
    def __init__(self) -> None:
        self.items = iter(range(3))

    def __iter__(self) -> Iterator[int]:
        return self.items


class Chosen:
    def __init__(self, *epochs: int) -> None:
        self.epochs = iter(epochs)

    def __iter__(self) -> Iterator[int]:
        return iter(range(next(self.epochs)))


def nothing() -> Iterator[int]:
    yield from ()


def shown(read: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read()
    return [text for text in (str(warning.message) for warning in caught) if "IterableWrapper" in text]


def test_one_warning_reports_a_one_shot_iterator_that_an_earlier_epoch_has_read() -> None:
    pipe = IterableWrapper((n for n in range(3)), deepcopy=False)
    assert list(pipe) == [0, 1, 2]
    message = shown(lambda: [list(pipe) for _ in range(3)])
    assert [text.split(";")[0] for text in message] == [
        "the generator given to IterableWrapper is a one-shot iterator, which an earlier epoch has exhausted"
    ]
    with DataLoader2(IterableWrapper(iter([1, 2]), deepcopy=False).map(str)) as loader:
        assert list(loader) == ["1", "2"]
        assert len(shown(lambda: [list(loader) for _ in range(3)])) == 1


@pytest.mark.parametrize("dataset", [nothing, Chosen(0, 0), map(str, [])], ids=["function", "class", "iterator"])
def test_an_empty_dataset_is_reported_once(dataset: Any) -> None:
    pipe = IterableWrapper(dataset, deepcopy=False)
    [message] = shown(lambda: list(pipe))
    assert message.endswith("given to IterableWrapper has yielded nothing in this epoch.")
    assert shown(lambda: list(pipe)) == []


def test_an_iterator_that_a_dataset_kept_is_reported_in_the_second_epoch() -> None:
    with DataLoader2.from_dataset(Once(), None) as loader:
        assert shown(lambda: list(loader)) == []
        [message] = shown(lambda: list(loader))
        assert message == "the Once given to IterableWrapper has yielded nothing in this epoch."


def test_a_correct_item_is_not_reported() -> None:
    stream = IterableWrapper((n for n in range(9)), deepcopy=False)
    empty: list[int] = []

    def read() -> None:
        heads = [list(stream.header(3)) for _ in range(3)]
        assert heads == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]  # a dataset with a single iterator continues in each epoch
        for source in (empty, (), {}, set(), "", range(0)):
            assert list(IterableWrapper(source)) == []
        assert list(IterableWrapper([1]).filter(bool).header(0)) == []
        assert list(IterableWrapper(iter([1])).header(1)) == [1]
        pipe = IterableWrapper(nothing)
        iter(pipe)  # The loop begins an iteration, and abandons it.

    assert shown(read) == []


def test_in_workers_a_share_may_be_empty() -> None:
    with DataLoader2(IterableWrapper(nothing), reading_service=MultiProcessingReadingService(2)) as loader:
        assert shown(lambda: list(loader)) == []
