"""Decoding the content of files by their extension: the handlers of `routed_decode`.

A handler is a function of an extension and the file's content, which returns None for what is not its own. Handlers
that were written for torch's pipes work as they are, those in `torch.utils.data.datapipes.utils.decoder` among them.

Role: the handlers that ship. Runs in the process that iterates the pipe; owns nothing.
"""

from __future__ import annotations

import io
import os.path
import sys
from collections.abc import Callable
from typing import Any

from torchdata._optional import optional_import
from torchdata.datapipes.utils._streams import StreamWrapper

__all__ = [
    "Decoder",
    "ImageHandler",
    "basichandlers",
    "extension_extract_fn",
    "handle_extension",
    "imagehandler",
]

Handler = Callable[[str, Any], Any]

_TEXT = frozenset({"txt", "text", "transcript", ""})
_NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_IMAGES = frozenset({"jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm"})


def extension_extract_fn(pathname: str) -> str:
    """The extension of a path, without its dot; empty where it has none.

    Example:
        >>> from torchdata.datapipes.utils.decoder import extension_extract_fn
        >>> extension_extract_fn("images/7.seg.png")
        'png'
    """
    return os.path.splitext(pathname)[1][1:]


def basichandlers(extension: str, data: Any) -> Any:
    """Decodes text, numbers and serialised Python objects.

    | extension | result |
    | --- | --- |
    | `txt`, `text`, `transcript`, none at all | str, from UTF-8 |
    | `cls`, `cls2`, `class`, `count`, `index`, `inx`, `id` | int; bytes that are no number stay as they are |
    | `json`, `jsn` | what the JSON says |
    | `pyd`, `pickle` | the unpickled object |
    | `pt` | what `torch.load` reads, with `weights_only=True` |

    **Unpickling runs code that the file contains.** Use this handler for files from people whom you trust, or leave
    pickles out by handlers of your own.

    Args:
        extension: the extension, without its dot.
        data: the content of the file, as bytes.

    Returns:
        The decoded content; None for other extensions.

    Raises:
        ModuleNotFoundError: a `pt` file is met and torch is not installed.

    Example:
        >>> from torchdata.datapipes.utils.decoder import basichandlers
        >>> basichandlers("json", b'{"width": 3}')
        {'width': 3}
    """
    if extension in _TEXT:
        return data.decode("utf-8")
    if extension in _NUMBERS:
        try:
            return int(data)
        except ValueError:
            return None
    if extension in ("json", "jsn"):
        import json

        return json.loads(data)
    if extension in ("pyd", "pickle"):
        import pickle

        return pickle.loads(data)
    if extension == "pt":
        torch = optional_import("torch", extra="torch", needed_by="routed_decode of '.pt' files")
        return torch.load(io.BytesIO(data), weights_only=True)
    return None


#: By name: the kind of result, whether its numbers are floats from 0 to 1, and Pillow's mode.
_SPECIFICATIONS: dict[str, tuple[str, bool, str]] = {
    "l8": ("numpy", False, "L"),
    "rgb8": ("numpy", False, "RGB"),
    "rgba8": ("numpy", False, "RGBA"),
    "l": ("numpy", True, "L"),
    "rgb": ("numpy", True, "RGB"),
    "rgba": ("numpy", True, "RGBA"),
    "torchl8": ("torch", False, "L"),
    "torchrgb8": ("torch", False, "RGB"),
    "torchrgba8": ("torch", False, "RGBA"),
    "torchl": ("torch", True, "L"),
    "torchrgb": ("torch", True, "RGB"),
    "torch": ("torch", True, "RGB"),
    "torchrgba": ("torch", True, "RGBA"),
    "pill": ("pil", False, "L"),
    "pil": ("pil", False, "RGB"),
    "pilrgb": ("pil", False, "RGB"),
    "pilrgba": ("pil", False, "RGBA"),
}


