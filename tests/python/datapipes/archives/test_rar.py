"""RarArchiveLoader reads archives created by rar, and rejects malicious archives."""

import functools
import io
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

import pytest
import rarfile

from stream_checks import check_restore, open_files, read
from torchdata.datapipes.iter import FileLister, FileOpener, IterableWrapper, RarArchiveLoader
from torchdata.datapipes.iter.archives import archive as _archive
from torchdata.datapipes.utils import StreamWrapper

DATA = pathlib.Path(__file__).parents[2] / "data" / "rar"
STORED = ("rar3-subdirs", "rar5-subdirs")
TREE = {
    "sub/dir2/file2.txt": b"file2\n",
    "sub/with space/long fn.txt": b"long fn\n",
    "sub/\u00fc\u0235\u0129\u00f6\u1e0b\u00e8/file.txt": b"file\n",
    "sub/dir1/file1.txt": b"file1\n",
}

a_program = any(map(shutil.which, ("unrar", "unar", "7z", "7zz", "bsdtar")))

#: A substitute for the program unrar. This program always prints the same content, because all compressed members in
#: the test archives have the content that it prints.
PLACEHOLDER = f"""#!{sys.executable} -IS
import sys
if sys.argv[1] == "p":
    assert open(sys.argv[sys.argv.index("--") + 1], "rb").read(4) == b"Rar!"
    sys.stdout.write("".join(f"{{number:03}}\\n" for number in range(512)))
"""


def loader(*names, **options):
    return FileOpener([str(DATA / f"{name}.rar") for name in names], mode="b").load_from_rar(**options)


def vint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def block(kind, flags, *fields, data=None):
    """Returns one block of a RAR 5 archive, as rarlab's "RAR 5.0 archive format" describes."""
    size = vint(len(data)) if data is not None else b""
    header = vint(kind) + vint(flags | (2 if data is not None else 0)) + size + b"".join(fields)
    sized = vint(len(header)) + header
    return struct.pack("<I", zlib.crc32(sized)) + sized + (data or b"")


def stored(members, *, flags=0, unpacked=None, end=True):
    archive = b"Rar!\x1a\x07\x01\x00" + block(1, 0, vint(0))
    for name, content in members.items():
        encoded = name.encode()
        archive += block(
            2,
            flags,
            vint(4),  # a checksum is present
            vint(len(content) if unpacked is None else unpacked),
            vint(0o644),
            struct.pack("<I", zlib.crc32(content)),
            vint(0),  # no compression
            vint(1),  # created on Unix
            vint(len(encoded)),
            encoded,
            data=content,
        )
    return archive + (block(5, 0, vint(0)) if end else b"")


def in_memory(data, **options):
    return IterableWrapper([("folder/a.rar", io.BytesIO(data))]).load_from_rar(**options)


def test_stored_members_are_yielded_with_the_path_of_their_archive_and_are_restored():
    assert dict(check_restore(lambda: loader(*STORED))) == {
        str(DATA / f"{name}.rar" / member): content for name in STORED for member, content in TREE.items()
    }


def test_archives_in_memory_and_in_other_archives_are_read():
    inner = stored({"a.txt": b"alpha", "b.txt": b""})
    check_restore(lambda: in_memory(inner))
    build = lambda: in_memory(stored({"inner.rar": inner, "more.rar": inner})).load_from_rar()  # noqa: E731
    assert [os.path.basename(path) for path, _ in check_restore(build)] == ["a.txt", "b.txt"] * 2


@pytest.mark.parametrize("name", ["rar3-symlink-unix", "rar5-symlink-unix"])
def test_symbolic_links_are_left_out(name):
    assert [os.path.basename(read(item)[0]) for item in loader(name)] == ["data.txt"]


def test_a_file_below_a_link_out_of_the_folder_stays_in_the_archive_s_folder(tmp_path):
    [(path, content)] = map(read, loader("rar5-evil-symlink-traversal"))
    folder = str(DATA / "rar5-evil-symlink-traversal.rar")
    assert path == os.path.join(folder, "up", "pwned.txt")
    saved = IterableWrapper([(path, content)]).save_to_disk(
        "wb", filepath_fn=lambda path: os.path.join(tmp_path, os.path.relpath(path, folder))
    )
    assert [*saved] == [str(tmp_path / "up" / "pwned.txt")]


def test_names_that_leave_the_archive_are_refused_and_absolute_names_are_in_its_folder():
    for name in ("../x", "a/../../x", "/../x", "."):
        with pytest.raises(rarfile.BadRarFile, match=r"folder/a\.rar.*RarArchiveLoader.*leads out"):
            list(in_memory(stored({name: b"x"})))
    assert [*map(read, in_memory(stored({"/etc/passwd": b"x"})))] == [("folder/a.rar/etc/passwd", b"x")]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("rar5-psw", rarfile.PasswordRequired, "'stest1.txt' is encrypted; archives with a password"),
        ("rar5-hpsw", rarfile.PasswordRequired, "names in the archive are encrypted; archives with a password"),
        ("rar3-vols.part3", rarfile.NeedFirstVolume, "archives of several volumes are not supported"),
    ],
)
def test_an_error_names_pipe_path_and_remedy_for_unsupported_files(name, error, message):
    before = open_files()
    pipe = loader(name)
    with pytest.raises(rarfile.NeedFirstVolume, match=r"a\.rar.*several volumes are not supported"):
        list(in_memory(stored({"part": b"x"}, flags=0x10)))
    for _ in range(2):
        with pytest.raises(error, match=rf"{name}\.rar' in RarArchiveLoader.*{message}"):
            list(pipe)
        assert open_files() == before


