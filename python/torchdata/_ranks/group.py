"""The protocol of a group of ranks, and the errors of its operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, Protocol

#: The default time limit of an operation, in seconds.
DEFAULT_TIMEOUT = 30 * 60

#: Three years in seconds; the waiting functions do not support much longer times.
_LONGEST_TIMEOUT = 1e8


class PrefetchTimeoutError(TimeoutError, RuntimeError):
    """Another rank did not take part in an operation in time. torchdata 0.9 raised a plain `RuntimeError` in this case.

    Args:
        timeout: the waiting time in seconds.
        message: which rank is missing, and the remedy; None for a general message.

    Example:
        >>> from torchdata.dataloader2.error import PrefetchTimeoutError
        >>> issubclass(PrefetchTimeoutError, TimeoutError) and issubclass(PrefetchTimeoutError, RuntimeError)
        True
    """

    def __init__(self, timeout: float, message: str | None = None) -> None:
        super().__init__(message or f"no data within {timeout:g} s")
        self.timeout = timeout

    def __reduce__(self) -> Any:
        return type(self), (self.timeout, str(self)), vars(self)


class RanksLostError(ConnectionError, RuntimeError):
    """Another rank has exited or cannot be reached. torchdata 0.9 raised a `RuntimeError` if a rank was lost.

    Example:
        >>> from torchdata.dataloader2.error import RanksLostError
        >>> issubclass(RanksLostError, ConnectionError) and issubclass(RanksLostError, RuntimeError)
        True
    """


class GivenUp(Exception):
    """Raised in an operation of a group if another thread of this rank has closed the group."""


class RankGroup(Protocol):
    """A group of ranks that communicate. An object that a user provides as a group may lack `broken`, `show_life`,
    `give_up` and `close`."""

    rank: int
    world_size: int

    def broadcast(self, value: int) -> int:
        """Returns rank 0's value, a signed 64-bit integer, on every rank."""

    def all_reduce_min(self, value: int) -> int:
        """Returns the smallest value of all ranks, on every rank."""

    @property
    def broken(self) -> bool:
        """Whether an operation has failed, so that the group can no longer be used."""

    def show_life(self) -> None:
        """Notifies all ranks that this rank is running, although it has not begun an operation."""

    def give_up(self) -> None:
        """Makes an operation end immediately if another thread is waiting for it."""

    def close(self) -> None:
        """Releases the resources of the group."""


class UncopyableGroup:
    """Groups of ranks cannot be copied, because other ranks are not connected to the copy."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a group of ranks in use cannot be pickled or copied, and neither can the pipe or the reading service that "
            "uses it: copy them before they are iterated, and give each DataLoader2 its own service"
        )


class TorchRanks(Protocol):
    """A `ProcessGroup` or a `DeviceMesh` of torch."""

    def size(self) -> int:
        """Returns the number of ranks."""


def describe_ranks(ranks: Iterable[int]) -> str:
    """Returns, for example, "rank 3" or "ranks 1, 2"."""
    numbers = list(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def check_group(group: Any, owner: str, *, broadcasts: bool) -> None:
    needed = ["rank", "world_size", *(["broadcast"] if broadcasts else []), "all_reduce_min"]
    lacking = [name for name in needed if not hasattr(group, name)]
    if lacking:
        raise TypeError(
            f"{owner}: process_group must have {', '.join(needed)}, but {group!r} has no {', '.join(lacking)}"
        )


def check_timeout(timeout: Any, owner: str) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= _LONGEST_TIMEOUT:
        raise ValueError(
            f"{owner}: timeout is a number of seconds above 0 and at most {_LONGEST_TIMEOUT:g}, but got {timeout!r}"
        )
