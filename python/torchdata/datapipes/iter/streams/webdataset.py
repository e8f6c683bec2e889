"""The pipe that groups the files of an archive into samples: WebDataset.

Consecutive files form one sample if their paths differ only in the extension. A saved state contains the incomplete
sample, including its streams. When an iteration is abandoned, the streams of the incomplete sample are replaced by
placeholders that can reopen them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchdata.datapipes._pipe.checks import check_source, on_failure
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes._pipe.streams import close_dropped
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.streams.pairs import path_and_stream
from torchdata.datapipes.utils._streams import StreamWrapper, detached

__all__ = ["WebDataset"]

#: Each dict of `_gathered` contains at most `_GENERATION` samples. When the dict of recent samples is full, it replaces
#: the dict of older samples.
_GENERATION = 1 << 15


class WebDataset(IterDataPipe[dict[str, Any]]):
    """Groups consecutive files into one dict if their names differ only in the extension.

    A path is divided at the first dot after its last slash: the text before this dot is the key of the sample, and the
    remaining text is the field. For example, `"shard.tar/7.seg.png"` is the field `".seg.png"` of `"shard.tar/7"`.
    Backslashes count as slashes. Files without an extension are left out, and their streams are closed.

    Args:
        source_datapipe: yields pairs of path and data, such as the streams of `load_from_tar` or decoded data.
        strict: whether to raise an error (the default) if a sample contains a field twice, or if its files are not
            adjacent. If tens of thousands of samples are between two files of one sample, no error is raised. An exact
            copy of an earlier sample is not an error. With `strict=False`, as in torchdata 0.9, a second file of a
            field replaces the first, and files of a sample that are not adjacent become separate samples.

    Returns:
        Dicts of the data by field, with the key under `"__key__"`.

    Raises:
        TypeError: while iterating, an item is not a pair of a path and data.
        ValueError: while iterating with `strict`, a sample has a field twice, or its files are not adjacent.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> files = [("a/1.txt", "one"), ("a/1.cls", 0), ("a/2.txt", "two"), ("a/2.cls", 1)]
        >>> for sample in IterableWrapper(files).webdataset():
        ...     print(sample)
        {'__key__': 'a/1', '.txt': 'one', '.cls': 0}
        {'__key__': 'a/2', '.txt': 'two', '.cls': 1}
    """

    tuning = frozenset({"strict"})  # for well-packed archives, `strict` does not affect the items

    #: A list that contains the incomplete sample. Each iteration has its own list, so that `_detach_buffered` can
    #: detect that a newer iteration has begun.
    _gathering: list[dict[str, Any]] = checked_state(([dict],), list, items=True)

    #: Two dicts from a sample's key to its fields: for the recent and for the older samples of this iteration.
    _gathered: tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]] = state(lambda: ({}, {}), saved=False)

    def __init__(self, source_datapipe: Iterable[tuple[str, Any]], *, strict: bool = True) -> None:
        self.source_datapipe = check_source("WebDataset", source_datapipe, "source_datapipe")
        self.strict = strict

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._samples(iter(self.source_datapipe), self._gathering)

    def _samples(self, source: Iterator[Any], gathering: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        # No variable of this generator may refer to a yielded sample, because the variable would keep the sample in
        # memory.
        with on_failure(lambda: self._detach_buffered(gathering)):
            for item in source:
                path, data = path_and_stream(item, self)
                key, field = _key_and_field(path)
                if not field:
                    close_dropped(data)
                elif gathering and gathering[0]["__key__"] == key:
                    if field in gathering[0]:
                        self._refuse_twice(key, field)
                        close_dropped(gathering[0][field])
                    gathering[0][field] = data
                else:
                    gathering.append({"__key__": key, field: data})
                del item, data
                if len(gathering) == 2:
                    yield self._whole(gathering.pop(0))
            if gathering:
                yield self._whole(gathering.pop())

    def _detach_buffered(self, gathering: list[dict[str, Any]]) -> None:
        """Unless a newer iteration has begun, replaces the streams of the incomplete sample by placeholders that reopen
        them."""
        if self._gathering is gathering:
            gathering[:] = [{field: _detached(data) for field, data in sample.items()} for sample in gathering]

    def _whole(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Returns `sample`. If an earlier sample with the same key contains different files, closes the streams and
        raises ValueError."""
        try:
            self._refuse_scattered(sample)
        except ValueError:
            close_dropped(sample)
            raise
        return sample

    def _refuse_twice(self, key: str, field: str) -> None:
        if self.strict:
            raise ValueError(
                f"WebDataset: the sample {key!r} has two files {field!r}, so one of them would be lost; pack the "
                "archive again, or pass strict=False to keep the later file"
            )

    def _refuse_scattered(self, sample: dict[str, Any]) -> None:
        """Raises ValueError if `strict` is True and an earlier sample has the same key as `sample`, but other
        fields."""
        if not self.strict:
            return
        key, fields = sample["__key__"], frozenset(sample)
        recent, older = self._gathered
        before = recent.get(key) or older.get(key) or fields
        if before != fields:
            raise ValueError(
                f"WebDataset: the files of the sample {key!r} do not follow one another: "
                f"{sorted(before - {'__key__'})} came before other samples, and {sorted(fields - {'__key__'})} after "
                "them; pack the archive in the order of names (tar --sort=name), or pass strict=False for two samples"
            )
        if len(recent) == _GENERATION:
            recent, _ = self._gathered = {}, recent
        recent[key] = fields


def _key_and_field(path: str) -> tuple[str, str]:
    path = path.replace("\\", "/")
    dot = path.find(".", path.rfind("/") + 1)
    return (path, "") if dot < 0 else (path[:dot], path[dot:])


def _detached(data: Any) -> Any:
    """Closes a stream and returns a placeholder that reopens the stream, if reopening is possible."""
    if not isinstance(data, StreamWrapper) or data.closed:
        return data
    placeholder = detached(data)
    data.close()
    return placeholder if isinstance(placeholder, StreamWrapper) else StreamWrapper(placeholder, name=data.name)
