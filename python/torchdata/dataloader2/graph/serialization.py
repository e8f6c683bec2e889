"""Copies pipe graphs and reading services, and pickles them for the state of a loader.

A loader copies its graph without pickling it, and pickles the graph only if a saved state must contain it.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any, TypeVar

from torchdata._bounded_pickles import LimitedFile, TooLargeError
from torchdata._handlers import FailuresSuppressed, raise_if_of_handler
from torchdata._importing import loaded
from torchdata._redacting import HIDDEN, is_private, shown
from torchdata.dataloader2.graph.copying import attribute_copier, duplicate
from torchdata.datapipes._pipe.checks import length_of
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_pipe, sources_of
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

T = TypeVar("T")

_WHY_COPIED = (
    "The loader works on a copy of each pipe and of the reading service: make such objects in `reset` or `__iter__` "
    "(in a service: in `initialize`), or leave them out in `__getstate__`."
)
_WHY_PICKLED = (
    "Only a state that holds the pipeline needs this: save it with with_pipe=False, or leave such objects out in "
    "`__getstate__`."
)


class GraphTemplate:
    """Copies an object repeatedly. If copying fails, raises TypeError with the name of the pipe and the attribute."""

    def __init__(self, obj: Any) -> None:
        self._kept = clone(obj)

    def copy(self) -> Any:
        return clone(self._kept)

    def serialize(self) -> bytes:
        """If pickle fails, for example because of a lambda, cloudpickle is used."""
        with FailuresSuppressed():  # a user's __getstate__ may raise any error, and cloudpickle may still succeed
            return pickle.dumps(self._kept, protocol=pickle.HIGHEST_PROTOCOL)
        return _cloudpickled(self._kept)

    def fits(self, most: int) -> bool:
        """Returns whether the pickle has at most `most` bytes. Pickling stops once the pickle exceeds `most` bytes."""
        with FailuresSuppressed():
            return _fits(pickle.Pickler, self._kept, most)
        from torchdata._by_value import ByValuePickler

        with FailuresSuppressed():
            return _fits(ByValuePickler, self._kept, most)
        return False


def _fits(base: Any, obj: Any, most: int) -> bool:
    file, torch = LimitedFile(most), loaded("torch")

    class MeasuringPickler(base):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if torch is not None and isinstance(obj, torch.Tensor) and obj.nbytes > file.left:
                raise TooLargeError(obj.nbytes)  # raised before torch copies the tensor
            return NotImplemented if base is pickle.Pickler else super().reducer_override(obj)

    try:
        MeasuringPickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
    except TooLargeError:
        return False
    return True


def clone(obj: T) -> T:
    """Copies a graph without copying the data in its pipes.

    Raises TypeError, with the name of the pipe and the attribute, if `obj` cannot be copied.
    """
    try:
        return duplicate(obj)
    except Exception as error:
        raise_if_of_handler(error)
        raise TypeError(f"{why_not(obj, 'copied', attribute_copier(obj), error)}. {_WHY_COPIED}") from error


def serialize_datapipe(datapipe: Any) -> bytes:
    """Raises TypeError, with the name of the pipe and the attribute, if the pipe cannot be pickled."""
    snapshot = datapipe if isinstance(datapipe, GraphTemplate) else GraphTemplate(extract_wrapper(datapipe))
    return snapshot.serialize()


def deserialize_datapipe(serialized_state: bytes) -> Any:
    """Unpickling runs code, so the bytes must be from a trusted source."""
    return pickle.loads(serialized_state)


class _DataPipeSerializationWrapper:
    """Lets old code pickle a pipe that contains lambdas or local classes."""

    def __init__(self, datapipe: Any) -> None:
        self._datapipe = datapipe

    def __getstate__(self) -> bytes:
        return serialize_datapipe(self._datapipe)

    def __setstate__(self, state: bytes) -> None:
        self._datapipe = deserialize_datapipe(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(copy.deepcopy(self._datapipe, memo))  # the copy is made without pickling

    def __len__(self) -> int:
        return length_of(self, self._datapipe)


class _IterDataPipeSerializationWrapper(_DataPipeSerializationWrapper, IterDataPipe[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(self._datapipe)


class _MapDataPipeSerializationWrapper(_DataPipeSerializationWrapper, MapDataPipe[Any]):
    def __getitem__(self, index: Any) -> Any:
        return self._datapipe[index]


def attach_wrapper(datapipe: Any) -> Any:
    if isinstance(datapipe, _DataPipeSerializationWrapper) or not is_pipe(datapipe):
        return datapipe
    if isinstance(datapipe, IterDataPipe):
        return _IterDataPipeSerializationWrapper(datapipe)
    return _MapDataPipeSerializationWrapper(datapipe)


def extract_wrapper(datapipe: Any) -> Any:
    return datapipe._datapipe if isinstance(datapipe, _DataPipeSerializationWrapper) else datapipe


def _cloudpickled(obj: Any) -> bytes:
    from torchdata._by_value import dumps

    try:
        return dumps(obj)
    except Exception as error:
        raise_if_of_handler(error)
        raise TypeError(f"{why_not(obj, 'pickled', dumps, error)}. {_WHY_PICKLED}") from error


def why_not(obj: Any, what: str, attempt: Any, error: Exception) -> str:
    """Returns an error message with the first attribute that `attempt` cannot pickle or copy."""
    reason = f"{type(error).__name__}: {error}"
    for owner in Graph(obj) if is_pipe(obj) else [obj]:
        own_sources = set(map(id, sources_of(owner))) if is_pipe(owner) else set()
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if id(value) in own_sources:
                continue
            try:
                attempt(value)
            except Exception as failure:
                raise_if_of_handler(failure)
                return (
                    f"{type(owner).__name__} cannot be {what}: its attribute {name!r} holds {_short(name, value)}, "
                    f"which fails with {reason}"
                )
    return f"{type(obj).__name__} cannot be {what}: {reason}"


def _short(name: str, value: Any) -> str:
    text = "an object"
    with FailuresSuppressed():
        text = HIDDEN if is_private(name, value) else shown(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} of type {type(value).__name__}"


def damaged(field: str, how: str) -> ValueError:
    return ValueError(f"this loader state is damaged in its field {field!r}: {how}; load another copy of it")
