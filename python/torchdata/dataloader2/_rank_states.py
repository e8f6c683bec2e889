"""The positions of all ranks of a distributed job, and how one rank resumes.

If the number of ranks has changed, the shards of all saved ranks are distributed among the current ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchdata.dataloader2.services.interface import ReadingServiceInterface
from torchdata.dataloader2.state.position import Position, SavedRanks, Shard
from torchdata.dataloader2.state.shards import among_ranks, cannot_move, fitted, in_workers

if TYPE_CHECKING:
    from torchdata.dataloader2._pipeline import Pipeline
    from torchdata.dataloader2._seeds import Seeds
    from torchdata.dataloader2.services.worker_output import WorkerOutput

#: A loader that is not part of a distributed job is rank 0 of 1.
ALONE: SavedRanks = (0, 1, False)


@dataclass(frozen=True)
class SavedPositions:
    ranks: SavedRanks | None
    positions: Mapping[int, Position]

    def has_shards(self, contract: ReadingServiceInterface) -> bool:
        """Returns whether the saved epoch began in workers, or with another number of ranks than now. A loader without
        workers resumes an epoch with shards by running all these shards in the main process.
        """
        if not all(position.in_main for position in self.positions.values()):
            return True
        try:
            ranks = contract.count_shares().ranks or 1
        except TypeError:
            return False
        return ranks != (self.ranks or ALONE)[1]

    def shards(self, pipeline: Pipeline) -> Sequence[Shard] | None:
        """Returns the shards of the saved epoch. Returns None if the epoch began in the main process and also resumes
        there."""
        contract = pipeline.contract
        if not (contract.has_workers() or self.has_shards(contract)):
            return None
        return self._of_rank(contract).all_shards

    def between(self, contract: ReadingServiceInterface, *, keeps: bool) -> Position:
        """Returns this rank's position between two epochs. If this rank's position is missing, another rank's position
        is returned, unless pipes keep state from epoch to epoch (`keeps`).
        """
        if keeps or self._has_rank_of(contract):
            return self._of_rank(contract)
        return self.positions[min(self.positions)]

    def _has_rank_of(self, contract: ReadingServiceInterface) -> bool:
        rank, world, _ = contract.rank_in_epoch() or ALONE
        return (self.ranks or ALONE)[1] == world and rank in self.positions

    def _of_rank(self, contract: ReadingServiceInterface, output: WorkerOutput | None = None) -> Position:
        """Returns the position where this rank resumes. If the number of ranks has changed, this rank may run shards
        that began on other ranks."""
        rank, world, _ = contract.rank_in_epoch() or ALONE
        old_rank, old_world, _ = self.ranks or ALONE
        if self._has_rank_of(contract):
            return self.positions[rank]
        if len(self.positions) < old_world:
            raise ValueError(
                f"this state was saved by rank {old_rank} of {old_world}, and this is "
                + (f"rank {rank} of {world}" if world > 1 else "not a rank of a distributed job")
                + ": load each rank's own state, or the states of all ranks, load_state_dict({rank: state})"
            )
        pipes, keeps = (None, False) if output is None else (output.pipes_in_workers, output.may_count)
        positions = {
            number: in_workers(position, pipes, alone=True, keeps=keeps) if position.in_main else position
            for number, position in self.positions.items()
        }
        return among_ranks(positions, rank, world)

    def fitted(self, pipeline: Pipeline, output: WorkerOutput | None, hands_on: bool) -> Position:
        """Returns the position where the loader resumes. `hands_on`: whether the main process's pipes yield one item
        per item of the workers.

        `fitted` must be called after the service has taken over the graph. Raises ValueError if the loader cannot
        resume.
        """
        position = self._of_rank(pipeline.contract, output)
        if output is not None and not self._has_rank_of(pipeline.contract) and not hands_on:
            raise cannot_move()
        if output is not None and position.in_main:
            position = in_workers(position, output.pipes_in_workers)
        if position.graph is None:
            return position
        pipeline.datapipe, graph = fitted(pipeline.datapipe, position.graph)
        return position._replace(graph=graph)

    def suit_seeds(self, service: ReadingServiceInterface, seeds: Seeds) -> None:
        """Makes the resumed epoch use the saved epoch's seeds, even if only one of these two epochs runs on several
        ranks."""
        agreed = self.ranks is not None and not self.ranks[2]
        if not agreed:
            service.keep_seeds()
        elif service.rank_in_epoch() is None:
            seeds.agree()
