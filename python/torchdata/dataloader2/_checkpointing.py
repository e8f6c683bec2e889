"""Takes the state of a loader at any moment, and resumes from a state.

A loader owns one `StateKeeper`. The module `state.layout` defines the layout of states, and `_position` handles
positions inside an epoch. States are taken in any thread, and loaded in the thread that uses the loader.
"""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torchdata._handlers import raise_if_of_handler
from torchdata.dataloader2._epochs import EpochRun
from torchdata.dataloader2._rank_states import ALONE, SavedPositions
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.serialization import GraphTemplate, damaged
from torchdata.dataloader2.state.identity import require_same_settings
from torchdata.dataloader2.state.layout import SERIALIZED_DATAPIPE_KEY_NAME, dump, parse
from torchdata.dataloader2.state.position import LoaderState, Position, Randomness, SavedRanks
from torchdata.datapipes._pipe.graph.fingerprint import fingerprint, require_arguments
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_pipe
from torchdata.datapipes.iter.mapping.wrapping import IterableWrapper

#: If recomputing items takes less than `_LEAST` seconds, resuming causes no warning.
_LEAST = 5.0

#: The position in the epoch, the seeds and generators, and the ranks of a loader; each part is None if it is missing.
LoaderPosition: TypeAlias = tuple[Position | None, Randomness, SavedRanks | None]


