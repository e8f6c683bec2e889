"""The pipe that decodes files by their extension: RoutedDecoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchdata.datapipes._pipe.checks import check_callable, explaining
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes.iter.streams.pairs import path_and_stream, source_pipe
from torchdata.datapipes.utils.decoder import Decoder, basichandlers, extension_extract_fn, imagehandler

__all__ = ["RoutedDecoder"]


class RoutedDecoder(ItemByItem[tuple[str, Any]]):
    """Decodes files: yields pairs of path and the result of the first handler that can decode the content.

    Streams are read completely and closed. Content that no handler can decode stays bytes.

    **The default handlers unpickle `.pyd` and `.pickle` files, which runs code that the file contains.** For untrusted
    files, pass `allow_pickle=False`, or set `TORCHDATA_ALLOW_PICKLE=0` in the environment, which has priority over all
    arguments.

    Args:
        datapipe: yields pairs of path and binary stream, or bytes.
        *handlers: functions of a key and content, called in order until one of them returns a value other than None.
            The default handlers are `basichandlers` and `imagehandler("torch")` of `torchdata.datapipes.utils.decoder`;
            `imagehandler` returns NumPy arrays if PyTorch is not imported. Handlers of
            `torch.utils.data.datapipes.utils.decoder` also work.
        key_fn: a function from the path to the key that handlers receive; by default the extension without its dot.
        allow_pickle: whether `basichandlers` (and no other handler) reads `.pyd`, `.pickle` and `.pt` files, unless the
            environment forbids pickles; None (the default) means True.

    Raises:
        TypeError: a handler or `key_fn` is not a function, or `allow_pickle` is not a bool; or, while iterating, an
            item is not a pair, or a stream contains text.
        ValueError: while iterating, content cannot be decoded, or is a pickle that is refused; a note names the path.

    Example:
        >>> import io
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> files = [("a/1.json", io.BytesIO(b'{"width": 3}')), ("a/1.cls", b"7"), ("a/1.xyz", b"?")]
        >>> list(IterableWrapper(files).routed_decode())
        [('a/1.json', {'width': 3}), ('a/1.cls', 7), ('a/1.xyz', b'?')]
    """

    def __init__(
        self,
        datapipe: Iterable[tuple[str, Any]],
        *handlers: Callable[[str, Any], Any],
        key_fn: Callable[[str], str] = extension_extract_fn,
        allow_pickle: bool | None = None,
    ) -> None:
        self.datapipe = source_pipe(datapipe, self)
        check_callable("RoutedDecoder", "key_fn", key_fn)
        for position, handler in enumerate(handlers):
            check_callable("RoutedDecoder", f"handler {position}", handler)
        if not (allow_pickle is None or isinstance(allow_pickle, bool)):
            raise TypeError(f"RoutedDecoder: allow_pickle must be a bool or None, but got {allow_pickle!r}")
        chosen = handlers or (basichandlers, imagehandler("torch"))
        self.decoder = Decoder(*chosen, key_fn=key_fn, allow_pickle=allow_pickle)

    def add_handler(self, *handler: Callable[[str, Any], Any]) -> None:
        """Adds handlers before the existing handlers.

        Args:
            *handler: the handlers to add: functions of a key and content, which return None for unsupported keys.

        Raises:
            TypeError: a handler is not a function.
        """
        for position, one in enumerate(handler):
            check_callable("RoutedDecoder", f"handler {position}", one)
        self.decoder.add_handler(*handler)

    def _result(self, item: Any) -> tuple[str, Any]:
        path, _ = pair = path_and_stream(item, self)
        with explaining(self, "was decoding", path):
            return path, self.decoder(pair)[path]
