"""Compares workers on a local Ray cluster of three nodes with Ray Data, and with Ray objects without a loader.

The first node runs no worker, so all items are sent between nodes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comparison import items, measure

NODES = 2
"""The number of nodes with processors, in addition to the first node."""
CHUNK_BYTES = 8 << 20
STORE_BYTES = 1 << 30
BYTES = {"tiny": 8, "array": items.ARRAY_BYTES, "batch": items.BATCH_BYTES}
AHEAD = 2
"""The number of calls that wait at each actor, as with this project's workers."""
LIMIT_S = 60.0
_DATA = {"tiny": (6_000_000, 20_000, 1000), "array": (40_000, 400, 16), "batch": (300, 3, 1)}
"""For Ray Data: the number of all rows, the rows of a block (60 to 120 MB except for tiny rows), and the rows of a
batch."""


@contextlib.contextmanager
def cluster() -> Iterator[Any]:
    here = Path(__file__).resolve().parent.parent
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH"))))
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_worker_niceness="0", RAY_prestart_worker_first_driver="0")
    os.environ.pop("RAY_ADDRESS", None)
    import ray
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    try:
        for _ in range(NODES):
            made.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        made.wait_for_nodes()
        yield ray
    finally:
        ray.shutdown()
        made.shutdown()


def loader(order: dict[str, Any]) -> Any:
    from comparison import pipes
    from torchdata.dataloader2 import DataLoader2, RayReadingService

    pipe = pipes.shared_out(range(items.ENDLESS), items.MAKERS[order["item"]])
    service = RayReadingService(order["workers"], ray_remote_args={"scheduling_strategy": "SPREAD"})
    return DataLoader2(pipe, reading_service=service)


def raw(ray: Any, order: dict[str, Any]) -> Iterator[Any]:
    """Yields objects that actors have already created. Each object has `CHUNK_BYTES` bytes, or the size of one item if
    an item is larger."""
    import numpy

    size = max(CHUNK_BYTES, BYTES[order["item"]])

    class Maker:
        def __init__(self) -> None:
            self.chunk = numpy.zeros(size, numpy.uint8)

        def make(self) -> Any:
            return self.chunk

    kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(Maker)
    makers = [kind.remote() for _ in range(order["workers"])]
    waiting = [(maker, maker.make.remote()) for _ in range(AHEAD) for maker in makers]
    while True:
        maker, asked = waiting.pop(0)
        waiting.append((maker, maker.make.remote()))
        yield ray.get(asked)


def one_by_one(ray: Any, order: dict[str, Any]) -> Iterator[Any]:
    make = items.MAKERS[order["item"]]

    class Maker:
        def make(self, first: int, step: int) -> Iterator[Any]:
            for number in range(first, items.ENDLESS, step):
                yield make(number)

    kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(Maker)
    workers = order["workers"]
    options = {"num_returns": "streaming", "_generator_backpressure_num_objects": 64}
    streams = [kind.remote().make.options(**options).remote(number, workers) for number in range(workers)]
    while True:
        for stream in streams:
            yield ray.get(next(stream))


def data(ray: Any, order: dict[str, Any]) -> Iterator[Any]:
    import ray.data

    make = items.MAKERS[order["item"]]
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    count, in_block, in_batch = _DATA[order["item"]]
    made = ray.data.range(count, override_num_blocks=count // in_block)
    made = made.map(lambda row: {"item": make(int(row["id"]))})
    for batch in made.iter_batches(batch_size=in_batch):
        yield from batch["item"]


def rate(order: dict[str, Any]) -> dict[str, float]:
    seconds = max(4.0, order["seconds"])
    how = order["options"]["how"]
    with cluster() as ray:
        if how == "ours":
            with loader(order) as made:
                return {"value": measure.rate(iter(made), measure.CONSUMERS[order["item"]], seconds, 2.0)}
        found = {"raw": raw, "one by one": one_by_one, "data": data}[how](ray, order)
        consume = measure.CONSUMERS["tiny" if how == "raw" else order["item"]]
        share = max(CHUNK_BYTES, BYTES[order["item"]]) / BYTES[order["item"]] if how == "raw" else 1
        with contextlib.closing(found):
            return {"value": measure.rate(found, consume, seconds, 2.0) * share}


def first_item(order: dict[str, Any]) -> dict[str, float]:
    """Returns the seconds from the time when all workers run until each worker has sent an item."""
    with cluster(), loader(order) as made:
        iterator = iter(made)
        processes = made.reading_service.engine_processes()._processes
        up: list[float] = []

        def watch() -> None:
            until = time.monotonic() + LIMIT_S
            while not all(process.is_up for process in processes) and time.monotonic() < until:
                time.sleep(0.0005)
            up.append(time.perf_counter())

        watching = threading.Thread(target=watch)
        watching.start()
        for _ in range(order["workers"]):
            next(iterator)
        arrived = time.perf_counter()
        watching.join()
        return {"value": max(0.0, arrived - up[0])}
