"""The protocol of a group of ranks, and the errors between ranks."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = [
    "DEFAULT_TIMEOUT",
    "PrefetchTimeoutError",
    "RankGroup",
    "RanksLostError",
    "TorchRanks",
    "check_group",
    "check_timeout",
]

#: Seconds after which an operation among the ranks fails.
DEFAULT_TIMEOUT = 30 * 60

#: Three years, in seconds: longer times are too large for those that wait.
_LONGEST_TIMEOUT = 1e8


class PrefetchTimeoutError(TimeoutError, RuntimeError):
    """Another rank did not take part in an operation in time. In torchdata 0.9 this was only a `RuntimeError`.

    Args:
        timeout: seconds of waiting.
        message: which rank is missing, and what to do; None for a general message.

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
    """Another rank has exited or cannot be reached. torchdata 0.9 raised a `RuntimeError`.

    Example:
        >>> from torchdata.dataloader2.error import RanksLostError
        >>> issubclass(RanksLostError, ConnectionError) and issubclass(RanksLostError, RuntimeError)
        True
    """


class RankGroup(Protocol):
    """The ranks of a job. Users may bring an object of their own, which need not have the last four members."""

    rank: int
    world_size: int

    def broadcast(self, value: int) -> int:
        """The value that rank 0 gave, on every rank. Values fit into 64 bits with a sign."""

    def all_reduce_min(self, value: int) -> int:
        """The least of the values that the ranks gave, on every rank."""

    @property
    def broken(self) -> bool:
        """Whether an operation has failed, after which the group cannot be used any more."""

    def show_life(self) -> None:
        """Lets others know, if that is possible, that this rank lives, before its first operation."""

    def give_up(self) -> None:
        """Ends the wait of another thread, if there is one, at once."""

    def close(self) -> None:
        """Frees what the group holds."""


class TorchRanks(Protocol):
    """A `ProcessGroup` or a `DeviceMesh` of torch."""

    def size(self) -> int:
        """The number of ranks."""


def check_group(group: Any, whose: str, *, broadcasts: bool) -> None:
    """Raises TypeError unless `group` can do what is asked of a group of ranks."""
    needed = ["rank", "world_size", *(["broadcast"] if broadcasts else []), "all_reduce_min"]
    lacking = [name for name in needed if not hasattr(group, name)]
    if lacking:
        raise TypeError(
            f"{whose}: process_group must have {', '.join(needed)}, but {group!r} has no {', '.join(lacking)}"
        )


def check_timeout(timeout: Any, whose: str) -> None:
    """Raises ValueError unless `timeout` is one."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= _LONGEST_TIMEOUT:
        raise ValueError(
            f"{whose}: timeout is a number of seconds above 0 and at most {_LONGEST_TIMEOUT:g}, but got {timeout!r}"
        )
