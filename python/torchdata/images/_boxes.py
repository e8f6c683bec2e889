"""Boxes, which select a part of an image: (left, top, right, bottom) in pixels, as in Pillow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Box = tuple[int, int, int, int]

#: The number of random boxes to try before the center of the image is used.
_TRIES = 10


def drawing_from(rng: Any) -> Callable[[], float]:
    """Returns a function that draws numbers from 0 (inclusive) to 1 (exclusive) from a generator.

    Args:
        rng: a `random.Random` (or the module `random`), a `numpy.random.Generator` (or `RandomState`), or a
            `torch.Generator`.
    """
    draw: Any = getattr(rng, "random", None)
    if callable(draw):
        return draw  # type: ignore[no-any-return]
    if type(rng).__module__.partition(".")[0] in ("torch", "torch._C"):
        import torch

        return lambda: float(torch.rand((), generator=rng, dtype=torch.float64))
    raise TypeError(
        "random numbers are drawn from a random.Random, a numpy.random.Generator or a torch.Generator, but got "
        f"{rng!r} of type {type(rng).__name__}"
    )


def random_resized_crop(
    rng: Any, width: int, height: int, scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3)
) -> Box:
    """Returns a random box within an image, by the rules of torchvision's `RandomResizedCrop`.

    The fraction of the image's area is uniformly distributed within `scale`, and the logarithm of width / height within
    the logarithms of `ratio`. If a random box exceeds the image, another box is drawn, up to ten in total. If all ten
    boxes exceed the image, the result is the largest centered box with a ratio within `ratio`.

    Args:
        rng: the generator to draw from: a `random.Random`, a `numpy.random.Generator` or a `torch.Generator`.
        width: the width of the image in pixels, at least 1.
        height: the height of the image in pixels, at least 1.
        scale: the smallest and the largest fraction of the image's area; (0.08, 1.0) by default.
        ratio: the smallest and the largest ratio of width to height; (3/4, 4/3) by default.

    Returns:
        (left, top, right, bottom) in pixels.

    Raises:
        TypeError: `rng` is not a generator.
        ValueError: `scale` or `ratio` is not a pair of positive numbers in ascending order, or `width` or `height` is
            less than 1.

    Example:
        >>> import random
        >>> from torchdata.images import random_resized_crop
        >>> left, top, right, bottom = random_resized_crop(random.Random(0), 640, 480)
        >>> 0 <= left < right <= 640 and 0 <= top < bottom <= 480
        True
    """
    for name, two in (("scale", scale), ("ratio", ratio)):
        if len(two) != 2 or not 0 < two[0] <= two[1] < math.inf:
            raise ValueError(f"random_resized_crop: {name} must be two positive numbers in order, but got {two!r}")
    if width < 1 or height < 1:
        raise ValueError(f"random_resized_crop: an image of {width} x {height} pixels cannot be cropped")
    draw = drawing_from(rng)
    lowest, highest = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * draw())
        shape = math.exp(lowest + (highest - lowest) * draw())
        columns, rows = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < columns <= width and 0 < rows <= height:
            top = int(draw() * (height - rows + 1))
            left = int(draw() * (width - columns + 1))
            return left, top, left + columns, top + rows
    columns, rows = width, height
    if width / height < ratio[0]:
        rows = max(1, min(height, round(width / ratio[0])))
    elif width / height > ratio[1]:
        columns = max(1, min(width, round(height * ratio[1])))
    return _middle(width, height, columns, rows)


def center_crop(width: int, height: int, share: float = 0.875, ratio: float = 1.0) -> Box:
    """Returns a box at the center of an image: the usual deterministic crop for validation.

    With `size=224` and the share 0.875, the result corresponds to torchvision's `Resize(256)` and `CenterCrop(224)`.

    Args:
        width: the width of the uncropped image in pixels, at least 1. If `width` or `height` is less than 1, no error
            is raised, and the result is not a valid box.
        height: the height of the uncropped image in pixels, as for `width`.
        share: the size of the crop along each axis, as a fraction of the largest box with the given ratio; 0.875 by
            default.
        ratio: the ratio of width to height; 1 by default.

    Returns:
        (left, top, right, bottom) in pixels.

    Raises:
        ValueError: `share` is not positive or exceeds 1, or `ratio` is not positive.

    Example:
        >>> from torchdata.images import center_crop
        >>> center_crop(640, 480, share=0.5)
        (200, 120, 440, 360)
    """
    if not 0 < share <= 1 or not 0 < ratio < math.inf:
        raise ValueError(f"center_crop: share must be above 0 and at most 1, and ratio positive: {share}, {ratio}")
    rows = min(height, width / ratio)
    return _middle(width, height, max(1, round(rows * ratio * share)), max(1, round(rows * share)))


def _middle(width: int, height: int, columns: int, rows: int) -> Box:
    left, top = (width - columns) // 2, (height - rows) // 2
    return left, top, left + columns, top + rows


def check_box(box: Any, width: int, height: int, what: str) -> Box:
    try:
        left, top, right, bottom = (edge.__index__() for edge in box)
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"crop must be four integers (left, top, right, bottom), but got {box!r} for {what}") from None
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise ValueError(
            f"the crop {(left, top, right, bottom)} is empty or reaches beyond {what}, which has {width} x {height} "
            "pixels; give left, top, right and bottom"
        )
    return left, top, right, bottom
