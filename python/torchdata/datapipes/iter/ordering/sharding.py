"""Pipes that divide a pipeline among processes: ShardingFilter, ShardingRoundRobinDispatcher.

The loader calls `apply_sharding` in each worker before the first iteration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import chain, islice
from typing import Any, ClassVar

from torchdata.datapipes._pipe import witnessing
from torchdata.datapipes._pipe.checks import check_int, check_source, length_of
from torchdata.datapipes._pipe.division import Division
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.item_by_item import SameLength
from torchdata.datapipes._pipe.splitting import begin_whole, read_whole
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.state.generators import check_generators
from torchdata.datapipes._pipe.state.layout import PipeEntry
from torchdata.datapipes._pipe.unloaded import Load, begin_sharing, begin_unloaded, can_share, can_wait
from torchdata.datapipes.datapipe import IterDataPipe, T_co, token_of

__all__ = ["SHARDING_PRIORITIES", "ShardingFilter", "ShardingRoundRobinDispatcher"]


class SHARDING_PRIORITIES(IntEnum):
    """The levels of dividing items: first among ranks, then among the workers of each rank.

    The values are the same as in torch's enum, so members of the two enums can be compared.

    Args:
        value: the integer of the member.

    Example:
        >>> from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
        >>> IterableWrapper(range(4)).sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
        ShardingFilter
    """

    DEFAULT = 1
    DISTRIBUTED = 2
    MULTIPROCESSING = 3


class ShardingFilter(IterDataPipe[T_co]):
    """Yields this process's share of the items: after `apply_sharding(n, i)`, every n-th item, starting with item i.

    Every process reads the whole source, in an order that must be the same in all processes. A loader raises an error
    if the orders of its workers differ.

    Each process loads and maps only the items of its share if the source is read by index, and only `shuffle`, `map`
    and `sharding_filter` are between the source and the filter. Map pipes (through `to_iter_datapipe`, `shuffle` or
    `sample_by`) and an `IterableWrapper` of a dataset without `__iter__` are read by index. If the source is an
    `IterableWrapper` of a range, list, tuple or array, the filter does not read items of other processes.

    Some sources, such as Hugging Face's `IterableDataset`, divide their items among workers, according to
    `torch.utils.data.get_worker_info()`. A `sharding_filter` prevents its sources from dividing their items among
    workers. Without a `sharding_filter`, each worker reads only its part of an `IterableDataset`, which is faster than
    reading all items in each worker.

    Args:
        source_datapipe: the pipe to read.
        sharding_group_filter: restricts this pipe to one level: a member of `SHARDING_PRIORITIES`, or an integer of
            your own. If `sharding_group_filter` is None (the default), the pipe divides items at all levels.

    Raises:
        TypeError: `source_datapipe` is not iterable, or `sharding_group_filter` is not an integer.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> shard = IterableWrapper(range(5)).sharding_filter()
        >>> shard.apply_sharding(2, 1)
        >>> list(shard)
        [1, 3]
    """

    set_by_adapters: ClassVar[dict[str, str]] = {
        "ShardingPolicy.block": "_block",
        "ShardingPolicy.enable": "_sharding_enabled",
    }

    #: Whether the source itself divides its items among workers, so that this filter must not divide them a second
    #: time. If two workers read the same items although `source_splits_itself` is True, the loader raises an error.
    source_splits_itself: bool = False

    _taken: int = state(0)  # items read from the source before the current iterator was created
    _yielded_before: int = state(0, saved=False)  # items yielded before the current iterator was created
    #: The number of items that a resumed run must recompute, from the source's saved position to this filter's
    #: position. `_outstanding` is 0 unless one process reads the source for several shards (see `common_parts`).
    #: `_generators` contains the states of the global random generators at the source's saved position.
    _outstanding: int = state(0)
    _generators: Any = state()

    #: The iterator over this shard's items, if one process reads the source for several shards (see `common_parts`).
    #: The loader sets `_share` in each epoch.
    _share: Any = state(items=True, lasts=True, saved=False)

    item_attributes = frozenset({"groups", "_running"})  # not searched for sources, because they contain only numbers

    def __init__(self, source_datapipe: Iterable[T_co], sharding_group_filter: Any = None) -> None:
        self.source_datapipe = check_source("ShardingFilter", source_datapipe, "source_datapipe")
        if sharding_group_filter is not None:
            sharding_group_filter = _group(sharding_group_filter, "sharding_group_filter")
        self.sharding_group_filter = sharding_group_filter
        self.groups: dict[int, tuple[int, int]] = {}
        self.num_of_instances = 1
        self.instance_id = 0
        self._block = 1
        self._sharding_enabled = True
        self._running = self._shard()

    def apply_sharding(
        self, num_of_instances: int, instance_id: int, sharding_group: Any = SHARDING_PRIORITIES.DEFAULT
    ) -> None:
        """Makes the next iterations yield share `instance_id` of `num_of_instances`.

        Calls with different groups divide the items at several levels: among ranks (DISTRIBUTED) first, then among
        workers (MULTIPROCESSING). An integer of your own as `sharding_group` adds a level of division.

        Raises:
            TypeError: the group is not an integer.
            ValueError: `instance_id` is not in `range(num_of_instances)`.
            RuntimeError: the group DEFAULT is combined with another group.
        """
        check_int("ShardingFilter", "num_of_instances", num_of_instances, least=1)
        check_int("ShardingFilter", "instance_id", instance_id, least=0)
        if instance_id >= num_of_instances:
            raise ValueError(
                f"ShardingFilter: instance_id({instance_id}) should be smaller than "
                f"num_of_instances({num_of_instances})"
            )
        group = _group(sharding_group, "sharding_group")
        default = SHARDING_PRIORITIES.DEFAULT
        if any((known == default) != (group == default) for known in self.groups):
            raise RuntimeError(
                "ShardingFilter cannot mix DEFAULT and non DEFAULT groups: it was sharded for "
                f"{', '.join(map(_name, self.groups))} and is now to be sharded for {_name(group)}"
            )
        self.groups[group] = (num_of_instances, instance_id)
        self.num_of_instances, self.instance_id = 1, 0
        for key in sorted(self.groups, reverse=True):
            if self.sharding_group_filter is None or key == self.sharding_group_filter:
                instances, instance = self.groups[key]
                self.instance_id += self.num_of_instances * instance
                self.num_of_instances *= instances

    def set_sharding_block(self, block: int | None) -> ShardingFilter[T_co]:
        """Distributes blocks of `block` consecutive items from the next iteration on; None means single items.

        With blocks of k items, `sharding_filter().batch(k)` yields the same batches for any number of workers. Returns
        the pipe itself.

        Raises:
            ValueError: `block` is not positive.
        """
        self._block = 1 if block is None else check_int("ShardingFilter", "block", block, least=1)
        return self

    def set_sharding_enabled(self, enabled: bool = True) -> ShardingFilter[T_co]:
        """Turns sharding on, or with `enabled=False` off, from the next iteration on. Without sharding, every process
        yields all items.

        Returns the pipe itself.
        """
        self._sharding_enabled = enabled
        return self

    def reset(self) -> None:
        """Starts with the first item of the source."""
        super().reset()
        self._running = self._shard()

    def _shard(self) -> Division:
        if not self._sharding_enabled:
            return Division(1, 0)
        return Division(self.num_of_instances, self.instance_id, self._block)

    def __iter__(self) -> Iterator[T_co]:
        if self._share is not None:
            self._running, self._yielded_before = self._shard(), token_of(self).yielded
            return self._share.begin(self._taken - self._outstanding, self._generators)  # type: ignore[no-any-return]
        takes_a_part = not self._shard().is_whole and type(self) is ShardingFilter
        if takes_a_part and can_wait(self.source_datapipe):
            indices, load = self._iter_unloaded()
            return map(load, indices)
        if self._divides_among_workers() and read_whole(Graph(self.source_datapipe).pipes):
            return self._share_of(begin_whole(lambda: iter(self.source_datapipe)))
        begin = begin_sharing if takes_a_part else iter
        return self._share_of(begin(self.source_datapipe))

    def _can_wait(self) -> bool:
        return can_wait(self.source_datapipe)

    def _gives_each_item_to_one_worker(self) -> bool:
        if not self._sharding_enabled or self.source_splits_itself:
            return False
        return self.sharding_group_filter in (None, SHARDING_PRIORITIES.MULTIPROCESSING)

    def _skips_others(self) -> bool:
        return can_wait(self.source_datapipe) or can_share(self.source_datapipe)

    def _iter_unloaded(self) -> tuple[Iterator[Any], Load]:
        indices, load = begin_unloaded(self.source_datapipe)
        return self._share_of(indices, is_unloaded=True), load

    def _loads(self) -> Load:
        return self.source_datapipe._loads()  # type: ignore[attr-defined, no-any-return]

    def _divides_among_workers(self) -> bool:
        return self._sharding_enabled and any(
            instances > 1
            for group, (instances, _) in self.groups.items()
            if group in (SHARDING_PRIORITIES.DEFAULT, SHARDING_PRIORITIES.MULTIPROCESSING)
            and (self.sharding_group_filter is None or group == self.sharding_group_filter)
        )

    def _share_of(self, source: Iterator[Any], is_unloaded: bool = False) -> Iterator[Any]:
        """Returns this shard's items of `source`. If `is_unloaded` is True, `source` yields the indices of items
        instead of items (see `unloaded`)."""
        self._running = self._shard()
        self._yielded_before = token_of(self).yielded
        if self._outstanding:  # the state was saved while one process read the source for several shards
            deque(islice(source, self._outstanding), maxlen=0)
            self._outstanding, self._generators = 0, None
        witness = witnessing.current
        is_compared = self.source_splits_itself or self._divides_among_workers()
        if witness is None or not is_compared or not isinstance(self.source_datapipe, IterDataPipe):
            return self._running.share_of(source, self._taken)
        watch = witness.watch(self, self._taken)
        if is_unloaded:  # an ended `chain` does not call its source again
            return self._running.share_of(chain(source), self._taken, watch, lambda: False)
        token = token_of(self.source_datapipe)
        return self._running.share_of(source, self._taken, watch, lambda: token.finished)

    def __len__(self) -> int:
        return self._shard().own_before(length_of(self, self.source_datapipe))

    def state_dict(self) -> dict[str, Any]:
        # `taken` is the position in the source after the last yielded item.
        taken, outstanding, generators = self._position(), self._outstanding, self._generators
        saved = None if self._share is None else self._share.saved()
        if saved is not None:
            outstanding, generators = taken - saved.position, saved.generators
        rest = {"outstanding": outstanding, "generators": generators}
        return {"taken": taken} | {name: value for name, value in rest.items() if value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if (generators := state_dict.get("generators")) is not None:
            check_generators(generators)
        self._load_declared(state_dict)

    def _position(self) -> int:
        taken, passed_on = self._taken, token_of(self).yielded - self._yielded_before
        return self._running.after(taken, passed_on) if passed_on else taken

    def _entries_of_sources(self) -> dict[int, PipeEntry]:
        return {} if self._share is None else self._share.entries()


def _group(value: Any, argument: str) -> int:
    """Returns a sharding group, which may be a member of torch's enum, as an integer."""
    try:
        return SHARDING_PRIORITIES(value)
    except ValueError:
        return check_int("ShardingFilter", argument, value)


