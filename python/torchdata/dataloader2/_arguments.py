"""Checks of the arguments of a loader.

Role: pure functions, called where a loader is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["adapter_list", "refuse_arguments", "require_service"]

#: What takes the place of arguments of torch's loader; a pair of braces stands for the value.
_INSTEAD = {
    "batch_size": "datapipe.batch({!r}).collate() as the datapipe",
    "collate_fn": "datapipe.collate(collate_fn={!r}) as the datapipe",
    "drop_last": "datapipe.batch(batch_size, drop_last={!r}) as the datapipe",
    "multiprocessing_context": "reading_service=MultiProcessingReadingService(multiprocessing_context={!r})",
    "num_workers": "reading_service=MultiProcessingReadingService(num_workers={!r})",
    "pin_memory": "datapipe.pin_memory() as the datapipe",
    "prefetch_factor": "reading_service=MultiProcessingReadingService(worker_prefetch_cnt={!r})",
    "shuffle": "datapipe.shuffle() as the datapipe",
    "timeout": "reading_service=MultiProcessingReadingService(timeout={!r})",
    "worker_init_fn": "reading_service=MultiProcessingReadingService(worker_init_fn={!r})",
}


def refuse_arguments(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        instead = f"; write {_INSTEAD[name].format(value)} instead" if name in _INSTEAD else ""
        raise TypeError(f"DataLoader2 got an unexpected keyword argument {name!r}{instead}")


def require_service(service: Any) -> None:
    if service is not None and (
        isinstance(service, type) or not callable(getattr(service, "initialize_iteration", None))
    ):
        raise TypeError(
            f"reading_service must be an instance of a ReadingServiceInterface or None, but got {service!r}"
        )


def adapter_list(adapters: Any) -> list[Any] | None:
    """The argument `datapipe_adapter_fn` as a list, None where it was left out."""
    if adapters is None:
        return None
    listed = list(adapters) if isinstance(adapters, Iterable) else [adapters]
    for adapter in listed:
        if isinstance(adapter, type) or not callable(adapter):
            raise TypeError(
                f"datapipe_adapter_fn takes adapters, which are called with a pipe and return one, but got {adapter!r}"
            )
    return listed
