"""The functions that decode images: `decode` for one image, and `decode_batch` for a block of images.

`decode_batch` starts threads if requested, and ends them before it returns.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from torchdata._handlers import is_of_handler
from torchdata._optional import optional_import
from torchdata._redacting import shown
from torchdata.images import _pillow
from torchdata.images._boxes import Box, check_box
from torchdata.images._pictures import DecodablePicture, open_picture

Size = int | tuple[int, int] | None
Crop = Sequence[int] | Callable[[int, int], Sequence[int]] | None

_MODES = {"RGB": (3, "uint8"), "L": (1, "uint8"), "RGBA": (4, "uint8"), "I;16": (1, "uint16")}
#: For each filter: True if the native extension resizes with this filter, False if Pillow does. If the extension
#: resizes an image, the pixels differ from Pillow's by at most one level.
_FILTERS = {"bilinear": True, "hamming": True, "nearest": False, "box": False, "bicubic": False, "lanczos": False}


@dataclass(frozen=True)
class Request:
    """The settings of a decoding: the arguments of `decode`."""

    size: Any = None
    mode: str = "RGB"
    layout: str = "HWC"
    scale: str = "exact"
    resample: str = "bilinear"
    exif: bool = False
    truncated: str = "error"
    as_tensor: bool = False
    #: The height and width of the result; None if the result has the size of the crop.
    target: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        choices = {
            "mode": tuple(_MODES),
            "layout": ("HWC", "CHW"),
            "scale": ("exact", "fast"),
            "resample": tuple(_FILTERS),
            "truncated": ("error", "keep"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                words = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} must be one of {words}, but got {getattr(self, name)!r}")
        object.__setattr__(self, "target", _target(self.size))

    def shape(self, target: tuple[int, int]) -> tuple[int, int, int]:
        channels = _MODES[self.mode][0]
        return (*target, channels) if self.layout == "HWC" else (channels, *target)

    def dtype(self) -> Any:
        name = _MODES[self.mode][1]
        return getattr(_torch(), name) if self.as_tensor else name


def _torch() -> Any:
    return optional_import("torch", extra="torch", needed_by="torchdata.images with as_tensor=True")


def _target(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    try:
        sides = (size.__index__(),) * 2 if hasattr(size, "__index__") else tuple(side.__index__() for side in size)
    except (AttributeError, TypeError):
        sides = ()
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"size must be a positive integer, for a square, or (height, width), but got {size!r}")
    return sides


def decode(
    data: Any,
    size: Size = None,
    *,
    crop: Crop = None,
    flip: bool = False,
    mode: str = "RGB",
    layout: Literal["HWC", "CHW"] = "HWC",
    scale: Literal["exact", "fast"] = "exact",
    resample: str = "bilinear",
    exif: bool = False,
    truncated: Literal["error", "keep"] = "error",
    as_tensor: bool = False,
) -> Any:
    """Decodes an image to an array of its pixels, with optional cropping and resizing.

    If an image is not resized, its pixels are equal to Pillow's pixels. After resizing, pixel values (0 to 255) differ
    from Pillow's by at most 1. In a worker, the array is allocated in shared memory, like the result of
    `torchdata.empty`.

    Args:
        data: the contents of the file as bytes, the path of the file, or a file opened in binary mode. An opened file
            is read to its end and stays open.
        size: the size of the result: (height, width), or an integer for a square, at least 1 each. If `size` is None
            (the default), the result has the size of the crop.
        crop: the part of the image to use, (left, top, right, bottom) in pixels before resizing; or a function of width
            and height that returns this part. If `crop` is None (the default), the whole image is used.
        flip: whether to mirror the image horizontally; False by default.
        mode: the channels: "RGB" (the default), "L" (gray), "RGBA", or "I;16" (16-bit gray images). "RGB" and "L" drop
            transparency, as Pillow's `convert` does.
        layout: "HWC" (the default) for height, width, channels; "CHW" for channels first.
        scale: "exact" (the default), or "fast", which decodes JPEG images at a half, a quarter or an eighth of their
            size, if the reduced image is not smaller than the result.
        resample: "bilinear" (the default), "hamming", "bicubic", "lanczos", "box" or "nearest", with antialiasing, as
            in Pillow. "bilinear" and "hamming" are faster, because the native extension implements them.
        exif: whether to rotate the image upright according to EXIF; False by default. `crop` refers to the upright
            image.
        truncated: "error" (the default) raises an error for a truncated image; "keep" returns its available part.
        as_tensor: whether the result is a torch tensor; False by default.

    Returns:
        An array (or tensor) with three axes, of uint8, or of uint16 for "I;16".

    Raises:
        FileNotFoundError, PermissionError: the path cannot be read.
        ModuleNotFoundError: Pillow is not installed.
        PIL.Image.DecompressionBombError: the image has more pixels than Pillow allows; a note names the file.
        TypeError: `data` has an unsupported type, or `crop` is not a box.
        ValueError: the content is not an intact image (the message names the file), the crop is not within the image,
            or an argument has a value that is not listed above.

    Example:
        >>> from torchdata.images import decode
        >>> image = b"P6 3 2 255 " + bytes(range(18))
        >>> decode(image).shape, decode(image, (4, 4), crop=(1, 0, 3, 2), layout="CHW").shape
        ((2, 3, 3), (3, 4, 4))
        >>> decode(image, mode="L")[..., 0].tolist()
        [[1, 4, 7], [10, 13, 16]]
    """
    request = Request(size, mode, layout, scale, resample, exif, truncated, as_tensor)
    return decode_as(request, data, crop, flip)


def decode_as(request: Request, data: Any, crop: Crop = None, flip: bool = False) -> Any:
    from torchdata import empty

    content, name = read(data)
    picture, box = _opened(request, content, name, crop)
    target = request.target or (box[3] - box[1], box[2] - box[0])
    made = empty(request.shape(target), request.dtype())
    _fill(request, picture, box, flip, name, made.numpy() if request.as_tensor else made)
    return made


def decode_batch(
    data: Sequence[Any],
    size: int | tuple[int, int],
    out: Any = None,
    threads: int = 0,
    *,
    crop: Crop = None,
    flip: Sequence[bool] | bool = False,
    mode: str = "RGB",
    layout: Literal["HWC", "CHW"] = "HWC",
    scale: Literal["exact", "fast"] = "exact",
    resample: str = "bilinear",
    exif: bool = False,
    truncated: Literal["error", "keep"] = "error",
    as_tensor: bool = False,
) -> Any:
    """Decodes images to one size in one array, so that the batch need not be collated.

    Args:
        data: the images, each as for `decode`.
        size: the size of each result: (height, width), or an integer for a square, at least 1 each.
        out: an array or a contiguous tensor of bytes to fill, with the shape of the result. If `out` is None (the
            default), a new array is created, which is in shared memory in a worker.
        threads: the number of threads that decode concurrently, for processes with spare cores; 0 (the default) decodes
            in the calling thread.
        crop: the part to use of each image: a box, or a function of width and height, which is called for the images in
            order. If `crop` is None (the default), whole images are used.
        flip: whether to mirror the images horizontally: one value for all images, or one value per image;
            False by default.
        mode: as for `decode`; "RGB" by default.
        layout: as for `decode`; "HWC" by default.
        scale: as for `decode`; "exact" by default.
        resample: as for `decode`; "bilinear" by default.
        exif: as for `decode`; False by default.
        truncated: as for `decode`; "error" by default.
        as_tensor: as for `decode`; False by default.

    Returns:
        An array with the axes (images, height, width, channels), or (images, channels, height, width) for "CHW"; `out`
        if it was given.

    Raises:
        TypeError, ValueError: as for `decode`, with a note about the position of the image in the batch; `out` does not
            fit the result; `threads` is negative; `flip` does not have one value for each image.

    Example:
        >>> from torchdata.images import decode_batch
        >>> images = [b"P5 2 1 255 \\x00\\xff", b"P5 1 1 255 \\x07"]
        >>> decode_batch(images, (1, 2), mode="L")[..., 0].tolist()
        [[[0, 255]], [[7, 7]]]
    """
    from torchdata import empty

    request = Request(size, mode, layout, scale, resample, exif, truncated, as_tensor)
    if request.target is None:
        raise ValueError("decode_batch: size is needed, (height, width) or an integer for a square")
    if threads < 0:
        raise ValueError(f"decode_batch: threads must not be negative, but got {threads}")
    flips = [flip] * len(data) if isinstance(flip, (bool, int)) else list(flip)
    if len(flips) != len(data):
        raise ValueError(f"decode_batch: flip has {len(flips)} members for {len(data)} images")
    shape = (len(data), *request.shape(request.target))
    made = empty(shape, request.dtype()) if out is None else out
    block = _array_over(made, shape, _MODES[mode][1])
    calls = []
    for number, one in enumerate(data):
        with _numbered(number):
            content, name = read(one)
            calls.append((request, *_opened(request, content, name, crop), flips[number], name, block[number]))
    if threads <= 1 or len(calls) <= 1:
        for number, call in enumerate(calls):
            with _numbered(number):
                _fill(*call)
        return made
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(threads, len(calls)), "torchdata-images") as pool:
        waited = [pool.submit(_fill, *call) for call in calls]
        try:
            for number, one in enumerate(waited):
                with _numbered(number):
                    one.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return made


@contextmanager
def _numbered(number: int) -> Iterator[None]:
    """Adds to an exception a note with the position of the image in the batch."""
    try:
        yield
    except Exception as error:
        error.add_note(f"decode_batch was decoding image {number} of the batch.")
        raise


def _array_over(out: Any, shape: tuple[int, ...], dtype: str) -> Any:
    import numpy as np

    array = out.numpy() if type(out).__module__ == "torch" else out
    fits = isinstance(array, np.ndarray) and array.shape == shape and array.dtype == dtype
    if not (fits and array.flags.c_contiguous and array.flags.writeable):
        passed = f"{getattr(array, 'dtype', type(out).__name__)} {getattr(array, 'shape', '')}"
        raise ValueError(
            f"decode_batch: out must be a writable {dtype} array of shape {shape} in C order, not {passed}"
        )
    return array


def read(data: Any) -> tuple[Any, str]:
    """Returns the contents of an image, and the name of the image for messages."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        content, name = data, f"an image of {len(data):,} bytes"
    elif isinstance(data, (str, os.PathLike)):
        with open(data, "rb") as file:
            content, name = file.read(), shown(os.fspath(data))
    elif hasattr(data, "read"):
        content, name = data.read(), shown(getattr(data, "name", None) or type(data).__name__)
    elif getattr(data, "dtype", None) is not None and str(data.dtype) == "uint8" and hasattr(data, "__array__"):
        content, name = memoryview(data.__array__()).cast("B"), f"an image of {len(data):,} bytes"
    else:
        content, name = None, type(data).__name__
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError(f"an image is given as bytes, a path or a file that is open for reading bytes, not as {name}")
    if len(content) == 0:
        raise ValueError(f"{name} cannot be decoded: it is empty")
    return content, name


