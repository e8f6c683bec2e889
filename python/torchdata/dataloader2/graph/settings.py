"""Applies settings to all pipes of a graph that support them: seeds, shuffling, sharding.

The functions of this module find pipes by the pipes' methods (`set_seed`, `set_shuffle`, `apply_sharding`), so that
pipes of users and of torch are included.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

from torchdata._native import SeedGenerator
from torchdata._signatures import signature_of
from torchdata.dataloader2.graph.utils import DataPipe, DataPipeGraph, has_method, whole
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.record import record_of
from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES as SHARDING_PRIORITIES
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter


def is_random(datapipe: Any) -> TypeGuard[Any]:
    return has_method(datapipe, "set_seed")


def random_pipes(datapipes: Iterable[DataPipe]) -> list[Any]:
    """Returns the pipes that accept a seed. If a pipe is iterated several times in an epoch, each later iteration
    derives its seed from the first seed, so that a resumed epoch has the same seeds.
    """
    found = [*filter(is_random, datapipes)]
    for pipe in found:
        record_of(pipe).seeded = True
    return found


def is_shuffler(datapipe: Any) -> bool:
    return has_method(datapipe, "set_shuffle") and is_random(datapipe)


def is_sharding(datapipe: Any) -> bool:
    """Returns whether the pipe can divide its items among shards, by `apply_sharding`."""
    return has_method(datapipe, "apply_sharding")


def get_all_graph_pipes(graph: DataPipeGraph) -> list[DataPipe]:
    """Returns each pipe once, depth first."""
    return whole(graph).depth_first()


def set_datapipes_seed(datapipes: Iterable[DataPipe], seed_generator: SeedGenerator, distributed_shared: bool) -> None:
    """Gives each pipe that has `set_seed` its own seed.

    Args:
        datapipes: the pipes, in the order in which they get their seeds; pipes without `set_seed` are skipped.
        seed_generator: the generator that provides the seeds.
        distributed_shared: whether each pipe gets the same seed on all workers and ranks.

    Example:
        >>> from torchdata.dataloader2.graph import set_datapipes_seed
        >>> from torchdata.dataloader2.random import SeedGenerator
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(9)).shuffle()
        >>> set_datapipes_seed([pipe], SeedGenerator(1), distributed_shared=True)
        >>> sorted(pipe) == list(range(9))
        True
    """
    draw = seed_generator.generate_shared_seed if distributed_shared else seed_generator.generate_seed
    for pipe in random_pipes(datapipes):
        pipe.set_seed(draw())


def set_graph_random_seed(datapipe: DataPipe | Graph, seed_generator: SeedGenerator) -> DataPipe:
    """Seeds the random pipes of a graph, so that all workers select their items from the same order.

    Pipes before a `sharding_filter` get seeds that all workers and ranks share, because all of these processes must see
    the same order before each process selects its items. Pipes after a `sharding_filter` get different seeds in each
    worker.

    Args:
        datapipe: the last pipe of the graph, or the graph.
        seed_generator: the generator that provides the seeds; in a worker, a generator that was spawned for this
            worker.

    Returns:
        The last pipe.

    Example:
        >>> from torchdata.dataloader2.graph import set_graph_random_seed
        >>> from torchdata.dataloader2.random import SeedGenerator
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(9)).shuffle()
        >>> first = list(set_graph_random_seed(pipe, SeedGenerator(1)))
        >>> list(set_graph_random_seed(pipe, SeedGenerator(1))) == first
        True
    """
    graph = whole(datapipe)
    filters = [pipe for pipe in graph.depth_first() if is_sharding(pipe)]
    before: dict[int, DataPipe] = {}
    for sharding_filter in filters:
        for pipe in graph.at(sharding_filter).breadth_first():
            before.setdefault(id(pipe), pipe)
    set_datapipes_seed(before.values(), seed_generator, distributed_shared=True)
    after = [pipe for pipe in graph.breadth_first() if id(pipe) not in before]
    set_datapipes_seed(after, seed_generator, distributed_shared=False)
    end: DataPipe = graph.end
    return end


def apply_sharding(
    datapipe: DataPipe | Graph,
    num_of_instances: int,
    instance_id: int,
    sharding_group: Any = SHARDING_PRIORITIES.DEFAULT,
) -> DataPipe:
    """Makes every sharding pipe of the graph keep only the items of one instance.

    Args:
        num_of_instances: the number of copies of the graph that share the items.
        instance_id: the number of this copy of the graph, from 0.
        sharding_group: the level of sharding (a `SHARDING_PRIORITIES`): ranks, workers, or unspecified. A
            `sharding_filter` with another group than `sharding_group` remains unchanged.

    Raises:
        RuntimeError: items would pass two filters of the same `sharding_group`, and would be lost.
        ValueError: `instance_id` is not below `num_of_instances`.
    """
    if not 0 <= instance_id < num_of_instances:
        raise ValueError(
            f"one of {num_of_instances} instances is numbered 0 to {num_of_instances - 1}, but instance_id "
            f"is {instance_id}"
        )
    seen: set[tuple[int, int]] = set()
    assigned: set[int] = set()

    graph = whole(datapipe)

    def descend(pipe: Any, following: Any) -> None:
        """`following`: the nearest later pipe that shards in the same `sharding_group`; None if there is none."""
        if (id(pipe), id(following)) in seen:
            return
        seen.add((id(pipe), id(following)))
        concerned = is_sharding(pipe) and vars(pipe).get("sharding_group_filter") in (None, sharding_group)
        if concerned and following is not None:
            raise RuntimeError(
                "Sharding twice on a single pipeline is likely unintended and will cause data loss: "
                f"items pass {pipe!r} and then {following!r}, and both would keep only their share; "
                "remove one of the two, or give each its own sharding group"
            )
        if is_sharding(pipe) and id(pipe) not in assigned:
            assigned.add(id(pipe))
            _set_share(pipe, num_of_instances, instance_id, sharding_group)
        for source in graph.sources(pipe):
            descend(source, pipe if concerned else following)

    descend(graph.end, None)
    end: DataPipe = graph.end
    return end


def _set_share(datapipe: Any, num_of_instances: int, instance_id: int, sharding_group: Any) -> None:
    # in older pipes, `apply_sharding` lacks the parameter for the sharding group; `signature_of` is slow in new workers
    if type(datapipe) is not ShardingFilter and len(signature_of(datapipe.apply_sharding).parameters) < 3:
        datapipe.apply_sharding(num_of_instances, instance_id)
    else:
        datapipe.apply_sharding(num_of_instances, instance_id, sharding_group=sharding_group)


def apply_shuffle_settings(datapipe: DataPipe, shuffle: bool | None = None) -> DataPipe:
    """Switches all shufflers of the graph on or off.

    Args:
        shuffle: True switches all shufflers on, and appends a shuffler (with a warning) if there is none; False
            switches them off; None (the default) changes nothing.

    Returns:
        The last pipe of the graph, which is the new shuffler if one was appended.
    """
    if shuffle is None:
        return datapipe
    shufflers: list[Any] = [pipe for pipe in whole(datapipe).depth_first() if is_shuffler(pipe)]
    if shuffle and not shufflers:
        warnings.warn(
            "`shuffle=True` was set, but the datapipe does not contain a `Shuffler`. Adding one at the end, with the "
            "default buffer size; put `.shuffle()` where items are small, before `.sharding_filter()`, to choose "
            "both.",
            stacklevel=2,
        )
        datapipe = datapipe.shuffle()
        shufflers = [datapipe]
    for shuffler in shufflers:
        shuffler.set_shuffle(shuffle)
    return datapipe


def call_all(datapipe: DataPipe, method: str, *values: Any, is_reversed: bool = False) -> None:
    """Calls a method of all pipes that have it, from the last pipe to the sources; `is_reversed` reverses this
    order."""
    pipes = whole(datapipe).breadth_first()
    for pipe in reversed(pipes) if is_reversed else pipes:
        if has_method(pipe, method):
            getattr(pipe, method)(*values)


def pause_pipes(datapipe: DataPipe) -> None:
    call_all(datapipe, "pause")


def resume_pipes(datapipe: DataPipe) -> None:
    call_all(datapipe, "resume", is_reversed=True)


def apply_random_seed(datapipe: DataPipe, rng: Any) -> DataPipe:
    """Gives every random pipe of the graph a seed drawn from `rng`, depth first from the last pipe.

    Args:
        rng: a `torch.Generator`, a `random.Random`, a `numpy.random.Generator`, or a `SeedGenerator` (shared seeds).

    Raises:
        TypeError: `rng` has another type.
    """
    draw = _seed_source(rng)
    for pipe in whole(datapipe).depth_first():
        if is_random(pipe):
            pipe.set_seed(draw())
    return datapipe


def _seed_source(rng: Any) -> Callable[[], int]:
    """Returns a function that draws seeds of 63 bits, or of 64 bits from a `SeedGenerator`."""
    if isinstance(rng, random.Random):
        return lambda: rng.getrandbits(63)
    if callable(getattr(rng, "generate_shared_seed", None)):
        return lambda: int(rng.generate_shared_seed())
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(rng, torch.Generator):
        return lambda: int(torch.empty((), dtype=torch.int64, device=rng.device).random_(generator=rng).item())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(rng, numpy.random.Generator):
        return lambda: int(rng.integers(2**63 - 1, endpoint=True))
    raise TypeError(
        "seeds are drawn from a torch.Generator, random.Random, numpy.random.Generator or SeedGenerator, "
        f"but got {rng!r} of type {type(rng).__name__}"
    )
