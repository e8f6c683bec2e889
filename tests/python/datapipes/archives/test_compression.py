"""Decompressor, Extractor, Bz2FileLoader and XzFileLoader read files created by gzip, bzip2, xz, tar and zip."""

import bz2
import gzip
import io
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
import zlib

import pytest

from stream_checks import check_restore, open_files, read
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes.utils import StreamWrapper

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHECKSUM = {zstd.CompressionParameter.checksum_flag: True}
TEXT = b"".join(b"line %d of a text\n" % number for number in range(5000))
CONTENT = {"a.txt": b"alpha\n", "b.txt": b"", "c.bin": bytes(range(256)) * 9, "d.txt": TEXT}
TOOLS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": None}
LOADERS = {"bz2": iter_pipes.Bz2FileLoader, "xz": iter_pipes.XzFileLoader}

each_kind = pytest.mark.parametrize("kind", TOOLS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("compressed")
    for name, content in CONTENT.items():
        (root / name).write_bytes(content)
        for tool in filter(None, TOOLS.values()):
            subprocess.run([tool, "--keep", name], cwd=root, check=True)
        (root / f"{name}.zst").write_bytes(zstd.compress(content, options=CHECKSUM))
    for flag, suffix in (("", "tar"), ("z", "tar.gz"), ("J", "tar.xz"), ("j", "tar.bz2")):
        subprocess.run(["tar", f"-c{flag}f", f"all.{suffix}", *CONTENT], cwd=root, check=True)
    (root / "all.tar.zst").write_bytes(zstd.compress((root / "all.tar").read_bytes()))
    with zipfile.ZipFile(root / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in CONTENT:
            archive.write(root / name, name)
    return root


def opened(folder, mask):
    return iter_pipes.FileLister(str(folder), mask).open_files(mode="b")


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_of_one_kind_take_the_suffix_off_the_path_and_are_restored(folder, kind):
    found = check_restore(lambda: LOADERS[kind](opened(folder, f"?.*.{kind}")))
    assert dict(found) == {os.path.join(folder, name): content for name, content in CONTENT.items()}


@pytest.mark.parametrize(
    ("path", "bare"), [("tub.bz2", "tub"), ("fuzz.2.bz2", "fuzz.2"), ("zz", "zz"), ("a.bz2.bz2", "a.bz2")]
)
def test_only_an_existing_suffix_is_removed(path, bare):
    [(found, _)] = iter_pipes.Bz2FileLoader([(path, io.BytesIO(bz2.compress(b"x")))])
    assert found == bare


@each_kind
def test_data_of_command_line_tools_are_decompressed_and_restored_and_leave_no_file_open(folder, kind):
    build = lambda: opened(folder, f"?.*.{kind}").decompress()  # noqa: E731
    assert dict(check_restore(build)) == {os.path.join(folder, f"{name}.{kind}"): CONTENT[name] for name in CONTENT}
    check_restore(lambda: build().shuffle(buffer_size=3).set_seed(7), seeded=True)


@each_kind
def test_streams_seek_and_read_lines_like_files(folder, kind):
    [(_, stream)] = opened(folder, f"d.*.{kind}").decompress()
    with stream:
        assert list(stream) == TEXT.splitlines(keepends=True)
        assert stream.seek(100) == 100
        assert stream.readline() == TEXT[100 : TEXT.index(b"\n", 100) + 1]
        assert stream.seek(-5, os.SEEK_END) == len(TEXT) - 5
        assert stream.read() == TEXT[-5:]


@each_kind
def test_a_compressed_stream_in_the_middle_of_a_file_is_read_rewound_and_restored(folder, tmp_path, kind):
    path = tmp_path / "mixed"
    path.write_bytes(b"header" + (folder / f"d.txt.{kind}").read_bytes())

    def build():
        pairs = iter_pipes.FileOpener([str(path)], mode="b").map(after_header)
        return pairs.decompress({"gz": "gzip", "xz": "lzma", "zst": "zstd"}.get(kind, kind))

    check_restore(build)
    [(_, stream)] = build()
    stream.read(50)
    stream.seek(0)
    assert stream.read() == TEXT


def after_header(pair):
    pair[1].seek(6)
    return pair


def test_closing_a_stream_closes_the_file_that_the_pipe_opened_but_no_file_of_the_user(folder):
    before = open_files()
    for _, stream in opened(folder, "?.*.gz").decompress():
        source = stream.file_obj.raw._source
        assert not source.closed
        stream.close()
        assert source.closed
        assert open_files() == before
    with open(folder / "a.txt.gz", "rb") as file:
        [(_, stream)] = iter_pipes.Decompressor([("a.txt.gz", file)])
        assert stream.read() == b"alpha\n"
        stream.close()
        assert not file.closed


@pytest.mark.parametrize("name", ["all.tar", "all.tar.gz", "all.tar.xz", "all.tar.zst"])
def test_tar_archives_are_yielded_open_and_can_be_loaded(folder, name):
    before = open_files()
    [(path, stream)] = opened(folder, name).decompress()
    assert isinstance(stream.file_obj, tarfile.TarFile)
    assert sorted(stream.getnames()) == sorted(CONTENT)
    stream.close()
    assert open_files() == before

    def build():
        return opened(folder, name).decompress().load_from_tar()

    found = check_restore(build)
    assert dict(found) == {os.path.join(path, member): content for member, content in CONTENT.items()}


def test_members_of_a_tar_archive_compressed_by_bzip2_can_be_read_after_it_was_left(folder):
    [(path, stream)] = opened(folder, "all.tar.bz2").decompress()
    assert stream.read(6) == b"a.txt\0"
    stream.close()
    kept = list(opened(folder, "all.tar.bz2").decompress().load_from_tar())
    found = dict(map(read, reversed(kept)))
    assert found == {os.path.join(path, name): content for name, content in CONTENT.items()}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a.gz", "GZIP"),
        ("a.tar.gz", "TAR"),
        ("folder.x/a.tar", "TAR"),
        ("a.tar.bz2", "BZIP2"),
        ("a.xz", "LZMA"),
        ("a.zip", "ZIP"),
        ("a.tar.zst", "TAR"),
        ("a.tgz", "TAR"),
        ("A.TGZ", "TAR"),
        ("https://host/a.tar.gz?token=x.zip", "TAR"),
        ("https://host/a.xz?path=/b/c#top", "LZMA"),
        ("https://host/get?file=a.bz2", "BZIP2"),
        ("folder/a.gz?token=x", "GZIP"),
        ("s3://bucket/what?.tar", "TAR"),
    ],
)
def test_the_suffix_determines_the_type(path, kind):
    assert iter_pipes.Decompressor([])._kind_of(path) is iter_pipes.Decompressor.types[kind]


