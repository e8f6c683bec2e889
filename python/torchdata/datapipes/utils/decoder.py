"""Decodes the contents of files by their extension: the handlers of `routed_decode`.

A handler is a function of an extension and the file's contents that returns None for unsupported extensions. The
handlers in `torch.utils.data.datapipes.utils.decoder` also work.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torchdata._optional import optional_import
from torchdata.datapipes.utils._streams import StreamWrapper

__all__ = ["Decoder", "ImageHandler", "basichandlers", "extension_extract_fn", "handle_extension", "imagehandler"]

Handler = Callable[[str, Any], Any]

_TEXT = frozenset({"txt", "text", "transcript", ""})
_NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_PICKLES = frozenset({"pyd", "pickle", "pt"})
_IMAGES = frozenset({"jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm"})


def extension_extract_fn(pathname: str) -> str:
    """Returns the last extension of a path, without its dot; an empty text if there is none.

    Args:
        pathname: the path or name of a file.

    Example:
        >>> from torchdata.datapipes.utils.decoder import extension_extract_fn
        >>> extension_extract_fn("images/7.seg.png")
        'png'
    """
    return os.path.splitext(pathname)[1][1:]


#: Undocumented errors that libraries raise for malicious contents.
_DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, SyntaxError, TypeError)


@contextlib.contextmanager
def _decoding(extension: str) -> Iterator[None]:
    """Converts an undocumented error that a library raises for invalid contents to a ValueError."""
    try:
        yield
    except _DAMAGE as error:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ValueError(f"the content of a {extension!r} file cannot be decoded: {message}") from error


def _pickles_are_allowed(allow_pickle: bool | None) -> bool:
    environment = os.environ.get("TORCHDATA_ALLOW_PICKLE", "1") != "0" and os.environ.get("WDS_SECURE", "0") in (
        "",
        "0",
    )
    return environment if allow_pickle is None else environment and allow_pickle


def basichandlers(extension: str, data: Any, *, allow_pickle: bool | None = None) -> Any:
    """Decodes text, numbers and serialized Python objects.

    | extension | result |
    | --- | --- |
    | `txt`, `text`, `transcript`, none at all | str, from UTF-8 |
    | `cls`, `cls2`, `class`, `count`, `index`, `inx`, `id` | int; bytes that are not a number stay unchanged |
    | `json`, `jsn` | the value of the JSON text |
    | `pyd`, `pickle` | the unpickled object |
    | `pt` | the result of `torch.load` with `weights_only=True` |

    **Unpickling runs code that the file contains.** For untrusted files, refuse `pyd`, `pickle` and `pt` by
    `allow_pickle=False`. To refuse `pyd`, `pickle` and `pt` in the whole program, set `TORCHDATA_ALLOW_PICKLE=0` in the
    environment (`WDS_SECURE=1`, the variable of webdataset, has the same effect).

    Args:
        extension: the extension, without its dot.
        data: the content of the file, as bytes.
        allow_pickle: whether to read `pyd`, `pickle` and `pt` files, unless the environment forbids pickles; None (the
            default) means True.

    Returns:
        The decoded content; None if the extension is not supported.

    Raises:
        ModuleNotFoundError: the file is a `pt` file, and torch is not installed.
        ValueError: the contents cannot be decoded, or are a pickle although pickles are not allowed.
        pickle.UnpicklingError: a pickle or a `pt` file is damaged, or a `pt` file contains other objects than tensors.

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

        with _decoding(extension):
            return json.loads(data)
    if extension not in _PICKLES:
        return None
    if not _pickles_are_allowed(allow_pickle):
        raise ValueError(
            f"a {extension!r} file is a pickle, which may run code, and is refused by allow_pickle=False, "
            "TORCHDATA_ALLOW_PICKLE=0 or WDS_SECURE=1; if you trust it, decode it with your own handler"
        )
    if extension == "pt":
        torch = optional_import("torch", extra="torch", needed_by="routed_decode of '.pt' files")
        with _decoding(extension):
            return torch.load(io.BytesIO(data), weights_only=True)
    import pickle

    return pickle.loads(data)


