"""The interface through which graphs, states and loaders query a pipe, with a default for each query.

Role: this module defines the interface between the pipes and the code that handles whole graphs. Each pipe implements
the queries, so that callers need not know its class. This module's code runs in the process of the pipe.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torchdata._threads import Work
    from torchdata.datapipes._pipe.state.halting import Halt, Lead

__all__ = ["PipeHooks", "depth_of", "hooks_of"]


class PipeHooks:
    """The queries that a pipe answers. The defaults are correct for a pipe that reads its sources in `__iter__`.

    Authors of pipes may override public names. Private names are not part of the public interface.
    """

    #: Whether each item depends only on the corresponding source item, in the source's order. A built-in or
    #: user-defined pipe with `one_to_one = True` has no state besides the state of its sources.
    one_to_one: ClassVar[bool] = False

    #: Whether `len` must read items.
    _length_reads_items: ClassVar[bool] = False

    #: Whether a pass of the pipe begins passes of its sources. This attribute is False for the children of a split,
    #: because their main pipe begins the passes of the source.
    _begins_sources: ClassVar[bool] = True

    def _outlives_epochs(self) -> bool:
        """Returns whether the pipe keeps state between epochs that its class does not declare."""
        return False

    def _compare(self, is_strict: bool) -> None:
        """Sets whether items that are reread after a resume are compared with the original items."""

    # -- reading relations -------------------------------------------------------------------------

    def _sources_in_use(self) -> list[Any] | None:
        """Returns the sources that the running pass still reads; None means all sources."""
        return None

    def _reads_in_pass(self, source: Any) -> bool | None:
        """Returns whether a source's pass belongs to this pipe's running pass; if None, start times are compared."""
        return None

    def _goes_on_alone(self) -> bool:
        """Returns whether a pass of the pipe can continue although no reader has begun to read the pipe."""
        return False

    #: Whether a new `__iter__` call after a skipped exception can resume from the declared iteration state.
    _renews: ClassVar[bool] = True

    def _number_of_shares(self) -> int:
        """Returns the number of workers for the pipe that yields the workers' items, and 1 for all other pipes."""
        return 1

    # -- threads -----------------------------------------------------------------------------------

    def standing_still(self) -> AbstractContextManager[None]:
        """Returns a context within which the pipe's threads do not touch its sources."""
        return nullcontext()

    def _threads_at_work(self) -> Work | None:
        """Returns an object that ends the threads of this pipe in this process; None if the pipe has no threads."""
        return None

    def _passes_begun(self) -> int | None:
        """Returns how many passes the pipe's thread has begun; None if the pipe does not read ahead in a thread."""
        return None

    def _read_ahead(self, passes: int) -> Lead | None:
        """Returns how far the thread has read since `passes` passes had begun; None without a thread or a further
        pass."""
        return None

    def _halt_at(self, ahead: Lead) -> Halt:
        """Makes the thread pause at the given point of a later pass. This method is called only for pipes that read
        ahead in a thread."""
        raise NotImplementedError(f"{type(self).__name__} reads ahead in no thread")


#: The hooks for PyTorch's pipes, which do not define hooks themselves.
_DEFAULTS = PipeHooks()


def hooks_of(pipe: Any) -> PipeHooks:
    """Returns the object with the hooks of a pipe: the pipe itself, or the defaults for a PyTorch pipe."""
    return pipe if isinstance(pipe, PipeHooks) else _DEFAULTS


def depth_of(kind: type, name: str) -> int:
    """Returns the position, in the method resolution order of a class, of the first class that defines `name`."""
    classes = kind.__mro__
    return next((depth for depth, cls in enumerate(classes) if name in vars(cls)), len(classes))
