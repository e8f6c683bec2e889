"""The methods and attributes of a pipe that graphs, states and loaders use, with their defaults.

A pipe class overrides each default that is wrong for its pipes, so callers need not check the class of a pipe.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torchdata._threads import Work
    from torchdata.datapipes._pipe.state.halting import Halt, Lead
    from torchdata.datapipes._pipe.state.layout import PipeEntry


class PipeHooks:
    """The hooks of a pipe. The defaults fit a pipe that reads its sources in `__iter__`.

    Authors of pipes may override members without a leading underscore.
    """

    #: Whether the pipe yields one item for each source item, in order, and computes it only from this source item. A
    #: pipe that sets `one_to_one` to True does not need a state.
    one_to_one: ClassVar[bool] = False

    _length_reads_items: ClassVar[bool] = False

    #: Whether an iteration of the pipe begins iterations of its sources. `_begins_sources` is False for the children of
    #: a split such as `fork`, because only the split's main pipe begins an iteration of the source.
    _begins_sources: ClassVar[bool] = True

    def _outlives_epochs(self) -> bool:
        """Returns whether the pipe keeps an undeclared state from one epoch to the next."""
        return False

    def _compare(self, is_strict: bool) -> None:
        """Sets whether a resumed iteration checks that reread items are equal to the original items."""

    # -- reading relations -------------------------------------------------------------------------

    def _sources_in_use(self) -> list[Any] | None:
        """Returns the sources that the running iteration has not finished reading; None means all sources."""
        return None

    def _reads_in_pass(self, source: Any) -> bool | None:
        """Returns whether this pipe's running iteration reads the running iteration of `source`; None means unknown."""
        return None

    def _resumes_alone(self) -> bool:
        """Returns whether a new reader, such as a child of a `fork` that has not begun, may join this pipe's running
        iteration."""
        return False

    def _entries_of_sources(self) -> dict[int, PipeEntry]:
        """If one process reads the sources for several shards, returns the `PipeEntry` of each direct and indirect
        source, by id; otherwise, returns an empty dict."""
        return {}

    #: Whether `on_error` may call the pipe's `__iter__` again after a skipped exception, to get an iterator that
    #: resumes from the pipe's declared state.
    _renews: ClassVar[bool] = True

    def _number_of_shares(self) -> int:
        """Returns the number of worker processes that send items to this pipe; 1 by default."""
        return 1

    # -- threads -----------------------------------------------------------------------------------

    def threads_paused(self, patience: float | None = None) -> AbstractContextManager[None]:
        """Returns a context that pauses the pipe's threads, so that they do not read the sources of the pipe. Raises
        TimeoutError if a thread needs more than `patience` seconds for an item; None means the pipe's own limit."""
        return nullcontext()

    def _threads_at_work(self) -> Work | None:
        return None

    def _may_have_threads(self) -> bool:
        return type(self)._threads_at_work is not PipeHooks._threads_at_work

    def _passes_begun(self) -> int | None:
        """Returns the number of the pipe's iterations that have begun; None if the pipe does not read ahead in a
        thread."""
        return None

    def _read_ahead(self, passes: int) -> Lead | None:
        """Returns how far the pipe's thread has read ahead in the latest iteration. Returns None if the pipe does not
        use a thread, or if it has begun only its first `passes` iterations."""
        return None

    def _halt_at(self, ahead: Lead) -> Halt:
        """In a replay, pauses the pipe's read-ahead thread as soon as it reaches the position `ahead`. Only pipes with
        a read-ahead thread need this method."""
        raise NotImplementedError(f"{type(self).__name__} does not read ahead in a thread")


_DEFAULTS = PipeHooks()


def hooks_of(pipe: Any) -> PipeHooks:
    """Returns the hooks of a pipe. A PyTorch pipe, which does not derive from `PipeHooks`, has the default hooks."""
    return pipe if isinstance(pipe, PipeHooks) else _DEFAULTS


def depth_of(kind: type, name: str) -> int:
    classes = kind.__mro__
    return next((depth for depth, cls in enumerate(classes) if name in vars(cls)), len(classes))
