"""Stores two objects for each pipe outside its attributes: a token, which distinguishes iterations, and a *record*.

Role: stores the data of passes for `iteration` and `state`; these modules define the meaning of the data. This module's
code runs in the process and thread that iterates the pipe. A *pass* is one iteration of one pipe.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchdata._native import IterationToken

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint
    from torchdata.datapipes._pipe.state.layout import PipeEntry

__all__ = ["NEVER", "Beginning", "PassRecord", "existing_record", "passed", "record_of", "token_of"]

_TOKEN, _RECORD = "_iteration_token", "_iteration_record"

#: A placeholder for an iteration number, which differs from all real iteration numbers.
NEVER = object()


@dataclass(slots=True, eq=False)
class Beginning:
    """The state of a graph when the pass of its last pipe began. A replay of the pass starts from this state."""

    #: The states of the process's random generators when the pass began.
    moved: dict[str, Any]
    #: The states of the generators for a replay. These states differ from `moved` if the pass began with a replay.
    generators: dict[str, Any]
    #: The number of items that the pass drops at its beginning because of the loaded state.
    dropped: int = 0
    #: The number of items that were yielded before the point where the pass began, without the dropped items.
    yielded: int = 0
    #: Whether the loaded state already requires a replay of the whole graph.
    whole: bool = False
    since: float = field(default_factory=time.monotonic)
    #: The iteration number of each PyTorch pipe, by the pipe's id.
    torchs: dict[int, Any] = field(default_factory=dict)
    #: Each pipe of the graph with its entry, and the state to load into the pipe, if any.
    parts: list[tuple[Any, PipeEntry, Any]] = field(default_factory=list)
    #: The number of passes that each pipe with a reading thread had begun, by the pipe's id.
    passes: dict[int, int] = field(default_factory=dict)

    def entries(self) -> list[tuple[Any, PipeEntry]]:
        return [(pipe, entry) for pipe, entry, _ in self.parts]


@dataclass(slots=True, eq=False)
class PassRecord:
    """Data about the passes of a pipe. The record is never pickled or copied, so a copy of the pipe has no record."""

    #: The `_valid_iterator_id` of a PyTorch pipe when the beginning of its last pass was recorded.
    asked: Any = NEVER
    #: The `_valid_iterator_id` of a PyTorch pipe when a state was last loaded into the pipe.
    before: Any = NEVER
    #: The value of the pass counter when the running pass began; 0 if no pass is running.
    stamp: int = 0
    #: Whether `iterate` began the running pass of a PyTorch pipe, so that the end of the pass is recorded.
    tells_end: bool = False
    #: The loaded entry, until a pass resumes from it.
    loaded: PipeEntry | None = None
    #: Whether the running pass resumes from a state that was saved after the last item.
    ended: bool = False
    #: Whether a state was loaded into the pipe's graph after the last pass that started from the beginning.
    fed: bool = False
    #: The last seed that was set for a user's pipe.
    seed: Any = None
    #: Whether a loader seeds the pipe. If True, the seeds of later passes in an epoch are derived from the first seed.
    seeded: bool = False
    #: The seed for the next pass that a loaded state contains.
    given: Any = None
    #: The seed that was set after the beginning of the pass to replay.
    later: Any = None
    #: Whether this pipe or one of its sources must be replayed; None if this is not determined yet.
    watches: bool | None = None
    #: The state of the graph when the running pass began, if `watches` is True or the pipe belongs to PyTorch.
    beginning: Beginning | None = None
    #: The fingerprint of the graph that ends in this pipe, if the state of the graph was saved.
    fingerprint: Fingerprint | None = None
    #: Names of pipes that this pipe has created since its first pass.
    grown: list[str] = field(default_factory=list)
    #: Whether the running pass resumes from a loaded state.
    goes_on: bool = False
    #: A reference to the `on_error` pipe that skips exceptions of this pipe; None if exceptions are not skipped.
    claim: Any = None
    #: References to the pipes for which this pipe skips exceptions.
    claimed: list[Any] = field(default_factory=list)
    #: A reference to the `Renewal` of the running pass. `read_by` is a reference to the `Renewal` of the reader's pass.
    renewal: Any = None
    read_by: Any = None
    #: The number of items that were skipped in the running pass, by kind of exception. Code must replace the dict
    #: instead of modifying it.
    skipped: dict[str, int] = field(default_factory=dict)

    def __reduce__(self) -> Any:
        return type(None), ()  # pickles must not refer to the location of this class


def token_of(datapipe: Any) -> IterationToken:
    """Returns the token of a pipe, created on first use (pipes need not call `super().__init__()`)."""
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
    """Returns the number of items that a pass has yielded or skipped, which is its position in the source."""
    record = existing_record(datapipe)
    skipped = 0 if record is None else sum(record.skipped.values())
    return token_of(datapipe).yielded + skipped


def existing_record(datapipe: Any) -> PassRecord | None:
    record: PassRecord | None = vars(datapipe).get(_RECORD)
    return record
