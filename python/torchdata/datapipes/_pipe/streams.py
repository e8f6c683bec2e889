"""Closes the streams in items that a pipe drops, and replaces the streams in items that a pipe stores. The functions of
this module take almost no time for items without streams."""

from __future__ import annotations

import sys
from operator import is_not
from typing import Any

from torchdata.datapipes.datapipe import DataChunk

#: Types of items that callers need not search for streams.
PLAIN_TYPES: frozenset[type] = frozenset({int, float, str, bytes, bool, type(None)})


def close_dropped(item: Any) -> None:
    if type(item) in PLAIN_TYPES:
        return
    streams = sys.modules.get("torchdata.datapipes.utils._streams")
    if streams is not None:
        streams.StreamWrapper.close_streams(item)


def with_detached_streams(item: Any) -> Any:
    """Returns `item`, or a copy with placeholders instead of streams. When a placeholder is read, it reopens the file
    of the stream.

    The file of a replaced stream is closed once nothing refers to the stream. A stream that cannot be reopened is not
    replaced. Containers without streams are not copied.
    """
    kind = type(item)
    if kind in PLAIN_TYPES:
        return item
    streams = sys.modules.get("torchdata.datapipes.utils._streams")
    if streams is None:
        return item
    if isinstance(item, streams.StreamWrapper):
        placeholder = streams.detached(item)
        return placeholder if isinstance(placeholder, streams.StreamWrapper) else item
    # Subclasses of dict, tuple and list are not searched, because copying them could fail if their constructors need
    # other arguments.
    if kind is dict:
        values = [*map(with_detached_streams, item.values())]
        changed = any(map(is_not, values, item.values()))
        return dict(zip(item, values, strict=True)) if changed else item
    if kind is tuple or kind is list or kind is DataChunk:
        members = [*map(with_detached_streams, item)]
        return kind(members) if any(map(is_not, members, item)) else item
    return item
