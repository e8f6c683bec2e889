"""Readers of streams that cannot seek return the same bytes as a file in memory, and the same members as `tarfile`."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata.datapipes.iter import TarArchiveLoader


class OneWay(io.RawIOBase):
    """A stream that cannot seek, and that returns pieces of any size."""

    def __init__(self, data: bytes, piece: int) -> None:
        self.stream, self.piece = io.BytesIO(data), piece

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self.stream.read(self.piece if size < 0 else min(size, self.piece))


members = st.lists(
    st.tuples(
        st.one_of(st.text("ab/é", min_size=1, max_size=8), st.sampled_from(["n" * 99, "n" * 101, "p/" * 80 + "x"])),
        st.sampled_from([0, 1, 511, 512, 513, 1024, 70_000]),
        st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE]),
    ),
    max_size=6,
)


def archive_of(entries: Any, style: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=style) as archive:
        for number, (name, size, kind) in enumerate(entries):
            info = tarfile.TarInfo(f"m{name}x")
            info.type, info.linkname = kind, "elsewhere" if kind == tarfile.SYMTYPE else ""
            info.size = size if kind in (tarfile.REGTYPE, tarfile.AREGTYPE) else 0
            info.mtime = number + 0.5 * (size % 2)  # in PAX archives, a fraction requires an extended header
            archive.addfile(info, io.BytesIO(bytes([number + 65]) * size))
    return stream.getvalue()


@settings(max_examples=60)
@given(
    members,
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    st.booleans(),
    st.sampled_from(["seekable", "ahead", "one way"]),
    st.sampled_from([700, 9_000, 1 << 20]),
)
def test_archives_are_read_as_tarfile_reads_them(
    entries: Any, style: int, compressed: bool, how: str, piece: int
) -> None:
    data = archive_of(entries, style)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        expected = [
            (info.name, stream.read()) for info in archive if info.isreg() and (stream := archive.extractfile(info))
        ]
    file = gzip.compress(data, 1) if compressed else data
    stream = OneWay(file, piece) if how == "one way" else io.BytesIO(file)
    pipe = TarArchiveLoader([("x.tar", stream)], mode="r|*" if how == "ahead" else "r:*")
    found = [(path, content.read()) for path, content in pipe]
    assert [content for _, content in found] == [content for _, content in expected]
    assert [path.rpartition("/")[2] for path, _ in found] == [name.rpartition("/")[2] for name, _ in expected]


def test_an_error_names_the_remedy_for_a_passed_member_of_a_streamed_archive() -> None:
    data = archive_of([("a", 70_000, tarfile.REGTYPE), ("b", 70_000, tarfile.REGTYPE)], tarfile.PAX_FORMAT)
    items = iter(TarArchiveLoader([("x.tar", OneWay(data, 1000))]))
    _, first = next(items)
    assert first.read(10) == b"A" * 10
    _, second = next(items)
    assert second.read() == b"B" * 70_000
    with pytest.raises(tarfile.ReadError, match=r"x\.tar.*read each member before the next"):
        first.read()


def test_a_member_of_a_compressed_archive_seeks_back_by_decompressing_from_the_start() -> None:
    data = archive_of([("a", 700_000, tarfile.REGTYPE), ("b", 700_000, tarfile.REGTYPE)], tarfile.PAX_FORMAT)
    for number, (_, stream) in enumerate(TarArchiveLoader([("x.tar.gz", io.BytesIO(gzip.compress(data, 1)))])):
        for start in (0, 600_000, 5):
            assert stream.seek(start) == start
            assert stream.read() == bytes([number + 65]) * (700_000 - start)


def test_zeros_behind_a_gzip_stream_and_several_streams_are_read() -> None:
    data = archive_of([("a", 513, tarfile.REGTYPE), ("b", 1, tarfile.REGTYPE)], tarfile.GNU_FORMAT)
    file = gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + bytes(5000)
    assert [stream.read() for _, stream in TarArchiveLoader([("x.tar.gz", io.BytesIO(file))])] == [b"A" * 513, b"B"]
