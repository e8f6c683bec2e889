"""What a loader says of itself: statistics, verdicts, pictures, progress, words.

Role: a base of `DataLoader2`, of which it is a part. Runs in the main process, in whichever thread asks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from torchdata._stats.recorder import Recorder

if TYPE_CHECKING:
    from torchdata._drawing.graph import Graph
    from torchdata._drawing.picture import Picture
    from torchdata._showing.progress import Progress
    from torchdata._stats.diagnosis import Verdict
    from torchdata._stats.model import LoaderStats
    from torchdata.dataloader2.dataloader2 import DataLoader2

__all__ = ["Seen"]

T_co = TypeVar("T_co", covariant=True)


class Seen(Generic[T_co]):
    """The part of a loader that shows it."""

    reading_service: Any
    datapipe: Any
    _recorder: Recorder
    _graph_name: str
    _epochs: int
    _ended: bool
    _terminated: bool
    _iterating: bool
    _is_paused: bool
    valid_iterator_id: int | None

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """What the loader has counted: rates, waits, memory, by process and by pipe. `print` shows it as a table.

        It can be asked for at any time, also from another thread and after `shutdown`.

        Args:
            since: earlier statistics of this loader, from which on to count; None counts from its first epoch.
        """
        return self._recorder.stats(since)

    def diagnose(self, since: LoaderStats | None = None) -> Verdict:
        """What limits the program, in words: loading or training, which worker, which pipe, and what would help.

        Args:
            since: earlier statistics of this loader, from which on to look; None looks at all epochs.
        """
        from torchdata._stats.diagnosis import diagnose

        stats = self.stats(since)
        if not stats.epoch and not self._iterating:  # an epoch begins with its first item, and there was none
            stats = replace(stats, epoch=self._epochs)
        return diagnose(stats)

    def picture(self) -> Picture:
        """What the loader runs and has counted, drawn; before the first epoch its pipeline. See `stats().picture()`."""
        from torchdata._drawing.picture import Picture

        return Picture(self._torchdata_graph())

    def progress(self, **options: Any) -> Progress[T_co]:
        """Iterates over an epoch and shows how it goes: items a second, how much is done, how long is waited.

        The bar is `tqdm`'s, or where that is not installed `rich`'s. There is none where there is no terminal, so that
        logs stay clean, nor where neither is installed.

        Args:
            options: `description` (text before the bar), `file` (where it goes instead of stderr), `interval` (seconds
                between two looks at the waits, 0.5) and `backend` ("tqdm" or "rich" for one of them in particular).

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> [item for item in DataLoader2(IterableWrapper(range(3))).progress()]
            [0, 1, 2]
        """
        from torchdata._showing.progress import Progress

        return Progress(cast("DataLoader2[T_co]", self), **options)

    def __repr__(self) -> str:
        from torchdata._showing.words import described

        if "_owner_pid" not in self.__dict__:
            return "<DataLoader2, not made>"  # its construction failed, or is under way
        service = described(self.reading_service)
        return f"<DataLoader2 of {self._graph_name}, read by {service}, {self._state_in_words()}>"

    def _state_in_words(self) -> str:
        if self._ended or self._terminated:
            return "shut down"
        if self.valid_iterator_id is None:
            return "not begun"
        if self._is_paused:
            return f"paused in epoch {self._epochs}"
        return f"in epoch {self._epochs}" if self._iterating else f"between epochs, after {self._epochs}"

    def _repr_html_(self) -> str:
        from torchdata._showing.html import html_of_loader

        return html_of_loader(self)

    def _torchdata_graph(self) -> Graph:
        from torchdata._showing.graph import graph_of_stats
        from torchdata.datapipes._pipe.showing import graph_of_pipe

        stats = self.stats()
        return graph_of_stats(stats) if stats.pipes else graph_of_pipe(self.datapipe)
