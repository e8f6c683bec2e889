"""States of all ranks of a distributed job, and the parts that a loader uses to resume.

Role: pure functions over states. Runs in the main process. A loader uses its own state if its rank and the number of
ranks are the same. If the number of ranks or workers differs, the loader computes its position from the states of all
ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchdata.dataloader2.services.interface import ReadingServiceInterface
from torchdata.dataloader2.state.layout import entries_in, parse
from torchdata.dataloader2.state.position import LoaderState, Position, SavedRanks, Shard
from torchdata.dataloader2.state.shards import AHEAD, among_ranks, in_workers, shards_of
from torchdata.datapipes._pipe.graph.graph import Graph

if TYPE_CHECKING:
    from torchdata.dataloader2._pipeline import Pipeline
    from torchdata.dataloader2._seeds import Seeds
    from torchdata.dataloader2.services.worker_output import WorkerOutput

#: The rank of a loader without ranks.
_ALONE: SavedRanks = (0, 1, False)


@dataclass(frozen=True)
class SavedPositions:
    """The positions of the ranks of a job.

    Args:
        ranks: the ranks in the loaded state; None if the saved job had no ranks.
        positions: by rank, the positions of all ranks, or of this rank alone.
    """

    ranks: SavedRanks | None
    positions: Mapping[int, Position]

    @property
    def has_given(self) -> bool:
        """Whether an item of the epoch was delivered."""
        return any(position.given for position in self.positions.values())

    def has_shards(self, contract: ReadingServiceInterface) -> bool:
        """Whether the epoch resumes in shards even without workers, because workers or other ranks began it."""
        if not all(position.in_main for position in self.positions.values()):
            return True
        try:
            ranks = contract.count_shares().ranks or 1
        except TypeError:
            return False
        return ranks != (self.ranks or _ALONE)[1]

    def shards(self, pipeline: Pipeline) -> Sequence[Shard] | None:
        """Returns the shards of a loader that resumes, once its rank is known; None if the main process runs the same
        shards as before."""
        contract = pipeline.contract
        if not (contract.has_workers() or self.has_shards(contract)):
            return None
        return shards_of(self._of_rank(contract))

    def _has_rank_of(self, contract: ReadingServiceInterface) -> bool:
        """Whether the job had the same number of ranks, and the position of this loader's rank was saved."""
        rank, world, _ = contract.rank_in_epoch() or _ALONE
        return (self.ranks or _ALONE)[1] == world and rank in self.positions

    def _of_rank(self, contract: ReadingServiceInterface, pipes: int | None = None) -> Position:
        """Returns the position of this rank. If the number of ranks was different, all shards are distributed among the
        current ranks."""
        rank, world, _ = contract.rank_in_epoch() or _ALONE
        old_rank, old_world, _ = self.ranks or _ALONE
        if self._has_rank_of(contract):
            return self.positions[rank]
        if len(self.positions) < old_world:
            raise ValueError(
                f"this state was saved by rank {old_rank} of {old_world}, and this is "
                + (f"rank {rank} of {world}" if world > 1 else "no rank of a distributed job")
                + ": load each rank's own state, or the states of all ranks, load_state_dict({rank: state})"
            )
        positions = {
            number: in_workers(position, pipes, alone=True) if position.in_main else position
            for number, position in self.positions.items()
        }
        return among_ranks(positions, rank, world)

    def fitted(self, pipeline: Pipeline, output: WorkerOutput | None, hands_on: bool) -> Position:
        """Returns the position that a loader resumes from, after its service has taken over the graph.

        Args:
            pipeline: the pipeline of the loader.
            output: the pipe that represents the loader's workers; None without workers.
            hands_on: whether the pipes in the main process yield one item for each item of the workers.

        Raises:
            ValueError: the loader cannot resume from these positions; the message gives the reason.
        """
        pipes = None if output is None else output.pipes_in_workers
        position = self._of_rank(pipeline.contract, pipes)
        if output is None:
            return position
        if not self._has_rank_of(pipeline.contract) and not hands_on:
            raise ValueError(
                "this state was saved inside an epoch with another number of ranks, and the pipes in the main process "
                "do not yield one item for each item of the workers, as `pin_memory().batch(2)`. Load it with the "
                "same number of ranks, save a state between two epochs, or move these pipes before the first pipe "
                "of the main process"
            )
        position = in_workers(position, pipes) if position.in_main else position
        above = () if position.graph is None else entries_in(position.graph)[len(Graph(pipeline.datapipe)) :]
        if any(entry.type == AHEAD for entry in above):
            pipeline.datapipe = pipeline.datapipe.prefetch()  # because the main process had read ahead
        return position

    def suit_seeds(self, service: ReadingServiceInterface, seeds: Seeds) -> None:
        """Gives the resumed epoch its initial seeds.

        Ranks draw all seeds from an agreed seed, so only an epoch that began with ranks resumes with an agreed seed.
        """
        agreed = self.ranks is not None and not self.ranks[2]
        if not agreed:
            service.keep_seeds()
        elif service.rank_in_epoch() is None:
            seeds.agree()


