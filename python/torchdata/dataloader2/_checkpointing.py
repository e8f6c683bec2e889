"""The state of a loader: taking it at any moment, and going on from one.

Role: a base of `DataLoader2`, of which it is a part. The layout of states is that of `_loader_state`, places inside an
epoch are those of `_snapshots`. `state_dict` runs in whichever thread asks, the rest in the one that uses the loader.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from torchdata.dataloader2._identity import Identity
from torchdata.dataloader2._loader_state import (
    CHECKSUMS_KEY_NAME,
    ITERATION_STATE_KEY_NAME,
    PIPELINE_KEY_NAME,
    RANDOMNESS_STATE_KEY_NAME,
    RANKS_KEY_NAME,
    SERIALIZED_DATAPIPE_KEY_NAME,
    STATE_VERSION,
    VERSION_KEY_NAME,
    Randomness,
    checksums,
    pack_randomness,
    unpack_randomness,
)
from torchdata.dataloader2._rank_states import SavedPlaces, SavedRanks, checked
from torchdata.dataloader2._replaying import warn_of_replay, warn_of_unsaved
from torchdata.dataloader2._snapshots import Position
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.serialization import Snapshot, unpickled
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.services.interface import READING_SERVICE_STATE_KEY_NAME, contract_of
from torchdata.datapipes._pipe.graph import Graph
from torchdata.datapipes._pipe.traversal import is_pipe
from torchdata.datapipes.iter.threads.prefetching import end_threads

__all__ = ["Checkpointing", "number_of_items", "unpacked_pipe"]


#: The place in the epoch, the seeds and generators, and the ranks of a loader.
Whereabouts: TypeAlias = tuple[dict[str, Any] | None, Any, SavedRanks | None]


class Checkpointing:
    """The part of a loader that saves and loads its state."""

    reading_service: Any
    datapipe: Any
    valid_iterator_id: int | None
    _datapipe_iter: Any
    _service: Any
    _snapshot: Snapshot
    _identity: Identity
    _position: Position
    _saved_places: SavedPlaces | None
    _state_dict: dict[str, Any] | None
    _place: tuple[dict[str, Any], bool] | None
    _seed: int | None
    _reset_seed: Any
    _seed_generator: SeedGenerator
    _initial_seed_generator: SeedGenerator
    _restored_randomness: bool
    _reset_iter: bool
    _adapted: bool
    _epochs: int
    _terminated: bool
    _changing: Any
    #: Whether a seed was given since a state was loaded.
    _is_seeded_since = False
    #: Whether it was said that the pipeline cannot be saved.
    _warned = False
    #: What states hold of a loader that was shut down, or why that cannot be told.
    _left: Whereabouts | str | None = None

    if TYPE_CHECKING:  # what else it asks of the loader

        def _require_pipe(self) -> None: ...

        def _begin_epoch(self) -> None: ...

        def _close_iteration(self, because: BaseException | None = None, *, at_end: bool = False) -> None: ...

        def _take_graph(self, snapshot: Snapshot) -> None: ...

        def _adapt_service(self, service: Any) -> Any: ...

    def state_dict(self, *, items_ago: int = 0, with_pipe: bool | None = None) -> dict[str, Any]:
        """The state of the loader, from which `load_state_dict` or `from_state` make one that goes on alike.

        May be called at any time: between two items, before the first and after the last one, while the loader is
        paused, from another thread or a signal handler. It changes nothing, and nothing changes what it returns. The
        remaining items, their order, and all later epochs of the loader that goes on are those of this one. After the
        last item, that is the rest of the epoch, which is empty, until its end was reached (`StopIteration`), and the
        next epoch from then on. So it is where an error has ended the epoch. After `shutdown()` it is that of before.

        - `serialized_datapipe`: the pipe after the adapters and before the reading service, as bytes, or None.
        - `pipeline`: what it is made of, by which another one is known, without the secrets among its arguments.
        - `reading_service_state`: what the service's `checkpoint` returned, or None.
        - `randomness_state`: the seed and the generators, now and at the beginning of the epoch.
        - `iteration_state`: the place inside the epoch; None between two epochs that follow from their seeds.
        - `ranks`: the rank, how many there are, and whether the epoch began without any; absent without ranks.
        - `version`: of this layout.
        - `checksums`: of the others, by which damage is noticed before anything is unpickled.

        All of it is plain data.

        Args:
            items_ago: as of how many items ago, for who has asked for so many items that were not used yet.
            with_pipe: whether the pipe itself stands in the state, as `from_state` needs it; `load_state_dict` of a
                loader that has the pipe does not. None: where it has at most 1 MiB.

        Raises:
            RuntimeError: the loader has no pipe.
            TypeError: the pipe does not pickle, and the message names the attribute at fault; or it is none.
            ValueError: so many items were not given in this epoch.
        """
        if self.valid_iterator_id is None and self._state_dict is not None and not items_ago:
            if self._saved_places is not None and len(self._saved_places.places) > 1:
                raise RuntimeError("the states of all ranks were loaded: call iter(loader) before state_dict()")
            return self._loaded_state(self._state_dict)  # nothing has happened since it was loaded
        if self.datapipe is None:
            raise RuntimeError("this DataLoader2 has no datapipe, so it has no state to save")
        self._require_pipe()
        service, identity = self.reading_service, self._identity
        if not self._adapted:
            identity.note(self.datapipe)
        place, randomness, ranks = self._whereabouts(number_of_items("items_ago", items_ago))
        unsaved, self._position.unsaved = self._position.unsaved, None
        if unsaved is not None and not self._warned:
            self._warned = True
            warn_of_unsaved(unsaved, stacklevel=2)
        checkpoints = contract_of(service).is_checkpointable
        pickled = identity.pickled(with_pipe)
        state = {
            SERIALIZED_DATAPIPE_KEY_NAME: pickled,
            READING_SERVICE_STATE_KEY_NAME: service.checkpoint() if checkpoints else None,
            RANDOMNESS_STATE_KEY_NAME: randomness,
            VERSION_KEY_NAME: STATE_VERSION,
            PIPELINE_KEY_NAME: identity.outline,
            ITERATION_STATE_KEY_NAME: place,
        }
        if ranks is not None:
            state[RANKS_KEY_NAME] = list(ranks)
        return {**state, CHECKSUMS_KEY_NAME: checksums(state, None if pickled is None else identity.checksum)}

    def _loaded_state(self, loaded: dict[str, Any]) -> dict[str, Any]:
        """The state that was loaded, with the seed that was given to the loader since."""
        if not self._is_seeded_since:
            return dict(loaded)
        state = {**loaded, RANDOMNESS_STATE_KEY_NAME: self._randomness()}
        of_randomness = checksums({RANDOMNESS_STATE_KEY_NAME: state[RANDOMNESS_STATE_KEY_NAME]})
        if CHECKSUMS_KEY_NAME in loaded:  # else it is of a release that had none
            key = RANDOMNESS_STATE_KEY_NAME
            state[CHECKSUMS_KEY_NAME] = {**loaded[CHECKSUMS_KEY_NAME], key: of_randomness[key]}
        return state

    def _randomness(self) -> Any:
        return pack_randomness(self._seed, self._reset_seed, self._seed_generator, self._initial_seed_generator)

    def _whereabouts(self, items_ago: int, *, looks: bool = True) -> Whereabouts:
        """The place, the randomness and the ranks that a state holds.

        Args:
            items_ago: as of how many items ago.
            looks: whether main's part of the graph may be looked at, which may wait for threads.
        """
        if self._left is not None:
            if isinstance(self._left, str):
                raise RuntimeError(self._left)
            if items_ago:
                raise ValueError(f"no item of an epoch was given {items_ago} items ago: the loader was shut down")
            return self._left
        place = self._position.take(items_ago, looks=looks)
        return place, self._randomness(), contract_of(self.reading_service).rank_in_epoch()

    def _note_left(self, works: bool) -> None:
        """Notes where a loader stands that is being shut down, for who asks for its state afterwards.

        Args:
            works: whether threads work in main, which are not waited for.
        """
        if self.datapipe is not None and is_pipe(self.datapipe):
            try:
                self._left = self._whereabouts(0, looks=not works)
            except Exception as error:
                self._left = str(error)  # the error itself would keep the processes

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = True, allow_pickle: bool = True) -> None:
        """Makes this loader, of which no item may have been asked for, go on where a state was saved.

        The loader's own pipe is read, if it has one, which must be made of the same pipes, functions and parameters,
        and read data of the same kind and length; else that of the state, to which the loader's adapters are applied.
        An iterator that was made but not asked for an item yet goes on as one of the loaded loader.

        States of earlier releases bring their own pipe, and a UserWarning tells where that is made of other pipes.

        The service may have another number of workers than the one with which the state was saved, and of ranks, where
        the states of all of them are given. What is left of the epoch is then shared anew in its global order. That
        asks for a deterministic pipeline before the sharding, and behind it pipes that are one to one, or `batch(k)`
        with `ShardingPolicy(block=k)`. Else `iter(loader)` raises a ValueError that names the pipe.

        Args:
            state_dict: what `state_dict` returned; or a dictionary of what it returned on all ranks, by rank.
            strict: False loads it into another pipeline, too, as far as its pipes are of the same classes, and does not
                compare what the pipeline makes again with what it made.
            allow_pickle: whether what only pickle can hold is unpickled, which may run any code: load such a state only
                if you trust whoever wrote it. False refuses it, and names the pipe at fault. The loader must have its
                pipe then.

        Raises:
            RuntimeError: an item of the loader was asked for before, or it was shut down.
            TimeoutError: a thread that read ahead for the iterator before does not end.
            TypeError, ValueError: this is not the state of a loader, or one of another version, or a damaged one, or
                of another pipeline, or it needs modules that are not here, or holds what must not be unpickled. The
                loader is as it was then.
        """
        with self._changing:
            self._load(state_dict, strict, allow_pickle)

    def _load(self, state_dict: dict[str, Any], strict: bool, allow_pickle: bool) -> None:
        if self._terminated:
            raise RuntimeError("Cannot load a state into the DataLoader as it has already been shut down")
        begun = self._datapipe_iter is not None
        if begun and self._reset_iter:
            raise RuntimeError(
                "DataLoaderV2 iterator has already been created, `load_state_dict()` can't be called. "
                "Please create a new dataloader in order to use load state dict."
            )
        state_dict, places = checked(state_dict, allow_pickle=allow_pickle)
        snapshot = self._snapshot_for(state_dict, strict, allow_pickle)
        randomness = unpack_randomness(state_dict)
        if begun or self._adapted or self._epochs:
            self._close_iteration()
            if self.reading_service is not None and self._adapted:
                self.reading_service.finalize()
                self.reading_service = self._adapt_service(self._service.copy())
                self._adapted = False
            end_threads(self.datapipe)  # which would draw random numbers for nobody
            self._position = Position(self)
        if snapshot is None:
            self.datapipe = self._snapshot.copy()
        else:
            self._take_graph(snapshot)
        self._take_state(state_dict, randomness, strict, places)
        if begun:
            self._begin_epoch()

    def _snapshot_for(self, state: Mapping[str, Any], strict: bool, allow_pickle: bool) -> Snapshot | None:
        """The pipe of the state, where that is to be read; None for the loader's own."""
        if self.datapipe is not None and PIPELINE_KEY_NAME in state:
            self._require_pipe()
            if not self._adapted:
                self._identity.note(self.datapipe)
            self._identity.compare(state[PIPELINE_KEY_NAME], strict)
            return None
        if not allow_pickle:
            raise ValueError(
                "the pipe of this loader state is a pickle, which is not opened with allow_pickle=False: opening it "
                "may run any code that its writer likes. Make a DataLoader2 with the pipe, and load the state into that"
            )
        datapipe = unpacked_pipe(state)
        other = _difference(self._snapshot.copy(), datapipe)
        if other:
            warnings.warn(
                f"the loaded state brings a pipeline of its own, which replaces that of this loader: {other}; "
                "make the loader by DataLoader2.from_state(state, reading_service) if that is meant",
                stacklevel=3,
            )
        return Snapshot(datapipe)

    def _take_state(
        self, state: Mapping[str, Any], randomness: Randomness | None, strict: bool, places: SavedPlaces
    ) -> None:
        self._saved_places = places
        self.reading_service_state = state[READING_SERVICE_STATE_KEY_NAME]
        if randomness is not None:
            self._seed, self._reset_seed, self._seed_generator, self._initial_seed_generator = randomness
        place = state.get(ITERATION_STATE_KEY_NAME)
        warn_of_replay(place, stacklevel=3)
        self._place = None if place is None else (place, strict)
        self._state_dict, self._is_seeded_since = dict(state), False

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """Makes the next epoch begin with the seeds with which the last one began.

        To be called after a state was loaded, to run the epoch again in which the state was saved.
        """
        self._seed_generator = copy.copy(self._initial_seed_generator)
        self._restored_randomness = True
        self._place = None


