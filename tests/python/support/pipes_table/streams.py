"""Test cases for pipes that read archives, records, tables or lines from streams."""

import io
import pathlib
import struct
import tarfile
import warnings
import zipfile
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from pipes_table.files import content_of
from pipes_table.row import Row, UnsizedRow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # protobuf warns about future versions
    pytest.importorskip("torch", reason="the library that writes TFRecords imports it")
    from tfrecord import TFRecordWriter, example_pb2

#: An archive that rar has created without compression, so that it can be read without an external program.
RAR = (pathlib.Path(__file__).parents[2] / "data/rar/rar5-subdirs.rar").read_bytes()
RAR_MEMBERS = {
    "sub/dir2/file2.txt": b"file2\n",
    "sub/with space/long fn.txt": b"long fn\n",
    "sub/\u00fc\u0235\u0129\u00f6\u1e0b\u00e8/file.txt": b"file\n",
    "sub/dir1/file1.txt": b"file1\n",
}


def members(item: int) -> dict[str, bytes]:
    return {f"{number}.txt": b"%d of %d" % (number, item) for number in range(item % 3)}


def as_tar(item: int) -> tuple[str, io.BytesIO]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members(item).items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return f"{item}.tar", io.BytesIO(buffer.getvalue())


def as_zip(item: int) -> tuple[str, io.BytesIO]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members(item).items():
            archive.writestr(name, content)
    return f"{item}.zip", io.BytesIO(buffer.getvalue())


def as_rar(item: int) -> tuple[str, io.BytesIO]:
    return f"{item}.rar", io.BytesIO(RAR)


def as_records(item: int) -> tuple[str, io.BytesIO]:
    crc = TFRecordWriter.masked_crc
    framed = []
    for index in range(item % 3):
        example = example_pb2.Example()
        example.features.feature["of"].int64_list.value.extend([item, index])
        data = example.SerializeToString()
        length = struct.pack("<Q", len(data))
        framed += [length, crc(length), data, crc(data)]
    return f"{item}.tfrecord", io.BytesIO(b"".join(framed))


def as_parquet(item: int) -> tuple[str, io.BytesIO]:
    buffer = io.BytesIO()
    table = pyarrow.table({"item": [item] * (item % 3 + 1)})
    pyarrow.parquet.write_table(table, buffer, row_group_size=2)
    return f"{item}.parquet", io.BytesIO(buffer.getvalue())


def as_lines(item: int) -> tuple[str, io.StringIO]:
    return f"{item}.txt", io.StringIO("".join(f"{item},{index}\n" for index in range(item % 3)))


def as_table(item: int) -> tuple[str, io.StringIO]:
    name, stream = as_lines(item)
    return name, io.StringIO(f"item,place\n{stream.read()}")


def as_bytes(item: int) -> tuple[str, io.BytesIO]:
    return f"{item}.bin", io.BytesIO(b"x" * (item % 10))


def plain_record(record: dict[str, Any]) -> list[int]:
    return list(record["of"].tolist())


def plain_frame(frame: Any) -> list[int]:
    return [row["item"] for row in frame.to_pylist()]


def plain_arrays(item: dict[str, Any]) -> list[int]:
    return list(item["item"].tolist())


def in_archives(kind: str, items: list[int]) -> list[tuple[str, bytes]]:
    return [(f"{item}.{kind}/{name}", content) for item in items for name, content in members(item).items()]


def rows(items: list[int]) -> list[tuple[int, int]]:
    return [(item, index) for item in items for index in range(item % 3)]


def chunks(item: int, size: int) -> list[bytes]:
    count = item % 10
    return [b"x" * min(size, count - start) for start in range(0, count, size)]


ROWS: list[Row] = [
    UnsizedRow(
        "load_from_tar", lambda s: s().map(as_tar).load_from_tar().map(content_of), lambda xs: in_archives("tar", xs)
    ),
    UnsizedRow(
        "load_from_zip", lambda s: s().map(as_zip).load_from_zip().map(content_of), lambda xs: in_archives("zip", xs)
    ),
    UnsizedRow(
        "load_from_rar",
        lambda s: s().map(as_rar).load_from_rar().map(content_of),
        lambda xs: [(f"{x}.rar/{name}", content) for x in xs for name, content in RAR_MEMBERS.items()],
        grows="reading many archives takes too long",
    ),
    UnsizedRow(
        "load_from_tfrecord",
        lambda s: s().map(as_records).load_from_tfrecord().map(plain_record),
        lambda xs: [[*index] for index in rows(xs)],
    ),
    UnsizedRow(
        "load_parquet_as_df",
        lambda s: s().map(as_parquet).load_parquet_as_df(library="pyarrow").map(plain_frame),
        lambda xs: [[x] * size for x in xs for size in ([1], [2], [2, 1])[x % 3]],
    ),
    UnsizedRow(
        "load_parquet_as_df of so many rows",
        lambda s, size: s().map(as_parquet).load_parquet_as_df(library="numpy", dataframe_size=size).map(plain_arrays),
        lambda xs, size: [[x] * min(size, x % 3 + 1 - start) for x in xs for start in range(0, x % 3 + 1, size)],
        {"size": (st.integers(1, 4), 2)},
    ),
    UnsizedRow(
        "read_from_stream",
        lambda s: s().map(as_bytes).read_from_stream(4),
        lambda xs: [(f"{x}.bin", chunk) for x in xs for chunk in chunks(x, 4)],
    ),
    UnsizedRow(
        "readlines",
        lambda s: s().map(as_lines).readlines(),
        lambda xs: [(f"{x}.txt", f"{x},{index}") for x, index in rows(xs)],
    ),
    UnsizedRow(
        "parse_csv",
        lambda s: s().map(as_table).parse_csv(skip_lines=1, return_path=True),
        lambda xs: [(f"{x}.txt", [str(x), str(index)]) for x, index in rows(xs)],
    ),
    UnsizedRow(
        "parse_csv_as_dict",
        lambda s: s().map(as_table).parse_csv_as_dict(),
        lambda xs: [{"item": str(x), "place": str(index)} for x, index in rows(xs)],
    ),
]
