"""Test cases for pipes that combine or decode files: WebDataset, RoutedDecoder and ImageDecoder."""

from typing import Any

from pipes_table.row import BadArgument, Row, UnsizedRow, ints
from torchdata.datapipes.iter import RoutedDecoder, WebDataset


def as_file(item: int) -> tuple[str, int]:
    return f"shard/{item // 3}" + (f".{item % 3}" if item % 9 != 1 else ""), item


def samples(items: list[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in items:
        if item % 9 != 1:
            key = f"shard/{item // 3}"
            if not found or found[-1]["__key__"] != key:
                found.append({"__key__": key})
            found[-1][f".{item % 3}"] = item
    return found


def as_number_file(item: int) -> tuple[str, bytes]:
    return f"{item}.cls", str(item).encode()


def as_image(item: int) -> bytes:
    return b"P5 1 1 255 " + bytes([item % 256])


def first_pixel(pixels: Any) -> int:
    return int(pixels[0, 0, 0])


ROWS: list[Row] = [
    UnsizedRow("webdataset", lambda s: WebDataset(s().map(as_file), strict=False), samples),
    Row("routed_decode", lambda s: RoutedDecoder(s().map(as_number_file)), lambda xs: [(f"{x}.cls", x) for x in xs]),
    Row(
        "decode_image",
        lambda s: s().map(as_image).decode_image(2, crop="random", flip=0.5, mode="L").map(first_pixel),
        lambda xs: [x % 256 for x in xs],
    ),
]

BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: ints().decode_image(crop="middle"), ValueError, "ImageDecoder: crop must be"),
    (lambda: ints().decode_image(crop=5), TypeError, "ImageDecoder: crop must be a function"),
    (lambda: ints().decode_image(flip=2), ValueError, "ImageDecoder: flip is a probability"),
    (lambda: ints().decode_image(mode="HSV"), ValueError, "mode must be one of"),
    (lambda: WebDataset(5), TypeError, "WebDataset: source_datapipe"),
    (lambda: ints().routed_decode(5), TypeError, "RoutedDecoder: handler 0"),
]
