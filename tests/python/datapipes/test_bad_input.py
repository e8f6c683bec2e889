"""A damaged, malicious or unreadable file among good files causes an error in loaders with and without workers.

For every kind of file, the error names the pipe and the path, and no file stays open in any process. After the test
repairs the file, the loader yields all items.
"""

from __future__ import annotations

import bz2
import csv
import functools
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import pathlib
import struct
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import rarfile

from archive_bytes import tar_of, zip_of
from stream_checks import open_files, read
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import FileLister, FileOpener, FSSpecFileOpener, IoPathFileOpener, IterableWrapper, Saver
from torchdata.datapipes.iter.archives import archive, tar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # protobuf warns about future versions
    pytest.importorskip("torch", reason="the library that writes TFRecords imports it")
    from tfrecord import TFRecordWriter

RAR = (pathlib.Path(__file__).parents[1] / "data/rar/rar5-subdirs.rar").read_bytes()


def records_of(*records: bytes) -> bytes:
    crc = TFRecordWriter.masked_crc
    lengths = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(n + crc(n) + data + crc(data) for n, data in zip(lengths, records, strict=True))


def parquet_of(count: int) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"n": range(count)}), buffer)
    return buffer.getvalue()


def flipped(data: bytes, place: int) -> bytes:
    damaged = bytearray(data)
    damaged[place] ^= 1
    return bytes(damaged)


TEXT = b"alpha,beta\n" * 300


@dataclass(frozen=True)
class Bad:
    good: bytes
    bad: bytes
    #: A function that appends the tested pipe, which reads the file, to a pipe of pairs (path, stream).
    pipe: Callable[[Any], Any]
    #: A pattern of the error message, which names the pipe and the kind of the fault.
    names: str
    error: type[Exception] | tuple[type[Exception], ...]


TAR, TAR_GZ, ZIP = tar_of([("a", TEXT)]), tar_of([("a", TEXT)], "w:gz"), zip_of("a", TEXT)
RECORDS, PARQUET = records_of(b"", b""), parquet_of(1000)


def from_tar(files: Any) -> Any:
    return files.load_from_tar().map(read)


def from_zip(files: Any) -> Any:
    return files.load_from_zip().map(read)


def decompressed(kind: str, files: Any) -> Any:
    return files.decompress(kind).map(read)


KINDS: dict[str, Bad] = {
    "tar, truncated": Bad(TAR, TAR[:1000], from_tar, "TarArchiveLoader", tarfile.ReadError),
    "tar, no archive": Bad(TAR, b"none" * 999, from_tar, "TarArchiveLoader", tarfile.ReadError),
    "tar, damaged header": Bad(TAR, flipped(TAR, 3), from_tar, "TarArchiveLoader", tarfile.ReadError),
    "tar, name that leads out": Bad(TAR, tar_of([("../a", TEXT)]), from_tar, "TarArchiveLoader", tarfile.ReadError),
    "tar.gz, wrong checksum": Bad(TAR_GZ, flipped(TAR_GZ, -5), from_tar, "TarArchiveLoader", tarfile.ReadError),
    "tar.gz, bomb": Bad(
        TAR_GZ, tar_of([("a", bytes(4 << 20))], "w:gz"), from_tar, "TarArchiveLoader", tarfile.ReadError
    ),
    "zip, truncated": Bad(ZIP, ZIP[:-30], from_zip, "ZipArchiveLoader", zipfile.BadZipFile),
    "zip, wrong checksum": Bad(ZIP, flipped(ZIP, 99), from_zip, "ZipArchiveLoader", zipfile.BadZipFile),
    "zip, name that leads out": Bad(ZIP, zip_of("../a", TEXT), from_zip, "ZipArchiveLoader", zipfile.BadZipFile),
    "zip, bomb": Bad(
        ZIP, zip_of("a", bytes(4 << 20), zipfile.ZIP_DEFLATED), from_zip, "ZipArchiveLoader", zipfile.BadZipFile
    ),
    "rar, truncated": Bad(
        RAR, RAR[:-60], lambda files: files.load_from_rar().map(read), "RarArchiveLoader", rarfile.Error
    ),
    "tfrecord, truncated": Bad(
        RECORDS, RECORDS[:-1], lambda files: files.load_from_tfrecord(), "TFRecordLoader", RuntimeError
    ),
    "tfrecord, wrong checksum": Bad(
        RECORDS, flipped(RECORDS, -1), lambda files: files.load_from_tfrecord(), "TFRecordLoader", RuntimeError
    ),
    "parquet, truncated": Bad(
        PARQUET,
        PARQUET[:-20],
        lambda files: files.load_parquet_as_df().map(len),
        "ParquetDataFrameLoader",
        (ValueError, OSError),
    ),
    "csv, unbalanced quote": Bad(
        b"a,b\n", b'a,"b\n', lambda files: files.parse_csv(strict=True), "CSVParser", csv.Error
    ),
    "csv, unbalanced quote that swallows too much": Bad(
        b"a,b\n", b'a,"b\n' + TEXT * 50, lambda files: files.parse_csv_as_dict(), "CSVDictParser", csv.Error
    ),
    "csv, broken encoding": Bad(
        b"a,b\n", b"a,\xff\n", lambda files: files.parse_csv(errors="strict"), "CSVParser", UnicodeDecodeError
    ),
    "lines, broken encoding": Bad(
        b"a\nb\n",
        b"a\n\xff\n",
        lambda files: files.readlines(decode=True, errors="strict"),
        "LineReader",
        UnicodeDecodeError,
    ),
    "json, broken off": Bad(
        b'{"a": 1}', b'{"a": 1', lambda files: files.parse_json_files(), "JsonParser", json.JSONDecodeError
    ),
    "a wrong hash": Bad(
        b"alpha",
        b"alphA",
        lambda files: files.check_hash(AnyPath(hashlib.sha256(b"alpha").hexdigest())).map(read),
        "HashChecker",
        RuntimeError,
    ),
} | {
    f"{kind}, truncated": Bad(
        data, data[:-3], functools.partial(decompressed, kind), "Decompressor", (EOFError, OSError)
    )
    for kind, data in (
        ("gzip", gzip.compress(TEXT, mtime=0)),
        ("bz2", bz2.compress(TEXT)),
        ("lzma", lzma.compress(TEXT)),
    )
}


