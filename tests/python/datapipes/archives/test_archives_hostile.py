"""Reading a malicious, damaged or huge archive needs little memory or fails with a clear error, and leaks no file."""

import gc
import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from stream_checks import check_restore, open_files, read
from torchdata.datapipes.iter import FileOpener, IterableWrapper, TarArchiveLoader

KINDS = ["tar", "tar.gz", "zip"]


def write(path, members, kind, links=()):
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            for name, target in links:
                info = zipfile.ZipInfo(name)
                info.create_system, info.external_attr = 3, 0o120777 << 16
                archive.writestr(info, target)
        return
    with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)


def loaded(path, **options):
    files = FileOpener([str(path)], mode="b")
    return files.load_from_zip(**options) if str(path).endswith("zip") else files.load_from_tar(**options)


each_kind = pytest.mark.parametrize("kind", KINDS)
ERRORS = (tarfile.ReadError, zipfile.BadZipFile)


@each_kind
@pytest.mark.parametrize("name", ["../x", "a/b/../../../x", "..", "/../x", "."])
def test_a_name_that_leaves_the_archive_is_refused(tmp_path, kind, name):
    path = tmp_path / f"bad.{kind}"
    write(path, {"fine": b"1", name: b"2", "after": b"3"}, kind)
    before = open_files()
    pipe = loaded(path)
    for _ in range(2):
        items = iter(pipe)
        assert read(next(items))[1] == b"1"
        with pytest.raises(ERRORS, match=rf"will not read the .* archive '.*bad\.{kind}' in .*Loader.*leads out"):
            next(items)
        del items
        assert open_files() == before


@each_kind
def test_names_that_only_seem_to_leave_the_archive_are_read(tmp_path, kind):
    names = {
        "a/../b": "b",
        "./c": "c",
        "..d": "..d",
        "e..": "e..",
        ".../f": ".../f",
        "/g/h": "g/h",
        "//i": "i",
        "j//k": "j/k",
        "..\\l": "..\\l",
    }
    path = tmp_path / f"odd.{kind}"
    write(path, {name: name.encode() for name in names}, kind)
    found = dict(map(read, loaded(path)))
    assert found == {os.path.join(path, inside): name.encode() for name, inside in names.items()}


@pytest.mark.parametrize("folder", ["", "./x/..", "up/../a.tar", "../a.tar", "/a.tar"])
def test_absolute_names_are_read_below_the_folder_of_their_archive(folder):
    data = io.BytesIO()
    write_to = {"in/x": b"", "/etc/y": b""}
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in write_to:
            archive.addfile(tarfile.TarInfo(name))
    data.seek(0)
    base = os.path.normpath(folder)
    assert [path for path, _ in TarArchiveLoader([(folder, data)])] == [
        os.path.normpath(os.path.join(base, "in/x")),
        os.path.normpath(os.path.join(base, "etc/y")),
    ]


@each_kind
def test_symbolic_links_are_left_out_and_nothing_is_written_outside(tmp_path, kind):
    path, target = tmp_path / f"links.{kind}", tmp_path / "target"
    outside = [("up", ".."), ("root", "/"), ("up/passwd", "/etc/passwd")]
    write(path, {"up/pwned": b"data", "fine": b"data"}, kind, links=outside)
    pipe = loaded(path).read_from_stream()
    saved = pipe.save_to_disk("wb", lambda name: os.path.join(target, os.path.relpath(name, path)))
    assert sorted(saved) == [str(target / "fine"), str(target / "up" / "pwned")]
    assert sorted(os.listdir(tmp_path)) == [path.name, "target"]
    assert not any(entry.is_symlink() for entry in target.rglob("*"))


def test_devices_and_pipes_are_left_out(tmp_path):
    path = tmp_path / "special.tar"
    with tarfile.open(path, "w") as archive:
        for number, kind in enumerate((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE)):
            info = tarfile.TarInfo(str(number))
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert list(loaded(path)) == []


@pytest.mark.parametrize("mode", ["r:*", "r|*", "r:gz", "r|gz"])
def test_a_wrong_checksum_of_a_compressed_tar_archive_raises_an_error_at_its_end(tmp_path, mode):
    path = tmp_path / "sum.tar.gz"
    write(path, {"a": b"alpha"}, "tar.gz")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    items = iter(FileOpener([str(path)], mode="b").load_from_tar(mode=mode))
    assert read(next(items))[1] == b"alpha"
    with pytest.raises(tarfile.ReadError, match=r"sum\.tar\.gz' in TarArchiveLoader: .*checksum"):
        next(items)
    write(path, {"a": b"alpha"}, "tar.gz")
    path.write_bytes(path.read_bytes() + b"something else")
    assert len(list(FileOpener([str(path)], mode="b").load_from_tar(mode=mode))) == 1


