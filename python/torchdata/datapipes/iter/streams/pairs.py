"""The base class of pipes that yield many items from each (path, stream) pair, such as readers of lines and archives.

The state of a reading pipe is the pair that is being read, and the position in its stream. When an iteration is
abandoned, the pipe closes the current stream and stores a placeholder that can reopen the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torchdata._handlers import FailuresSuppressed
from torchdata._redacting import shown
from torchdata._reporting import name_item
from torchdata.datapipes._pipe.checks import check_source
from torchdata.datapipes._pipe.graph.traversal import sources_of
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes.datapipe import IterDataPipe, T_co
from torchdata.datapipes.utils._streams import detached


def source_pipe(datapipe: Any, pipe: object, argument: str = "datapipe") -> Any:
    name = type(pipe).__name__
    if isinstance(datapipe, (str, bytes)):
        raise TypeError(f"{name}: {argument} must be a pipe, but got {datapipe!r}; wrap it: IterableWrapper([...])")
    return check_source(name, datapipe, argument)


def pair_of(item: Any, pipe: object, members: str = "path and stream, as open_files yields them") -> tuple[Any, Any]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"{type(pipe).__name__} expects pairs of {members}, but got {shown(item)}")
    return item[0], item[1]


def path_and_stream(item: Any, pipe: object) -> tuple[str, Any]:
    path, stream = pair_of(item, pipe)
    if not isinstance(path, str):
        raise TypeError(f"{type(pipe).__name__} expects a str as path, but got {shown(path)}")
    return path, stream


def position_of(stream: Any) -> int | None:
    with FailuresSuppressed((OSError, ValueError, AttributeError)):
        return int(stream.tell())
    return None


def can_seek(stream: Any) -> bool:
    return bool(stream.seekable()) if hasattr(stream, "seekable") else hasattr(stream, "seek")


class HoldsStream(IterDataPipe[T_co]):
    """Reads streams. Subclasses define `_source` and `_read`. If an offset alone does not describe the position in a
    stream, a subclass also defines `_bookmark`."""

    _pair: Any = checked_state(((str, object), None))
    #: The position where `_read` begins to read the current stream.
    _point: Any = checked_state((None,))
    #: Whether an iterator is reading the stream of `_pair`. While an iterator reads the stream, `_point` is outdated.
    _reading: bool = state(False, saved=False)

    def _source(self) -> Any:
        return sources_of(self)[0]

    def _read(self, path: str, stream: Any, point: Any) -> Iterator[Any]:
        """Returns an iterator over the items of a stream; `point` is the position to begin at, or None for the start of
        the stream.

        If possible, subclasses return an iterator that is written in C, which is faster than a generator.
        """
        raise NotImplementedError

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        """Returns a placeholder that can reopen `stream`, and the position after the last yielded item."""
        return detached(stream), None

    def _explained(self, error: Exception, path: str) -> Exception:
        """Returns the error to raise instead of `error`, for example an error that names the line."""
        return error

    def _release(self, stream: Any) -> None:
        if hasattr(stream, "close"):
            stream.close()

    def __iter__(self) -> Iterator[Any]:
        # `iter` is called here rather than when the first item is requested, because a state that is saved before the
        # first item must belong to the new epoch. A separate generator reads each pair of path and stream, so that an
        # exception while one stream is read does not end the iteration.
        streams: Iterator[Iterator[Any]] = map(self._items_of, iter(self._source()))
        if self._pair is not None:
            streams = chain((self._items_of(self._pair, self._point),), streams)
        return chain.from_iterable(streams)

    def _items_of(self, pair: Any, point: Any = None) -> Iterator[Any]:
        path, stream = path_and_stream(pair, self)
        del pair
        # When a newer iterator replaces this iterator, the newer iterator stores another pair in `_pair`.
        held = self._pair = (path, stream)
        self._reading = True
        try:
            yield from self._read(path, stream, point)
        except BaseException as error:
            # If garbage collection has closed the stream, the position in the stream is unknown.
            collected = isinstance(error, GeneratorExit) and getattr(stream, "closed", False)
            if self._pair is held and not collected:
                self._pair, self._point = self._bookmark_of(held)
                self._reading = False
            if not isinstance(error, Exception):
                raise
            explained = self._explained(error, path)
            name_item(explained, path)
            if not hasattr(explained, "__notes__"):
                explained.add_note(f"{type(self).__name__} was reading {shown(path)}.")
            try:
                if explained is error:
                    raise
                raise explained from error
            finally:
                del explained  # a reference cycle would keep the frame's variables alive
        finally:
            self._release(stream)
        self._drop_broken()

    def _drop_broken(self) -> None:
        """Drops the current stream, which the failed iterator has already closed."""
        self._pair = self._point = None
        self._reading = False

    def _bookmark_of(self, pair: tuple[str, Any]) -> tuple[Any, Any]:
        placeholder, point = self._bookmark(*pair)
        return (pair[0], placeholder), point

    def state_dict(self) -> dict[str, Any]:
        pair, point = self._bookmark_of(self._pair) if self._reading else (self._pair, self._point)
        return {"pair": pair, "point": point}
