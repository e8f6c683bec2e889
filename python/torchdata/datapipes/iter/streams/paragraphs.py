"""The pipe that joins lines: ParagraphAggregator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata.datapipes._pipe.checks import check_callable, check_source
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.streams.pairs import pair_of

__all__ = ["ParagraphAggregator"]


def _default_line_join(lines: list[Any]) -> Any:
    return (b"\n" if lines and isinstance(lines[0], bytes) else "\n").join(lines)


class ParagraphAggregator(IterDataPipe[tuple[str, Any]]):
    r"""Joins consecutive lines of one file into paragraphs. An empty line, or a line of another file, ends a paragraph.

    Args:
        source_datapipe: yields pairs of path and line, as `readlines` does.
        joiner: a function from the list of a paragraph's lines to the paragraph; by default, `\n` joins the lines.

    Raises:
        TypeError: `joiner` is not a function; or, while iterating, an item is not a pair.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> lines = [("a.txt", "one"), ("a.txt", "two"), ("a.txt", ""), ("a.txt", "three"), ("b.txt", "four")]
        >>> list(IterableWrapper(lines).lines_to_paragraphs(" ".join))
        [('a.txt', 'one two'), ('a.txt', 'three'), ('b.txt', 'four')]
    """

    buffer: list[Any] = state(list, items=True)  # lines of the incomplete paragraph, and their path
    _path: Any = state(items=True)

    def __init__(
        self, source_datapipe: Iterable[tuple[str, Any]], joiner: Callable[[list[Any]], Any] = _default_line_join
    ) -> None:
        self.source_datapipe = check_source("ParagraphAggregator", source_datapipe, "source_datapipe")
        check_callable("ParagraphAggregator", "joiner", joiner)
        self.joiner = joiner

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self._paragraphs(iter(self.source_datapipe))

    def _paragraphs(self, source: Iterator[Any]) -> Iterator[tuple[str, Any]]:
        for item in source:
            path, line = pair_of(item, self, "path and line, as readlines yields them")
            if line and (path == self._path or not self.buffer):
                self._path = path
                self.buffer.append(line)
            elif self.buffer:
                # The first line of the next paragraph is stored before the `yield`, because the consumer may save a
                # state at the `yield`.
                complete = self._path, self.buffer
                self._path, self.buffer = path, [line] if line else []
                yield complete[0], self.joiner(complete[1])
        if self.buffer:
            complete = self._path, self.buffer
            self.reset()
            yield complete[0], self.joiner(complete[1])