@each_kind
def test_a_damaged_archive_raises_an_error_that_names_pipe_and_path_or_shows_no_other_data(tmp_path, kind):
    members = {f"{number}.txt": b"content %d\n" % number * 20 for number in range(4)}
    whole, path = tmp_path / f"whole.{kind}", tmp_path / f"bad.{kind}"
    write(whole, members, kind)
    data = whole.read_bytes()
    before, errors = open_files(), 0
    for offset in range(0, len(data), max(1, len(data) // 101)):
        damaged = bytearray(data)
        damaged[offset] ^= 0x55
        path.write_bytes(damaged)
        try:
            found = [read(item) for item in loaded(path)]
        except (*ERRORS, NotImplementedError, RuntimeError) as error:
            errors += 1
            message = str(error) + "".join(getattr(error, "__notes__", []))
            assert f"bad.{kind}" in message
            assert "ArchiveLoader" in message
        else:
            assert kind == "tar" or {content for _, content in found} <= {*members.values()}
    assert open_files() == before
    assert errors > 5


def header(name, **fields):
    """Returns a tar header with a correct checksum and the given fields. Numbers are stored in binary."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    offsets = {"size": (124, 12), "type": (156, 1), "real": (483, 12), "holes": (386, 96)}
    for field, value in fields.items():
        start, width = offsets[field]
        if isinstance(value, int):
            value = (b"\xff" if value < 0 else b"\x80") + (value % 256 ** (width - 1)).to_bytes(width - 1, "big")
        block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def holes(*pairs):
    return b"".join(b"%011o\0" % number for pair in pairs for number in pair)


@pytest.mark.parametrize("mode", ["r:*", "r|*"])
@pytest.mark.parametrize(
    "block",
    [
        header("back", size=-512),
        header("far back", size=-(1 << 40)),
        header("long", size=1 << 62),
        header("too long", size=1 << 80),
        header("sparse", type=b"S", size=512, holes=holes((0, 512)), real=-5),
    ],
)
def test_invalid_headers_raise_errors_without_loops_or_floods(tmp_path, mode, block):
    path = tmp_path / "lie.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("fine")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"fine"))
    data = path.read_bytes()[:1024] + block + bytes(4096)
    path.write_bytes(data)
    for source in (FileOpener([str(path)], mode="b"), IterableWrapper([(str(path), io.BytesIO(data))])):
        items = iter(source.load_from_tar(mode=mode))
        assert read(next(items))[1] == b"fine"
        with pytest.raises(tarfile.ReadError, match=r"lie\.tar.* in TarArchiveLoader"):
            for item in items:
                read(item)


@each_kind
def test_no_file_waits_for_the_garbage_collector_after_an_error(tmp_path, kind):
    path = tmp_path / f"bad.{kind}"
    write(path, {"a": os.urandom(5000), "../b": b"", "c": b""}, kind)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        for length in (None, 4000, 1000, 300):
            if length is not None:
                os.truncate(path, length)
            with pytest.raises(ERRORS):
                list(loaded(path))
            assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_a_file_that_fails_while_it_is_read_raises_an_error_that_names_pipe_and_path():
    class Failing(io.RawIOBase):
        def readable(self):
            return True

        def seekable(self):
            return True

        def seek(self, *_):
            return 0

        def tell(self):
            return 0

        def readinto(self, _):
            raise OSError(5, "Input/output error")

        def read(self, _=-1):
            raise OSError(5, "Input/output error")

    for load in ("load_from_tar", "load_from_zip", "load_from_rar", "decompress"):
        with pytest.raises(OSError, match="Input/output error") as failure:
            list(map(read, getattr(IterableWrapper([("a.gz", Failing())], deepcopy=False), load)()))
        assert failure.value.errno == 5
        notes = " ".join(failure.value.__notes__)
        assert "'a.gz'" in notes
        assert "Loader" in notes or "Decompressor" in notes


def test_a_decompression_bomb_in_a_stream_that_reads_ahead_is_refused(small_bombs, tmp_path):
    path = tmp_path / "bomb.tar.gz"
    write(path, {"bomb": bytes(4 << 20)}, "tar.gz")
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as process:
        pipe = TarArchiveLoader([("bomb.tar.gz", process.stdout)])
        with pytest.raises(tarfile.ReadError, match="decompression bomb"):
            list(map(read, pipe))


def test_large_members_with_a_normal_ratio_are_not_decompression_bombs(small_bombs, tmp_path):
    content = os.urandom(3 << 20)
    for kind in KINDS:
        write(tmp_path / f"fine.{kind}", {"large": content}, kind)
        assert [found for _, found in map(read, loaded(tmp_path / f"fine.{kind}"))] == [content]


def test_a_sparse_member_without_data_can_be_read_in_pieces_but_not_at_once(small_bombs, tmp_path):
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(4 << 20)
    for style in ("gnu", "pax"):
        path = tmp_path / f"{style}.tar"
        subprocess.run(["tar", f"--format={style}", "-cSf", path, "holes"], cwd=tmp_path, check=True)
        with pytest.raises(tarfile.ReadError, match=r"'holes' of .*TarArchiveLoader.*decompression bomb"):
            list(map(read, loaded(path)))
        pieces = [content for _, content in loaded(path).read_from_stream(chunk=1 << 20)]
        assert pieces == [bytes(1 << 20)] * 4
        assert [len(content) for _, content in map(read, loaded(path, max_ratio=None))] == [4 << 20]


@pytest.mark.parametrize("style", ["gnu", "pax"])
@pytest.mark.parametrize("flag", ["", "z"])
def test_sparse_members_are_restored_at_every_position(tmp_path, style, flag):
    for number in range(3):
        with open(tmp_path / f"{number}", "wb") as file:
            file.seek(1 << 18)
            file.write(b"%d" % number)
    names = ["0", "1", "2"]
    path = tmp_path / "sparse.tar"
    subprocess.run(["tar", f"--format={style}", f"-c{flag}Sf", path, *names], cwd=tmp_path, check=True)
    expected = [(str(path / name), bytes(1 << 18) + name.encode()) for name in names]
    assert check_restore(lambda: loaded(path)) == expected
    check_restore(lambda: loaded(path).shuffle(buffer_size=2).set_seed(1), seeded=True)


GROWTH = """
import resource, sys
from torchdata.datapipes.iter import FileOpener
path, load, chunk = sys.argv[1], sys.argv[2], int(sys.argv[3])
def run(path):
    pipe = getattr(FileOpener([path], mode="b"), load)()
    total = 0
    for _, stream in pipe:
        if chunk:
            while data := stream.read(chunk):
                total += len(data)
    return total
run(sys.argv[4])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = run(path)
print(total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def growth(path, load, chunk, small):
    """Reads an archive in a new process. Returns the number of bytes read, and the growth of peak memory in KiB."""
    command = [sys.executable, "-c", GROWTH, str(path), load, str(chunk), str(small)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout
    return tuple(map(int, output.split()))


def sparse_tar(path, size):
    with open(path, "wb") as file:
        info = tarfile.TarInfo("large")
        info.size = size
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.seek(-(-size // 512) * 512, os.SEEK_CUR)
        info = tarfile.TarInfo("small")
        info.size = 5
        file.write(info.tobuf(tarfile.GNU_FORMAT) + b"small".ljust(512, b"\0") + bytes(1024))


def sparse_zip(path, size):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        info = zipfile.ZipInfo("large")
        info.file_size = info.compress_size = size
        info.CRC, info.header_offset = 0, archive.fp.tell()
        archive.fp.write(info.FileHeader(zip64=True))
        archive.fp.seek(size, os.SEEK_CUR)
        archive.start_dir = archive.fp.tell()
        archive.filelist.append(info)
        archive.NameToInfo[info.filename] = info
        archive.writestr("small", b"small")


@pytest.mark.parametrize(
    ("write_sparse", "load", "size", "chunk"),
    [
        (sparse_tar, "load_from_tar", 3 << 30, 0),
        (sparse_tar, "load_from_tar", 100 << 20, 1 << 20),
        (sparse_zip, "load_from_zip", 3 << 30, 0),
    ],
    ids=["tar, skipped", "tar, in pieces", "zip, skipped"],
)
def test_a_sparse_archive_is_read_in_constant_memory(tmp_path, write_sparse, load, size, chunk):
    small, large = tmp_path / "small", tmp_path / "large"
    write_sparse(small, 4 << 20)
    write_sparse(large, size)
    assert large.stat().st_size > size
    assert large.stat().st_blocks * 512 < 1 << 20
    total, grown = growth(large, load, chunk, small)
    assert total == (size + 5 if chunk else 0)
    assert grown < 16 << 10


def test_a_sparse_member_of_three_gigabytes_is_skipped_in_constant_memory(tmp_path):
    for name, size in (("large", 3 << 30), ("small", 1 << 20)):
        with open(tmp_path / "holes", "wb") as file:
            file.truncate(size)
        subprocess.run(["tar", "-cSf", name, "holes"], cwd=tmp_path, check=True)
    _, grown = growth(tmp_path / "large", "load_from_tar", 0, tmp_path / "small")
    assert grown < 16 << 10


@pytest.mark.parametrize("module", [gzip, lzma])
def test_a_large_compressed_file_is_read_in_constant_memory(tmp_path, module):
    suffix = {"gzip": "gz", "lzma": "xz"}[module.__name__]
    small, large = tmp_path / f"small.{suffix}", tmp_path / f"large.{suffix}"
    for path, size in ((small, 4 << 20), (large, 40 << 20)):
        with module.open(path, "wb") as file:
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))
    total, grown = growth(large, "decompress", 1 << 20, small)
    assert total == 40 << 20
    assert grown < 16 << 10
