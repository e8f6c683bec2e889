"""The pipe that puts the files of an archive together to samples: WebDataset.

Role: files whose paths differ in their extension alone, and that follow one another, are one sample. Runs in the
process that iterates the pipe. It owns the sample that it is gathering, streams included: that sample is its state.
When the iteration is abandoned, its streams are closed, and stand-ins that can be opened again take their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchdata.datapipes._pipe.checks import check_source
from torchdata.datapipes._pipe.declared import state
from torchdata.datapipes._pipe.registry import functional_datapipe
from torchdata.datapipes._pipe.streams import close_dropped
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.streams.pairs import path_and_stream
from torchdata.datapipes.utils._streams import StreamWrapper, detached

__all__ = ["WebDataset"]


@functional_datapipe("webdataset")
class WebDataset(IterDataPipe[dict[str, Any]]):
    """Gathers consecutive files with the same name but for the extension into one dict.

    A path is cut at the first dot of its last part. What stands before it is the sample's key, the rest is the file's
    field: `"shard.tar/7.seg.png"` is the field `".seg.png"` of `"shard.tar/7"`. Backslashes count as slashes. Files
    without an extension are left out, and their streams closed. Of two files of one field the later one counts.

    Args:
        source_datapipe: yields pairs of path and data, such as the streams of `load_from_tar` or what was decoded of
            them.

    Returns:
        Dicts of the data by field, with the key under `"__key__"`.

    Raises:
        TypeError: while iterating, an item is no pair of a path and something else.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> files = [("a/1.txt", "one"), ("a/1.cls", 0), ("a/2.txt", "two"), ("a/2.cls", 1)]
        >>> for sample in IterableWrapper(files).webdataset():
        ...     print(sample)
        {'__key__': 'a/1', '.txt': 'one', '.cls': 0}
        {'__key__': 'a/2', '.txt': 'two', '.cls': 1}
    """

    #: The sample that is being gathered, if any: a list, so that each iteration has one of its own.
    _gathering: list[dict[str, Any]] = state(list, items=True)

    def __init__(self, source_datapipe: Iterable[tuple[str, Any]]) -> None:
        self.source_datapipe = check_source("WebDataset", source_datapipe, "source_datapipe")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._samples(iter(self.source_datapipe), self._gathering)

    def _samples(self, source: Iterator[Any], gathering: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        # No name is bound to a sample that was yielded: it is its reader's alone.
        try:
            for item in source:
                path, data = path_and_stream(item, self)
                key, field = _key_and_field(path)
                if not field:
                    close_dropped(data)
                elif gathering and gathering[0]["__key__"] == key:
                    close_dropped(gathering[0].get(field))
                    gathering[0][field] = data
                else:
                    gathering.append({"__key__": key, field: data})
                del item, data
                if len(gathering) == 2:
                    yield gathering.pop(0)
            if gathering:
                yield gathering.pop()
        except BaseException:
            if self._gathering is gathering:  # else this is a replaced iterator
                gathering[:] = [{field: _detached(data) for field, data in sample.items()} for sample in gathering]
            raise


def _key_and_field(path: str) -> tuple[str, str]:
    path = path.replace("\\", "/")
    dot = path.find(".", path.rfind("/") + 1)
    return (path, "") if dot < 0 else (path[:dot], path[dot:])


def _detached(data: Any) -> Any:
    """Closes a stream and returns a stand-in that can be opened again, where there is a way."""
    if not isinstance(data, StreamWrapper) or data.closed:
        return data
    stand_in = detached(data)
    data.close()
    return stand_in if isinstance(stand_in, StreamWrapper) else StreamWrapper(stand_in, name=data.name)
