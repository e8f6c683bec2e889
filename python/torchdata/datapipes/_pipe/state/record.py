"""Stores data about each pipe outside its attributes: its token, which distinguishes its iterations, and its *record*.

Role: storage for `iteration` and `state`, which define its use. Runs in the process and thread that iterates the pipe.
A *pass* is one iteration of one pipe.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torchdata._native import IterationToken

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint
    from torchdata.datapipes._pipe.state.layout import Entry

__all__ = ["NEVER", "Beginning", "Record", "existing_record", "passed", "record_of", "token_of"]

_TOKEN, _RECORD = "_iteration_token", "_iteration_record"

#: A value that differs from the number of every iteration.
NEVER = object()


class Beginning:
    """The state of a graph when the pass of its last pipe began, from which a replay of that pass starts.

    Args:
        generators: the random generators of the process at that moment.
    """

    __slots__ = ("dropped", "generators", "moved", "parts", "passes", "since", "torchs", "whole", "yielded")

    def __init__(self, generators: dict[str, Any]) -> None:
        #: How many items the loaded state drops at the beginning.
        self.dropped = 0
        #: How many items count as yielded when the pass begins, before any item is dropped.
        self.yielded = 0
        #: The generators with which the pass begins. Items are dropped with the generators of the loaded state.
        self.generators = self.moved = generators
        #: Whether the loaded state already requires a replay of everything.
        self.whole = False
        self.since = time.monotonic()
        #: The iteration numbers of PyTorch's pipes.
        self.torchs: dict[int, Any] = {}
        #: Each pipe of the graph with its entry, and the state that is to be put into it, if there is one.
        self.parts: list[tuple[Any, Entry, Any]] = []
        #: How many passes the pipes had begun that read in threads.
        self.passes: dict[int, int] = {}

    def entries(self) -> list[tuple[Any, Entry]]:
        """Each pipe with its entry."""
        return [(pipe, entry) for pipe, entry, _ in self.parts]


class Record:
    """Data about the passes of a pipe. It is never pickled or copied: a copy of the pipe starts without a record."""

    __slots__ = (
        "asked",
        "before",
        "beginning",
        "claim",
        "claimed",
        "ended",
        "fed",
        "fingerprint",
        "given",
        "goes_on",
        "grown",
        "later",
        "loaded",
        "read_by",
        "renewal",
        "seed",
        "seeded",
        "skipped",
        "stamp",
        "tells_end",
        "watches",
    )

    def __init__(self) -> None:
        #: The current iteration of a PyTorch pipe when the next one was requested.
        self.asked: Any = NEVER
        #: The current iteration of a PyTorch pipe when a state was loaded.
        self.before: Any = NEVER
        #: The clock value at which the running pass began; 0 if there is none.
        self.stamp = 0
        #: Whether `iterate`, which records the end, began the running pass of a PyTorch pipe.
        self.tells_end = False
        #: The loaded entry that was not resumed yet.
        self.loaded: Entry | None = None
        #: Whether the running pass resumes from a state that was saved after the last item.
        self.ended = False
        #: Whether a state was loaded into the pipe's graph since its last pass that started from the beginning.
        self.fed = False
        #: The last seed that was set for a user's pipe.
        self.seed: Any = None
        #: Whether a loader seeds the pipe. Seeds of later passes in an epoch are then derived from the first one.
        self.seeded = False
        #: The seed for the next pass that came from a loaded state.
        self.given: Any = None
        #: The seed that was set after the beginning of the pass to replay.
        self.later: Any = None
        #: Whether this pipe or one of its sources is replayed; None if not determined yet.
        self.watches: bool | None = None
        #: The state of the graph when the running pass began, if `watches` is set or the pipe is PyTorch's.
        self.beginning: Beginning | None = None
        #: The parameters of all pipes of the graph, if this pipe is its end and its state was saved.
        self.fingerprint: Fingerprint | None = None
        #: Names of pipes that this pipe has created since its first pass.
        self.grown: list[str] = []
        #: Whether the running pass resumes from a loaded state.
        self.goes_on = False
        #: A reference to the pipe that skips exceptions of this one; None if there is none.
        self.claim: Any = None
        #: References to the pipes whose exceptions this one skips.
        self.claimed: list[Any] = []
        #: References to the renewals (`renewing`) of the running pass and of the reader's running pass.
        self.renewal: Any = None
        self.read_by: Any = None
        #: How many items were skipped in the running pass, by kind of exception. The dict is replaced, never modified.
        self.skipped: dict[str, int] = {}

    def __reduce__(self) -> Any:
        return type(None), ()  # pickles must not refer to the location of this class


def token_of(datapipe: Any) -> IterationToken:
    """Returns the token of a pipe, created on first use (pipes need not call `super().__init__()`)."""
    token: IterationToken | None = datapipe.__dict__.get(_TOKEN)
    if token is None:
        token = datapipe.__dict__[_TOKEN] = IterationToken()
    return token


def record_of(datapipe: Any) -> Record:
    """Returns the record of a pipe, created on first use."""
    record: Record | None = datapipe.__dict__.get(_RECORD)
    if record is None:
        record = datapipe.__dict__[_RECORD] = Record()
    return record


def passed(datapipe: Any) -> int:
    """Returns the number of items that a pass has yielded or skipped, which is its position in the source."""
    record = existing_record(datapipe)
    skipped = 0 if record is None else sum(record.skipped.values())
    return token_of(datapipe).yielded + skipped


def existing_record(datapipe: Any) -> Record | None:
    """Returns the record of a pipe, or None if it has none."""
    record: Record | None = vars(datapipe).get(_RECORD)
    return record
