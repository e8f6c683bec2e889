"""Shared code of the pipes over file systems and object stores: masks, options, and listings that can be resumed.

Because pipes store no client, connection or file system, they can be pickled, and work after a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_mode, check_name, explaining
from torchdata.datapipes._pipe.graph.traversal import sources_of
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes._pipe.state.declared import checked_state
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.streams.files import check_masks, matches
from torchdata.datapipes.iter.streams.pairs import source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper


def check_options(pipe: str, argument: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{pipe}: {argument} must be a dict of options by name, but got {value!r}")
    return dict(value)


class ListsRoots(IterDataPipe[str]):
    """Lists the entries of roots. The state contains the current root and the last entry yielded from it. A resumed
    iteration lists the current root again, and continues after the last yielded entry."""

    #: The root that is being listed. `_last` is the position of the root's last yielded entry, or None.
    _root: str | None = checked_state((str, None))
    _last: Any = checked_state(((int, str), str, int, None))

    def _entries(self, root: str, after: Any) -> Iterator[tuple[Any, str]]:
        """Yields a pair of position and name for each entry of `root` after the position `after`."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        # `iter` is called here rather than when the first item is requested, because a state that is saved before the
        # first item must belong to the new epoch.
        return self._names_of_all(iter(sources_of(self)[0]))

    def _names_of_all(self, roots: Iterator[Any]) -> Iterator[str]:
        if self._root is not None:
            yield from self._names(self._root)
        for root in roots:
            self._root, self._last = check_name(type(self).__name__, "every item of the source", root), None
            yield from self._names(root)

    def _names(self, root: str) -> Iterator[str]:
        for key, name in self._entries(root, self._last):
            self._last = key
            yield name
        self._root = self._last = None


def after_last(names: list[str], last: tuple[int, str] | None, pipe: object, root: str) -> Iterator[tuple[Any, str]]:
    """Yields the names after `last`, each with its position. If names were added or removed since the state was saved,
    listing continues after the name in `last`.

    Args:
        last: the last position and name that were yielded before the state was saved; None to yield all names.

    Raises:
        RuntimeError: `names` no longer contains the name in `last`.
    """
    start = 0
    if last is not None:
        position, name = last
        if not (position < len(names) and names[position] == name):
            if name not in names:
                raise RuntimeError(
                    f"{type(pipe).__name__} cannot continue to list {shown(root)}: {shown(name)}, the last name that "
                    "was yielded when the state was saved, no longer exists; start the epoch again"
                )
            position = names.index(name)
        start = position + 1
    for position in range(start, len(names)):
        yield (position, names[position]), names[position]


class ListsFolders(ListsRoots):
    """Lists folders. `root` may be a folder or file, a sequence of folders and files, or a pipe that yields them."""

    def __init__(self, root: str | Sequence[str] | IterDataPipe[str], masks: str | list[str]) -> None:
        self.datapipe = source_pipe([root] if isinstance(root, str) else root, self)
        self.masks = check_masks(type(self).__name__, masks)

    def _listed(self, root: str) -> tuple[list[str] | None, bool, Callable[[str], str]]:
        """Returns the names in the folder `root`, whether `root` is local, and a function from a name to its path or
        URL. If `root` is a file, returns None instead of the names."""
        raise NotImplementedError

    def _entries(self, root: str, after: Any) -> Iterator[tuple[Any, str]]:
        with explaining(self, "cannot list", root):
            names, is_local, named = self._listed(root)
        if names is None:
            if after is None:
                yield (0, root), root
            return
        if is_local:
            names.sort()
        for key, name in after_last(names, after, self, root):
            if matches(name, self.masks):
                yield key, named(name)


class OpensFiles(ItemByItem[tuple[str, StreamWrapper]]):
    def __init__(self, source_datapipe: Iterable[str], mode: str) -> None:
        self.source_datapipe = source_pipe(source_datapipe, self)
        self.mode = check_mode(type(self).__name__, mode)

    def _recipe(self, name: str) -> Any:
        """Returns the recipe that an unpickled stream uses to reopen the file."""
        raise NotImplementedError

    def _result(self, name: Any) -> tuple[str, StreamWrapper]:
        check_name(type(self).__name__, "every item of the source", name)
        recipe = self._recipe(name)
        with explaining(self, "cannot open", name):
            file_obj = recipe.open()
        return name, StreamWrapper(file_obj, name=name, recipe=recipe if self.mode[0] == "r" else None)
