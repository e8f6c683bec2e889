"""What every loader tells of itself: its counts, a verdict in words, a bar over an epoch.

Role: a base of the loaders, in main. It asks the recorder that the loader has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata._observe.show.progress import Progress
    from torchdata._observe.show.shown import ShownStats
    from torchdata._observe.stats.diagnosis import Verdict
    from torchdata._observe.stats.model import LoaderStats
    from torchdata._observe.stats.recorder import Recorder

__all__ = ["ObservedLoader"]


class ObservedLoader:
    """A loader with a recorder."""

    _recorder: Recorder

    def stats(self, since: LoaderStats | None = None) -> ShownStats:
        """The loader's counts: rates, waits, memory, by process and by function. `print` shows them as a table.

        They can be asked for at any time, also from another thread and after the end of the workers. If a loader has
        new workers in each epoch, they are those of the epoch that runs or ran last.

        Args:
            since: earlier statistics of this loader, from which on to count; None counts from the beginning.
        """
        return self._recorder.stats(since)

    def diagnose(self, since: LoaderStats | None = None) -> Verdict:
        """Tells in words what limits the program: loading or training, which worker, which function, and what would
        help.

        Args:
            since: earlier statistics of this loader, from which on to look; None looks at all that `stats` counts.
        """
        return self._recorder.diagnose(since, self._epochs_ended())

    def progress(self, **options: Any) -> Progress[Any]:
        """Iterates over an epoch and shows how it goes: items a second, how much is done, how long is waited.

        The bar is `tqdm`'s, or where that is not installed `rich`'s, which asks for ipywidgets in notebooks. Terminals
        and notebooks show it. There is none elsewhere, so that logs stay clean, nor where neither is installed.

        Args:
            options: `description` (text before the bar), `file` (where it goes instead of stderr), `interval` (seconds
                between two looks at the waits, 0.5) and `backend` ("tqdm" or "rich" for one of them in particular).

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> [item for item in DataLoader2(IterableWrapper(range(3))).progress()]
            [0, 1, 2]
        """
        from torchdata._observe.show.progress import Progress

        return Progress(self, **options)  # type: ignore[arg-type]  # it has `__iter__`, and `__len__` perhaps

    def worker_pids(self) -> list[int]:
        """The numbers of the worker processes that run now, in their order, and behind them that of the dispatching
        process if there is one. Those on other machines are left out."""
        return []

    def _epochs_ended(self) -> int:
        """How many epochs have ended, if none is under way."""
        return 0
