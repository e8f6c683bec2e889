"""The pipe that decodes images, or random parts of images: ImageDecoder.

The random numbers for an image depend only on the seed of the epoch and the number of the image, so a state need not
contain a random generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, cast

from torchdata._redacting import shown
from torchdata._reporting import name_item
from torchdata.datapipes._pipe.checks import check_callable, check_input_col, check_output_col, check_source
from torchdata.datapipes._pipe.columns import replacing_columns
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes._pipe.seeding import Seeded
from torchdata.datapipes._pipe.state.record import passed
from torchdata.images import center_crop, random_resized_crop
from torchdata.images._decoding import Request, decode_as

__all__ = ["ImageDecoder"]


class ImageDecoder(Seeded, ItemByItem[Any]):
    """Decodes images: converts bytes, paths or open files to arrays or tensors, cropped and resized by
    `torchdata.images.decode`.

    A resumed loader yields the same pixels as the original run. Random crops and flips depend only on two numbers: the
    seed of the epoch, which the loader sets, and the number of images that this pipe has yielded in the epoch. Files
    are closed.

    Args:
        datapipe: the pipe to read, of images, or of items that contain an image.
        size: the size of the result: (height, width), or an integer for a square, at least 1 each. If `size` is None
            (the default), the result has the size of the crop.
        crop: the part of the image that is cut out before resizing. `"random"` means
            `torchdata.images.random_resized_crop`, and `"center"` means `torchdata.images.center_crop`. A box is (left,
            top, right, bottom). A function, such as `functools.partial(random_resized_crop, scale=(0.35, 1))`, receives
            a `random.Random`, the width and the height, and returns a box. If `crop` is None (the default), the whole
            image is used.
        flip: probability that an image is mirrored left to right, from 0 (the default) to 1.
        mode: "RGB" (the default), "L", "RGBA" or "I;16", as for `torchdata.images.decode`.
        layout: "HWC" (the default) or "CHW": channels last or first.
        scale: how images are reduced: "exact" (the default), or "fast" to decode JPEG images at a half, a quarter or an
            eighth of their size, but not smaller than the result.
        resample: the filter for resizing, as for `torchdata.images.decode`; "bilinear" by default.
        exif: whether images are rotated according to their EXIF orientation; False by default.
        truncated: what happens to a truncated image: "error" (the default) raises an error; "keep" returns the
            available part of the image.
        as_tensor: whether the results are torch tensors; False by default.
        input_col: the index or key of the image in an item; if None (the default), the item is the image.
        output_col: where the result is stored, as for `map`; None (the default) replaces the image.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has an unsupported value; or, while iterating, an image cannot be decoded. If the item
            contains a path, a note on the exception names the path.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> images = [("a.ppm", b"P6 2 2 255 " + bytes(12)), ("b.pgm", b"P5 3 1 255 abc")]
        >>> pipe = IterableWrapper(images).decode_image(8, crop="random", flip=0.5, input_col=1)
        >>> [(path, pixels.shape) for path, pixels in pipe]
        [('a.ppm', (8, 8, 3)), ('b.pgm', (8, 8, 3))]
    """

    def __init__(
        self,
        datapipe: Iterable[Any],
        size: int | tuple[int, int] | None = None,
        *,
        crop: (
            Literal["random", "center"] | Callable[[random.Random, int, int], Sequence[int]] | Sequence[int] | None
        ) = None,
        flip: float = 0.0,
        mode: str = "RGB",
        layout: Literal["HWC", "CHW"] = "HWC",
        scale: Literal["exact", "fast"] = "exact",
        resample: str = "bilinear",
        exif: bool = False,
        truncated: Literal["error", "keep"] = "error",
        as_tensor: bool = False,
        input_col: Any = None,
        output_col: Any = None,
    ) -> None:
        name = "ImageDecoder"
        self.datapipe = check_source(name, datapipe)
        self.size, self.mode, self.layout, self.scale, self.resample = size, mode, layout, scale, resample
        self.exif, self.truncated, self.as_tensor = exif, truncated, as_tensor
        self._request()
        if isinstance(crop, str):
            if crop not in ("random", "center"):
                words = "'random', 'center', a function, a box or None"
                raise ValueError(f"{name}: crop must be {words}, but got {crop!r}")
        elif cast("Any", crop) is center_crop:
            raise ValueError(f"{name}: a function is called with a generator, width and height; write crop='center'")
        elif crop is not None and not isinstance(crop, (tuple, list)):
            check_callable(name, "crop", crop)
        if not 0 <= flip <= 1:
            raise ValueError(f"{name}: flip is a probability, from 0 to 1, but got {flip!r}")
        self.crop, self.flip = crop, flip
        check_input_col(name, self._decoded, input_col)
        self.input_col, self.output_col = input_col, check_output_col(name, self._decoded, input_col, output_col)

    def _request(self) -> Request:
        return Request(
            self.size, self.mode, self.layout, self.scale, self.resample, self.exif, self.truncated, self.as_tensor
        )

    def _is_random(self) -> bool:
        return self.flip > 0 or self.crop == "random" or callable(self.crop)

    def reset(self) -> None:
        """Sets the seed of the iteration if the crop or the flip is random."""
        super().reset()
        if self._is_random():
            self._take_seed()

    def _function(self) -> Callable[[Any], Any]:
        decoder = _Decoder(self._request(), self.crop, self.flip, self._epoch_seed if self._is_random() else None)
        decoder.number = passed(self)
        call = decoder if self.input_col is None else replacing_columns(decoder, self.input_col, self.output_col)
        return partial(_explained, call)

    def _decoded(self, image: Any) -> Any:
        """This method is never called; the constructor uses its signature to check `input_col` and `output_col`."""


class _Decoder:
    def __init__(self, request: Request, crop: Any, flip: float, seed: int | None) -> None:
        self.request, self.flip, self.seed, self.number = request, flip, seed, 0
        self.crop: Any = {"random": random_resized_crop, "center": center_crop}[crop] if isinstance(crop, str) else crop
        self.draws = crop == "random" or callable(crop)
        self.rng = random.Random()

    def __call__(self, data: Any) -> Any:
        number, self.number = self.number, self.number + 1
        crop, mirrored, rng = self.crop, False, self.rng
        if self.seed is not None:
            rng.seed(self.seed << 64 | number)
            mirrored = self.flip > 0 and rng.random() < self.flip
            if self.draws:
                crop = partial(crop, rng)
        try:
            return decode_as(self.request, data, crop, mirrored)
        finally:
            if hasattr(data, "read") and hasattr(data, "close"):
                data.close()


def _explained(call: Callable[[Any], Any], item: Any) -> Any:
    try:
        return call(item)
    except Exception as error:
        name_item(error, item)
        path = item[0] if isinstance(item, tuple) and item else item
        if isinstance(path, str):
            error.add_note(f"ImageDecoder was decoding {shown(path)}.")
        raise
