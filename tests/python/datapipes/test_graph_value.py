"""The pipes of a graph are searched once, and the result is passed on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes._pipe.graph import traversal
from torchdata.datapipes.iter import IterableWrapper


def doubled(number: int) -> int:
    return 2 * number


def rounds(function: Callable[[], Any]) -> Counter[str]:
    """By the name of its class, how often a pipe's attributes are searched for pipes while a function runs."""
    found: Counter[str] = Counter()

    def look(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code is traversal.sources_of.__code__:
            found[type(frame.f_locals["datapipe"]).__name__] += 1

    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def test_a_service_with_workers_traverses_the_graph_once() -> None:
    pipe = IterableWrapper(range(8)).shuffle().sharding_filter().map(doubled).batch(2)
    service = MultiProcessingReadingService(num_workers=1)
    found = rounds(lambda: service.initialize(pipe))
    service.finalize()
    assert {found[name] for name in ("IterableWrapper", "Shuffler", "ShardingFilter", "Mapper", "Batcher")} == {1}


def test_a_service_with_a_dispatching_process_traverses_each_part_at_most_twice() -> None:
    pipe = IterableWrapper(range(8)).shuffle().sharding_round_robin_dispatch().map(doubled).prefetch(2)
    service = MultiProcessingReadingService(num_workers=1)
    found = rounds(lambda: service.initialize(pipe))
    service.finalize()
    assert found["IterableWrapper"] == found["Shuffler"] == 1
    assert max(found.values()) <= 2


def test_a_state_is_taken_in_one_round() -> None:
    pipe = IterableWrapper(range(8)).shuffle().sharding_filter().map(doubled).batch(2)
    with DataLoader2(pipe, reading_service=InProcessReadingService()) as loader:
        next(iter(loader))
        loader.state_dict()  # the fingerprint is found once
        assert set(rounds(loader.state_dict).values()) == {1}
