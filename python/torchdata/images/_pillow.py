"""Decodes images with Pillow, for both `torchdata.images` and `ImageHandler`."""

from __future__ import annotations

import io
from typing import Any

from torchdata._handlers import FailuresSuppressed, is_of_handler
from torchdata._optional import optional_import

_ORIENTATION = 0x0112


def image_module(needed_by: str = "torchdata.images") -> Any:
    return optional_import("PIL.Image", extra="image", needed_by=needed_by)


def opened(content: Any, needed_by: str = "torchdata.images") -> Any:
    """Opens an image with Pillow. Pillow's errors are not converted."""
    module = image_module(needed_by)
    try:
        return module.open(io.BytesIO(content))
    except module.DecompressionBombError as error:
        error.add_note("Set PIL.Image.MAX_IMAGE_PIXELS if you trust the file.")
        raise


def converted(image: Any, mode: str, keep: bool = False) -> Any:
    """Decodes an opened image.

    Args:
        mode: one of Pillow's modes, or "I;16" for 16-bit gray, which requires a 16-bit gray image.
        keep: whether to return the available part of a truncated image.

    Raises:
        ValueError: the image is not a 16-bit gray image, but the mode requires one.
        Exception: the contents are damaged.
    """
    try:
        image.load()
    except OSError as error:
        # `_im` is an attribute of Pillow 11 and later, and `im` of earlier versions.
        begun = getattr(image, "_im", None) or vars(image).get("im")
        if not keep or begun is None or is_of_handler(error):
            raise
        image.tile = []  # Pillow then regards the image as completely decoded
    if mode != "I;16":
        return image.convert(mode)
    if image.mode != "I" and not image.mode.startswith("I;16"):
        raise ValueError(f"mode='I;16' is for 16 bits of grey, but the image has Pillow's mode {image.mode!r}")
    return image.convert("I")


def orientation(image: Any) -> int:
    """Returns the EXIF orientation, from 1 (upright) to 8."""
    with FailuresSuppressed():  # the EXIF block may be damaged
        orientation = image.getexif().get(_ORIENTATION, 1)
        return orientation if orientation in range(1, 9) else 1
    return 1


def check_pixels(width: int, height: int) -> None:
    """Raises PIL.Image.DecompressionBombError if the number of pixels is more than twice Pillow's limit, and issues a
    DecompressionBombWarning above the limit, as Pillow does."""
    module = image_module()
    limit = module.MAX_IMAGE_PIXELS
    if limit is None or width * height <= limit:
        return
    what = f"an image of {width} x {height} pixels exceeds PIL.Image.MAX_IMAGE_PIXELS, {limit}"
    if width * height > 2 * limit:
        raise module.DecompressionBombError(f"{what}, more than twice; raise the limit if you trust the file")
    import warnings

    warnings.warn(what, module.DecompressionBombWarning, stacklevel=2)
