"""Closes the streams in items that a pipe drops or keeps.

Role: pipes call `close_dropped` for each item that they drop, and `with_detached_streams` for items that they keep
after their iteration. `close_dropped` and `with_detached_streams` cost almost nothing for plain items, or if no stream
was ever wrapped. This module's code runs in the process that iterates the pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import is_not
from typing import Any

from torchdata.datapipes.datapipe import DataChunk

#: Types of items that hold no streams. Callers may check for these types first to avoid a call.
PLAIN_TYPES: frozenset[type] = frozenset({int, float, str, bytes, bool, type(None)})


def close_dropped(item: Any) -> None:
    """Closes every wrapped stream in an item that is no longer used."""
    if type(item) in PLAIN_TYPES:
        return
    # if the module is not loaded, no stream was wrapped
    streams = sys.modules.get("torchdata.datapipes.utils._streams")
    if streams is not None:
        streams.StreamWrapper.close_streams(item)


def with_detached_streams(item: Any) -> Any:
    """Returns `item`, or a copy with wrapped streams that reopen their files when they are read.

    Pipes call this function for items that they keep after an iteration. The file of a replaced stream is closed once
    no other code refers to the stream. Streams that cannot be reopened are not replaced.
    """
    return _exchanged(item, _detached)


def _detached(stream: Any) -> Any:
    streams = sys.modules["torchdata.datapipes.utils._streams"]
    stand_in = streams.detached(stream)
    return stand_in if isinstance(stand_in, streams.StreamWrapper) else stream


def _exchanged(item: Any, exchange: Callable[[Any], Any]) -> Any:
    """Returns `item` with each wrapped stream replaced. Containers that hold no streams are not copied."""
    kind = type(item)
    if kind in PLAIN_TYPES:
        return item
    streams = sys.modules.get("torchdata.datapipes.utils._streams")
    if streams is None:
        return item
    if isinstance(item, streams.StreamWrapper):
        return exchange(item)
    # Subclasses are left out, because the constructor of a subclass may have other arguments.
    if kind is dict:
        values = [_exchanged(value, exchange) for value in item.values()]
        changed = any(map(is_not, values, item.values()))
        return dict(zip(item, values, strict=True)) if changed else item
    if kind is tuple or kind is list or kind is DataChunk:
        members = [_exchanged(member, exchange) for member in item]
        return kind(members) if any(map(is_not, members, item)) else item
    return item
