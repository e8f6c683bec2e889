"""The streams that pipes yield: `StreamWrapper`, a file object that closes itself and can be reopened.

A wrapper has a *recipe* to reopen its stream, such as a path, or an archive and a position in it. A pickled or
deep-copied wrapper contains only the recipe and the current offset, and opens its file on first use.
"""

from __future__ import annotations

import copy
import io
import os
import stat
from abc import ABCMeta
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

from torchdata._handlers import raise_if_of_handler
from torchdata._plain_pickles import register
from torchdata._redacting import redacted, shown, shown_with_type
from torchdata.datapipes._pipe.graph.torch import derives_from_twin, pair_streams_with_torch

_DEEPEST_STRUCTURE = 10

#: The number of bytes per read when a stream without `seek` moves to an offset by reading.
_SKIPPED_AT_ONCE = 1 << 20


class Recipe(Protocol):
    def open(self) -> Any:
        """Returns a new file object at the start of the stream."""


class FileRecipe:
    __slots__ = ("encoding", "mode", "path")

    def __init__(self, path: str, mode: str, encoding: str | None = None) -> None:
        self.path, self.mode, self.encoding = path, mode, encoding

    def open(self) -> Any:
        return open(self.path, self.mode, encoding=self.encoding)

    def __repr__(self) -> str:
        return f"FileRecipe({shown(self.path)}, {self.mode!r})"


def recipe_of(file_obj: Any) -> Recipe | None:
    """Returns a `Recipe` that reopens a binary file by its path, if the path leads to this file. Returns None for a
    text file, because its newline translation is unknown."""
    raw = file_obj.raw if type(file_obj) is io.BufferedReader else file_obj
    if type(raw) is io.FileIO:
        if raw.closed or not isinstance(raw.name, str) or raw.mode != "rb":
            return None
        try:
            found, opened = os.stat(raw.name), os.fstat(raw.fileno())
        except OSError as error:
            raise_if_of_handler(error)
            return None
        same = os.path.samestat(found, opened) and stat.S_ISREG(opened.st_mode)
        return FileRecipe(raw.name, "rb") if same else None
    recipe = getattr(raw, "recipe", None)
    return recipe() if callable(recipe) else None


class _Base:
    """An empty base class, which lets `pair_streams_with_torch` change the base classes of `StreamWrapper`: Python does
    not allow this for a class that derives only from `object`."""


