"""Data about each pipe outside its attributes: its token, which distinguishes its iterations, and its *record*.

Role: storage for `iteration` and `state`, which define its use. Runs in the process and thread that iterates the
pipe. A *pass* is one iteration of one pipe.
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

#: The number of no iteration.
NEVER = object()


class Beginning:
    """The state of a graph when the pass of its last pipe began, from which a replay of that pass starts.

    Args:
        generators: the random generators of the process as they were.
    """

    __slots__ = ("dropped", "generators", "moved", "parts", "passes", "since", "torchs", "whole", "yielded")

    def __init__(self, generators: dict[str, Any]) -> None:
        #: Items that the loaded state says to drop, in the beginning.
        self.dropped = 0
        #: Items that count as yielded when the pass begins, before any is dropped.
        self.yielded = 0
        #: The generators that the pass begins with. It drops items with those of the loaded state.
        self.generators = self.moved = generators
        #: Whether the loaded state says already that all is to be replayed.
        self.whole = False
        self.since = time.monotonic()
        #: The numbers of the iterations of torch's pipes.
        self.torchs: dict[int, Any] = {}
        #: Each pipe of the graph with its entry, and the state that is to be put into it, if there is one.
        self.parts: list[tuple[Any, Entry, Any]] = []
        #: How many passes the pipes had begun that read in threads.
        self.passes: dict[int, int] = {}

    def entries(self) -> list[tuple[Any, Entry]]:
        """Each pipe with its entry."""
        return [(pipe, entry) for pipe, entry, _ in self.parts]


class Record:
    """Data about the passes of a pipe. Never pickled or copied: a copy is None, and starts afresh."""

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
        #: The iteration of a pipe of torch that was there when the next one was asked for.
        self.asked: Any = NEVER
        #: The iteration of a pipe of torch that was there when a state was loaded.
        self.before: Any = NEVER
        #: When the running pass began; 0 if none did.
        self.stamp = 0
        #: Whether `iterate`, which notes the end, began the running pass of a pipe of torch.
        self.tells_end = False
        #: The loaded entry that was not resumed yet.
        self.loaded: Entry | None = None
        #: Whether the running pass resumes from a state that was saved after the last item.
        self.ended = False
        #: Whether a state was loaded into the graph of the pipe since its last pass that began anew.
        self.fed = False
        #: The last seed that was given to a pipe of a user.
        self.seed: Any = None
        #: Whether a loader seeds the pipe. Seeds of later passes of an epoch then follow from the first one.
        self.seeded = False
        #: The seed that a state gave to the pipe for its next pass, when it was loaded.
        self.given: Any = None
        #: The seed that was given to the pipe after the pass began that is to be replayed.
        self.later: Any = None
        #: Whether this pipe or one of its sources is replayed; None: not determined yet.
        self.watches: bool | None = None
        #: The state of the graph when the running pass began, if `watches` is set, or for a pipe of torch.
        self.beginning: Beginning | None = None
        #: The parameters of all pipes of the graph, if the pipe is its end and its state was saved.
        self.fingerprint: Fingerprint | None = None
        #: Names of pipes that the pipe has made since its first pass.
        self.grown: list[str] = []
        #: Whether the running pass resumes from a loaded state.
        self.goes_on = False
        #: A reference to the pipe that skips exceptions of this one; None if there is none.
        self.claim: Any = None
        #: References to the pipes whose exceptions this one skips.
        self.claimed: list[Any] = []
        #: References to the renewals (`renewing`) of the running pass, and of that of the pipe which reads this one.
        self.renewal: Any = None
        self.read_by: Any = None
        #: By kind of exception, how many items were skipped in the running pass. Replaced, never changed.
        self.skipped: dict[str, int] = {}

    def __reduce__(self) -> Any:
        return type(None), ()  # pickles are not to name where the class lives


def token_of(datapipe: Any) -> IterationToken:
    """The token of a pipe, made on first use (pipes need not call `super().__init__()`)."""
    token: IterationToken | None = datapipe.__dict__.get(_TOKEN)
    if token is None:
        token = datapipe.__dict__[_TOKEN] = IterationToken()
    return token


def record_of(datapipe: Any) -> Record:
    """The record of a pipe, made on first use."""
    record: Record | None = datapipe.__dict__.get(_RECORD)
    if record is None:
        record = datapipe.__dict__[_RECORD] = Record()
    return record


def passed(datapipe: Any) -> int:
    """The number of items that a pass has yielded or skipped, which is its position in the source."""
    record = existing_record(datapipe)
    skipped = 0 if record is None else sum(record.skipped.values())
    return token_of(datapipe).yielded + skipped


def existing_record(datapipe: Any) -> Record | None:
    """The record of a pipe, if it has one."""
    record: Record | None = vars(datapipe).get(_RECORD)
    return record
