"""TarArchiveLoader and ZipArchiveLoader read archives made by tar, by zip and by Python's own modules."""

import io
import os
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from stream_checks import check_restore, open_files, read
from torchdata.datapipes.iter import FileLister, FileOpener, TarArchiveLoader, ZipArchiveLoader

LONG = "long/" + "name" * 40 + ".bin"
CONTENT = {
    "tree/a.txt": b"alpha\n",
    "tree/empty": b"",
    "tree/block.bin": bytes(range(256)) * 2,
    "tree/large.bin": bytes(range(256)) * 200,
    "tree/\u00e9t\u00e9.txt": "été".encode(),
    "tree/" + LONG: b"long",
}
FLAGS = {"tar": "", "tar.gz": "z", "tar.bz2": "j", "tar.xz": "J"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("archives")
    for name, content in CONTENT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "tree" / "link").symlink_to("a.txt")
    os.link(root / "tree" / "a.txt", root / "tree" / "zz-hard-link")
    for kind, flag in FLAGS.items():
        for number in range(2):
            subprocess.run(["tar", "--sort=name", f"-c{flag}f", f"{number}.{kind}", "tree"], cwd=root, check=True)
    for style in ("v7", "ustar", "pax"):
        subprocess.run(
            ["tar", f"--format={style}", "-cf", f"style.{style}", "tree/a.txt", "tree/large.bin"], cwd=root, check=True
        )
    for number in range(2):
        if shutil.which("zip"):
            subprocess.run(["zip", "-qr", f"{number}.zip", "tree"], cwd=root, check=True)
        else:
            with zipfile.ZipFile(root / f"{number}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                archive.mkdir("tree")
                for name, content in CONTENT.items():
                    archive.writestr(name, content)
    return root


def loader(folder, kind, mode="r:*"):
    files = FileLister(str(folder), f"*.{kind}").open_files(mode="b")
    return files.load_from_zip() if kind == "zip" else files.load_from_tar(mode=mode)


def members(folder, kind, number):
    return {os.path.join(str(folder), f"{number}.{kind}", name): content for name, content in CONTENT.items()}


EVERY_KIND = [(kind, mode) for kind in FLAGS for mode in ("r:*", "r|*")] + [("zip", "")]


@pytest.mark.parametrize(("kind", "mode"), EVERY_KIND)
def test_every_regular_file_is_yielded_with_the_path_of_its_archive_and_is_restored(folder, kind, mode):
    found = check_restore(lambda: loader(folder, kind, mode))
    expected = {**members(folder, kind, 0), **members(folder, kind, 1)}
    if kind == "zip":  # zip stores a link as a copy of its target.
        found = [(path, content) for path, content in found if "link" not in path]
        # Old versions of zip do not mark names as UTF-8, so the reader decodes non-ASCII names with another encoding.
        found = [(path.replace("\u251c\u2310", "\u00e9"), content) for path, content in found]
    # For a file with two names (hard links), tar stores the second name as a link to the first name.
    found = [(path.replace("zz-hard-link", "a.txt"), content) for path, content in found]
    assert len(found) == len(expected)
    assert dict(found) == expected


@pytest.mark.parametrize(("kind", "mode"), [("tar", "r|*"), ("tar.gz", "r:*"), ("zip", "")])
def test_a_shuffle_buffer_of_members_is_restored_at_every_position(folder, kind, mode):
    check_restore(lambda: loader(folder, kind, mode).shuffle(buffer_size=5).set_seed(7), seeded=True)


@pytest.mark.parametrize("style", ["v7", "ustar", "pax"])
def test_every_format_of_tar_is_read(folder, style):
    found = [read(item)[1] for item in loader(folder, style)]
    assert found == [CONTENT["tree/a.txt"], CONTENT["tree/large.bin"]]


def test_members_seek_tell_and_read_lines_like_files(folder):
    for path, stream in loader(folder, "tar"):
        if path.endswith("large.bin"):
            content = CONTENT["tree/large.bin"]
            assert stream.seek(-10, os.SEEK_END) == len(content) - 10
            assert stream.read() == content[-10:]
            assert stream.seek(300) == 300
            assert stream.read(5) == content[300:305]
            assert stream.tell() == 305
            assert stream.readline() == content[305 : content.index(b"\n", 305) + 1]
            assert stream.seekable()
        elif path.endswith("a.txt"):
            assert list(stream) == [b"alpha\n"]


@pytest.mark.parametrize(("kind", "mode"), [("tar", "r:*"), ("tar.xz", "r|*"), ("zip", "")])
def test_members_can_be_read_long_after_their_archive_was_left(folder, kind, mode):
    before = open_files()
    kept = list(loader(folder, kind, mode))
    found = {path: stream.read() for path, stream in reversed(kept)}
    for path, content in members(folder, kind, 0).items():
        assert found.get(path, content) == content
    del kept
    assert open_files() == before


def test_an_archive_in_an_archive_is_read_and_restored(folder, tmp_path):
    with tarfile.open(tmp_path / "outer.tar", "w") as outer:
        for number in range(2):
            outer.add(folder / f"{number}.tar", arcname=f"{number}.tar")
    build = lambda: loader(tmp_path, "tar").load_from_tar()  # noqa: E731
    assert len(check_restore(build)) == 2 * len(CONTENT)


def test_a_stream_that_cannot_seek_is_read_ahead(folder):
    with subprocess.Popen(["cat", str(folder / "0.tar.gz")], stdout=subprocess.PIPE) as process:
        found = [read(item)[1] for item in TarArchiveLoader([("pipe", process.stdout)])]
    assert sorted(found) == sorted(CONTENT.values())


def test_a_zip_archive_in_a_stream_that_cannot_seek_raises_an_error(folder):
    with subprocess.Popen(["cat", str(folder / "0.zip")], stdout=subprocess.PIPE) as process:
        with pytest.raises(io.UnsupportedOperation, match=r"BytesIO first"):
            list(ZipArchiveLoader([("pipe", process.stdout)]))
        process.stdout.read()


@pytest.mark.parametrize(
    ("kind", "error"), [("tar", tarfile.ReadError), ("tar.gz", tarfile.ReadError), ("zip", zipfile.BadZipFile)]
)
def test_a_truncated_archive_raises_an_error_that_names_path_and_pipe(folder, tmp_path, kind, error):
    data = (folder / f"0.{kind}").read_bytes()
    whole = len(list(loader(folder, kind))) // 2
    path = tmp_path / f"cut.{kind}"
    for cut in range(1, len(data) - (20 << 10 if kind == "tar" else 8), max(1, len(data) // 23)):
        path.write_bytes(data[:cut])
        try:
            items = [read(item) for item in loader(tmp_path, kind)]
        except error as failure:
            assert f"cut.{kind}" in str(failure)  # noqa: PT017
        else:
            # An uncompressed tar archive that was truncated between two members looks like a complete archive.
            assert kind == "tar"
            assert cut % 512 == 0
            assert len(items) < whole


def test_an_encrypted_member_raises_an_error_that_names_the_archive(tmp_path):
    path = tmp_path / "secret.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"x")
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(RuntimeError, match="password") as failure:
        list(loader(tmp_path, "zip"))
    assert any("secret.zip" in note for note in failure.value.__notes__)


@pytest.mark.parametrize("mode", ["w", "r:zip", "x:*", 5])
def test_modes_that_do_not_read_are_refused(mode):
    with pytest.raises(ValueError, match="mode"):
        TarArchiveLoader([], mode=mode)


def test_reading_an_archive_keeps_no_headers_and_an_archive_may_be_empty(tmp_path):
    zipfile.ZipFile(tmp_path / "a.zip", "w").close()
    assert list(loader(tmp_path, "zip")) == []
    path = str(tmp_path / "many.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for number in range(500):
            archive.addfile(tarfile.TarInfo(str(number)))
    pipe = FileOpener([path], mode="b").load_from_tar()
    for _ in pipe:
        assert len(pipe._archive.tar.members) <= 1