def read(state: Any, *, allow_pickle: bool = True) -> tuple[LoaderState, SavedPositions]:
    """Returns the state to load, and the positions of all ranks, from one state or from the states of all ranks.

    Args:
        state: the state, or the states.
        allow_pickle: whether the states may contain pickled values. The pipe may be pickled in any case, because the
            loader need not unpickle it.

    Raises:
        TypeError, ValueError: a state is invalid, of another version, or damaged; or the states do not belong together.
    """
    if not isinstance(state, Mapping) or not state or not all(type(rank) is int for rank in state):
        one = parse(state, allow_pickle=allow_pickle)
        return one, SavedPositions(one.ranks, _positions({(one.ranks or _ALONE)[0]: one}))
    states = {rank: parse(each, allow_pickle=allow_pickle) for rank, each in state.items()}
    _check_ranks(states)
    first = states[min(states)]
    _check_alike(states)
    return first, SavedPositions(first.ranks, _positions(states))


def _positions(states: Mapping[int, LoaderState]) -> dict[int, Position]:
    return {rank: state.position for rank, state in states.items() if state.position is not None}


def _check_ranks(states: Mapping[int, LoaderState]) -> None:
    """Raises ValueError if the state of a rank is missing, or occurs twice."""
    worlds = {(state.ranks or _ALONE)[1] for state in states.values()}
    if len(worlds) > 1:
        raise ValueError(f"these states are of jobs with different numbers of ranks: {sorted(worlds)}")
    world = worlds.pop()
    for rank, state in states.items():
        if state.ranks is not None and state.ranks[0] != rank:
            raise ValueError(f"what is given as the state of rank {rank} was saved by rank {state.ranks[0]}")
    missing = sorted(set(range(world)) - set(states))
    if missing:
        raise ValueError(
            f"the state was saved by {world} ranks, but the states of rank {', '.join(map(str, missing))} are "
            "missing: load the states of all ranks"
        )
    surplus = sorted(set(states) - set(range(world)))
    if surplus:
        raise ValueError(
            f"the state was saved by {world} ranks, numbered from 0, but there is a state of rank {surplus[0]}, too"
        )


def _check_alike(states: Mapping[int, LoaderState]) -> None:
    """Raises ValueError if the states were saved after different steps, or belong to different loaders."""
    first = min(states)
    other = states[first]
    for rank, state in states.items():
        for name, is_alike in (
            ("pipeline", (state.outline and state.outline.words) == (other.outline and other.outline.words)),
            ("service", state.service == other.service),
        ):
            if not is_alike:
                raise ValueError(
                    f"the states of rank {first} and rank {rank} are not of the same {name}. Where each rank has "
                    "its own, it has to load its own state"
                )
        moments = [_moment(other), _moment(state)]
        if moments[0] != moments[1]:
            raise ValueError(
                f"the states of rank {first} and rank {rank} are of different moments: {moments[0][0]}, and "
                f"{moments[1][0]}. Save them on all ranks after the same step"
            )


def _moment(state: LoaderState) -> tuple[str, Any]:
    """Returns a description of the moment at which a state was saved, and the seed that determines the following
    epoch."""
    position, randomness = state.position, state.randomness
    if position is None:
        return "between two epochs", None
    words = f"after {position.given} items of an epoch" + (" that has ended" if position.ended else "")
    # All ranks share this seed after they have agreed on it.
    return words, None if randomness is None else copy.copy(randomness.generator).generate_shared_seed()
