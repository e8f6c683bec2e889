"""Map pipes that begin a pipeline: SequenceWrapper over a sequence, IterToMapConverter over an iterable pipe."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.checks import check_callable, warn_of_length, wrong_type
from torchdata.datapipes._pipe.state.declared import checked_state
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe, T_co

__all__ = ["IterToMapConverter", "SequenceWrapper"]


class SequenceWrapper(MapDataPipe[T_co]):
    """Begins a pipeline over an object with `__getitem__`: a sequence, a mapping, an array, a dataset.

    Args:
        sequence: the object to read.
        deepcopy: whether a deep copy is made once, so that later changes of `sequence` are ignored; True by default.
            If `sequence` cannot be copied, the original is read, with a warning.

    Raises:
        TypeError: `sequence` does not have `__getitem__`.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> SequenceWrapper({"a": 100, "b": 200})["b"]
        200
    """

    data_attributes = frozenset({"sequence"})

    def __init__(self, sequence: Sequence[T_co] | Mapping[Any, T_co], deepcopy: bool = True) -> None:
        if not hasattr(type(sequence), "__getitem__"):
            remedy = "; make a list of it, or use IterableWrapper"
            raise wrong_type("SequenceWrapper", "sequence", "read by index", sequence, remedy)
        if deepcopy:
            try:
                sequence = copy.deepcopy(sequence)
            except TypeError:
                warn_outside(
                    f"The sequence of type {type(sequence).__name__} given to SequenceWrapper cannot be deep-copied, "
                    "so changing its items in place changes the source data; pass deepcopy=False to accept that."
                )
        self.sequence = sequence

    def __getitem__(self, index: Any) -> T_co:
        return self.sequence[index]

    def __len__(self) -> int:
        return len(self.sequence)


class IterToMapConverter(MapDataPipe[Any]):
    """Reads an iterable pipe into a dict when the first item is requested, and provides its items by their keys.

    Functional form of IterDataPipe: `to_map_datapipe`. If several items have the same key, only the last item is kept,
    and a warning names the key. The dict that the pipe creates is part of its state.

    Args:
        datapipe: the iterable pipe to read.
        key_value_fn: a function from an item to its key and value. If `key_value_fn` is None (the default), the items
            must be pairs of key and value.

    Raises:
        TypeError: `datapipe` is not an iterable pipe, or `key_value_fn` is not a function; at the first request, an
            item (or the result of the function) is not a pair.
        ValueError: at the first request, an item does not have two members.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> IterableWrapper([("a", 1), ("b", 2)]).to_map_datapipe()["b"]
        2
    """

    _map: dict[Any, Any] | None = checked_state((dict, None), items=True, copied=True, lasts=True)

    def __init__(
        self, datapipe: IterDataPipe[Any], key_value_fn: Callable[[Any], tuple[Any, Any]] | None = None
    ) -> None:
        if not isinstance(datapipe, IterDataPipe):
            raise TypeError(f"IterToMapConverter can only apply on IterDataPipe, but found {type(datapipe)}")
        check_callable("IterToMapConverter", "key_value_fn", key_value_fn, optional=True)
        self.datapipe = datapipe
        self.key_value_fn = key_value_fn

    def _load_map(self) -> None:
        """Reads the items into the dict. The method keeps this name, because code for torchdata 0.9 overrides or calls
        it."""
        # The pipe stores this dict only after all items were read, because reading an item may raise an error.
        loaded: dict[Any, Any] = {}
        for item in self.datapipe:
            key, value = self._pair(item)
            if key in loaded:
                warn_outside(f"Found duplicate key {key!r}: its later value is kept. Please check your `key_value_fn`")
            loaded[key] = value
        self._map = loaded

    def _loaded(self) -> dict[Any, Any]:
        if self._map is None:
            self._load_map()
        assert self._map is not None, "_load_map has set no _map"
        return self._map

    def _pair(self, item: Any) -> Any:
        pair = item if self.key_value_fn is None else self.key_value_fn(item)
        try:
            length = len(pair)
        except TypeError as error:
            raise TypeError(
                f"IterToMapConverter: Cannot convert dictionary update element {type(pair)} ({pair!r}) to a sequence; "
                "pass a key_value_fn that returns pairs of key and value"
            ) from error
        if length != 2:
            raise ValueError(
                f"IterToMapConverter: dictionary update sequence element has length {length}, 2 is required; pass a "
                "key_value_fn that returns pairs of key and value"
            )
        return pair

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._loaded()[index]
        except KeyError as error:
            raise IndexError(f"Index {index!r} is invalid for IterToMapConverter.") from error

    def __len__(self) -> int:
        if self._map is None:
            try:
                return len(self.datapipe)
            except (TypeError, NotImplementedError):
                warn_of_length(
                    "Data from prior DataPipe are read by IterToMapConverter to get its length before the pipeline "
                    "runs; consider removing len(), or give the source a length by `.set_length()`."
                )
        return len(self._loaded())


IterDataPipe.register_datapipe_as_function("to_map_datapipe", IterToMapConverter)
