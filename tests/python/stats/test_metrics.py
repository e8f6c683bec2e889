"""Metrics as their readers get them: scraped over HTTP, collected by the SDK, in a log, as scalars, across ranks."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
import urllib.request
import weakref
from pathlib import Path
from typing import Any

import pytest

from ranks import gloo_job
from torchdata import metrics
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper

MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING

pytestmark = pytest.mark.alone


def slow(item: int) -> int:
    time.sleep(0.001)
    return item


def loader_of(items: int, workers: int = 2, **options: Any) -> DataLoader2[Any]:
    pipe = IterableWrapper(range(items)).sharding_filter().map(slow).map(slow)
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, "fork"), **options)


def scraped(url: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By name of a sample: by labels, its value, as the official parser reads them."""
    parser = pytest.importorskip("prometheus_client.parser", reason="it is an extra")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in values, f"{sample.name} is there twice"
            values[labels] = sample.value
    return found


def test_prometheus_scrapes_what_the_loader_counts() -> None:
    pytest.importorskip("prometheus_client", reason="it is an extra")
    with loader_of(40, stats="full") as loader, metrics.prometheus(loader, 0, rank=3) as server:
        before = scraped(server.url)
        assert before["torchdata_items_total"] == {(("rank", "3"),): 0.0}
        assert len(list(loader)) == 40
        one = scraped(server.url)
        list(loader)
        two = scraped(server.url)
        again = scraped(server.url)
    rank = ("rank", "3")
    assert [page["torchdata_items_total"][rank,] for page in (one, two, again)] == [40, 80, 80]
    assert two["torchdata_epoch"][rank,] == 2
    assert one["torchdata_items_per_second"][rank,] > 0
    assert again["torchdata_items_per_second"][rank,] == 0, "since the scrape before"
    assert 0 < two["torchdata_waiting_seconds_total"][rank,] <= two["torchdata_epoch_seconds_total"][rank,]
    for name in ("restarts_total", "shared_memory_bytes", "occupancy_ratio", "process_cpu_seconds_total"):
        assert f"torchdata_{name}" in two
    sent = two["torchdata_process_items_total"]
    assert sent[("process", "worker process 0"), rank] == 40
    assert sent[("process", "worker process 1"), rank] == 40
    pipes = two["torchdata_pipe_items_total"]
    assert pipes[("pipe", "Mapper(slow)"), ("process", "worker process 0"), rank] == 40
    assert pipes[("pipe", "Mapper(slow) 2"), ("process", "worker process 0"), rank] == 40
    own = two["torchdata_pipe_own_seconds_total"]
    assert own[("pipe", "Mapper(slow)"), ("process", "worker process 0"), rank] >= 0.04


@pytest.mark.filterwarnings("ignore:.* has taken its place")
@pytest.mark.parametrize("dispatched", [False, True])
def test_no_counter_falls_when_another_process_takes_the_place_of_one_that_died(dispatched: bool) -> None:
    pytest.importorskip("prometheus_client", reason="it is an extra")
    pipe = IterableWrapper(range(60))
    shared = pipe.sharding_round_robin_dispatch(MULTIPROCESSING) if dispatched else pipe.sharding_filter()
    service = MultiProcessingReadingService(2, "fork", on_worker_exit="restart")
    pages = []
    with (
        DataLoader2(shared.map(slow), reading_service=service, stats="full") as loader,
        metrics.prometheus(loader, 0, rank=3) as server,
    ):
        for epoch in range(2):
            for number, _ in enumerate(loader):
                if number in (5, 25):
                    pages.append(scraped(server.url))
                    dead = [process.pid for process in loader.stats().processes if process.role != "main"][number // 25]
                    os.kill(dead, signal.SIGKILL)
                if number % 10 == 7:
                    pages.append(scraped(server.url))
            pages.append(scraped(server.url))
            assert pages[-1]["torchdata_restarts_total"][("rank", "3"),] == loader.stats().restarts >= 2 * (epoch + 1)
            assert pages[-1]["torchdata_items_total"][("rank", "3"),] == 60 * (epoch + 1)
    highest: dict[Any, float] = {}
    for page in pages:
        for name, samples in page.items():
            for labels, value in samples.items() if name.endswith("_total") else ():
                assert value >= highest.get((name, labels), 0), (name, labels)
                highest[name, labels] = value


def test_a_server_ends_and_outlives_its_loader() -> None:
    pytest.importorskip("prometheus_client", reason="it is an extra")
    loader = loader_of(10)
    server = metrics.prometheus(loader, 0)
    list(loader)
    loader.shutdown()
    assert scraped(server.url)["torchdata_items_total"] == {(("rank", "0"),): 10.0}
    with pytest.raises(OSError, match=r"[Aa]ddress already in use"):
        metrics.prometheus(loader, int(server.url.split(":")[2].partition("/")[0]))
    server.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        scraped(server.url)


def test_two_loaders_share_a_registry_of_the_program() -> None:
    client = pytest.importorskip("prometheus_client", reason="it is an extra")
    with loader_of(10) as one, loader_of(20) as other:
        registries = [client.CollectorRegistry(), client.CollectorRegistry()]
        for registry, loader in zip(registries, (one, other), strict=True):
            registry.register(metrics.PrometheusCollector(loader, rank=0))
            list(loader)
        found = [registry.get_sample_value("torchdata_items_total", {"rank": "0"}) for registry in registries]
    assert found == [10.0, 20.0]


def test_opentelemetry_observes_what_the_loader_counts() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="it is an extra")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])

    def collected() -> dict[str, dict[tuple[tuple[str, Any], ...], float]]:
        data = reader.get_metrics_data()
        return {
            metric.name: {tuple(sorted(point.attributes.items())): point.value for point in metric.data.data_points}
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }  # fmt: skip

    loader = loader_of(30)
    metrics.opentelemetry(loader, provider.get_meter("test"), rank=1)
    list(loader)
    first = collected()
    list(loader)
    second = collected()
    rank = ("rank", "1")
    assert first["torchdata.items"] == {(rank,): 30.0}
    assert second["torchdata.items"] == {(rank,): 60.0}
    assert second["torchdata.process_items"][("process", "worker process 1"), rank] == 30
    assert second["torchdata.items_per_second"][rank,] > 0
    gone = weakref.ref(loader)
    loader.shutdown()
    del loader
    gc.collect()
    assert gone() is None, "the instruments do not keep it"
    assert collected()["torchdata.items"] == {(rank,): 60.0}
    provider.shutdown()


