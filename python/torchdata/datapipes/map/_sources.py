"""Checks of the sources of map-style pipes. Pure functions, which run in the process that builds a pipe."""

from __future__ import annotations

from typing import Any

from torchdata.datapipes._pipe.checks import is_dataset
from torchdata.datapipes._pipe.datasets import is_indexed
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe


def check_map_pipe(pipe: str, value: Any, argument: str = "datapipe") -> None:
    """Raises TypeError unless `value` can be read by index."""
    if isinstance(value, IterDataPipe):
        raise TypeError(
            f"{pipe}: {argument} must be a MapDataPipe, but got the IterDataPipe {value!r}; convert it with "
            "`.to_map_datapipe()` first"
        )
    if not hasattr(type(value), "__getitem__"):
        raise TypeError(
            f"{pipe}: {argument} must be a MapDataPipe, but got {value!r} of type {type(value).__name__}; wrap it in "
            "SequenceWrapper"
        )


def check_map_pipes(pipe: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the map-style pipes to read: each of `values`, or a SequenceWrapper for a dataset.

    Raises:
        ValueError: there are no values.
        TypeError: one of the values is neither a map-style pipe nor a dataset.
    """
    from torchdata.datapipes.map.wrapping import SequenceWrapper

    if not values:
        raise ValueError(f"{pipe}: Expected at least one DataPipe, but got nothing")
    pipes = []
    for position, value in enumerate(values):
        foreign = any(cls.__name__ == "MapDataPipe" for cls in type(value).__mro__)
        if isinstance(value, MapDataPipe) or foreign:
            pipes.append(value)
        elif is_dataset(value) and is_indexed(value):
            pipes.append(SequenceWrapper(value, deepcopy=False))
        else:
            raise TypeError(
                f"{pipe}: Expected all inputs to be `MapDataPipe`, but input {position} is {value!r} of type "
                f"{type(value).__name__}; wrap it in SequenceWrapper"
            )
    return tuple(pipes)