class AnyPath(dict[str, str]):
    """A dict that returns the same hash for every path, so that it can replace a table of the files' hashes."""

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def __contains__(self, path: object) -> bool:
        return True

    def __missing__(self, path: str) -> str:
        return self.digest


def said(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def _descriptors(process: str) -> list[str]:
    try:
        return [f"/proc/{process}/fd/{name}" for name in os.listdir(f"/proc/{process}/fd")]
    except (FileNotFoundError, PermissionError, ProcessLookupError):  # the process has ended
        return []


def open_below(folder: str) -> list[str]:
    """Returns the files in a folder that this process or its children have open."""
    found = []
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for link in itertools.chain.from_iterable(map(_descriptors, ["self", *children])):
        with suppress(FileNotFoundError, ProcessLookupError):  # the file was closed, or the process has ended
            if (target := os.readlink(link)).startswith(folder):
                found.append(target)
    return found


def none_stays_open(folder: str) -> bool:
    """Waits until no process has one of the files open.

    A worker that reads ahead closes its files only after its item has arrived.
    """
    deadline = time.monotonic() + 20
    while open_below(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(autouse=True)
def _small_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the limit for decompression bombs to 1 MiB, so that small test files exceed the limit."""
    for module in (archive, tar):
        monkeypatch.setattr(module, "SMALLEST_BOMB", 1 << 20)
    monkeypatch.setattr(tar, "PIECE", 1 << 18)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_is_named_and_leaves_the_loader_usable_and_no_file_open(
    kind: str, workers: int, tmp_path: pathlib.Path
) -> None:
    case, folder = KINDS[kind], str(tmp_path)
    for name in ("0-good", "1-bad", "2-good"):
        (tmp_path / name).write_bytes(case.good)
    pipe = case.pipe(FileLister(folder).sharding_filter().open_files(mode="b"))
    whole = list(pipe)
    service = MultiProcessingReadingService(workers, multiprocessing_context="fork") if workers else None
    with DataLoader2(pipe, reading_service=service) as loader:
        (tmp_path / "1-bad").write_bytes(case.bad)
        for _ in range(2):
            with pytest.raises(case.error) as failure:
                list(loader)
            assert "1-bad" in said(failure.value)
            assert case.names in said(failure.value)
            del failure
            assert none_stays_open(folder)
        (tmp_path / "1-bad").write_bytes(case.good)
        assert sorted(map(str, loader)) == sorted(map(str, whole))
        assert none_stays_open(folder)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Runs the block as another user if the tests run as root, so that file permissions apply."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f"root cannot become another user here: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def secret() -> Iterator[pathlib.Path]:
    """Yields a readable folder that contains a file and a folder without read permission."""
    with tempfile.TemporaryDirectory(prefix="torchdata-test-secret-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        (folder / "file").write_bytes(gzip.compress(b"x"))
        (folder / "folder").mkdir()
        for path in folder.iterdir():
            path.chmod(0)
        yield folder
        (folder / "folder").chmod(0o700)


@pytest.mark.parametrize(
    ("names", "target", "build"),
    [
        ("FileOpener", "file", lambda path: FileOpener([path], mode="b").decompress("gzip")),
        ("FileOpener", "file", lambda path: FileOpener([path], mode="b").load_from_tar()),
        ("FSSpecFileOpener", "file", lambda path: FSSpecFileOpener([path], mode="rb")),
        ("IoPathFileOpener", "file", lambda path: IoPathFileOpener([path], mode="rb")),
        ("ParquetDataFrameLoader", "file", lambda path: IterableWrapper([path]).load_parquet_as_df()),
        ("FileLister", "folder", lambda path: FileLister(path)),
        ("Saver", "folder", lambda path: Saver([(f"{path}/file", "x")])),
    ],
    ids=["decompress", "load_from_tar", "fsspec", "iopath", "parquet", "lister", "saver"],
)
def test_an_error_names_pipe_and_path_of_an_unreadable_file(
    names: str, target: str, build: Callable[[str], Any], secret: pathlib.Path
) -> None:
    path = str(secret / target)
    with DataLoader2(build(path)) as loader:
        with suppress(Exception):
            list(loader)  # imports all modules before this process loses its privileges
        with without_privileges(), pytest.raises(PermissionError) as failure:
            list(loader)
        assert path in said(failure.value)
        assert names in said(failure.value)
        before = open_files()
        with without_privileges(), pytest.raises(PermissionError):
            list(loader)
        assert open_files() == before
        assert open_below(str(secret)) == []