class StreamWrapper(_Base, metaclass=ABCMeta):
    """A file object that closes itself when the last reference to it is dropped.

    A `StreamWrapper` forwards all attributes and methods that it does not define to the wrapped file object. A wrapper
    is closed by `close()`, at the end of a `with` block, or by garbage collection. After a call of `autoclose()`,
    closing the last open child stream also closes the wrapper.

    Args:
        file_obj: the file object, which the wrapper closes.
        parent_stream: the `StreamWrapper` that the file object reads from, such as the archive of a member; None
            by default.
        name: the name of the stream in `repr` and in messages; None by default.
        recipe: an object that can reopen the stream, for example after pickling; None by default. Without a recipe,
            only in-memory files and binary files that were opened by path can be pickled.

    Raises:
        RuntimeError: `parent_stream` is not a `StreamWrapper`.

    Example:
        >>> import io
        >>> from torchdata.datapipes.utils import StreamWrapper
        >>> with StreamWrapper(io.BytesIO(b"abc")) as stream:
        ...     stream.read()
        b'abc'
    """

    #: All wrappers that were created and not closed yet. The dict is filled only if `debug_unclosed_streams` is True.
    session_streams: ClassVar[dict[Any, int]] = {}
    debug_unclosed_streams: ClassVar[bool] = False

    # The defaults are class attributes, because wrappers are then created faster, and an archive creates one wrapper
    # per member.
    file_obj: Any
    child_counter: int = 0
    parent_stream: StreamWrapper | None = None
    close_on_last_child: bool = False
    name: str | None = None
    closed: bool = False
    _recipe: Recipe | None = None
    _reopen_at: int | None = None

    def __init__(
        self,
        file_obj: Any,
        parent_stream: StreamWrapper | None = None,
        name: str | None = None,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        self.file_obj = file_obj
        if name is not None:
            self.name = name
        if recipe is not None:
            self._recipe = recipe
        if parent_stream is not None:
            if not isinstance(parent_stream, StreamWrapper):
                raise RuntimeError(
                    f"Parent stream should be StreamWrapper, {type(parent_stream)} was given; "
                    "wrap the parent in a StreamWrapper, or leave it out"
                )
            parent_stream.child_counter += 1
            self.parent_stream = parent_stream
        if StreamWrapper.debug_unclosed_streams:
            StreamWrapper.session_streams[self] = 1

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        return derives_from_twin(cls, subclass)

    @classmethod
    def reopening(cls, recipe: Recipe, offset: int | None = None, name: str | None = None) -> StreamWrapper:
        """Returns a wrapper that opens its file on first use.

        Args:
            recipe: an object whose method `open()` returns the file object.
            offset: the position in the stream; None (the default) for the initial position of the file object.
            name: the name of the stream in `repr` and in messages; None by default.
        """
        stream = cls.__new__(cls)
        stream._recipe, stream._reopen_at, stream.name = recipe, offset, name
        return stream

    @classmethod
    def close_streams(cls, v: Any, depth: int = 0) -> None:
        """Closes all wrappers in `v`, which may be a dict, list or tuple of up to ten nested levels. `depth` is the
        nesting level of `v`, 0 by default."""
        if depth > _DEEPEST_STRUCTURE:
            return
        if isinstance(v, (dict, list, tuple)):
            for member in v.values() if isinstance(v, dict) else v:
                cls.close_streams(member, depth=depth + 1)
        elif isinstance(v, StreamWrapper):
            v.close()

    # In a call such as `next(items)[1].read()`, only the bound method refers to the `StreamWrapper`. If `__getattr__`
    # returned a method of the file object, during the call nothing would refer to it, and the file would close.

    def read(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the file object's method `read`, which receives all arguments."""
        return self.file_obj.read(*args, **kwargs)

    def readline(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the file object's method `readline`, which receives all arguments."""
        return self.file_obj.readline(*args, **kwargs)

    def readlines(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the file object's method `readlines`, which receives all arguments."""
        return self.file_obj.readlines(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "file_obj":
            return self._open_now()
        if name.startswith("__"):  # copy and pickle read such attributes, which must not open the file
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.file_obj, name)

    def _open_now(self) -> Any:
        if self.closed or self._recipe is None:
            raise ValueError(f"I/O operation on closed stream {self.name or self._recipe}")
        file_obj = self._recipe.open()
        try:
            if self._reopen_at:
                _move(file_obj, self._reopen_at)
        except BaseException:
            file_obj.close()
            raise
        self.file_obj = file_obj
        return file_obj

    def close(self, *args: Any, **kwargs: Any) -> None:
        """Closes the file object. If the parent stream's `autoclose()` was called, closing its last open child also
        closes the parent. Further calls do nothing."""
        if self.closed:
            return
        self.closed = True
        StreamWrapper.session_streams.pop(self, None)
        try:
            file_obj: Any = self.__dict__.get("file_obj")
            if hasattr(file_obj, "close"):
                file_obj.close(*args, **kwargs)
        finally:
            if self.parent_stream is not None:
                self._leave_parent()

    def autoclose(self) -> None:
        """Closes the stream once all its child streams are closed."""
        self.close_on_last_child = True
        if self.child_counter == 0:
            self.close()

    def detach_from_parent(self, file_obj: Any) -> None:
        """Replaces the file object by `file_obj`, which contains the stream's data and does not need the parent
        stream."""
        self.file_obj, self._recipe = file_obj, None
        self._leave_parent()

    def _leave_parent(self) -> None:
        parent, self.parent_stream = self.parent_stream, None
        if parent is not None:
            parent.child_counter -= 1
            if not parent.child_counter and parent.close_on_last_child:
                parent.close()

    def __enter__(self) -> StreamWrapper:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            self.close()

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.file_obj)})

    def __iter__(self) -> Iterator[Any]:
        # This generator refers to `self`, so the file stays open, whereas the result of `iter(self.file_obj)` would not
        # refer to `self`.
        yield from self.file_obj

    def __next__(self) -> Any:
        return next(self.file_obj)

    def __repr__(self) -> str:
        file_obj = self.__dict__.get("file_obj", self._recipe)
        return (
            f"StreamWrapper<{shown(file_obj)}>"
            if self.name is None
            else f"StreamWrapper<{redacted(str(self.name))},{shown(file_obj)}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the stream's `Recipe`, which can reopen the file, and the offset in the file. For an in-memory file,
        the contents are pickled instead of a recipe.

        Raises:
            TypeError: the stream cannot be reopened, or its position is unknown.
        """
        if self.closed:
            return _closed_stream, (self.name,)
        if "file_obj" not in self.__dict__:
            return _reopening, (self._recipe, self._reopen_at, self.name)
        recipe = self._recipe or recipe_of(self.file_obj)
        if recipe is not None:
            return _reopening, (recipe, self._offset(), self.name)
        if isinstance(self.file_obj, io.IOBase) and not isinstance(self.file_obj, (io.BytesIO, io.StringIO)):
            raise TypeError(
                f"{self!r} cannot be pickled or copied, because it does not have a recipe to reopen it; read it "
                f"before "
                "this point of the pipeline, or give its wrapper a recipe: StreamWrapper(file, recipe=...)"
            )
        return StreamWrapper, (self.file_obj, None, self.name)

    def _offset(self) -> int | None:
        if not hasattr(self.file_obj, "tell"):  # for example, an opened archive
            return None
        try:
            offset: int = self.file_obj.tell()
        except (OSError, ValueError) as error:
            raise TypeError(
                f"{self!r} cannot be pickled or copied, because its position is not known ({error}); read it by "
                "`read` or `readline`, or pickle it before it is read"
            ) from error
        return offset


def _move(file_obj: Any, offset: int) -> None:
    try:
        file_obj.seek(offset)
    # A file that cannot seek raises UnsupportedOperation, which is a ValueError. A file of fsspec that cannot seek may
    # raise AttributeError.
    except (AttributeError, ValueError):
        while offset > 0 and (skipped := len(file_obj.read(min(offset, _SKIPPED_AT_ONCE)))):
            offset -= skipped


def _reopening(recipe: Recipe, offset: int | None, name: str | None) -> StreamWrapper:
    return StreamWrapper.reopening(recipe, offset, name)


def _closed_stream(name: str | None) -> StreamWrapper:
    stream = StreamWrapper(None, name=name)
    stream.close()
    return stream


def detached(stream: Any, offset: int | None = None) -> Any:
    """Returns a placeholder without an open file, which can reopen `stream` at `offset` or, if `offset` is None, at the
    current position.

    For an in-memory file, returns a copy of the file. A stream that cannot be reopened is returned unchanged.
    """
    wrapper = stream if isinstance(stream, StreamWrapper) else None
    file_obj: Any = wrapper.__dict__.get("file_obj") if wrapper is not None else stream
    if wrapper is not None and wrapper.closed:
        return stream
    # `wrapper` may be torch's `StreamWrapper`, which lacks the attribute `_recipe`.
    own_recipe: Recipe | None = None if wrapper is None else vars(wrapper).get("_recipe")
    if wrapper is not None and file_obj is None and own_recipe is not None:
        return StreamWrapper.reopening(own_recipe, wrapper._reopen_at if offset is None else offset, wrapper.name)
    if isinstance(file_obj, (io.BytesIO, io.StringIO)):
        in_memory = copy.copy(file_obj)
        if offset is not None:
            in_memory.seek(offset)
        return in_memory
    recipe = own_recipe or recipe_of(file_obj)
    if recipe is None:
        return stream
    try:
        where = file_obj.tell() if offset is None and hasattr(file_obj, "tell") else offset
    except (OSError, ValueError):
        return stream
    return StreamWrapper.reopening(recipe, where, wrapper.name if wrapper is not None else None)


def copied(stream: StreamWrapper) -> Any:
    """Returns a copy of a stream. A `StreamWrapper` of torch cannot be copied, so the same object is returned."""
    return copy.deepcopy(stream) if StreamWrapper in type(stream).__mro__ else stream


def validate_pathname_binary_tuple(data: Any) -> None:
    """Raises an error unless an item is a pair of a path and a binary stream, as pipes for archives require.

    Args:
        data: the value to check, which must be a pair of a path and an open binary stream.

    Raises:
        TypeError: the value is not a pair of a path and an open binary stream.

    Example:
        >>> import io
        >>> from torchdata.datapipes.utils.common import validate_pathname_binary_tuple
        >>> validate_pathname_binary_tuple(("a.tar", io.BytesIO()))
        >>> validate_pathname_binary_tuple(("a.tar", "b"))
        Traceback (most recent call last):
        TypeError: the stream of a pair of path and stream must be an IOBase or a StreamWrapper, but is 'b' of type str
    """
    if not isinstance(data, tuple):
        raise TypeError(f"a pair of path and stream must be a tuple, but got {shown_with_type(data)}")
    if len(data) != 2:
        raise TypeError(f"a pair of path and stream has two members, but got {len(data)}: {shown(data)}")
    path, stream = data
    if not isinstance(path, str):
        raise TypeError(f"the path of a pair of path and stream must be a str, but is {shown_with_type(path)}")
    if not isinstance(stream, (io.IOBase, StreamWrapper)):
        raise TypeError(
            "the stream of a pair of path and stream must be an IOBase or a StreamWrapper, but is "
            f"{shown_with_type(stream)}"
        )


def janitor(obj: Any) -> None:
    """Closes every `StreamWrapper` in an item.

    Args:
        obj: the item: a `StreamWrapper`, or a dict, list or tuple of up to ten nested levels. Other objects are
            ignored.

    Example:
        >>> import io
        >>> from torchdata.datapipes.utils import StreamWrapper, janitor
        >>> stream = StreamWrapper(io.BytesIO(b"abc"))
        >>> janitor(("path", stream))
        >>> stream.closed
        True
    """
    StreamWrapper.close_streams(obj)


pair_streams_with_torch(StreamWrapper)


def _stream_parts(stream: StreamWrapper) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Returns a function and its arguments, which are plain data: calling the function recreates the stream. Returns
    None for an open stream that is neither in memory nor a file with a path."""
    if stream.closed:
        return _closed_stream, (stream.name,)
    file = stream.__dict__.get("file_obj")
    if isinstance(file, (io.BytesIO, io.StringIO)) and stream._recipe is None:
        return _wrapped, (file, stream.name)
    recipe = stream._recipe or recipe_of(file)
    if type(recipe) is not FileRecipe or not isinstance(recipe.path, str):
        return None
    offset = stream._reopen_at if file is None else stream._offset()
    return _file_at, (recipe.path, recipe.mode, recipe.encoding, offset, stream.name)


def _wrapped(file: Any, name: str | None) -> StreamWrapper:
    return StreamWrapper(file, name=name)


def _file_at(path: str, mode: str, encoding: str | None, offset: int | None, name: str | None) -> StreamWrapper:
    """Opens a regular file for reading. Raises ValueError if the mode does not read or the file is not regular, because
    a manipulated state may contain any arguments."""
    if not isinstance(mode, str) or not set(mode) <= set("rbt"):
        raise ValueError(f"a state reads files, but this one opens {shown(path)} in mode {mode!r}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"a state resumes reading files, but {shown(path)} is something else")
    return StreamWrapper.reopening(FileRecipe(path, mode, encoding), offset, name)


register(StreamWrapper, _stream_parts, _wrapped, _file_at, _closed_stream)
