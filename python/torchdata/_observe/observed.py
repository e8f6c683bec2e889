"""The observation methods of every loader: counts, a diagnosis in words, and a progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata._observe.show.progress import ProgressBar
    from torchdata._observe.show.shown import ShownStats
    from torchdata._observe.stats.diagnosis import Verdict
    from torchdata._observe.stats.model import LoaderStats
    from torchdata._observe.stats.recorder import Recorder


class ObservedLoader:
    _recorder: Recorder

    def stats(self, since: LoaderStats | None = None) -> ShownStats:
        """Returns the loader's statistics: rates, waits and memory, by process and by function. `print` shows the
        statistics as a table.

        This method can be called at any time, from any thread, and after the workers have exited. If a loader starts
        new workers in each epoch, the statistics cover the current or last epoch.

        Args:
            since: earlier statistics of this loader, to include only the counts after these statistics; None (the
                default) includes all counts.
        """
        return self._recorder.stats(since)

    def diagnose(self, since: LoaderStats | None = None) -> Verdict:
        """Returns what limits the program: loading or training, which worker, which function, and what would help.

        Args:
            since: earlier statistics of this loader, to include only the counts after these statistics; None (the
                default) includes all counts of `stats`.
        """
        return self._recorder.diagnose(since)

    def progress(self, **options: Any) -> ProgressBar[Any]:
        """Returns an iterable over an epoch that shows its progress: items per second, the completed part, and the time
        spent waiting.

        `tqdm` draws the bar in terminals and notebooks. If the output is a file or a pipe, nothing is drawn.

        Args:
            options: `description` (text before the bar), `file` (the output instead of stderr) and `interval` (seconds
                between two updates of the waiting time, 0.5 by default).

        Raises:
            ModuleNotFoundError: tqdm is not installed (extra `progress`).

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> [item for item in DataLoader2(IterableWrapper(range(3))).progress()]
            [0, 1, 2]
        """
        from torchdata._observe.show.progress import ProgressBar

        return ProgressBar(self, **options)

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the running workers in order, followed by the id of the dispatching process, if
        there is one. The result does not contain workers on other machines.
        """
        return [pid for group in self._groups() for pid in group.pids]

    def _groups(self) -> Sequence[Any]:
        raise NotImplementedError