@pytest.mark.parametrize("path", ["a", "a.7z", "a.gz/b", "gz", ".gz", "https://host/a?gz"])
def test_an_unknown_suffix_raises_an_error_that_names_the_path(folder, path):
    stream = StreamWrapper(open(folder / "a.txt.gz", "rb"))  # noqa: SIM115
    with pytest.raises(RuntimeError, match=rf"{re.escape(repr(path))}.*pass file_type"):
        list(iter_pipes.Decompressor([(path, stream)]))
    assert stream.closed


@pytest.mark.parametrize("file_type", ["gzip", "GZIP", iter_pipes.Decompressor.types.GZIP])
def test_the_type_can_be_passed(folder, file_type):
    [(_, stream)] = opened(folder, "a.txt.gz").map(lambda pair: ("unnamed", pair[1])).decompress(file_type)
    assert stream.read() == b"alpha\n"


def decompressed(data, file_type):
    [(_, stream)] = iter_pipes.Decompressor([("a", io.BytesIO(data))], file_type)
    with stream:
        whole = stream.read()
        for offset in (len(whole) // 2, 0, len(whole)):
            assert stream.seek(offset) == offset
            assert stream.read() == whole[offset:]
    return whole


@pytest.mark.parametrize("padding", [0, 4, 64 << 10, (64 << 10) + 4])
def test_streams_of_xz_are_read_with_the_padding_between_and_after_them(padding):
    zeros = bytes(padding)
    data = lzma.compress(b"alpha\n") + zeros + lzma.compress(TEXT) + zeros
    assert decompressed(data, "lzma") == b"alpha\n" + TEXT
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = len(TEXT)
        archive.addfile(info, io.BytesIO(TEXT))
    with pytest.raises(lzma.LZMAError, match=r"'a' in Decompressor"):
        decompressed(lzma.compress(b"alpha\n") + zeros + b"rubbish", "lzma")
    assert decompressed(lzma.compress(b"alpha\n", lzma.FORMAT_ALONE), "lzma") == b"alpha\n"
    first, second = tar.getvalue()[:2000], tar.getvalue()[2000:]
    data = lzma.compress(first) + zeros + lzma.compress(second) + zeros
    [(_, stream)] = iter_pipes.IterableWrapper([("a.tar.xz", io.BytesIO(data))], deepcopy=False).load_from_tar()
    assert stream.read() == TEXT


def test_frames_of_zstd_are_read_one_after_the_other_and_in_pieces():
    noise = os.urandom(200_000)
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    unsized = zstd.compress(noise, options=CHECKSUM | {zstd.CompressionParameter.content_size_flag: False})
    data = zstd.compress(TEXT) + skippable + unsized + zstd.compress(b"") + skippable
    assert decompressed(data, "zstd") == TEXT + noise
    for cut in (1, 3, 9, 5000, len(zstd.compress(TEXT)) + 4, len(data) - 1):
        with pytest.raises(EOFError, match=r"'a' in Decompressor"):
            decompressed(data[:cut], "zstd")


def test_a_frame_of_zstd_is_decompressed_in_pieces():
    data = zstd.compress(bytes(200 << 20))
    [(_, stream)] = iter_pipes.Decompressor([("a.zst", io.BytesIO(data))])
    tracemalloc.start()
    size = sum(map(len, iter(lambda: stream.read(1 << 20), b"")))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 200 << 20
    assert most < 80 << 20


def test_a_stream_that_cannot_seek_is_read_ahead(folder):
    with subprocess.Popen(["cat", str(folder / "d.txt.gz")], stdout=subprocess.PIPE) as process:
        [(_, stream)] = iter_pipes.Decompressor([("d.txt.gz", process.stdout)])
        assert not stream.seekable()
        assert stream.read() == TEXT


@pytest.mark.parametrize("name", ["c.bin.gz", "a.txt.xz"])
def test_streams_that_cannot_seek_are_restored_by_reading_from_the_start(folder, web, name):
    url = web.url(name, (folder / name).read_bytes())
    check_restore(lambda: iter_pipes.HttpReader([url] * 2).decompress())
    check_restore(lambda: iter_pipes.HttpReader([url]).decompress().read_from_stream(chunk=700))


DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError)


