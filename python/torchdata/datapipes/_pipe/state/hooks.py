"""The questions of graphs, states and loaders to a pipe beyond its items: one protocol, with defaults for all pipes.

Role: the contract between the pipes and the code that looks at whole graphs. A pipe answers for itself, so that no
caller has to know its class. Runs in the process of the pipe.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torchdata._threads import Work
    from torchdata.datapipes._pipe.state.halting import Ahead, Halt

__all__ = ["PipeHooks", "hooks_of"]


class PipeHooks:
    """The answers of a pipe. The bases of pipes have the defaults, which suit a pipe that reads in its `__iter__`.

    Public names are for everybody who writes a pipe; the others are for pipes with threads or several readers.
    """

    #: Whether every item follows from one item of the source alone, in the source's order. Such a pipe, also one of a
    #: user's, keeps no state of its own.
    one_to_one: ClassVar[bool] = False

    #: Whether `len` would have to read items.
    _length_reads_items: ClassVar[bool] = False

    #: Whether its sources begin their passes when it does. The children of a split leave that to the pipe they share.
    _begins_sources: ClassVar[bool] = True

    def _outlives_epochs(self) -> bool:
        """Whether the pipe has a state that outlives an epoch, beyond what its class declares."""
        return False

    def _compare(self, is_strict: bool) -> None:
        """Sets whether items that are read again after a resume are compared with those before."""

    # -- who reads whom ----------------------------------------------------------------------------

    def _sources_in_use(self) -> list[Any] | None:
        """The sources that the running pass goes on reading; None for all."""
        return None

    def _reads_in_pass(self, source: Any) -> bool | None:
        """Whether the running pass of a source is of the running pass of this pipe; None: if it began later."""
        return None

    def _goes_on_alone(self) -> bool:
        """Whether a pass goes on although nobody reads it yet."""
        return False

    #: Whether its `__iter__`, called once more behind an exception that is skipped, goes on from what its class lists.
    _renews: ClassVar[bool] = True

    def _number_of_shares(self) -> int:
        """How many shares of a source its items come from: the number of workers, if it stands for them."""
        return 1

    # -- threads -----------------------------------------------------------------------------------

    def standing_still(self) -> AbstractContextManager[None]:
        """A context within which threads of the pipe do not touch its sources."""
        return nullcontext()

    def _threads_at_work(self) -> Work | None:
        """The work of this pipe's threads in this process; None if it has none."""
        return None

    def _passes_begun(self) -> int | None:
        """How many passes its thread has begun; None if no thread of its own reads ahead."""
        return None

    def _read_ahead(self, passes: int) -> Ahead | None:
        """How far its thread has read, counted from when so many passes were begun; None if there is none."""
        return None

    def _halt_at(self, ahead: Ahead) -> Halt:
        """Makes the thread of a pass to come stop for a moment. Asked only if `_read_ahead` has answered."""
        raise NotImplementedError(f"{type(self).__name__} reads ahead in no thread")


#: Answers for pipes of torch's, which have no hooks.
_DEFAULTS = PipeHooks()


def hooks_of(pipe: Any) -> PipeHooks:
    """Returns the object that answers for a pipe: the pipe, or the defaults for one of torch's."""
    return pipe if isinstance(pipe, PipeHooks) else _DEFAULTS
