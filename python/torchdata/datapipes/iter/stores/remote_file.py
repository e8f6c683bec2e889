"""Objects of a store as files: shared code of S3 and AIStore, and the base class of the pipes that open objects.

The response that opens an object is kept for the object's first read. If the pipe opens its next object before the
first read, the response is dropped, and the first read sends a new request. Dropping the responses prevents unread
streams, for example in a shuffle buffer, from keeping connections open.
"""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torchdata._redacting import shown
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes.iter.streams.pairs import source_pipe
from torchdata.datapipes.utils._streams import StreamWrapper

#: Size in bytes of a file's buffer, which makes small reads and reading of lines fast.
_SMALL_READS = 64 << 10


@dataclass(frozen=True, repr=False)
class ObjectRecipe:
    """Describes how to open an object of a store.

    Args:
        version: the tag and the size in bytes that the object had when it was first opened; None if it was not opened
            yet.
    """

    url: str
    version: tuple[Any, int] | None = field(default=None, kw_only=True)

    def file(self) -> RemoteFile[Any]:
        raise NotImplementedError

    def open(self) -> io.BufferedReader:
        """Opens the object. Sends a request only if the object's version is unknown (`version` is None)."""
        return io.BufferedReader(self.file(), _SMALL_READS)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.url)})"


R = TypeVar("R", bound=ObjectRecipe)


class RemoteFile(io.RawIOBase, Generic[R]):
    """An object as a file. `seek` sends no request.

    Args:
        recipe: describes how to request the object. After a request, `self.recipe()` contains the version of the object
            that the server has sent.
    """

    def __init__(self, recipe: R) -> None:
        super().__init__()
        self.name = recipe.url
        self._position = 0
        #: The response that is being read. `_pid` is the id of the process that sent the request.
        self._answer: Any = None
        self._pid = os.getpid()
        self._recipe: R = recipe if recipe.version is not None else self._opened(recipe)

    def _opened(self, recipe: R) -> R:
        """Requests the object. Returns an `ObjectRecipe` with the version that the response contains."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        assert self._recipe.version is not None
        return self._recipe.version[1]

    def recipe(self) -> R:
        return self._recipe

    def drop_answer(self) -> None:
        """Drops the current response and releases its connection, so that the next read sends a new request."""
        raise NotImplementedError

    def close(self) -> None:
        if not self.closed:
            self.drop_answer()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"whence must be 0, 1 or 2, but got {whence}")
        position = offset + (0, self._position, self.size)[whence]
        if position < 0:
            raise ValueError(f"cannot seek to {position}, before the start of {shown(self.name)}")
        self._position = position
        return position

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"I/O operation on the closed file {shown(self.name)}")


class LoadsObjects(ItemByItem[tuple[str, StreamWrapper]]):
    _latest: weakref.ref[RemoteFile[Any]] | None = state(saved=False, lasts=True)

    def __init__(self, source_datapipe: Iterable[str]) -> None:
        self.source_datapipe = source_pipe(source_datapipe, self)

    def _recipe(self, url: Any) -> ObjectRecipe:
        raise NotImplementedError

    def _result(self, url: Any) -> tuple[str, StreamWrapper]:
        recipe = self._recipe(url)
        latest = self._latest() if self._latest is not None else None
        if latest is not None:
            latest.drop_answer()
        file_obj = recipe.open()
        raw: Any = file_obj.raw
        self._latest = weakref.ref(raw)
        return url, StreamWrapper(file_obj, name=url, recipe=raw.recipe())
