"""Images with a parsed header. The decoded pixels are the same, whether simplejpeg or Pillow decodes the image."""

from __future__ import annotations

import functools
import math
import threading
from typing import Any, Protocol

from torchdata._importing import import_whole
from torchdata.images import _pillow

#: The maximum size of the pixel buffer that a thread keeps for its next image, in bytes.
_KEPT = 64 << 20

#: For each mode: its name in simplejpeg, and the JPEG color spaces that simplejpeg and Pillow decode to equal pixels.
#: Color images are not decoded to gray by simplejpeg, because Pillow's gray pixels would differ.
_COLOURS = {"RGB": ("RGB", frozenset({"YCbCr", "Gray", "RGB"})), "L": ("GRAY", frozenset({"Gray"}))}

_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4, "I;16": 1}


class DecodablePicture(Protocol):
    """An image to decode. `width` and `height` are the size of the decoded image."""

    width: int
    height: int

    def pixels(self, out: Any = None) -> Any:
        """Returns the pixels as an array (height, width, channels). If `out` is None, the returned array is valid only
        until the same thread decodes another image.
        """

    def part(self, region: tuple[float, ...]) -> tuple[Any, int, int]:
        """Returns an array with at least the pixels of a region, and the column and row of the array's first pixel."""
        return self.pixels(), 0, 0

    def reduce(self, width: int, height: int) -> int:
        """Reduces the size of the decoded image by a factor of 2, 4 or 8, and returns the factor. If an image of half
        the size would be smaller than `width` or `height`, returns 1 without a reduction."""


class _Room(threading.local):
    """The memory into which a thread decodes an image before cropping and resizing."""

    def __init__(self) -> None:
        self.bytes: Any = None

    def of(self, size: int) -> Any:
        import numpy as np

        if self.bytes is not None and len(self.bytes) >= size:
            return self.bytes
        room = np.empty(size, np.uint8)
        if size <= _KEPT:
            self.bytes = room
        return room


_room = _Room()


@functools.cache
def simplejpeg() -> Any:
    try:
        return import_whole("simplejpeg")
    except ImportError:
        return None


def open_picture(content: Any, mode: str, exif: bool, keep: bool) -> DecodablePicture:
    """Parses the header of an image. If `keep` is True, the available part of a truncated image is decoded. Raises
    `PIL.Image.DecompressionBombError` for more pixels than Pillow allows. Raises any of Pillow's errors if the contents
    are not an image."""
    found: Any = None
    library = simplejpeg() if mode in _COLOURS and content[:3] == b"\xff\xd8\xff" else None
    if library is not None:
        try:
            height, width, colours, _ = library.decode_jpeg_header(content)
        except ValueError:
            colours = None
        if colours in _COLOURS[mode][1]:
            _pillow.check_pixels(width, height)
            found = _Jpeg(library, content, mode, width, height, keep)
    image = None
    if found is None or exif:
        image = _pillow.opened(content)
    turned = _pillow.orientation(image) if exif else 1
    if found is None:
        found = _Other(image, mode, keep)
    return found if turned == 1 else _Turned(found, turned)


def _power(width: int, height: int, least_width: int, least_height: int) -> int:
    for by in (8, 4, 2):
        if -(-width // by) >= least_width and -(-height // by) >= least_height:
            return by
    return 1


class _Jpeg(DecodablePicture):
    """A JPEG image. If simplejpeg refuses the image, Pillow decodes it or raises an error."""

    def __init__(self, library: Any, content: Any, mode: str, width: int, height: int, keep: bool) -> None:
        self.library, self.content, self.mode, self.keep = library, content, mode, keep
        self.width, self.height = width, height
        self.by = 1

    def reduce(self, width: int, height: int) -> int:
        by = _power(self.width, self.height, width, height)
        if by > 1:
            self.width, self.height, self.by = -(-self.width // by), -(-self.height // by), by
        return by

    def pixels(self, out: Any = None) -> Any:
        shape = self.height, self.width, _CHANNELS[self.mode]
        room = _room.of(shape[0] * shape[1] * shape[2]) if out is None else out
        least = {} if self.by == 1 else {"min_height": self.height, "min_width": self.width, "min_factor": self.by}
        try:
            found = self.library.decode_jpeg(self.content, _COLOURS[self.mode][0], buffer=room, **least)
        except ValueError:
            found = None
        if found is not None and found.shape == shape:
            return found
        other = _Other(_pillow.opened(self.content), self.mode, self.keep)
        if self.by > 1:
            other.reduce(self.width, self.height)
        return other.pixels(out)

    def part(self, region: tuple[float, ...]) -> tuple[Any, int, int]:
        from torchdata._native import decode_jpeg_part

        # The part is larger by one block of 16 pixels on each side, so that its pixels are as in the whole image.
        margin, channels = 16 // self.by, _CHANNELS[self.mode]
        left, top = (max(0, math.floor(edge) // margin - 1) * margin for edge in region[:2])
        width = min(self.width, math.ceil(region[2]) + margin) - left
        height = min(self.height, math.ceil(region[3]) + margin) - top
        if (width, height) != (self.width, self.height):
            room = _room.of(self.height * self.width * channels)[: height * width * channels]
            if decode_jpeg_part(self.content, (left, top, width, height), self.by, channels, room):
                return room.reshape(height, width, channels), left, top
        return self.pixels(), 0, 0


class _Other(DecodablePicture):
    def __init__(self, image: Any, mode: str, keep: bool) -> None:
        self.image, self.mode, self.keep = image, mode, keep
        self.width, self.height = image.size

    def reduce(self, width: int, height: int) -> int:
        by = _power(self.width, self.height, width, height)
        if by == 1 or self.image.format not in ("JPEG", "MPO") or self.mode not in ("RGB", "L"):
            return 1
        whole = self.width
        self.image.draft(None, (self.width // by, self.height // by))
        self.width, self.height = self.image.size
        return by if self.width < whole else 1

    def pixels(self, out: Any = None) -> Any:
        import numpy as np

        image = _pillow.converted(self.image, self.mode, self.keep)
        array = np.asarray(image)
        if self.mode == "I;16":
            array = array.clip(0, 0xFFFF).astype(np.uint16)
        array = array.reshape(image.height, image.width, _CHANNELS[self.mode])
        if out is None:
            return array
        np.copyto(out, array)
        return out


class _Turned(DecodablePicture):
    """A picture that is rotated and mirrored so that it is upright."""

    def __init__(self, picture: DecodablePicture, orientation: int) -> None:
        self.picture = picture
        self.sideways = orientation > 4  # rows and columns are exchanged before the picture is mirrored
        self.steps = -1 if orientation in (3, 4, 7, 8) else 1, -1 if orientation in (2, 3, 6, 7) else 1
        self._take_size()

    def _take_size(self) -> None:
        size = self.picture.width, self.picture.height
        self.width, self.height = size[::-1] if self.sideways else size

    def reduce(self, width: int, height: int) -> int:
        by = self.picture.reduce(height, width) if self.sideways else self.picture.reduce(width, height)
        self._take_size()
        return by

    def pixels(self, out: Any = None) -> Any:
        import numpy as np

        array = self.picture.pixels()
        down, across = self.steps
        turned = (array.transpose(1, 0, 2) if self.sideways else array)[::down, ::across]
        if out is None:
            return np.ascontiguousarray(turned)
        np.copyto(out, turned)
        return out