def test_a_log_has_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torchdata")
    with loader_of(200, workers=1) as loader, metrics.log(loader, every=0.05) as lines:
        list(loader)
        deadline = time.monotonic() + 20
        while len(caplog.records) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        lines.write()
    count = len(caplog.records)
    lines.close()
    assert count >= 4
    last = caplog.records[-1]
    assert last.torchdata["items"] == 200  # type: ignore[attr-defined]
    assert last.getMessage().startswith("rank 0, epoch 1: ")
    assert all("waiting" in record.getMessage() for record in caplog.records)
    with pytest.raises(ValueError, match="every is a positive number"):
        metrics.log(loader, every=0)


def test_scalars_go_to_a_writer_with_their_step() -> None:
    class Writer:
        def __init__(self) -> None:
            self.found: dict[tuple[str, int], float] = {}

        def add_scalar(self, name: str, value: float, step: int) -> None:
            assert (name, step) not in self.found
            self.found[name, step] = value

    writer = Writer()
    with loader_of(20) as loader:
        write = metrics.tensorboard(loader, writer)
        for step, _ in enumerate(loader):
            if step % 10 == 9:
                write(step)
    assert writer.found["data/items", 9] == 10
    assert writer.found["data/items", 19] == 20
    assert 0 <= writer.found["data/waiting_ratio", 19] <= 1
    assert ("data/process_in_flight_items/worker process 0", 9) in writer.found
    with pytest.raises(TypeError, match="add_scalar"):
        metrics.tensorboard(loader, object())
    with pytest.raises(TypeError, match="those of a DataLoader2"):
        metrics.tensorboard([], writer)  # type: ignore[arg-type]


SKEWED = """
def slow_on_rank_1(item):
    if int(os.environ["RANK"]) == 1:
        time.sleep(0.01)
    return item

def main(rank):
    import torchdata.metrics
    from torchdata._observe.metrics.values import rank_of
    service = SequentialReadingService(DistributedReadingService(60), MultiProcessingReadingService(1, "fork"))
    pipe = IterableWrapper(range(300)).sharding_filter().map(slow_on_rank_1)
    with DataLoader2(pipe, reading_service=service) as loader:
        try:
            torchdata.metrics.rank_skew(loader)
        except RuntimeError as error:
            too_early = str(error)
        for _ in loader:
            pass
        skew = torchdata.metrics.rank_skew(loader)
        own = loader.stats().waiting_seconds
        list(loader)
        later = torchdata.metrics.rank_skew(loader, loader.stats())
        return skew, own, rank_of(loader), str(skew), too_early, later.max
"""


def test_ranks_tell_who_waits_most(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="ranks of torch.distributed")
    with gloo_job(tmp_path, SKEWED, 3) as job:
        outcomes = job.outcomes()
    skews = [outcome[0] for outcome in outcomes]
    assert skews[0] == skews[1] == skews[2], "all ranks are told the same"
    skew = skews[0]
    for rank, (_, own, named, text, too_early, later) in enumerate(outcomes):
        assert skew.waiting_seconds[rank] == pytest.approx(own, abs=1e-5)
        assert named == rank
        assert text.startswith("of 3 ranks, rank 1 waits most for data")
        assert "before the first epoch" in too_early
        assert later < skew.max / 2
    assert skew.most == 1
    assert skew.max == max(skew.waiting_seconds) > 0.15
    assert skew.min <= skew.median <= skew.max
    assert skew.waiting[1] == max(skew.waiting)


def test_ranks_are_those_of_a_distributed_service_alone() -> None:
    with pytest.raises(TypeError, match="DistributedReadingService, and this loader has none"):
        metrics.rank_skew(loader_of(3))