@pytest.mark.parametrize("name", [*STORED, "rar5-symlink-unix"])
def test_a_damaged_archive_raises_an_error_that_names_it_or_yields_what_was_stored(tmp_path, name):
    data = (DATA / f"{name}.rar").read_bytes()
    contents = {content for _, content in map(read, loader(name))}
    before, errors = open_files(), 0
    for offset in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[offset] ^= 0x55
        (tmp_path / "bad.rar").write_bytes(damaged)
        try:
            found = [read(item) for item in FileLister(str(tmp_path)).open_files(mode="b").load_from_rar()]
        except rarfile.Error as error:
            errors += 1
            assert "bad.rar" in str(error)  # noqa: PT017
        else:
            assert {content for _, content in found} <= contents
    assert open_files() == before
    assert errors > len(data) // 14


def test_a_stream_that_cannot_seek_raises_an_error():
    with subprocess.Popen(["cat", str(DATA / "rar5-crc.rar")], stdout=subprocess.PIPE) as process:
        with pytest.raises(io.UnsupportedOperation, match=r"BytesIO first"):
            list(RarArchiveLoader([("pipe", process.stdout)]))
        process.stdout.read()


def test_a_decompression_bomb_is_refused(monkeypatch):
    data = stored({"bomb": b"tiny"}, unpacked=5 << 30)
    with pytest.raises(rarfile.BadRarFile, match=r"a\.rar' in RarArchiveLoader.*decompression bomb.*max_ratio"):
        list(in_memory(data))
    assert len(list(in_memory(data, max_ratio=None))) == 1
    monkeypatch.setattr(_archive, "SMALLEST_BOMB", 8 << 30)
    assert len(list(in_memory(data))) == 1


@pytest.fixture
def no_program(monkeypatch):
    monkeypatch.setattr(rarfile, "CURRENT_SETUP", None)
    for tool in ("UNRAR", "UNAR", "BSDTAR", "SEVENZIP", "SEVENZIP2"):
        monkeypatch.setattr(rarfile, f"{tool}_TOOL", "no-such-program")


@pytest.mark.parametrize("name", ["rar5-crc", "seektest", "rar5-solid"])
def test_without_a_program_only_reading_a_compressed_member_raises_an_error(no_program, name):
    before, found, errors = open_files(), [], []
    for path, stream in loader(name):
        with stream:
            try:
                found.append((os.path.basename(path), len(stream.read())))
            except rarfile.RarCannotExec as error:
                errors.append(str(error))
    assert found == ([] if name == "rar5-solid" else [("stest2.txt", 2048)])
    assert len(found) + len(errors) == 2
    assert f"'stest1.txt' of '{DATA / name}.rar' in RarArchiveLoader" in errors[0]
    assert "install one of them" in errors[0]
    del stream
    assert open_files() == before


@pytest.fixture(
    params=[
        pytest.param(
            "real",
            marks=pytest.mark.skipif(
                not a_program, reason="compressed members of RAR archives need unrar, unar, 7z or bsdtar"
            ),
        ),
        "stand-in",
    ]
)
def program(request, monkeypatch, tmp_path, tmp_path_factory):
    if request.param == "stand-in":
        script = tmp_path_factory.mktemp("bin") / "unrar"
        script.write_text(PLACEHOLDER)
        script.chmod(0o755)
        monkeypatch.setattr(rarfile, "UNRAR_TOOL", str(script))
    monkeypatch.setattr(rarfile, "CURRENT_SETUP", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield request.param
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["seektest", "rar5-solid"])
def test_compressed_members_are_read_and_restored_by_a_program(program, name):
    found = check_restore(lambda: loader(name))
    assert [os.path.basename(path) for path, _ in found][:2] == ["stest1.txt", "stest2.txt"]
    assert len({content for _, content in found}) == 1
    assert len(found[0][1]) == 2048


def test_copies_of_compressed_members_resume_at_their_position(program):
    build = functools.partial(loader, "rar5-crc")
    check_restore(lambda: build().readlines(return_path=False).header(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rarfile, "custom_popen", None)  # no program is started for members that nobody reads
        assert len(list(build())) == 2


def test_a_program_that_fails_raises_an_error_that_names_member_archive_and_pipe(monkeypatch, tmp_path):
    script = tmp_path / "unrar"
    script.write_text(f"#!{sys.executable} -IS\nimport sys\nsys.exit(3 if sys.argv[1] == 'p' else 0)\n")
    script.chmod(0o755)
    monkeypatch.setattr(rarfile, "UNRAR_TOOL", str(script))
    monkeypatch.setattr(rarfile, "CURRENT_SETUP", None)
    before = open_files()
    with pytest.raises(rarfile.Error, match=r"'stest1\.txt' of '.*rar5-crc\.rar' in RarArchiveLoader"):
        list(map(read, loader("rar5-crc")))
    assert open_files() == before


def test_streams_that_the_user_opened_stay_open():
    with open(DATA / "rar5-subdirs.rar", "rb") as file:
        assert len(list(map(read, RarArchiveLoader([("a.rar", file)])))) == len(TREE)
        assert not file.closed
    wrapped = StreamWrapper(open(DATA / "rar5-subdirs.rar", "rb"))  # noqa: SIM115
    assert len(list(map(read, RarArchiveLoader([("a.rar", wrapped)])))) == len(TREE)
    assert wrapped.closed
