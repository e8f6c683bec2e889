"""Archive readers limit the size of headers and the overlap of members, and check the names of members."""

import bz2
import gzip
import io
import lzma
import os
import resource
import struct
import tarfile
import time
import zipfile

import pytest

from torchdata.datapipes.iter import Decompressor, TarArchiveLoader, ZipArchiveLoader
from torchdata.datapipes.iter.archives.archive import Refused, path_in
from torchdata.datapipes.utils.names import check_target, file_name, path_inside

MIB = 1 << 20
PACKED = [bytes, gzip.compress, bz2.compress, lzma.compress]


def block(kind, size, name="x", **fields):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    data = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if "extended" in fields:
        data[482] = fields["extended"]
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data)
    return bytes(data)


def padded(body):
    return body + bytes(-len(body) % 512)


def record(key, value):
    rest = b" " + key + b"=" + value + b"\n"
    length = next(n for n in range(10**7) if len(str(n)) + len(rest) == n)
    return b"%d" % length + rest


def member(name="file", content=b"content"):
    return block(b"0", len(content), name) + padded(content)


END = bytes(1024)


class Ahead(io.RawIOBase):
    def __init__(self, data):
        self._data, self.count = io.BytesIO(data), 0

    def readable(self):
        return True

    def readinto(self, buffer):
        count = self._data.readinto(buffer)
        self.count += count
        return count


def read_tar(data, mode="r:*", **options):
    stream = Ahead(data) if "|" in mode else io.BytesIO(data)
    return [(path, file.read()) for path, file in TarArchiveLoader([("a.tar", stream)], mode=mode, **options)]


each_mode = pytest.mark.parametrize("mode", ["r:*", "r|*"])


@pytest.mark.parametrize(
    ("mode", "pack", "kind"),
    [*(("r|*", bytes, kind) for kind in (b"L", b"K", b"x", b"X", b"g")), *(("r:*", pack, b"x") for pack in PACKED)],
)
def test_a_header_of_more_than_one_mebibyte_is_refused_before_it_is_read(kind, pack, mode):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = pack(member("first") + block(kind, 3 << 30) + b"a" * MIB + END)
    stream = Ahead(data) if "|" in mode else io.BytesIO(data)
    items = iter(TarArchiveLoader([("a.tar", stream)], mode=mode))
    assert next(items)[1].read() == b"content"
    with pytest.raises(
        tarfile.ReadError, match=r"'a\.tar' in TarArchiveLoader: the headers of a member take more than"
    ):
        next(items)
    if pack is bytes and "|" in mode:
        assert stream.count < MIB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("kind", [b"L", b"g"])
def test_headers_of_archives_that_decompress_opens_are_refused_as_well(kind):
    data = member("first") + block(kind, 3 << 30) + END
    ((_, opened),) = Decompressor([("a.tar", io.BytesIO(data))])
    with pytest.raises(tarfile.ReadError, match="the headers of a member take more than"):
        opened.getmembers()


