"""The numbers of a loader for those who watch it: Prometheus, OpenTelemetry, logs, TensorBoard, and all ranks of a job.

Role: what users import. Everything here asks `DataLoader2.stats`, which costs a fraction of a millisecond, when it
is asked itself; an item costs nothing more. Each measurement has the label `rank`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torchdata._observe.metrics.exporters import (
    MetricsServer,
    PeriodicLog,
    PrometheusCollector,
    TensorBoardHook,
    instrument,
)
from torchdata._observe.metrics.ranks import RankSkew
from torchdata._observe.metrics.ranks import rank_skew as _rank_skew

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats
    from torchdata.dataloader2 import DataLoader2

__all__ = [
    "MetricsServer",
    "PeriodicLog",
    "PrometheusCollector",
    "RankSkew",
    "TensorBoardHook",
    "log",
    "opentelemetry",
    "prometheus",
    "rank_skew",
    "tensorboard",
]


def prometheus(
    loader: DataLoader2[Any], port: int = 9464, *, address: str = "127.0.0.1", rank: int | None = None
) -> MetricsServer:
    """Serves a loader's numbers over HTTP, in Prometheus' text format, until the server is closed.

    To add them to a server that there is already, register a `PrometheusCollector(loader)` with its registry.

    Args:
        loader: the loader.
        port: the port; 0 takes a free one. Ranks of one machine need one each: `9464 + rank`.
        address: who may ask: by default this machine alone.
        rank: the label `rank`; None takes the rank of the job.

    Returns:
        The server, a context manager; its `url` says where it is.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed (extra `prometheus`).
        OSError: the port is in use.
    """
    return MetricsServer(loader, port, address, rank)


def opentelemetry(loader: DataLoader2[Any], meter: Any = None, *, rank: int | None = None) -> None:
    """Makes observable instruments of OpenTelemetry for a loader's numbers, named `torchdata.items` and so on.

    They hold the loader weakly, and observe its last numbers once it is gone.

    Args:
        loader: the loader.
        meter: where the instruments are made; None takes that of the global provider.
        rank: the attribute `rank`; None takes the rank of the job.

    Raises:
        ModuleNotFoundError: opentelemetry is not installed (extra `otel`).
    """
    instrument(loader, meter, rank)


def log(
    loader: DataLoader2[Any],
    every: float = 60.0,
    *,
    logger: logging.Logger | None = None,
    level: int = logging.INFO,
) -> PeriodicLog:
    """Logs a line about a loader now and then: rate, waits, items ready, memory, restarts.

    The record's attribute `torchdata` is a dict of all numbers of the loader.

    Args:
        loader: the loader.
        every: seconds between two lines.
        logger: where they go; None is the logger "torchdata".
        level: the level.

    Returns:
        The writer of these lines, a context manager: it ends with `close()`.
    """
    return PeriodicLog(loader, every, logger, level)


def tensorboard(loader: DataLoader2[Any], writer: Any, prefix: str = "data") -> TensorBoardHook:
    """A function of a step that writes a loader's numbers as scalars.

    Args:
        loader: the loader.
        writer: what has `add_scalar(name, value, step)`: torch's or tensorboardX's `SummaryWriter`.
        prefix: what the names begin with.

    Raises:
        TypeError: the writer has no such method.

    Example:
        >>> import torchdata.metrics
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> class Writer:
        ...     def add_scalar(self, name, value, step):
        ...         if name == "data/items":
        ...             print(name, value, step)
        >>> loader = DataLoader2(IterableWrapper(range(4)))
        >>> write = torchdata.metrics.tensorboard(loader, Writer())
        >>> for step, item in enumerate(loader):
        ...     if step % 2 == 1:
        ...         write(step)
        data/items 2.0 1
        data/items 4.0 3
    """
    return TensorBoardHook(loader, writer, prefix)


def rank_skew(loader: DataLoader2[Any], since: LoaderStats | None = None) -> RankSkew:
    """How long each rank has waited for data: the least, the median, the most, and who.

    All ranks must call it, at the same point of the program, as they do with a barrier: between two epochs, say. The
    rank that waits longest for its own workers is the one that holds up the others.

    Args:
        loader: a loader with a `DistributedReadingService`.
        since: earlier statistics of the loader, from which on to count.

    Raises:
        TypeError: the loader has no such service.
        RuntimeError: no epoch has begun; or the service was given a group, which the loader's own thread may be using.
    """
    return _rank_skew(loader, since)