def _name(group: int) -> str:
    return group.name if isinstance(group, SHARDING_PRIORITIES) else str(group)


class ShardingRoundRobinDispatcher(SameLength, IterDataPipe[T_co]):
    """Makes all earlier pipes run only once, in a dispatching process.

    With worker processes, the dispatching process sends the items to the workers in turn. Without worker processes,
    this pipe yields its items unchanged.

    Args:
        source_datapipe: the last pipe that runs in the dispatching process.
        sharding_group_filter: the level where the items are divided: `SHARDING_PRIORITIES.MULTIPROCESSING`, or None,
            which has the same meaning.

    Raises:
        NotImplementedError: `sharding_group_filter` has another value.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(4)).shuffle()
        >>> pipe = pipe.sharding_round_robin_dispatch().map(str)
        >>> sorted(pipe)
        ['0', '1', '2', '3']
    """

    iteration_state = ()

    def __init__(self, source_datapipe: Iterable[T_co], sharding_group_filter: Any = None) -> None:
        self.source_datapipe = check_source("ShardingRoundRobinDispatcher", source_datapipe, "source_datapipe")
        if sharding_group_filter not in (None, SHARDING_PRIORITIES.MULTIPROCESSING):
            raise NotImplementedError(
                "`sharding_round_robin_dispatch` only supports `SHARDING_PRIORITIES.MULTIPROCESSING`, but got "
                f"{sharding_group_filter!r}; put a `sharding_filter` before it to divide items among nodes"
            )
        self.sharding_group_filter = SHARDING_PRIORITIES.MULTIPROCESSING

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.source_datapipe)

    def is_replicable(self) -> bool:
        """Returns False, because this pipe and all pipes before it must run only once."""
        return False
