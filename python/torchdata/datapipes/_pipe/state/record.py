"""Stores a token and a `PassRecord` in the `__dict__` of each pipe. The token lets an old iterator detect that a new
iteration has begun. The `PassRecord` describes the current iteration.

The modules `iteration` and `state` use tokens and records to resume iterations. In names, a *pass* is one iteration of
one pipe.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torchdata._native import IterationToken

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint
    from torchdata.datapipes._pipe.state.layout import PipeEntry

_TOKEN, _RECORD = "_iteration_token", "_iteration_record"


class Beginning:
    """The state of a graph at the beginning of an iteration, where a replay of the iteration starts."""

    moved: dict[str, Any]
    #: The states of the global random generators for a replay of this iteration. `moved` contains the states when this
    #: iteration began, which differ from `generators` if this iteration began with a replay.
    generators: dict[str, Any]
    #: The number of items that the iteration drops at its beginning in order to resume from a loaded state.
    dropped: int = 0
    #: The field `yielded` of the loaded `PipeEntry`, which does not count the dropped items.
    yielded: int = 0
    #: Whether this iteration began with a replay of the whole graph.
    whole: bool = False
    #: The `_valid_iterator_id` of each PyTorch pipe of the graph, by the pipe's id.
    torchs: dict[int, Any]
    #: For each pipe of the graph: the pipe, its `PipeEntry`, and the state to add to the entry (see
    #: `entry_at_beginning`).
    parts: list[tuple[Any, PipeEntry, Any]]
    #: For each pipe with a read-ahead thread, by id: how many iterations the pipe had begun before this iteration of
    #: the graph.
    passes: dict[int, int]

    def __init__(self, generators: dict[str, Any]) -> None:
        self.moved = self.generators = generators
        self.torchs, self.parts, self.passes, self.since = {}, [], {}, time.monotonic()

    def entries(self) -> list[tuple[Any, PipeEntry]]:
        return [(pipe, entry) for pipe, entry, _ in self.parts]


class PassRecord:
    """Describes the current iteration of a pipe. Copies and pickles of the pipe do not contain the record."""

    #: For a PyTorch pipe at the end of a graph: the internal pipe that reads it (see `reader_of`).
    reader: Any = None
    #: The number of the running iteration among the iterations of all pipes; 0 if no iteration is running.
    stamp: int = 0
    #: The `PipeEntry` of a loaded state; None once an iteration has resumed from it.
    loaded: PipeEntry | None = None
    #: Whether the running iteration is empty, because the loaded state was saved after the last item.
    ended: bool = False
    #: For a pipe without `reset`: the number of items that the pipe had yielded when a state was loaded, and the loaded
    #: state. Until the pipe yields an item, saving a state saves the loaded state, because the pipe's own `state_dict`
    #: may be outdated.
    base: tuple[int, dict[str, Any]] | None = None
    #: For a pipe without `reset`: whether the running iteration follows a complete iteration.
    follows_end: bool = False
    #: Whether a state was loaded since the last iteration that started from the beginning.
    has_loaded: bool = False
    seed: Any = None
    #: Whether a loader sets the pipe's seed in each epoch. Further iterations of the pipe in the same epoch derive
    #: their seeds from the seed that the loader has set.
    seeded: bool = False
    #: The seed for the pipe's next iteration when the state was loaded. A different seed of the pipe shows that the
    #: seed was set later.
    loaded_seed: Any = None
    #: The pipe's seed for its next iteration, which the pipe receives only after a replay.
    later: Any = None
    #: Whether a resumed run must replay this pipe or one of its sources; None if unknown.
    watches: bool | None = None
    #: The state of the graph when the running iteration began, if `watches` is True.
    beginning: Beginning | None = None
    fingerprint: Fingerprint | None = None
    #: For a user-defined pipe without a declared state: its counters before the first iteration.
    attributes: dict[str, Any] | None = None
    #: Names of pipes that were added to the graph since its first iteration. If pipes were added after its first
    #: iteration, a graph cannot save its state.
    grown: list[str]
    is_resumed: bool = False
    claim: Any = None
    #: For an `on_error` pipe, which skips exceptions of earlier pipes: weak references to these earlier pipes.
    claimed: list[Any]
    #: A weak reference to the `Renewal`, which replaces the running iterator after a skipped exception.
    renewal: Any = None
    #: A weak reference to the `Renewal` of the pipe that reads this pipe.
    read_by: Any = None
    #: The number of items that `on_error` has skipped in the running iteration, by class of exception. The dict is
    #: replaced by a new dict, and never modified, because a saved state may contain it.
    skipped: dict[str, int]

    def __init__(self) -> None:
        self.grown, self.claimed, self.skipped = [], [], {}

    def __reduce__(self) -> Any:
        return type(None), ()  # the record unpickles as None, so that pickles do not depend on this class


def token_of(datapipe: Any) -> IterationToken:
    """Returns the token of a pipe, and creates it if necessary, because pipes need not call `super().__init__()`."""
    token: IterationToken | None = datapipe.__dict__.get(_TOKEN)
    if token is None:
        token = datapipe.__dict__[_TOKEN] = IterationToken()
    return token


def record_of(datapipe: Any) -> PassRecord:
    record: PassRecord | None = datapipe.__dict__.get(_RECORD)
    if record is None:
        record = datapipe.__dict__[_RECORD] = PassRecord()
    return record


def passed(datapipe: Any) -> int:
    record = existing_record(datapipe)
    skipped = 0 if record is None else sum(record.skipped.values())
    return token_of(datapipe).yielded + skipped


def existing_record(datapipe: Any) -> PassRecord | None:
    record: PassRecord | None = vars(datapipe).get(_RECORD)
    return record