class ImageHandler:
    """Decodes images (`jpg`, `jpeg`, `png`, `ppm`, `pgm`, `pbm`, `pnm`) with Pillow.

    Args:
        imagespec: what an image becomes: a prefix (none: a NumPy array of height, width and channels; `torch`: a tensor
            of channels, height and width; `pil`: an image of Pillow), the channels (`l`, `rgb` or `rgba`; `torch` and
            `pil` alone mean `rgb`), and for arrays and tensors either `8` (integers from 0 to 255) or nothing (32-bit
            floats from 0 to 1). Without PyTorch loaded, a NumPy array of the same shape takes the tensor's place.

    Raises:
        AssertionError: there is no such specification.

    Example:
        >>> from torchdata.datapipes.utils.decoder import ImageHandler
        >>> ImageHandler("rgb8")("pgm", b"P5 2 1 255 \\x00\\xff").tolist()
        [[[0, 0, 0], [255, 255, 255]]]
    """

    def __init__(self, imagespec: str) -> None:
        if imagespec not in _SPECIFICATIONS:
            raise AssertionError(
                f"ImageHandler: unknown image specification {imagespec!r}; choose one of {', '.join(_SPECIFICATIONS)}"
            )
        self.imagespec = imagespec

    def __call__(self, extension: str, data: Any) -> Any:
        """The image in `data`; None where `extension` is not that of an image."""
        if extension.lower() not in _IMAGES:
            return None
        image = optional_import("PIL.Image", extra="image", needed_by="routed_decode of images")
        kind, in_floats, mode = _SPECIFICATIONS[self.imagespec]
        with image.open(io.BytesIO(data)) as opened:
            picture = opened.convert(mode)
        if kind == "pil":
            return picture
        import numpy as np

        array: Any = np.array(picture)  # a copy: Pillow's own memory cannot be written
        if kind == "torch":
            array = array[np.newaxis] if mode == "L" else np.ascontiguousarray(array.transpose(2, 0, 1))
        if in_floats:
            array = array.astype(np.float32) / np.float32(255)
        torch = sys.modules.get("torch") if kind == "torch" else None
        return array if torch is None else torch.from_numpy(array)


def imagehandler(imagespec: str) -> ImageHandler:
    """The handler of images that makes of them what `imagespec` says: see `ImageHandler`."""
    return ImageHandler(imagespec)


class _ExtensionHandler:
    def __init__(self, extensions: str, function: Callable[[Any], Any]) -> None:
        self.extensions = [extension.split(".") for extension in extensions.lower().split()]
        self.function = function

    def __call__(self, key: str, data: Any) -> Any:
        found = key.lower().split(".")
        matches = any(found[-len(wanted) :] == wanted for wanted in self.extensions)
        return self.function(data) if matches else None


def handle_extension(extensions: str, f: Callable[[Any], Any]) -> Handler:
    """A handler that decodes files of some extensions by a function.

    Args:
        extensions: the extensions, with blanks between them. One with dots in it (`"seg.png"`) is compared with as
            many parts of the key. Case does not matter.
        f: a function of the content of the file.

    Example:
        >>> from torchdata.datapipes.utils.decoder import handle_extension
        >>> shout = handle_extension("txt md", lambda data: data.decode().upper())
        >>> shout("md", b"read me"), shout("png", b"...")
        ('READ ME', None)
    """
    return _ExtensionHandler(extensions, f)


class Decoder:
    """Decodes pairs of path and content by the first handler that returns something.

    Args:
        *handler: functions of a key and content, which return None for what they do not decode.
        key_fn: makes the key of a path.

    Example:
        >>> from torchdata.datapipes.utils.decoder import Decoder, basichandlers
        >>> Decoder(basichandlers)(("a.txt", b"abc"))
        {'a.txt': 'abc'}
    """

    def __init__(self, *handler: Handler, key_fn: Callable[[str], str] = extension_extract_fn) -> None:
        self.handlers = list(handler)
        self.key_fn = key_fn

    def add_handler(self, *handler: Handler) -> None:
        """Puts handlers before those that there are."""
        self.handlers = [*handler, *self.handlers]

    def decode1(self, key: str, data: Any) -> Any:
        """Decodes one content, a stream (which is read and closed) or bytes; what no handler knows stays as it is."""
        if data is None or (hasattr(data, "__len__") and len(data) == 0):
            return data
        if isinstance(data, (StreamWrapper, io.IOBase)) or hasattr(data, "read"):
            data = _read_whole(data)
        for handler in self.handlers:
            result = handler(key, data)
            if result is not None:
                return result
        return data

    def decode(self, data: Any) -> dict[str, Any]:
        """Decodes one pair of path and content (a tuple), or an iterable of them, into a dict by path.

        Bytes under a path that begins with an underscore are decoded as text.
        """
        pairs = [data] if isinstance(data, tuple) else data or ()
        return {path: self._decode_pair(path, content) for path, content in pairs}

    def _decode_pair(self, path: str, content: Any) -> Any:
        if path.startswith("_") and isinstance(content, bytes):
            return content.decode("utf-8")
        return self.decode1(self.key_fn(path), content)

    def __call__(self, data: Any) -> dict[str, Any]:
        return self.decode(data)


def _read_whole(stream: Any) -> Any:
    try:
        content = stream.read()
    finally:
        if hasattr(stream, "close"):
            stream.close()
    if isinstance(content, str):
        raise TypeError(
            "handlers decode bytes, but the stream is one of text; open it in binary mode: open_files(mode='b')"
        )
    return content
