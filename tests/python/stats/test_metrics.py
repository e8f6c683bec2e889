"""The metrics of loaders can be requested over HTTP in the format of Prometheus."""

import os
import signal
import time
import urllib.request
from typing import Any

import pytest

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
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
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
            assert labels not in values, f"{sample.name} occurs twice"
            values[labels] = sample.value
    return found


def test_prometheus_scrapes_what_the_loader_counts() -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    with pytest.raises(ValueError, match="port must be from 0 to 65535"):
        metrics.prometheus(loader_of(1), 99_999)
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
    assert again["torchdata_items_per_second"][rank,] == 0, "no items arrived since the last scrape"
    assert 0 < two["torchdata_waiting_seconds_total"][rank,] <= two["torchdata_epoch_seconds_total"][rank,]
    for name in ("restarts_total", "shared_memory_bytes", "process_cpu_seconds_total"):
        assert f"torchdata_{name}" in two
    sent = two["torchdata_process_items_total"]
    assert sent[("process", "worker process 0"), rank] == 40
    assert sent[("process", "worker process 1"), rank] == 40
    pipes = two["torchdata_pipe_items_total"]
    assert pipes[("pipe", "Mapper(slow)"), ("process", "worker process 0"), rank] == 40
    assert pipes[("pipe", "Mapper(slow) 2"), ("process", "worker process 0"), rank] == 40
    own = two["torchdata_pipe_own_seconds_total"]
    assert own[("pipe", "Mapper(slow)"), ("process", "worker process 0"), rank] >= 0.04


@pytest.mark.filterwarnings("ignore:.*A new process replaced it")
@pytest.mark.parametrize("dispatched", [False, True])
def test_no_counter_decreases_when_a_process_is_replaced(dispatched: bool) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
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
                    pid = [process.pid for process in loader.stats().processes if process.role != "main"][number // 25]
                    os.kill(pid, signal.SIGKILL)
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


def test_a_server_can_end_and_can_outlive_its_loader() -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
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
    client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    with loader_of(10) as one, loader_of(20) as other:
        registries = [client.CollectorRegistry(), client.CollectorRegistry()]
        for registry, loader in zip(registries, (one, other), strict=True):
            registry.register(metrics.PrometheusCollector(loader, rank=0))
            list(loader)
        found = [registry.get_sample_value("torchdata_items_total", {"rank": "0"}) for registry in registries]
    assert found == [10.0, 20.0]