class StateKeeper:
    """Takes and loads the states of a loader.

    Args:
        run: the object that runs the loader's epochs.

    Attributes:
        loaded: the state that was loaded last; None if no state was loaded.
        left: after a shutdown, the position, seeds and ranks for later states, or the reason why no state can be saved.
        is_rereading: whether a call of `read_again` is running or was interrupted.
    """

    def __init__(self, run: EpochRun) -> None:
        self._pipeline, self._seeds, self._run = run.pipeline, run.seeds, run
        self.loaded: LoaderState | None = None
        self.left: LoaderPosition | str | None = None
        self.is_rereading = False
        #: While an epoch begins, the position and the seeds from before this epoch, or the reason why they are unknown;
        #: otherwise None.
        self._before_epoch: LoaderPosition | str | None = None
        self._warned = False

    def take(self, items_ago: int, with_pipe: bool | None, *, has_begun: bool) -> dict[str, Any]:
        """Returns the state of the loader. See `DataLoader2.state_dict`.

        Args:
            with_pipe: whether the state contains the pipe; None includes the pipe if it is small and can be pickled.
            has_begun: whether an iterator has been created since a state was loaded.
        """
        pipeline, run = self._pipeline, self._run
        if not has_begun and self.loaded is not None and not items_ago:
            self._require_one_rank()
            if self._seeds.is_since_load:
                return dump(self.loaded._replace(randomness=self._seeds.randomness()))
            return dict(self.loaded.saved or {})  # the loader has not been used since the state was loaded
        if pipeline.datapipe is None:
            raise RuntimeError("this DataLoader2 has no datapipe, so it has no state to save")
        pipeline.require_pipe()
        service, identity = pipeline.service, pipeline.identity
        pipeline.note_identity()
        position, randomness, ranks = self._loader_position(items_ago)
        unsaved, run.position.unsaved = run.position.unsaved, None
        if unsaved is not None and not self._warned:
            self._warned = True
            warnings.warn(
                "states of this pipeline resume from the beginning of the epoch, and recompute the items that were "
                f"delivered: {unsaved}",
                RuntimeWarning,
                stacklevel=3,
            )
        if position is not None and position.workers is not None and run.position.output is not None:
            oversized = run.position.output.want_large_snapshots()
            if oversized and any(shard.recomputed for shard in position.workers.shards):
                _warn_of_oversized(oversized)
        checkpoints = pipeline.contract.is_checkpointable
        pickled = identity.pickled(with_pipe)
        of_service = service.checkpoint() if checkpoints else None
        state = LoaderState(pickled, of_service, randomness, identity.outline, position, ranks)
        return dump(state, None if pickled is None else identity.checksum)

    def _loader_position(self, items_ago: int, *, looks: bool = True) -> LoaderPosition:
        """Returns the position in the epoch, the seeds and the ranks that a state contains.

        Args:
            looks: whether to wait for the threads of the main process's pipes, and to save the current state of these
                pipes.
        """
        run = self._run
        with run.held:
            known = self._before_epoch if self.left is None else self.left
            if isinstance(known, str):
                raise RuntimeError(known)
            if known is not None:
                if items_ago:
                    why = "an epoch is beginning" if self.left is None else "the loader was shut down"
                    raise ValueError(f"items_ago must be 0, because {why}, but got {items_ago}")
                return known
            if run.resume_at is not None and not run.is_iterating and not items_ago:
                self._require_one_rank()  # an attempt to resume the epoch has failed or was interrupted
                position: Position | None = run.resume_at[0]
            else:
                position = run.position.take(items_ago, looks=looks)
            return position, self._seeds.randomness(), self._pipeline.contract.rank_in_epoch()

    def begin(self) -> None:
        """Begins an epoch. A state that is saved while an epoch begins describes the loader before this epoch."""
        run = self._run
        run.leave()
        with run.held:
            try:
                self._before_epoch = self._loader_position(0)
            except Exception as error:
                raise_if_of_handler(error)
                self._before_epoch = str(error)
        try:
            run.begin()
        finally:
            self._before_epoch = None

    def _require_one_rank(self) -> None:
        """Raises RuntimeError if the states of several ranks were loaded, and no epoch has resumed from them."""
        saved = self._run.saved_positions
        if saved is not None and len(saved.positions) > 1:
            raise RuntimeError("the states of all ranks were loaded: call iter(loader) before state_dict()")

    def note_left(self, works: bool) -> None:
        """Records the position of a loader that is being shut down, for states that are requested later. `works`:
        whether pipes in the main process run threads. The shutdown does not wait for the threads of pipes, so the last
        recorded state of the pipes is used."""
        if self.left is None and is_pipe(self._pipeline.datapipe):
            try:
                self.left = self._loader_position(0, looks=not works)
            except Exception as error:
                raise_if_of_handler(error)
                self.left = str(error)  # a stored exception would keep the loader's processes alive

    def load(self, state_dict: dict[str, Any], strict: bool, allow_pickle: bool) -> None:
        """Makes the loader resume from a state. See `DataLoader2.load_state_dict`."""
        pipeline, run = self._pipeline, self._run
        begun = run.delivery.source is not None
        if begun and run.delivery.begun:
            raise RuntimeError(
                "DataLoaderV2 iterator has already been created, `load_state_dict()` can't be called. "
                "Please create a new dataloader in order to use load state dict."
            )
        state, positions = read(state_dict, allow_pickle=allow_pickle)
        snapshot = self._snapshot_for(state, strict, allow_pickle)
        self.set(state, strict, positions)  # before the other steps, because Ctrl-C may interrupt them
        if begun or pipeline.is_taken_over or run.epochs:
            run.close()
            pipeline.take_back()
            run.forget()
        if snapshot is None:
            pipeline.datapipe = pipeline.snapshot.copy()
        else:
            pipeline.take(snapshot, is_adapted=True)
        if begun:
            self.begin()

    def read_again(self) -> None:
        """Resumes the running epoch after the computation of an item was interrupted, for example by Ctrl-C.

        The loader loads its own state from before the interrupted item, because an interrupted pipe may have lost
        items.

        Raises:
            RuntimeError: the pipeline reads an iterator that cannot be read a second time.
        """
        for pipe in Graph(self._pipeline.datapipe):
            if isinstance(pipe, IterableWrapper) and pipe._was_read:
                raise RuntimeError(
                    f"this epoch cannot continue after an interruption, such as Ctrl-C: {pipe._name()} is a one-shot "
                    "iterator, so the interrupted item is lost. Give a list, or a generator function, which is called "
                    "again"
                )
        delivery = self._run.delivery
        delivery.begun, self.is_rereading = False, True
        try:
            self.load(self.take(0, False, has_begun=True), strict=True, allow_pickle=True)
            if delivery.source is None:  # Ctrl-C has interrupted an earlier attempt
                self.begin()
            self.is_rereading = False
        except BaseException:
            delivery.cut = True  # the next call of `next` repeats the attempt
            raise
        finally:
            delivery.begun = True

    def _snapshot_for(self, state: LoaderState, strict: bool, allow_pickle: bool) -> GraphTemplate | None:
        """Returns None if the loader has a pipe; otherwise, a template that copies the pipe in the state."""
        pipeline = self._pipeline
        if state.is_of_0_9:
            warn_of_0_9(stacklevel=4)
        if pipeline.datapipe is not None:
            pipeline.require_pipe()
            pipeline.note_identity()
            if strict and state.outline is not None:
                pipeline.identity.compare(state.outline, between_epochs=state.is_between_epochs)
            return None
        if not allow_pickle:
            raise ValueError(
                "the pipe of this loader state is a pickle, which is not opened with allow_pickle=False: unpickling "
                "it may run any code. Make a DataLoader2 with the pipe, and load the state into that"
            )
        datapipe = pipeline.adapted(unpacked_pipe(state))
        if pipeline.adapters and strict and state.outline is not None and not state.is_between_epochs:
            require_same_settings(state.outline, fingerprint(datapipe))
        return GraphTemplate(datapipe)

    def set(self, state: LoaderState, strict: bool, positions: SavedPositions) -> None:
        """Makes a loader that has not begun an epoch resume from a state."""
        _warn_of_replay(state.recomputed)  # before any change, because a filter may turn the warning into an error
        self._run.saved_positions = positions
        self._pipeline.service_state = state.service
        self._seeds.take(state.randomness)
        self._run.resume_at = None if state.position is None else (state.position, strict)
        self.loaded = state