@each_mode
def test_many_headers_of_one_member_count_together(mode):
    name = block(b"L", 512) + b"a" * 512
    maps = block(b"S", 0, extended=1) + ((b"%011o\0" % 1) * 42 + b"\1").ljust(512, b"\0") * 3000
    half = record(b"path", b"a" * (MIB // 2))
    for data in (
        name * 5000 + member(),
        maps,
        (block(b"x", len(half)) + padded(half)) * 3 + member(),
        block(b"x", 44) + padded(record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.minor", b"0")) + member()
        + b"1" * 4 * MIB,
    ):  # fmt: skip
        with pytest.raises(tarfile.ReadError, match=r"headers|header at byte"):
            read_tar(gzip.compress(data), mode)
        with pytest.raises(tarfile.ReadError, match=r"headers|header at byte"):
            read_tar(data, mode)


@each_mode
def test_headers_for_all_members_count_over_the_whole_archive(mode):
    def globals_of(count, size):
        return b"".join(
            block(b"g", len(body)) + padded(body) + member(f"{number}")
            for number in range(count)
            for body in [record(b"k%d" % number, b"v" * size)]
        )

    assert len(read_tar(globals_of(50, 100) + END, mode)) == 50
    for data in (globals_of(1100, 1), globals_of(5, MIB // 4)):
        with pytest.raises(tarfile.ReadError, match="global headers hold more than 1000 records"):
            read_tar(data + END, mode)


@each_mode
@pytest.mark.parametrize(
    "body",
    [
        b"1" * 900_000,
        b"5 ab\n" * 180_000 + b"=",
        record(b"comment", b"1" * 900_000),
        b"1" * 20_000 + b" hdrcharset=\n",
        b"9" * 30 + b" path=a\n",
        b"7 path\n",
        b"12 path=a",
        b"0 =",
    ],
    ids=["digits", "no equals sign", "digits in a value", "charset", "huge", "no value", "too short", "nothing"],
)
def test_extended_headers_that_take_quadratic_time_are_refused_at_once(body, mode):
    data = gzip.compress(block(b"x", len(body)) + padded(body) + member() + END)
    began = time.process_time()
    with pytest.raises(tarfile.ReadError, match=r"damaged header at byte 0: .* extended header"):
        read_tar(data, mode)
    assert time.process_time() - began < 30, "regular expressions took too long"


@each_mode
def test_long_names_and_extended_headers_within_the_limits_are_read(mode):
    for style in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=style, pax_headers={"comment": "c" * 5000}) as archive:
            for number in range(5):
                info = tarfile.TarInfo(f"{number}/" + "é" * 3000)
                info.size, info.pax_headers = 3, {"note": "1" * 90}
                archive.addfile(info, io.BytesIO(b"abc"))
        for pack in PACKED:
            found = read_tar(pack(out.getvalue()), mode)
            assert found == [(f"a.tar/{number}/" + "é" * 3000, b"abc") for number in range(5)]
    large = record(b"comment", b"c" * (MIB - 1000))
    assert read_tar(block(b"x", len(large)) + padded(large) + member() + END, mode) == [("a.tar/file", b"content")]


@each_mode
def test_maps_of_holes_are_ignored_for_other_objects_than_files(mode):
    body = record(b"GNU.sparse.map", b"0,1") + record(b"GNU.sparse.size", b"1")
    data = block(b"x", len(body)) + padded(body) + block(b"2", 0, "link") + member() + END
    assert read_tar(data, mode) == [("a.tar/file", b"content")]


@pytest.mark.parametrize("pack", PACKED[1:])
def test_a_decompression_bomb_that_is_only_skipped_is_refused(small_bombs, pack):
    data = pack(member("first") + block(b"0", 16 * MIB) + bytes(16 * MIB) + member() + END)
    stream = io.BytesIO(data)
    with pytest.raises(tarfile.ReadError, match="decompression bomb"):
        for _ in TarArchiveLoader([("a.tar", stream)]):
            pass
    assert len(list(TarArchiveLoader([("a.tar", io.BytesIO(data))], max_ratio=None))) == 3
    ((_, opened),) = Decompressor([("a.tar", io.BytesIO(data))])
    with pytest.raises(OSError, match="decompression bomb"):
        opened.getmembers()


def overlapping(count):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(MIB))
    data = out.getvalue()
    start = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    directory = data[start:end] * count
    tail = bytearray(data[end:])
    tail[8:20] = struct.pack("<HHII", count, count, len(directory), start)
    return data[:start] + directory + bytes(tail)


def test_overlapping_members_are_refused():
    data = overlapping(1000)
    assert len(zipfile.ZipFile(io.BytesIO(data)).infolist()) == 1000
    with pytest.raises(zipfile.BadZipFile, match=r"'a\.zip' in ZipArchiveLoader: its member 'a' overlaps"):
        list(ZipArchiveLoader([("a.zip", io.BytesIO(data))]))
    with pytest.raises(zipfile.BadZipFile, match="overlaps"):
        list(Decompressor([("a.zip", io.BytesIO(data))]))


def test_a_member_that_holds_another_one_is_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("outer", bytes(100))
        archive.writestr("inner", bytes(50))
    data = bytearray(out.getvalue())
    entry = data.index(b"PK\1\2")
    data[entry + 20 : entry + 28] = struct.pack("<II", 150, 150)
    with pytest.raises(zipfile.BadZipFile, match="'outer' overlaps"):
        list(ZipArchiveLoader([("a.zip", io.BytesIO(data))]))


@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\n" * 9])
def test_archives_with_comments_extra_fields_and_a_prefix_are_accepted(before):
    out = io.BytesIO(before)
    out.seek(len(before))
    with zipfile.ZipFile(out, "a") as archive:
        archive.comment = b"comment"
        for name in ("b", "a/", "grün", ""):
            info = zipfile.ZipInfo(name or "e")
            info.extra, info.comment = struct.pack("<HH4s", 0x7777, 4, b"more"), b"of a member"
            archive.writestr(info, b"" if name.endswith("/") else b"x" * 50)
    assert len(list(ZipArchiveLoader([("a.zip", out)]))) == 3


def test_a_zip_archive_is_out_of_proportion_as_a_whole(small_bombs):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(9):
            archive.writestr(f"{number}", bytes(MIB // 2))
    read = []
    with pytest.raises(zipfile.BadZipFile, match="decompression bomb"):
        read.extend(path for path, _ in ZipArchiveLoader([("a.zip", out)]))
    assert len(list(ZipArchiveLoader([("a.zip", out)], max_ratio=None))) == 9
    pipe = ZipArchiveLoader([("a.zip", out)], max_ratio=None)
    items = iter(pipe)
    next(items), next(items)
    resumed = ZipArchiveLoader([("a.zip", out)])
    resumed.load_state_dict(pipe.state_dict())
    with pytest.raises(zipfile.BadZipFile, match="decompression bomb"):
        list(resumed)


@pytest.mark.parametrize("folder", ["..", "../..", "a/../..", "../../b/.."])
@pytest.mark.parametrize("name", ["../x", "..", "a/../../x"])
def test_a_relative_name_does_not_leave_its_folder(folder, name):
    for loader, error in ((TarArchiveLoader, tarfile.ReadError), (ZipArchiveLoader, zipfile.BadZipFile)):
        out = io.BytesIO()
        if loader is TarArchiveLoader:
            out.write(member(name) + END)
        else:
            with zipfile.ZipFile(out, "w") as archive:
                archive.writestr(name, b"")
        out.seek(0)
        with pytest.raises(error, match="leads out"):
            list(loader([(folder, out)]))
    above = os.path.join(os.path.normpath(folder), "")
    assert path_in(above, "/a/b") == above + "a/b"


def test_a_name_that_no_file_can_have_is_refused():
    for name in ("", ".", "..", "a\0b", "\0", "/", "//", "../a", "a/../../b"):
        with pytest.raises(ValueError, match="leads out"):
            path_inside(name)
        with pytest.raises(Refused):
            path_in("folder/", name)


def test_the_name_of_a_file_is_the_last_part_of_its_path():
    for name, last in {
        "a.tar": "a.tar",
        "/etc/passwd": "passwd",
        "../../x": "x",
        "..\\..\\x": "x",
        "C:\\x": "x",
        "C:x": "x",
        "...": "...",
        ".hidden": ".hidden",
        "a b": "a b",
        "https://example.org/a/b.bin": "b.bin",
        "12:30.txt": "12:30.txt",
    }.items():
        assert file_name(name) == last
    for name in ("", ".", "..", "a/", "a/..", "a\\..", "/", "C:", "C:..", "a\0b", "\\"):
        with pytest.raises(ValueError, match="names no file"):
            file_name(name)


def test_a_name_with_parent_folders_is_not_a_path():
    for fine in ("../a", "a/../b", "s3://bucket/a..b", "file:///a/b"):
        check_target(None, fine)
    with pytest.raises(ValueError, match=r"NoneType will not write to 's3://bucket/\.\./x'.*file_name"):
        check_target(None, "s3://bucket/../x")