def _opened(request: Request, content: Any, name: str, crop: Crop) -> tuple[DecodablePicture, Box]:
    """Returns the image, and the part of the image to use."""
    with _decoding(name):
        picture = open_picture(content, request.mode, request.exif, request.truncated == "keep")
    width, height = picture.width, picture.height
    if crop is None:
        return picture, (0, 0, width, height)
    return picture, check_box(crop(width, height) if callable(crop) else crop, width, height, name)


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """Converts all errors that Pillow raises for damaged contents to a ValueError that names the image."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        module = _pillow.image_module()
        if isinstance(error, module.DecompressionBombError) or is_of_handler(error):
            error.add_note(f"This happened while decoding {name}.")
            raise
        what = str(error) or type(error).__name__
        if isinstance(error, module.UnidentifiedImageError):
            what = "Pillow does not support its format"
        raise ValueError(f"{name} cannot be decoded: {what}") from error


def _fill(request: Request, picture: DecodablePicture, box: Box, flip: bool, name: str, out: Any) -> None:
    rows, columns = out.shape[:2] if request.layout == "HWC" else out.shape[1:]
    left, top, right, bottom = box
    by, whole = 1, (0, 0, picture.width, picture.height)
    if request.scale == "fast":
        # The minimum size of the image after a reduction by the decoder. If the reduced image were smaller than this
        # size, the crop would have fewer pixels than the result.
        least = math.ceil(columns * whole[2] / (right - left)), math.ceil(rows * whole[3] / (bottom - top))
        by = picture.reduce(*least)
    plain = box == whole and not flip and (rows, columns) == (picture.height, picture.width)
    with _decoding(name):
        if plain and request.layout == "HWC":
            picture.pixels(out)
            return
        region: tuple[float, float, float, float] = box
        if by > 1:
            across, down = picture.width / whole[2], picture.height / whole[3]
            region = left * across, top * down, min(right * across, picture.width), min(bottom * down, picture.height)
        pixels, column, row = picture.part(region)
    region = region[0] - column, region[1] - row, region[2] - column, region[3] - row
    planar = request.layout == "CHW"
    if _FILTERS[request.resample] and request.mode in ("RGB", "L"):
        from torchdata._native import resize_pixels

        resize_pixels(pixels, region, request.resample, out, mirrored=bool(flip), planar=planar)
        return
    made = _resized_by_pillow(pixels, region, request, (columns, rows))
    if flip:
        made = made[:, ::-1]
    out[...] = made.transpose(2, 0, 1) if planar else made


def _resized_by_pillow(pixels: Any, region: tuple[float, ...], request: Request, size: tuple[int, int]) -> Any:
    import numpy as np

    module = _pillow.image_module()
    left, top, right, bottom = math.floor(region[0]), math.floor(region[1]), math.ceil(region[2]), math.ceil(region[3])
    part = np.ascontiguousarray(pixels[top:bottom, left:right])
    flat = part[..., 0] if part.shape[2] == 1 else part  # Pillow requires a gray image without the last axis
    image = module.fromarray(flat.astype(np.int32) if request.mode == "I;16" else flat)
    if size != image.size or region != (left, top, right, bottom):
        box = (region[0] - left, region[1] - top, region[2] - left, region[3] - top)
        image = image.resize(size, module.Resampling[request.resample.upper()], box=box)
    made = np.asarray(image)
    if request.mode == "I;16":
        made = made.clip(0, 0xFFFF).astype(np.uint16)
    return made.reshape(size[1], size[0], -1)
