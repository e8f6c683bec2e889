"""The pipe that parses JSON files: JsonParser. `JsonParser` closes the streams that it reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import explaining
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes.iter.streams.pairs import pair_of, source_pipe

__all__ = ["JsonParser"]


class JsonParser(ItemByItem[tuple[str, Any]]):
    """Parses JSON files, each as a whole: yields pairs of path and value.

    Args:
        source_datapipe: yields pairs of path and stream, of text or bytes. Each stream is closed after it was read.
        **kwargs: options of `json.loads`: `object_hook`, `parse_float`, `cls`, …

    Raises:
        TypeError: `json.loads` does not accept an option.
        json.JSONDecodeError: while iterating, a text is not JSON; the message names path and position. A text with too
            many levels of nesting raises ValueError.
        UnicodeDecodeError: while iterating, bytes are not UTF-8, UTF-16 or UTF-32; the error's `reason` names the path.

    Example:
        >>> import io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("a.json", io.StringIO('{"key": [1, null]}'))]).parse_json_files())
        [('a.json', {'key': [1, None]})]
    """

    def __init__(self, source_datapipe: Iterable[tuple[str, Any]], **kwargs: Any) -> None:
        import json

        self.source_datapipe = source_pipe(source_datapipe, self)
        self.kwargs = kwargs
        try:
            json.loads("null", **kwargs)
        except TypeError as error:
            raise TypeError(
                f"JsonParser: {error}; the options {shown(kwargs)} must be options of Python's json.loads"
            ) from error

    def _result(self, pair: Any) -> tuple[str, Any]:
        path, stream = pair_of(pair, self)
        with explaining(self, "was reading", path):
            return path, self._parsed(path, stream)

    def _parsed(self, path: str, stream: Any) -> Any:
        import json

        try:
            with contextlib.closing(stream):
                text = stream.read()
            return json.loads(text, **self.kwargs)
        except json.JSONDecodeError as error:
            message = f"JsonParser cannot parse {shown(path)}: {error.msg}"
            raise json.JSONDecodeError(message, error.doc, error.pos) from error
        except RecursionError:
            raise ValueError(f"JsonParser cannot parse {shown(path)}: it is nested too deeply") from None
        except UnicodeDecodeError as error:
            error.reason += f" (in {shown(path)}, read by JsonParser; open it as text with the right encoding)"
            raise
