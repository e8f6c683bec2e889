"""The one place where Pillow decodes images: for `torchdata.images` and for `ImageHandler`.

Role: opens content and converts it. Runs in whichever thread decodes; owns nothing.
"""

from __future__ import annotations

import io
from typing import Any

from torchdata._optional import optional_import

__all__ = ["check_pixels", "converted", "image_module", "opened", "orientation"]

#: The tag of EXIF that tells how the camera was held.
_ORIENTATION = 0x0112


def image_module(needed_by: str = "torchdata.images") -> Any:
    """Pillow's module `Image`.

    Raises:
        ModuleNotFoundError: Pillow is not installed; the message names the extra.
    """
    return optional_import("PIL.Image", extra="image", needed_by=needed_by)


def opened(content: Any, needed_by: str = "torchdata.images") -> Any:
    """The image in `content`, whose header was read. Pillow's own errors pass."""
    module = image_module(needed_by)
    try:
        return module.open(io.BytesIO(content))
    except module.DecompressionBombError as error:
        error.add_note("Set PIL.Image.MAX_IMAGE_PIXELS if you trust the file.")
        raise


def converted(image: Any, mode: str, keep: bool = False) -> Any:
    """The decoded image in one of Pillow's modes.

    Args:
        image: of `opened`.
        mode: the mode, or "I;16" for 16 bits of grey, which only images of such have.
        keep: whether an image that is cut off is kept as far as it goes.

    Raises:
        ValueError: 16 bits are asked of an image that has fewer, or colours.
        Exception: those of Pillow, of many types, where the content is damaged.
    """
    try:
        image.load()
    except OSError:
        begun = getattr(image, "_im", None) or vars(image).get("im")  # of Pillow from 11 on, and before
        if not keep or begun is None:
            raise
        image.tile = []  # what is still to be decoded: nothing
    if mode != "I;16":
        return image.convert(mode)
    if image.mode != "I" and not image.mode.startswith("I;16"):
        raise ValueError(f"mode='I;16' is for 16 bits of grey, but the image has Pillow's mode {image.mode!r}")
    return image.convert("I")


def orientation(image: Any) -> int:
    """How the camera was held, by EXIF: 1 to 8, where 1 is upright."""
    try:
        told = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # of a damaged block, by which nothing is told
        return 1
    return told if told in range(1, 9) else 1


def check_pixels(width: int, height: int) -> None:
    """Holds a size against Pillow's limit, `PIL.Image.MAX_IMAGE_PIXELS`, as Pillow does.

    Raises:
        PIL.Image.DecompressionBombError: the image has more than twice as many pixels. From the limit on there is a
            DecompressionBombWarning.
    """
    module = image_module()
    limit = module.MAX_IMAGE_PIXELS
    if limit is None or width * height <= limit:
        return
    said = f"an image of {width} x {height} pixels exceeds PIL.Image.MAX_IMAGE_PIXELS, {limit}"
    if width * height > 2 * limit:
        raise module.DecompressionBombError(f"{said}, more than twice; set the limit if you trust the file")
    import warnings

    warnings.warn(said, module.DecompressionBombWarning, stacklevel=2)