@each_kind
def test_damaged_files_raise_errors_that_name_pipe_and_path(folder, tmp_path, kind):
    data = (folder / f"d.txt.{kind}").read_bytes()
    before = open_files()
    for offset in range(len(data) // 3, len(data) - 4, max(1, len(data) // 19)):
        damaged = bytearray(data)
        damaged[offset] ^= 0xFF
        (tmp_path / f"bad.{kind}").write_bytes(damaged)
        with pytest.raises(DAMAGE, match=rf"bad\.{kind}' in Decompressor"):
            list(map(read, opened(tmp_path, f"bad.{kind}").decompress()))
        assert open_files() == before


def test_nothing_is_decompressed_before_it_is_read_and_a_pipe_continues_after_an_error(tmp_path):
    (tmp_path / "0.gz").write_bytes(b"no gzip at all")
    (tmp_path / "1.gz").write_bytes(gzip.compress(b"fine"))
    (_, bad), (_, good) = opened(tmp_path, "*.gz").decompress()
    with bad, pytest.raises(gzip.BadGzipFile, match=r"0\.gz.* in Decompressor"):
        bad.read()
    assert good.read() == b"fine"


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
@pytest.mark.parametrize("chunk", [-1, 50_000])
def test_a_decompression_bomb_raises_an_error_that_names_pipe_and_path_and_the_way_out(small_bombs, module, chunk):
    kind = {"gzip": "gzip", "bz2": "bz2", "lzma": "lzma"}[module.__name__]
    bomb = module.compress(bytes(4 << 20))

    def read_all(**options):
        [(_, stream)] = iter_pipes.IterableWrapper([("bomb", io.BytesIO(bomb))]).decompress(kind, **options)
        return sum(map(len, iter(lambda: stream.read(chunk), b"")))

    with pytest.raises(OSError, match=r"bomb' in Decompressor.*decompression bomb.*max_ratio"):
        read_all()
    assert read_all(max_ratio=None) == read_all(max_ratio=1e6) == 4 << 20
    if module is gzip:
        bomb = module.compress(os.urandom(2 << 20))
        assert read_all() == 2 << 20, "a large file with a normal ratio is accepted"


def test_zip_archives_are_yielded_open_and_can_be_loaded_with_named_arguments_through_the_wrapper(folder):
    before = open_files()
    [(_, archive)] = opened(folder, "all.zip").decompress()
    assert isinstance(archive.file_obj, zipfile.ZipFile)
    assert archive.read(name="a.txt") == archive.read("a.txt") == CONTENT["a.txt"]
    assert archive.namelist() == list(CONTENT)
    assert list(archive.open("d.txt")) == TEXT.splitlines(keepends=True)
    archive.close()
    assert open_files() == before
    build = lambda: opened(folder, "all.zip").decompress().load_from_zip()  # noqa: E731
    assert [content for _, content in check_restore(build)] == [*CONTENT.values()]
