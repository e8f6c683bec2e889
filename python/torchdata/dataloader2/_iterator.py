"""The iterator of a loader.

An iterator yields the items of one epoch, while it is the loader's valid iterator. The iterator runs in the main
process. If several threads read the loader, they take turns.

`__next__` runs for every item, so the native class `DeliveryIterator` implements it. `DeliveryIterator` calls methods
of its subclass `DataLoader2Iterator` only if the iterator is invalid, or if the loader is paused or limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Never, TypeVar

from torchdata._native import DeliveryIterator
from torchdata._reporting import fold
from torchdata.dataloader2._epochs import LEFT, SHUT_DOWN, EpochRun
from torchdata.dataloader2.error import PauseIteration
from torchdata.datapipes._pipe.checks import check_optional_int

T_co = TypeVar("T_co", covariant=True)


class DataLoader2Iterator(DeliveryIterator, Iterator[T_co]):
    """The iterator that `iter(loader)` returns: it yields the items of one epoch.

    A loader has one valid iterator, and the next `iter(loader)` makes it invalid. Attributes that this class lacks are
    taken from the pipeline's own iterator.

    Args:
        dataloader: the loader.
        iterator_id: a number that the loader compares to recognize its valid iterator.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> iterator = iter(DataLoader2(IterableWrapper(range(2))))
        >>> next(iterator), list(iterator)
        (0, [1])
    """

    def __new__(cls, dataloader: Any, iterator_id: int) -> DataLoader2Iterator[T_co]:
        return super().__new__(cls, dataloader._run.delivery, iterator_id)

    def __init__(self, dataloader: Any, iterator_id: int) -> None:
        self.dataloader = dataloader
        self._run: EpochRun = dataloader._run
        self.iterator_id = iterator_id
        self.limit_counter: int | None = None
        self.limit_threshold: int | None = None

    if TYPE_CHECKING:  # `DeliveryIterator` has no type parameter for the items

        def __next__(self) -> T_co: ...

    def _wait_until_released(self) -> None:
        """Waits while another thread saves the loader's state. Raises StopIteration if the loader is paused."""
        run = self._run
        with run.held:
            pass
        if run.is_paused:
            raise StopIteration

    def _count_to_limit(self) -> None:
        """Counts a delivered item, and pauses the loader when the limit of `limit()` is reached."""
        if self.limit_threshold is not None:
            self.limit_counter = (self.limit_counter or 0) + 1
            if self.limit_counter >= self.limit_threshold:
                self._pause()

    def _resume_cut(self) -> None:
        """Makes the loader continue after Ctrl-C has interrupted the computation of an item."""
        if self._run.is_paused:
            return
        keeper = self.dataloader._keeper
        if keeper.is_rereading or self._run.position.may_lose():
            keeper.read_again()
        self._run.delivery.cut = False

    def _refuse(self) -> Never:
        """Raises RuntimeError with the reason why this iterator yields no more items: a shutdown, or another epoch."""
        if self.dataloader._terminated:
            raise RuntimeError(SHUT_DOWN)
        if self.dataloader.valid_iterator_id == self.iterator_id:
            raise RuntimeError(LEFT)
        raise RuntimeError(
            "This iterator has been invalidated because another iterator has been created from the same DataLoader2. "
            "A loader has one valid iterator at a time; make a second DataLoader2 of the same pipe to read it twice."
        )

    def _on_end(self, end: StopIteration) -> None:
        if not isinstance(end, PauseIteration):
            self._run.close(at_end=True)

    def _on_error(self, error: Exception) -> None:
        """Ends the epoch after an error. If ending the epoch also fails, a note is added to `error`."""
        self._run.close(because=error)
        fold(error)

    def _pause(self) -> None:
        """Pauses the loader: threads and processes stop and keep their state until `resume()`."""
        self._run.pause()
        self.limit_counter = 0

    def resume(self) -> None:
        """Resumes a paused loader: the same iterator yields the following items."""
        self._run.resume()

    def limit(self, num_batches: int | None) -> None:
        """Pauses the loader after every `num_batches` items, counted from now on.

        A loop over the iterator ends when the loader pauses, and can continue after `resume()`. While the loader is
        paused, its threads and processes stop, so that you can inspect their state.

        Args:
            num_batches: the number of items between two pauses; None removes the limit.

        Raises:
            TypeError: `num_batches` is neither an integer nor None.
            ValueError: `num_batches` is below 1.

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> iterator = iter(DataLoader2(IterableWrapper(range(4))))
            >>> iterator.limit(2)
            >>> list(iterator)
            [0, 1]
            >>> iterator.resume()
            >>> list(iterator)
            [2, 3]
        """
        self.limit_threshold = check_optional_int("limit", "num_batches", num_batches, least=1)
        self.limit_counter = 0
        self._run.limit(num_batches is not None)
        self._run.pipeline.limit(num_batches)

    def __getattr__(self, name: str) -> Any:
        run = self.__dict__.get("_run")
        iterator = run.delivery.source if run is not None else None
        if iterator is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(iterator, name)
