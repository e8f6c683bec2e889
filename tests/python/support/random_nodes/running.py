"""Runs a program over nodes with or without threads, saving states, or resuming from a state."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from random_nodes.programs import Program, program_of
from torchdata.nodes import Loader

MOST = 1000


def shutdown(loader: Loader[Any]) -> None:
    getattr(loader, "shutdown", lambda: None)()


def part(iterator: Iterator[Any], count: int | None) -> list[Any]:
    items: list[Any] = []
    while count is None or len(items) < count:
        try:
            items.append(next(iterator))
        except StopIteration:
            break
        assert len(items) <= MOST, f"an epoch has more than {MOST} items"
    return items


def whole(seed: int, processes: bool, threads: bool) -> list[list[Any]]:
    program = program_of(seed, processes)
    loader = Loader(program.graph(threads).build())
    epochs = [part(iter(loader), program.breaks.get(epoch)) for epoch in range(program.epochs)]
    shutdown(loader)
    return epochs


def described(seed: int, processes: bool) -> dict[str, Any]:
    program = program_of(seed, processes)
    graph = program.graph()
    graph.build()
    return {"category": graph.category, "words": program.words(graph), "shows_reading_ahead": graph.shows_reading_ahead}


def saving(seed: int, processes: bool, target: str) -> list[list[Any]]:
    program = program_of(seed, processes)
    loader = Loader(program.graph().build())
    epochs = [part(iter(loader), program.breaks.get(epoch)) for epoch in range(program.stop_epoch)]
    if program.stop_epoch == 0:
        loader.state_dict()
    iterator, items = iter(loader), list[Any]()
    epochs.append(items)
    while True:
        (Path(target) / str(len(items))).write_bytes(pickle.dumps(loader.state_dict()))
        more = part(iterator, 1)
        if not more:
            break
        items += more
        assert len(items) <= MOST, f"an epoch has more than {MOST} items"
    (Path(target) / str(len(items))).write_bytes(pickle.dumps(loader.state_dict()))
    shutdown(loader)
    return epochs


def resumed(seed: int, processes: bool, source: str, over: bool, left: int) -> list[list[Any]]:
    program = program_of(seed, processes)
    loader, state = used(program, None), pickle.loads(Path(source).read_bytes())
    loader.load_state_dict(state)
    first: list[Any] = []
    if program.link >= 0:
        if not over:
            first = part(iter(loader), min(program.link, left - 1))
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        loader = used(program, loader)
        loader.load_state_dict(state)
    epochs = []
    for epoch in range(program.stop_epoch + over, program.epochs):
        epochs.append(first + part(iter(loader), program.breaks.get(epoch)))
        first = []
    shutdown(loader)
    return epochs


def used(program: Program, loader: Loader[Any] | None) -> Loader[Any]:
    if program.used < 0 and loader is not None:
        shutdown(loader)
        loader = None
    if loader is None:
        loader = Loader(program.graph().build())
    if program.used >= 0:
        part(iter(loader), program.used)
    return loader
