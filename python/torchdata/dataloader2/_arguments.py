"""Checks the arguments of a loader, and suggests equivalents for arguments of other loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchdata._signatures import signature_of
from torchdata.datapipes._pipe.graph.traversal import is_pipe

#: Maps an argument of other loaders to the equivalent code with a reading service.
_OF_A_SERVICE = {
    theirs: f"reading_service=MultiProcessingReadingService(num_workers, {ours}={{!r}})"
    for theirs, ours in {
        "multiprocessing_context": "multiprocessing_context",
        "prefetch_factor": "worker_prefetch_cnt",
        "timeout": "timeout",
        "worker_init_fn": "worker_init_fn",
    }.items()
}
_INSTEAD = {
    **_OF_A_SERVICE,
    "batch_size": "datapipe.batch({!r}).collate() as the datapipe",
    "collate_fn": "datapipe.collate(collate_fn={!r}) as the datapipe",
    "drop_last": "datapipe.batch(batch_size, drop_last={!r}) as the datapipe",
    "pin_memory": "datapipe.pin_memory() as the datapipe",
    "shuffle": "datapipe.shuffle() as the datapipe",
}
_INSTEAD_OVER_DATASET = {
    **_OF_A_SERVICE,
    "batch_sampler": "sampler=..., batch_size=..., or build the pipeline and give it to DataLoader2(...)",
    "generator": "seed=...",
    "pin_memory": "DataLoader2(SequenceWrapper(dataset).sharding_filter().batch(...).collate().pin_memory(), "
    "num_workers=...)",
}


def refuse_arguments(arguments: Mapping[str, Any], taken: Callable[..., Any], owner: str = "DataLoader2") -> None:
    """The TypeError for an unknown keyword suggests an equivalent, or lists the valid arguments."""
    known = _INSTEAD if owner == "DataLoader2" else _INSTEAD_OVER_DATASET
    for name, value in arguments.items():
        if name in known:
            instead = f"write {known[name].format(value)} instead"
        elif name == "persistent_workers":
            instead = "omit it: workers always keep running between epochs"
        else:
            instead = f"it takes {', '.join(_named(taken))}"
        raise TypeError(f"{owner} got an unexpected keyword argument {name!r}; {instead}")


def _named(function: Callable[..., Any]) -> list[str]:
    parameters = signature_of(function).parameters.values()
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def is_service(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "initialize_iteration", None))


def require_service(service: Any) -> None:
    if service is not None and not is_service(service):
        raise TypeError(
            f"reading_service must be an instance of a ReadingServiceInterface or None, but got {service!r}"
        )


def require_pipe(datapipe: Any) -> None:
    if not is_pipe(datapipe):
        raise TypeError(
            f"DataLoader2 loads from an IterDataPipe or a MapDataPipe, but got {datapipe!r} of type "
            f"{type(datapipe).__name__}; put data into an IterableWrapper first"
        )


def adapter_list(adapters: Any) -> list[Any] | None:
    if adapters is None:
        return None
    if is_service(adapters):
        raise TypeError(
            f"datapipe_adapter_fn takes adapters, but got the reading service {adapters!r}; write "
            f"reading_service={type(adapters).__name__}(...), by its name"
        )
    listed = list(adapters) if isinstance(adapters, Iterable) else [adapters]
    for adapter in listed:
        if isinstance(adapter, type) or not callable(adapter):
            raise TypeError(
                f"datapipe_adapter_fn takes adapters, which are called with a pipe and return one, but got {adapter!r}"
            )
    return listed
