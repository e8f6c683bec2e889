"""Closing the streams in items that a pipe drops.

Role: pipes that drop items call `close_dropped` on each. It costs next to nothing for plain items and where
no stream was ever wrapped. Runs in the process that iterates the pipe.
"""

from __future__ import annotations

import sys
from typing import Any

#: Types of items that hold no streams; callers that are in a hurry ask before they call.
PLAIN_TYPES: frozenset[type] = frozenset({int, float, str, bytes, bool, type(None)})


def close_dropped(item: Any) -> None:
    """Closes every wrapped stream in `item`, which nobody will read any more."""
    if type(item) in PLAIN_TYPES:
        return
    streams = sys.modules.get(
        "torchdata.datapipes.utils._streams"
    )  # not loaded: nothing can have been wrapped
    if streams is not None:
        streams.StreamWrapper.close_streams(item)
