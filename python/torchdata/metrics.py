"""The statistics of a loader for Prometheus.

Role: a thin layer over `prometheus_client`, which encodes and serves the statistics in its own threads. Each scrape
calls `DataLoader2.stats`, which takes a fraction of a millisecond. After a loader was shut down, its last numbers
remain available.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torchdata._native import HeldLock
from torchdata._observe.measuring import FAMILIES, Measuring
from torchdata._observe.stats.declaring import Family
from torchdata._optional import optional_import

if TYPE_CHECKING:
    from torchdata.dataloader2 import DataLoader2

__all__ = ["MetricsServer", "PrometheusCollector", "prometheus"]


class PrometheusCollector:
    """A collector for a registry of prometheus_client.

    Args:
        loader: the loader.
        rank: the value of the label `rank`; None (the default) for the rank of this process in its job.

    Example:
        >>> from prometheus_client import CollectorRegistry
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.metrics import PrometheusCollector
        >>> CollectorRegistry().register(PrometheusCollector(DataLoader2(IterableWrapper(range(3)))))
    """

    def __init__(self, loader: Any, rank: int | None = None) -> None:
        self._measuring = Measuring(loader, rank)
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Any]:
        """Returns the metric families without their values. The registry of prometheus_client calls this method when
        the collector is registered."""
        return list(self._families().values())

    def collect(self) -> Iterator[Any]:
        """Measures the loader, and yields the metric families. The server of prometheus_client calls this method at
        each scrape, in its own threads."""
        with HeldLock(self._lock):
            measured, rank = self._measuring.measure(), self._measuring.rank
        families = self._families()
        for one in measured:
            families[one.family].add_metric([rank, *one.labels], one.value)
        yield from (family for family in families.values() if family.samples)

    @staticmethod
    def _families() -> dict[Family, Any]:
        core = optional_import("prometheus_client.core", extra="prometheus", needed_by="metrics.prometheus")
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        return {
            family: kinds[family.kind](f"torchdata_{family.name}", family.help, labels=["rank", *family.labels])
            for family in FAMILIES
        }


class MetricsServer:
    """The HTTP server that `prometheus` starts. Use the server as a context manager, or call `close()`.

    Args:
        loader: the loader.
        port: the port; 0 for a free port.
        address: the address that the server listens on.
        rank: the value of the label `rank`; None for the rank of this process in its job.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.metrics import prometheus
        >>> with prometheus(DataLoader2(IterableWrapper(range(3))), port=0) as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, loader: Any, port: int, address: str, rank: int | None) -> None:
        if not 0 <= port <= 65_535:
            raise ValueError(f"prometheus: port must be from 0 to 65535 (0 for a free port), but got {port}")
        client = optional_import("prometheus_client", extra="prometheus", needed_by="metrics.prometheus")
        registry = client.CollectorRegistry()
        registry.register(PrometheusCollector(loader, rank))
        self._server, self._thread = client.start_http_server(port, address, registry)
        host = f"[{address}]" if ":" in address else address
        self._url = f"http://{host}:{self._server.server_port}/metrics"

    @property
    def url(self) -> str:
        """The address of the statistics."""
        return self._url

    def close(self) -> None:
        """Stops the server. You may call this method more than once."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def prometheus(
    loader: DataLoader2[Any], port: int = 9464, *, address: str = "127.0.0.1", rank: int | None = None
) -> MetricsServer:
    """Serves a loader's statistics over HTTP, in Prometheus' text format, until the server is closed.

    To add the statistics to an existing server, register a `PrometheusCollector(loader)` with its registry.

    Args:
        loader: the loader.
        port: the port, 9464 by default; 0 for a free port. Ranks on one machine need different ports, such as `9464 +
            rank`.
        address: the address that the server listens on. By default, only programs on this machine can connect.
        rank: the value of the label `rank`; None (the default) for the rank of this process in its job.

    Returns:
        The server, a context manager; `url` is its address.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed (extra `prometheus`).
        OSError: the port is in use.
        ValueError: the port is not from 0 to 65535.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.metrics import prometheus
        >>> server = prometheus(DataLoader2(IterableWrapper(range(3))), port=0)
        >>> server.close()
    """
    return MetricsServer(loader, port, address, rank)