def read(state: Any, *, allow_pickle: bool = True) -> tuple[LoaderState, SavedPositions]:
    """Returns the state to load, and the positions of all ranks, from one state or from the states of all ranks.

    Args:
        state: one state, or a dict of the states of all ranks by rank.
        allow_pickle: whether the states may contain pickled values. The pickled pipe in a state is always accepted,
            because a loader that has its own pipe does not unpickle the saved pipe.

    Raises:
        TypeError, ValueError: a state is invalid, of another version, or damaged; or the states do not belong together.
    """
    if not isinstance(state, Mapping) or not state or not all(type(rank) is int for rank in state):
        one = parse(state, allow_pickle=allow_pickle)
        return one, SavedPositions(one.ranks, _positions({(one.ranks or ALONE)[0]: one}))
    states = {rank: parse(each, allow_pickle=allow_pickle) for rank, each in state.items()}
    _check_ranks(states)
    first = states[min(states)]
    _check_alike(states)
    return first, SavedPositions(first.ranks, _positions(states))


def _positions(states: Mapping[int, LoaderState]) -> dict[int, Position]:
    return {rank: state.position for rank, state in states.items() if state.position is not None}


def _check_ranks(states: Mapping[int, LoaderState]) -> None:
    """Raises ValueError if the state of a rank is missing, or occurs twice."""
    worlds = {(state.ranks or ALONE)[1] for state in states.values()}
    if len(worlds) > 1:
        raise ValueError(f"these states were saved by jobs with different numbers of ranks: {sorted(worlds)}")
    world = worlds.pop()
    for rank, state in states.items():
        if state.ranks is not None and state.ranks[0] != rank:
            raise ValueError(f"the state for rank {rank} was saved by rank {state.ranks[0]}")
    if states.keys() != set(range(world)):
        raise ValueError(
            f"the state was saved by {world} ranks, numbered from 0, but the given states are from the ranks "
            f"{sorted(states)}: load the states of all ranks"
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
                    f"the states of rank {first} and rank {rank} do not have the same {name}. If each rank has its own "
                    f"{name}, each rank must load its own state"
                )
        moments = [_moment(other), _moment(state)]
        if moments[0] != moments[1]:
            raise ValueError(
                f"the states of rank {first} and rank {rank} were saved at different steps: {moments[0][0]}, and "
                f"{moments[1][0]}. Save them on all ranks after the same step"
            )


def _moment(state: LoaderState) -> tuple[str, Any]:
    """Returns a pair: a text that describes when the state was saved, and the next epoch's seed."""
    position, randomness = state.position, state.randomness
    if position is None:
        return "between two epochs", None
    words = f"after {position.received} items of an epoch" + (" that has ended" if position.ended else "")
    # The seed of the next epoch must be the same in the states of all ranks.
    return words, None if randomness is None else copy.copy(randomness.generator).generate_shared_seed()


