"""Composable data loading on a Rust engine: `torchdata.datapipes` and `torchdata.dataloader2`.

Role: the package's front door. It imports nothing heavy: neither NumPy nor PyTorch nor any optional
library is loaded before something needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata import _old_modules
from torchdata._version import VERSION as __version__
from torchdata._version import warn_of_upstream

if TYPE_CHECKING:
    from os import PathLike

    from torchdata._observe.trace.trace import Trace

__all__ = ["__version__", "empty", "trace"]


def empty(shape: int | tuple[int, ...], dtype: Any = float) -> Any:
    """A new NumPy array or torch tensor with arbitrary content, to be filled by the caller and handed on.

    In a worker process it lies in the shared memory that its items leave by: an item that holds it whole crosses to the
    main process without a copy. Anywhere else, and where that memory has no room, it is a plain array or tensor.

    That holds for one that nothing but the item refers to, such as one that a function makes, fills and returns. Where
    a variable, a view, a tensor over the array or another container refers to it as well when the item is yielded, it
    is copied like any other: so what is written into it later is not seen by the receiver, and it may be filled and
    yielded again.

    Args:
        shape: number of elements along each dimension.
        dtype: element type, anything that `numpy.dtype` takes; for a tensor, a `torch.dtype`.

    Example:
        >>> import torchdata
        >>> batch = torchdata.empty((2, 3), "float32")
        >>> batch.fill(1.0)
        >>> float(batch.sum())
        6.0
    """
    from torchdata import _engine

    return _engine.empty(shape, dtype)


def trace(path: str | PathLike[str] | None = None, *, events: int = 1_000_000, ranges: bool = True) -> Trace:
    """Writes down what main, workers, the dispatching process and their threads do when, for Perfetto to show.

    A context manager. Epochs that begin within it are traced, of all loaders of this process, and pipes that are
    iterated without one. Each pipe's call is a slice, and so is sending, receiving and waiting; each item that
    crosses to another process, or out of a thread that reads ahead, is an arrow. Where PyTorch is loaded, the pipes
    of the main process are ranges of `torch.profiler`, and of NVTX where CUDA is in use.

    Args:
        path: the file, written at the end: JSON, compressed if the name ends in `.gz`. Open it at
            https://ui.perfetto.dev or in chrome://tracing. None writes none, for the ranges alone.
        events: the most events of each process. They take 64 bytes each, in shared memory. Later ones are left out,
            and a RuntimeWarning says so.
        ranges: whether there are ranges for profilers.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: the file cannot be made there.
        RuntimeError: a trace is being written already.

    Example:
        >>> import os, tempfile, torchdata
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with torchdata.trace(os.path.join(folder, "epoch.json.gz")) as traced:
        ...         items = list(IterableWrapper(range(3)).map(str))
        ...     traced.events > 0
        True
    """
    from torchdata._observe.trace.trace import Trace

    return Trace(path, events=events, ranges=ranges)


warn_of_upstream()
_old_modules.install()
