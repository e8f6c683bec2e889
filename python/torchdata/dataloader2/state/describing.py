"""A loader's state in words, for people who look at a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchdata.dataloader2.state.layout import opened, parse, sealed
from torchdata.dataloader2.state.position import Content, LoaderState, WorkersPosition
from torchdata.datapipes._pipe.graph.fingerprint import parse_fingerprint
from torchdata.datapipes._pipe.state.layout import dump_entry


def describe(state: Mapping[str, Any]) -> str:
    """Returns a loader's state in words: the position in the epoch, the workers, the pipes and their sizes.

    `describe` runs no code from the state, even if the state is forged, because `describe` unpickles nothing.

    Args:
        state: a result of `DataLoader2.state_dict`.

    Raises:
        TypeError, ValueError: `state` is not the state of a loader, or is damaged.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2, describe
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> loader = DataLoader2(IterableWrapper(range(9)).batch(2))
        >>> _ = next(iter(loader))
        >>> print(describe(loader.state_dict()).splitlines()[0])
        inside an epoch, after 1 item
    """
    return "\n".join(_lines(parse(state)))


def _lines(state: LoaderState) -> Iterator[str]:
    position, outline = state.position, state.outline
    if position is None or position.ended:
        yield "between two epochs"
    else:
        yield f"inside an epoch, after {_items(position.received)}"
        if position.drop:
            yield f"  the last {position.drop} of these will be recomputed"
    seed = None if state.randomness is None else state.randomness.seed
    yield "without a seed" if seed is None else f"seed {seed}"
    if outline is not None:
        names = (pipe.short_name for pipe in parse_fingerprint(outline.fingerprint))
        size = f" ({_size(outline.length)} as bytes)" if outline.length else ""
        yield f"pipeline{size}: {', '.join(names)}"
    if position is not None:
        yield from _graph("in the main process", None if position.graph is None else sealed(Content(position.graph)))
        if position.workers is not None:
            yield from _shards(position.workers)


def _shards(workers: WorkersPosition) -> Iterator[str]:
    for number, shard in enumerate(workers.shards):
        (received, _), snapshot = shard.received, shard.snapshot
        if snapshot is None:
            yield f"shard {number}: {_items(received)} delivered{', all to be recomputed' if received else ''}"
            continue
        again = received - snapshot[0][0]
        yield f"shard {number}: {_items(received)} delivered, the last {again} to be recomputed"
        yield from _graph(f"shard {number}", snapshot[3])
    if workers.dispatching is not None:
        yield from _graph("the dispatching process", workers.dispatching[2])


def _graph(where: str, snapshot: Any) -> Iterator[str]:
    if snapshot is None:
        return
    yield f"{where}: {_size(len(snapshot))}"
    for entry in opened(snapshot, "a snapshot").entries or ():
        yield f"  {entry.type}: {entry.yielded} yielded, {_size(_weight(dump_entry(entry)))}"


def _weight(value: Any) -> int:
    """Returns the approximate size of `value` in bytes. A container that occurs several times is counted only once."""
    weight, waiting, seen = 0, [value], set()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, (dict, list, tuple)):
            weight += len(part) if isinstance(part, (bytes, str)) else 8
        elif id(part) not in seen:
            seen.add(id(part))
            waiting += part.values() if isinstance(part, dict) else part
    return weight


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _size(size: int) -> str:
    return f"{size} bytes" if size < 1024 else f"{size / 1024:.0f} KiB" if size < 1 << 20 else f"{size / 2**20:.1f} MiB"
