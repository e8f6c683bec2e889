"""The contender spdl: a pipeline of threads in one process. All contenders create items by the same functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder


class Pool:
    def __init__(self, source: range, make: Callable[[int], Any], workers: int) -> None:
        self.source, self.make, self.workers = source, make, workers

    def __iter__(self) -> Iterator[Any]:
        builder = PipelineBuilder().add_source(self.source)
        builder = builder.pipe(self.make, concurrency=self.workers, output_order="input").add_sink(4)
        with (pipeline := builder.build(num_threads=self.workers)).auto_stop():
            yield from pipeline
