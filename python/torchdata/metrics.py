"""The numbers of a loader for Prometheus.

Role: what users import. Each question calls `DataLoader2.stats`, which costs a fraction of a millisecond; an item costs
nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata._observe.metrics.exporters import MetricsServer, PrometheusCollector

if TYPE_CHECKING:
    from torchdata.dataloader2 import DataLoader2

__all__ = ["MetricsServer", "PrometheusCollector", "prometheus"]


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
