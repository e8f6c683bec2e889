"""Exporters of measurements: Prometheus, OpenTelemetry, a log, TensorBoard.

Role: thin layers between `values` and the official client libraries, which serve and encode. They run in main; what
asks may be a thread of theirs. A loader that is shut down goes on to give its last numbers.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchdata._observe.metrics.values import FAMILIES, Family, Grown, Measurement, Measuring, measure, rank_of
from torchdata._optional import optional_import
from torchdata._threads import Flag

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats

__all__ = ["MetricsServer", "PeriodicLog", "PrometheusCollector", "TensorBoardHook", "instrument"]

_logger = logging.getLogger("torchdata")


class PrometheusCollector:
    """A collector for a registry of prometheus_client.

    Args:
        loader: the loader.
        rank: the label `rank`; None finds out.
    """

    def __init__(self, loader: Any, rank: int | None = None) -> None:
        self._measuring = Measuring(loader, rank)
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Any]:
        """The families, without measuring: what a registry asks for when the collector is registered."""
        return list(self._families().values())

    def collect(self) -> Iterator[Any]:
        """Measures; called at each scrape, in threads of the server."""
        with self._lock:
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
    """See `torchdata.metrics.prometheus`."""

    def __init__(self, loader: Any, port: int, address: str, rank: int | None) -> None:
        client = optional_import("prometheus_client", extra="prometheus", needed_by="metrics.prometheus")
        registry = client.CollectorRegistry()
        registry.register(PrometheusCollector(loader, rank))
        self._server, self._thread = client.start_http_server(port, address, registry)
        host = f"[{address}]" if ":" in address else address
        self._url = f"http://{host}:{self._server.server_port}/metrics"

    @property
    def url(self) -> str:
        """Where the numbers are."""
        return self._url

    def close(self) -> None:
        """Stops serving; may be called again."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def instrument(loader: Any, meter: Any, rank: int | None) -> None:
    """See `torchdata.metrics.opentelemetry`."""
    api = optional_import("opentelemetry.metrics", extra="otel", needed_by="metrics.opentelemetry")
    meter = api.get_meter("torchdata") if meter is None else meter
    measuring = _Shared(loader, rank)
    for family in FAMILIES:
        make = (
            meter.create_observable_counter
            if family.kind == "counter"
            else meter.create_observable_gauge
        )  # fmt: skip
        make(
            f"torchdata.{family.name}",
            callbacks=[measuring.callback(family, api.Observation)],
            unit=family.unit,
            description=family.help,
        )


class _Shared:
    """One measuring for all instruments of a collection: it is made when one asks for the second time."""

    def __init__(self, loader: Any, rank: int | None) -> None:
        Measuring(loader, rank)  # refuses what is no loader
        self._loader = weakref.ref(loader)
        self._rank = rank
        self._lock = threading.Lock()
        self._last: LoaderStats | None = None
        self._grown = Grown()
        self._measured: list[Measurement] = []
        self._label = ""
        self._asked = {family.name for family in FAMILIES}

    def callback(self, family: Family, observation: Any) -> Callable[[Any], list[Any]]:
        """The function that an instrument calls when it is collected."""

        def observe(_options: Any) -> list[Any]:
            return [
                observation(one.value, dict(zip(("rank", *family.labels), (label, *one.labels), strict=True)))
                for one, label in self._of(family)
            ]

        return observe

    def _of(self, family: Family) -> list[tuple[Measurement, str]]:
        loader = self._loader()
        with self._lock:
            if family.name in self._asked and loader is not None:
                measured, self._last = measure(loader, self._last)
                self._measured = self._grown.since_the_beginning(measured, self._last)
                self._label = str(rank_of(loader) if self._rank is None else self._rank)
                self._asked = set()
            self._asked.add(family.name)
            return [(one, self._label) for one in self._measured if one.family is family]


class PeriodicLog:
    """See `torchdata.metrics.log`."""

    def __init__(self, loader: Any, seconds: float, logger: logging.Logger | None, level: int) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise ValueError(f"metrics.log: every is a positive number of seconds, not {seconds!r}")
        self._measuring = Measuring(loader)
        self._seconds, self._logger, self._level = seconds, logger or _logger, level
        self._over = Flag()
        self._thread = threading.Thread(target=self._run, name="torchdata-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self.write()

    def write(self) -> None:
        """Logs a line now."""
        values = {one.family.name: one.value for one in self._measuring.measure() if not one.labels}
        record = {"rank": int(self._measuring.rank), **values}
        self._logger.log(
            self._level,
            "rank %d, epoch %d: %.4g items/s, waiting %.0f %%, %d items ready, %.0f MiB shared memory, %d restarts",
            record["rank"],
            values["epoch"],
            values["items_per_second"],
            100 * values["waiting_ratio"],
            values["prefetched_items"],
            values["shared_memory_bytes"] / 2**20,
            values["restarts"],
            extra={"torchdata": record},
        )

    def close(self) -> None:
        """Logs no more; may be called again."""
        self._over.set()
        self._thread.join()

    def __enter__(self) -> PeriodicLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class TensorBoardHook:
    """See `torchdata.metrics.tensorboard`."""

    def __init__(self, loader: Any, writer: Any, prefix: str) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"metrics.tensorboard: a writer has add_scalar(name, value, step), not {writer!r}")
        self._measuring = Measuring(loader)
        self._writer, self._prefix = writer, prefix

    def __call__(self, step: int) -> None:
        """Writes what the loader tells now, at that step."""
        for one in self._measuring.measure():
            if not one.labels:
                self._writer.add_scalar(f"{self._prefix}/{one.family.name}", one.value, step)
            elif one.family.name in ("process_in_flight_items", "pipe_buffered_items"):
                self._writer.add_scalar("/".join([self._prefix, one.family.name, *one.labels]), one.value, step)
