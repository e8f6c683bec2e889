"""Runs one contender once: `python -m comparison.child '{"contender": …}'` prints the results as one line of JSON.

The program's argument is a JSON object, called the *order*. It contains: contender (ours, upstream, torch, bare, …),
kind (of measurement), item (a key of `items.MAKERS`), start_method, workers, seconds and options. Spawned worker
processes also import this file, so it imports only the standard library at module level.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from comparison import items

INDEXED = ("stateful", "upstream-stateful", "torch-indexed")
"""The contenders that are torch-style loaders."""


class Run:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.options: dict[str, Any] = order["options"]
        if "stats" in self.options:
            os.environ["TORCHDATA_STATS"] = self.options["stats"]
        for name in self.options.get("imports", ()):  # modules that a user's program would already have imported
            importlib.import_module(name)
        self.make = items.MAKERS.get(order["item"])
        self.is_indexed = order["contender"] in INDEXED
        builders = {
            "torch": self._torch,
            "spdl": self._spdl,
            "nodes": self._nodes,
            **dict.fromkeys(INDEXED, self._indexed),
        }
        self.build = builders.get(order["contender"], self._pipes)()

    def _torch(self) -> Callable[[range], Any]:
        from comparison import torch_loader

        start_method, workers = self.order["start_method"], self.order["workers"]
        return lambda source: torch_loader.loader(source, self.make, start_method, workers, self.options)

    def _nodes(self) -> Callable[[range], Any]:
        from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

        order, make = self.order, self.make
        assert make is not None
        options = {"multiprocessing_context": order["start_method"], **self.options}
        return lambda source: Loader(
            ParallelMapper(IterableWrapper(source), make, order["workers"], method="process", **options)
        )

    def _spdl(self) -> Callable[[range], Any]:
        from comparison import spdl_pool

        return lambda source: spdl_pool.Pool(source, self.make, self.order["workers"])

    def _indexed(self) -> Callable[[range], Any]:
        from comparison import indexed

        indexed.loader(self.order, 64)  # imports the modules, because no measurement includes imports
        return lambda source: indexed.loader(self.order, len(source))

    @property
    def consume(self) -> Callable[[Any], None]:
        from comparison import measure

        if self.is_indexed:
            from comparison import indexed

            return indexed.consume
        return measure.CONSUMERS["lists" if self.options.get("together", 1) > 1 else self.order["item"]]

    def _pipes(self) -> Callable[..., Any]:
        # Imports all modules of the pipes before the measurement begins.
        from comparison import pipes
        from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService  # noqa: F401

        graph = pipes.GRAPHS[self.options.get("graph", "dispatched" if "dispatched" in self.options else "shared_out")]
        graph(range(1), self.make)
        start_method, workers = self.order["start_method"], self.options.get("workers", self.order["workers"])
        splits = self.options.get("splits")

        def build(source: Any, **options: Any) -> Any:
            return pipes.loader(graph(source, self.make), start_method, workers, splits, **options)

        return build


def rate(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import measure

    run = Run(order)
    together = run.options.get("together", 1)
    loader = run.build(range(items.ENDLESS))
    warm_up = run.options.get("warm_up", measure.WARM_UP_S)
    return {"value": measure.rate(iter(loader), run.consume, order["seconds"], warm_up) * together}, loader


def first_item(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    run = Run(order)
    begin = time.perf_counter()
    loader = run.build(range(items.ENDLESS))
    iterator = iter(loader)
    next(iterator)
    return {"value": time.perf_counter() - begin}, (loader, iterator)


def turn_around(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import measure

    loader = Run(order).build(range(items.EPOCH))
    return {"value": measure.turn_around(loader, order["seconds"])}, loader


def decoding(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import bare

    return {"value": bare.decoding(order["workers"], order["seconds"])}, None


def array_floor(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import bare

    return bare.array_floor(order["seconds"]), None


def in_process(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    import statistics

    import inprocess

    numbers = list(range(100_000))
    pipes, plain = inprocess.cases(numbers)[order["options"]["case"]]
    runs = []
    until = time.perf_counter() + order["seconds"]
    while time.perf_counter() < until or len(runs) < 5:
        runs.append((inprocess.seconds(pipes), inprocess.seconds(plain)))
    ours, theirs = (statistics.median(side) / len(numbers) for side in zip(*runs, strict=True))
    return {"value": ours, "plain": theirs}, None


def format_rate(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import formats

    return formats.rate(order)


def restart(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import restarting

    return restarting.measure(Run(order).build, order)


def of_states(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import states

    found: tuple[dict[str, float], Any] = getattr(states, order["kind"])(order)
    return found


def resume_from(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import resuming

    return resuming.resume_from(order)


def packing(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import packing

    return packing.measured(order)


def on_ray(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import on_ray

    return (on_ray.first_item if order["kind"] == "ray_first_item" else on_ray.rate)(order), None


KINDS = {
    **dict.fromkeys(("ray_rate", "ray_first_item"), on_ray),
    **dict.fromkeys(("state_rate", "state_time", "state_size", "resume_time"), of_states),
    "resume_from": resume_from,
    "rate": rate,
    "first_item": first_item,
    "turn_around": turn_around,
    "decoding": decoding,
    "array_floor": array_floor,
    "in_process": in_process,
    "format": format_rate,
    "packing": packing,
    "restart": restart,
}


def main() -> None:
    order = json.loads(sys.argv[1])
    result, loader = KINDS[order["kind"]](order)
    print(json.dumps(result), flush=True)
    shutdown = getattr(loader, "shutdown", None)
    if shutdown is not None:
        shutdown()


if __name__ == "__main__":
    main()
