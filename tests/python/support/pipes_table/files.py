"""Test cases for pipes that decompress, parse, hash or save files."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
from typing import Any

from pipes_table.folders import folder
from pipes_table.row import BadArgument, Row, Source, UnsizedRow, ints
from torchdata.datapipes import iter as pipes

FOLDER = folder("saved")


def gzipped(item: int) -> tuple[str, io.BytesIO]:
    return f"{item}.gz", io.BytesIO(gzip.compress(b"%d" % item))


def bzipped(item: int) -> tuple[str, io.BytesIO]:
    return f"{item}.bz2", io.BytesIO(bz2.compress(b"%d" % item))


def xzipped(item: int) -> tuple[str, io.BytesIO]:
    return f"{item}.xz", io.BytesIO(lzma.compress(b"%d" % item))


def json_of(item: int) -> tuple[str, io.BytesIO]:
    return f"{item}.json", io.BytesIO(json.dumps({"item": [item]}).encode())


def blob_of(item: int) -> tuple[str, bytes]:
    return f"{item}.bin", b"%d" % item


def content_of(pair: tuple[str, Any]) -> tuple[str, bytes]:
    with pair[1] as stream:
        return pair[0], stream.read()


def in_folder(name: str) -> str:
    return os.path.join(FOLDER, name[0], name)


class Hashes(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return hashlib.sha256(name.removesuffix(".bin").encode()).hexdigest()

    def __contains__(self, name: object) -> bool:
        return True


def build_decompressed(source: Source) -> Any:
    return pipes.Decompressor(source().map(gzipped)).map(content_of)


ROWS: list[Row] = [
    Row("decompress", build_decompressed, lambda xs: [(f"{x}.gz", b"%d" % x) for x in xs]),
    Row(
        "extract",
        lambda s: pipes.Extractor(s().map(bzipped), "bz2").map(content_of),
        lambda xs: [(f"{x}.bz2", b"%d" % x) for x in xs],
    ),
    Row(
        "load_from_bz2",
        lambda s: pipes.Bz2FileLoader(s().map(bzipped), length=7).map(content_of),
        lambda xs: [(f"{x}", b"%d" % x) for x in xs],
        length=7,
    ),
    UnsizedRow(
        "load_from_xz",
        lambda s: pipes.XzFileLoader(s().map(xzipped)).map(content_of),
        lambda xs: [(f"{x}", b"%d" % x) for x in xs],
    ),
    Row(
        "parse_json_files",
        lambda s: pipes.JsonParser(s().map(json_of), parse_int=float),
        lambda xs: [(f"{x}.json", {"item": [float(x)]}) for x in xs],
    ),
    Row(
        "check_hash",
        lambda s: pipes.HashChecker(s().map(blob_of), Hashes()),
        lambda xs: [(f"{x}.bin", b"%d" % x) for x in xs],
    ),
    Row(
        "save_to_disk",
        lambda s: pipes.Saver(s().map(blob_of), mode="wb", filepath_fn=in_folder),
        lambda xs: [in_folder(f"{x}.bin") for x in xs],
        grows="it writes a file for each of many items",
    ),
]

BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: pipes.Decompressor(ints(), "7z"), ValueError, "file_type must be one of"),
    (lambda: pipes.Decompressor(ints(), 5), ValueError, "file_type must be one of"),
    (lambda: pipes.Decompressor(ints(), max_ratio=0.5), ValueError, "max_ratio must be"),
    (lambda: pipes.TarArchiveLoader(ints(), max_ratio="9"), ValueError, "max_ratio must be"),
    (lambda: pipes.ZipArchiveLoader(ints(), max_ratio=True), ValueError, "max_ratio must be"),
    (lambda: pipes.RarArchiveLoader(ints(), max_ratio=float("nan")), ValueError, "max_ratio must be"),
    (lambda: pipes.Bz2FileLoader(ints(), length="3"), TypeError, "Bz2FileLoader: length must be"),
    (lambda: pipes.XzFileLoader(ints(), length=-2), ValueError, "XzFileLoader: length must be"),
    (lambda: pipes.Bz2FileLoader("a.bz2"), TypeError, "datapipe must be a pipe"),
    (lambda: pipes.JsonParser(ints(), indent=2), TypeError, "JsonParser.*json.loads"),
    (
        lambda: pipes.HashChecker(ints(), {}, hash_type="crc32"),
        ValueError,
        "got hash_type=.crc32.. Invalid hash_type requested",
    ),
    (lambda: pipes.HashChecker(ints(), ["abc"]), TypeError, "hash_dict must be a dict"),
    (lambda: pipes.Saver(ints(), mode="a"), ValueError, "Saver: mode must be"),
    (lambda: pipes.Saver(ints(), mode=None), ValueError, "Saver: mode must be"),
    (lambda: pipes.Saver(ints(), filepath_fn="x"), TypeError, "filepath_fn must be a function"),
]
