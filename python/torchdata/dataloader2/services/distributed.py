"""Divides items among the ranks of a distributed job, which communicate by `torch.distributed` or a user's object.

In each rank's main process, the service shards the graph, sets equal shared seeds, and appends `fullsync`, which ends
all ranks' epochs together. The broadcast of seeds and the thread of `fullsync` have separate process groups, because
two threads must not share a group.
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

from torchdata._ranks import members_of
from torchdata._ranks.group import DEFAULT_TIMEOUT, RankGroup, TorchRanks, check_group, check_timeout
from torchdata.dataloader2.graph import DataPipe, set_graph_random_seed
from torchdata.dataloader2.graph.settings import SHARDING_PRIORITIES, apply_sharding
from torchdata.dataloader2.services.interface import (
    AskRank,
    IterResetFn,
    RankInEpoch,
    ReadingServiceInterface,
    Resumed,
    Shares,
)
from torchdata.datapipes._pipe.graph.graph import Graph

if TYPE_CHECKING:
    from torchdata.dataloader2.random.seed_generator import SeedGenerator


class DistributedReadingService(ReadingServiceInterface):
    """Gives each rank of a distributed job its share of the items. All ranks use the same order before sharding.

    To use workers on every rank, put this service before a `MultiProcessingReadingService` in a
    `SequentialReadingService`: items are divided by rank, then by worker. All ranks end an epoch after the same number
    of items (see `FullSync`).

    Args:
        timeout: seconds after which an operation between the ranks fails; 1,800 by default. A process group or device
            mesh of torch may be the first argument, as in `DistributedReadingService(mesh["dp"])`.
        process_group: the ranks that share the items: a `ProcessGroup` of torch, or a `DeviceMesh` of one dimension. By
            default, all ranks of `torch.distributed`, which must be initialized, share the items. Several data-parallel
            groups of the same size use the same seeds, so rank n of one group gets the same batches as rank n of
            another group. For other kinds of communication, pass an object with the attributes `rank` and `world_size`,
            and two methods for 64-bit integers: `broadcast(value)` returns the value of rank 0, and
            `all_reduce_min(value)` returns the smallest value of all ranks. `all_reduce_min` is called in a separate
            thread.

    Raises:
        RuntimeError: `process_group` requires `torch.distributed`, which is not available.
        ValueError: `timeout` is zero, negative or over three years, the mesh has several dimensions, or this rank does
            not belong to the process group.
        TypeError: `process_group` lacks one of the required attributes.

    Example:
        >>> from torchdata.dataloader2 import (
        ...     DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
        ... )
        >>> class Alone:
        ...     rank, world_size = 0, 1
        ...     def broadcast(self, value):
        ...         return value
        ...     def all_reduce_min(self, value):
        ...         return value
        >>> service = SequentialReadingService(
        ...     DistributedReadingService(process_group=Alone()), MultiProcessingReadingService(num_workers=2)
        ... )
    """

    def __init__(
        self, timeout: float | TorchRanks = DEFAULT_TIMEOUT, *, process_group: RankGroup | TorchRanks | None = None
    ) -> None:
        owner = "DistributedReadingService"
        if process_group is None and members_of(timeout, owner) is not None:
            timeout, process_group = DEFAULT_TIMEOUT, timeout  # type: ignore[assignment]
        check_timeout(timeout, owner)
        #: The members of the user's torch process group, as ranks of the whole job; None without such a group.
        self._members = members_of(process_group, owner)
        passed_group: Any = None if self._members is not None else process_group
        if passed_group is not None:
            check_group(passed_group, owner, broadcasts=True)
        else:
            from torchdata._ranks.torch_group import require_available

            require_available(owner)
        self._world_size = 1
        self._rank = 0
        self._datapipe: DataPipe | None = None
        self._timeout: float = timeout  # type: ignore[assignment]
        self._passed_group: RankGroup | None = passed_group
        self._pg: RankGroup | None = None
        self._sync_group: RankGroup | None = None
        self._fullsync: Any = None
        #: Whether the next epoch (`_keeps_next`) or the running epoch (`_keeps_seeds`) uses the seeds of a state that
        #: was saved without ranks. In an epoch with saved seeds, the ranks do not agree on new seeds.
        self._keeps_next = self._keeps_seeds = False
        self._resumed: Resumed | None = None
        #: Whether the next epoch resumes shards that began on another rank.
        self._has_moved = False

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedReadingService:
        """Returns a copy of the service, which shares a process group that the user has provided.

        Raises:
            TypeError: the service is in use.
        """
        if self._passed_group is not None:
            memo[id(self._passed_group)] = self._passed_group
        duplicate = type(self).__new__(type(self))
        memo[id(self)] = duplicate
        vars(duplicate).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return duplicate

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Shards the graph that ends in `datapipe` by rank, and appends `fullsync`, which ends the epoch on all ranks
        when one rank runs out of items. Returns the pipe `fullsync`.

        Raises:
            RuntimeError: `torch.distributed` is not initialised.
            ValueError: the graph already runs in worker processes, where this service cannot shard it.
        """
        from torchdata.dataloader2.services.worker_output import WorkerOutput
        from torchdata.datapipes.iter import FullSync

        graph = Graph(datapipe)
        if graph.first(lambda pipe: isinstance(pipe, WorkerOutput)) is not None:
            raise ValueError(
                "DistributedReadingService must divide the items before worker processes read them: put it first, "
                "as in SequentialReadingService(DistributedReadingService(), "
                "MultiProcessingReadingService(...))"
            )

        group = self._open(self._timeout)
        self._rank, self._world_size, self._pg = group.rank, group.world_size, group
        apply_sharding(graph, self._world_size, self._rank, SHARDING_PRIORITIES.DISTRIBUTED)
        if not isinstance(datapipe, FullSync):
            datapipe = FullSync(datapipe, self._timeout)
        self._sync_group = group if self._passed_group is not None else self._open(datapipe.timeout)
        datapipe.set_process_group(self._sync_group)
        self._fullsync = self._datapipe = datapipe
        resumed, self._resumed = self._resumed, None  # dropped, because the function refers to the loader
        self._has_moved = any(shard.moved for shard in (resumed and resumed()) or ())
        return datapipe

    def count_ranks(self) -> int:
        """Returns the number of ranks. `count_ranks` may be called before the first epoch.

        Raises:
            TypeError: the process group is not initialized yet.
        """
        if self._datapipe is not None:
            return self._world_size
        if self._passed_group is not None:
            return self._passed_group.world_size
        if self._members is not None:
            return len(self._members)
        dist: Any = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_initialized():
            return int(dist.get_world_size())
        raise TypeError("the number of ranks is not known before torch.distributed is initialised")

    def count_shares(self) -> Shares:
        """Returns the number of ranks that share the items."""
        return Shares(ranks=self.count_ranks())

    def rank_in_epoch(self) -> RankInEpoch | None:
        """Returns the rank once the graph is sharded; None before the graph is sharded."""
        if self._datapipe is None:
            return None
        return RankInEpoch(self._rank, self._world_size, self._keeps_seeds)

    def _open(self, timeout: float) -> RankGroup:
        from torchdata._ranks.torch_group import TorchGroup

        return self._passed_group or TorchGroup(timeout, "DistributedReadingService", self._members)

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Sends the seed that rank 0 draws from `seed_generator` to all ranks, and seeds the graph. Returns
        `iter_reset_fn`.

        Raises:
            RuntimeError: `initialize` was not called before.
            ValueError: the ranks resume from different states.
        """
        if self._datapipe is None or self._pg is None:
            raise RuntimeError("DistributedReadingService.initialize must be called before initialize_iteration")
        # The thread of `fullsync` must end before the seed is sent, because both may use the same process group of the
        # user.
        self._fullsync.reset()
        self._keeps_seeds, self._keeps_next = self._keeps_next, False
        seed = (copy.copy(seed_generator) if self._keeps_seeds else seed_generator).generate_shared_seed()
        shared = self._pg.broadcast(seed - 2**64 if seed >= 2**63 else seed)
        if self._sync_group is not None and self._sync_group is not self._passed_group:
            self._sync_group.show_life()  # only after the workers were forked, because `show_life` may start a thread
        if not self._keeps_seeds:
            seed_generator.seed(shared % 2**64)
        elif shared % 2**64 != seed:
            raise ValueError(
                f"rank {self._rank} resumes from another state than rank 0: load the same state on all ranks"
            )
        # The pipes' seeds are drawn from a copy of the generator, so that the draws do not change the next epoch's
        # seeds.
        own = seed_generator
        if self._world_size > 1:  # a single rank has the seeds of a loader without ranks
            own = seed_generator.spawn(self._rank, inplace=not self._has_moved)
        self._has_moved = False
        set_graph_random_seed(self._datapipe, copy.copy(own))
        return iter_reset_fn

    def before_initialize(self, full_stats: bool, resumed: Resumed, ranks: AskRank) -> None:
        self._resumed = resumed

    def agree_on_seeds(self, seed_generator: SeedGenerator) -> None:
        """Gives all data-parallel groups equal seeds: `seed_generator` gets the state of the group that begins this
        epoch first."""
        from torchdata._ranks.torch_group import TorchGroup

        if isinstance(self._pg, TorchGroup):
            seed_generator.__setstate__(bytes.fromhex(self._pg.agree(seed_generator.exported().hex())))

    def keep_seeds(self) -> None:
        """Makes the next epoch use the seeds in the loaded state, which was saved without ranks."""
        self._keeps_next = True

    def finalize(self) -> None:
        """Ends the synchronization with all ranks, and closes the process groups that this service has created."""
        fullsync, self._fullsync = self._fullsync, None
        if fullsync is not None:
            fullsync.shutdown()
        for group in (self._sync_group, self._pg):
            if group is not None and group is not self._passed_group:
                group.close()
        self._sync_group = self._pg = None
