"""What the pipes over file systems and object stores share: masks, listings with a place, and saying what failed.

Role: small helpers, and the base of the pipes that list. They run in the process that iterates the pipe. No pipe keeps
a client, a connection or a file system: these are made in the process that iterates, so that pipes can be pickled, and
forked with the process that built them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torchdata.datapipes.datapipe import IterDataPipe

__all__ = [
    "ListsRoots",
    "after_last",
    "check_masks",
    "check_mode",
    "check_name",
    "check_options",
    "explaining",
    "matches",
]


def check_masks(pipe: str, masks: Any) -> str | list[str]:
    """The shell patterns given as `masks`.

    Raises:
        TypeError: they are neither a str nor a list of str.
    """
    if isinstance(masks, str):
        return masks
    if isinstance(masks, (list, tuple)) and all(isinstance(mask, str) for mask in masks):
        return list(masks)
    raise TypeError(
        f"{pipe}: masks must be a str or a list of str such as ['*.jpg', '*.png'], but got {masks!r}"
    )


def matches(name: str, masks: str | list[str]) -> bool:
    """Whether one of the shell patterns matches the name. No patterns match every name."""
    if not masks:
        return True
    return any(fnmatch.fnmatch(name, mask) for mask in ((masks,) if isinstance(masks, str) else masks))


def check_name(pipe: str, argument: str, value: Any) -> str:
    """`value`, which must be a str.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"{pipe}: {argument} must be a str, but got {value!r} of type {type(value).__name__}")
    return value


def check_mode(pipe: str, mode: Any, *, writes: bool = False) -> str:
    """`mode`, which must be one of `open`'s; if the pipe writes, one that creates or appends.

    Raises:
        TypeError: it is no str.
        ValueError: it is no such mode.
    """
    check_name(pipe, "mode", mode)
    kinds = sum(mode.count(kind) for kind in "rwax")
    if kinds != 1 or set(mode) - set("rwaxbt+") or (writes and "r" in mode):
        examples = "'w' or 'wb'" if writes else "'r' or 'rb'"
        raise ValueError(f"{pipe}: mode must be one of open's, such as {examples}, but got {mode!r}")
    return str(mode)


def check_options(pipe: str, argument: str, value: Any) -> dict[str, Any]:
    """A copy of the options given as `value`, by name; None stands for none.

    Raises:
        TypeError: it is no mapping with names as keys.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{pipe}: {argument} must be a dict of options by name, but got {value!r}")
    return dict(value)


@contextmanager
def explaining(pipe: object, action: str, path: Any) -> Iterator[None]:
    """Notes on every error from within which pipe could not do what with which path."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{type(pipe).__name__} cannot {action} {path!r}.")
        raise


class ListsRoots(IterDataPipe[str]):
    """A pipe that yields the names found under each root that its source yields.

    Its place is the root that is being listed and the last entry yielded from it; going on lists that root again
    from there. Subclasses define `_source` and `_entries`.
    """

    #: The root that is being listed, and its last entry that was yielded (None: none was).
    _root: str | None = None
    _last: Any = None

    def _source(self) -> Any:
        """The pipe that yields the roots."""
        raise NotImplementedError

    def _entries(self, root: str, after: Any) -> Iterator[tuple[Any, str]]:
        """The entries behind `after` (None: all) under a root: where each stands, and the name to yield."""
        raise NotImplementedError

    def reset(self) -> None:
        """Goes back to the first root."""
        self._root = self._last = None

    def __iter__(self) -> Iterator[str]:
        # The source begins now, so that a state saved before the first item is not that of its last epoch.
        return self._names_of_all(iter(self._source()))

    def _names_of_all(self, roots: Iterator[Any]) -> Iterator[str]:
        if self._root is not None:
            yield from self._names(self._root)
        for root in roots:
            self._root, self._last = check_name(type(self).__name__, "every item of the source", root), None
            yield from self._names(root)

    def _names(self, root: str) -> Iterator[str]:
        for place, name in self._entries(root, self._last):
            self._last = place
            yield name
        self._root = self._last = None

    def state_dict(self) -> dict[str, Any]:
        """The root that is being listed, and the last entry that was yielded from it."""
        return {"root": self._root, "last": self._last}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the place from `state_dict()`."""
        self._root, self._last = state_dict["root"], state_dict["last"]


def after_last(
    names: list[str], last: tuple[int, str] | None, pipe: object, root: str
) -> Iterator[tuple[Any, str]]:
    """The names behind the one of which `last` tells number and name, numbered; all where `last` is None.

    A listing in which the names before have moved is gone on with behind the last name.

    Raises:
        RuntimeError: the last name is no longer there.
    """
    start = 0
    if last is not None:
        position, name = last
        if not (position < len(names) and names[position] == name):
            if name not in names:
                raise RuntimeError(
                    f"{type(pipe).__name__} cannot go on listing {root!r}: {name!r}, the last name that was "
                    "yielded when the state was saved, is no longer there; begin the epoch anew"
                )
            position = names.index(name)
        start = position + 1
    for position in range(start, len(names)):
        yield (position, names[position]), names[position]