def warn_of_0_9(stacklevel: int) -> None:
    """Warns about a state of torchdata 0.9. `stacklevel` is counted from the caller of this function."""
    warnings.warn(
        "this state was saved by torchdata 0.9, which saves no position inside an epoch: the epoch restarts at its "
        "first item, and seeded orders differ from torchdata 0.9",
        stacklevel=stacklevel + 1,
    )


def unpacked_pipe(state: LoaderState) -> DataPipe:
    """Returns the pipe that is stored in a state, without changing the loader."""
    if state.pipe is None:
        raise ValueError(
            "this loader state was saved without its pipe: make a DataLoader2 with the pipe and call its "
            "load_state_dict(state), or save the state by state_dict(with_pipe=True)"
        )
    try:
        datapipe: DataPipe = unpickled(SERIALIZED_DATAPIPE_KEY_NAME, state.pipe)
        if state.is_of_0_9:
            require_arguments(datapipe)
    except ValueError as error:
        if not state.is_of_0_9:
            raise
        raise ValueError(
            f"the pipe in this state of torchdata 0.9 cannot be loaded here: {error.__cause__ or error}. Make a "
            "DataLoader2 with the pipe and call its load_state_dict(state), which takes only the seed from such a state"
        ) from error
    if not is_pipe(datapipe):
        raise ValueError(f"the state holds {datapipe!r} where a datapipe should be")
    return datapipe


def unpickled(field: str, pickled: Any) -> Any:
    """Unpickles a field of a loader's state. Raises ValueError if the field cannot be unpickled; the message
    distinguishes damage from missing modules."""
    if not isinstance(pickled, bytes):
        raise damaged(field, f"it holds an object of type {type(pickled).__name__} where bytes should be")
    try:
        return pickle.loads(pickled)
    except (ImportError, AttributeError) as error:
        name = re.search(r"attribute '(.+?)' on <module '__(?:mp_)?main__'", str(error))
        if name is not None:
            raise ValueError(
                f"the field {field!r} of this loader state cannot be loaded, because it names {name[1]!r} of the "
                "program's own file (`__main__`), and the program that runs now defines no such name there: define "
                "it, or put it into a module that both programs import and save the state again"
            ) from error
        raise ValueError(
            f"the field {field!r} of this loader state cannot be loaded, because something that it was made of cannot "
            f"be imported here ({type(error).__name__}: {error}); load it where the modules and names of the program "
            "that saved it exist. If they do, the state is damaged"
        ) from error
    except Exception as error:
        raise_if_of_handler(error)
        raise damaged(field, f"unpickling it fails with {type(error).__name__}: {error}") from error


def _warn_of_oversized(size: int) -> None:
    warnings.warn(
        f"the pipes of a worker hold {size / 1e6:.0f} MB, which is more than its part of snapshot_budget. A loader "
        "that resumes from this state recomputes the worker's items since the beginning of the epoch, or since an "
        "earlier snapshot. Later states contain these MB, except for items of caches that can be recomputed. Give the "
        "reading service a larger snapshot_budget (None for no limit) to resume without recomputing, or shuffle and "
        "cache before the items are loaded, which needs less memory",
        RuntimeWarning,
        stacklevel=4,
    )


def _warn_of_replay(found: Sequence[tuple[str, int, float]]) -> None:
    """Warns if resuming takes seconds because items must be recomputed, and names the pipes and the time."""
    seconds = max((seconds for *_, seconds in found), default=0.0)  # the processes recompute items in parallel
    if seconds < _LEAST:
        return
    parts = [f"{items} items of {what}" for what, items, each in found if each >= _LEAST / 10]
    warnings.warn(
        f"resuming from this state takes up to {seconds:.0f} s, because items must be recomputed: "
        f"{'; '.join(parts[:4])}. A pipe of your own is not replayed if it declares its state (`state`), has "
        "`state_dict` and `load_state_dict`, or sets `one_to_one = True`",
        RuntimeWarning,
        stacklevel=4,
    )