#: For each `imagespec`: the library of the result, whether the pixels are floats from 0 to 1, and Pillow's mode.
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
        imagespec: the form of the result, as a name that consists of a prefix, the channels, and a suffix. The prefix
            `torch` means a tensor with the dimensions channels, height and width, or an array if PyTorch is not
            imported. The prefix `pil` means a Pillow image. Without a prefix, the result is a NumPy array with the
            dimensions height, width and channels. The channels are `l`, `rgb` or `rgba`; `torch` and `pil` alone mean
            `rgb`. The suffix, for arrays and tensors, is `8` for integers from 0 to 255, or empty for 32-bit floats
            from 0 to 1.

    Raises:
        AssertionError: the specification is unknown.
        ValueError, OSError: when the handler is called, the contents are not a valid image.
        PIL.Image.DecompressionBombError: when the handler is called, the image has more pixels than Pillow allows.

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
        """Decodes the image in `data`; returns None if `extension` is not an image extension."""
        if extension.lower() not in _IMAGES:
            return None
        kind, in_floats, mode = _SPECIFICATIONS[self.imagespec]
        from torchdata.images._pillow import converted, opened

        with _decoding(extension), opened(data, "routed_decode of images") as image:
            picture = converted(image, mode)
        if kind == "pil":
            return picture
        import numpy as np

        array: Any = np.array(picture)  # `np.array` copies, because Pillow's own memory is read-only
        if kind == "torch":
            array = array[np.newaxis] if mode == "L" else np.ascontiguousarray(array.transpose(2, 0, 1))
        if in_floats:
            array = array.astype(np.float32) / np.float32(255)
        torch = sys.modules.get("torch") if kind == "torch" else None
        return array if torch is None else torch.from_numpy(array)


def imagehandler(imagespec: str) -> ImageHandler:
    """Returns an `ImageHandler` that decodes images as `imagespec` describes.

    Args:
        imagespec: the form of the result, such as "rgb8"; see `ImageHandler`.

    Raises:
        AssertionError: the specification is unknown.

    Example:
        >>> from torchdata.datapipes.utils.decoder import imagehandler
        >>> imagehandler("rgb8").imagespec
        'rgb8'
    """
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
    """Returns a handler that decodes files with some extensions by a function.

    Args:
        extensions: the extensions of the files to decode, separated by spaces. Case is ignored. An extension may
            contain dots (`"seg.png"`) if the `key_fn` of the `Decoder` returns all extensions of a file, not only the
            last one.
        f: the function that decodes the contents of a file.

    Example:
        >>> from torchdata.datapipes.utils.decoder import handle_extension
        >>> shout = handle_extension("txt md", lambda data: data.decode().upper())
        >>> shout("md", b"read me"), shout("png", b"...")
        ('READ ME', None)
    """
    return _ExtensionHandler(extensions, f)


class Decoder:
    """Decodes pairs of path and contents with the first handler that returns a result.

    Args:
        *handler: functions of a key and contents, which return None for unsupported keys.
        key_fn: a function from a path to its key; `extension_extract_fn` by default.
        allow_pickle: the argument `allow_pickle` that `basichandlers` receives, if `basichandlers` is one of the
            handlers; None by default.

    Example:
        >>> from torchdata.datapipes.utils.decoder import Decoder, basichandlers
        >>> Decoder(basichandlers)(("a.txt", b"abc"))
        {'a.txt': 'abc'}
    """

    def __init__(
        self, *handler: Handler, key_fn: Callable[[str], str] = extension_extract_fn, allow_pickle: bool | None = None
    ) -> None:
        self.allow_pickle = allow_pickle
        self.handlers = self._with_option(handler)
        self.key_fn = key_fn

    def _with_option(self, handlers: tuple[Handler, ...]) -> list[Handler]:
        if self.allow_pickle is None:
            return list(handlers)
        handled = partial(basichandlers, allow_pickle=self.allow_pickle)
        return [handled if handler is basichandlers else handler for handler in handlers]

    def add_handler(self, *handler: Handler) -> None:
        """Adds handlers before the existing handlers.

        Args:
            *handler: functions of a key and contents, which return None for unsupported keys.
        """
        self.handlers = [*self._with_option(handler), *self.handlers]

    def decode1(self, key: str, data: Any) -> Any:
        """Returns the decoded contents of one file. Returns the contents themselves if they are empty, or if no handler
        supports the key.

        Args:
            key: the key that the handlers receive, such as the file's extension.
            data: the contents as bytes, or a binary stream, which is read and closed.

        Raises:
            TypeError: `data` is a stream of text.
        """
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
        """Decodes one pair of path and contents, or several pairs. Returns a dict from path to result.

        If the path of a pair begins with an underscore, the contents of the pair are decoded as UTF-8 text if they are
        bytes.

        Args:
            data: a tuple of a path and the file's contents, or an iterable of such tuples.
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
            "handlers decode bytes, but the stream yields text; open it in binary mode: open_files(mode='b')"
        )
    return content