def _difference(own: Any, loaded: Any) -> str:
    """Where two graphs are made of different pipes, in words; empty where they are not, or one of them is none."""
    if not is_pipe(own) or not is_pipe(loaded):
        return ""
    ours, theirs = ([type(pipe).__name__ for pipe in Graph(end)] for end in (own, loaded))
    for place, (mine, other) in enumerate(zip_longest(ours, theirs)):
        if mine != other:
            return f"pipe {place + 1} from the source on is {other or 'missing'} where this loader has {mine or 'none'}"
    return ""


def unpacked_pipe(state: Mapping[str, Any]) -> DataPipe:
    """The pipe of a state that was checked, before anything is changed by it."""
    pickled = state[SERIALIZED_DATAPIPE_KEY_NAME]
    if pickled is None:
        raise ValueError(
            "this loader state was saved without its pipe: make a DataLoader2 with the pipe and call its "
            "load_state_dict(state), or save the state by state_dict(with_pipe=True)"
        )
    datapipe: DataPipe = unpickled(SERIALIZED_DATAPIPE_KEY_NAME, pickled)
    if not is_pipe(datapipe):
        raise ValueError(f"the state holds {datapipe!r} where a datapipe should be")
    return datapipe


def number_of_items(name: str, count: Any) -> int:
    """The argument of that name, if it is a number of items."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name} is a number of items, but got {count!r}")
    if count < 0:
        raise ValueError(f"{name} is a number of items and cannot be negative, but got {count}")
    return count
