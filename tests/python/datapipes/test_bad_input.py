"""A damaged file among good files causes an error that names the pipe and the path, in every kind of loader."""

import csv
import glob
import gzip
import hashlib
import io
import itertools
import json
import os
import pathlib
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import rarfile

from archive_bytes import tar_of, zip_of
from stream_checks import read
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import FileLister
from waiting import wait_for

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


def flipped(data: bytes, offset: int) -> bytes:
    damaged = bytearray(data)
    damaged[offset] ^= 1
    return bytes(damaged)


TEXT = b"alpha,beta\n" * 300


@dataclass(frozen=True)
class Bad:
    good: bytes
    bad: bytes
    pipe: Callable[[Any], Any]
    names: str
    error: type[Exception] | tuple[type[Exception], ...]


TAR, TAR_GZ, ZIP = tar_of([("a", TEXT)]), tar_of([("a", TEXT)], "w:gz"), zip_of("a", TEXT)
RECORDS, PARQUET, GZIP = records_of(b"", b""), parquet_of(1000), gzip.compress(TEXT, mtime=0)


def from_tar(files: Any) -> Any:
    return files.load_from_tar().map(read)


def from_zip(files: Any) -> Any:
    return files.load_from_zip().map(read)


KINDS: dict[str, Bad] = {
    "tar, truncated": Bad(TAR, TAR[:1000], from_tar, "TarArchiveLoader", tarfile.ReadError),
    "tar, name that leads out": Bad(TAR, tar_of([("../a", TEXT)]), from_tar, "TarArchiveLoader", tarfile.ReadError),
    "tar.gz, wrong checksum": Bad(TAR_GZ, flipped(TAR_GZ, -5), from_tar, "TarArchiveLoader", tarfile.ReadError),
    "tar.gz, bomb": Bad(
        TAR_GZ, tar_of([("a", bytes(4 << 20))], "w:gz"), from_tar, "TarArchiveLoader", tarfile.ReadError
    ),
    "zip, truncated": Bad(ZIP, ZIP[:-30], from_zip, "ZipArchiveLoader", zipfile.BadZipFile),
    "zip, wrong checksum": Bad(ZIP, flipped(ZIP, 99), from_zip, "ZipArchiveLoader", zipfile.BadZipFile),
    "zip, bomb": Bad(
        ZIP, zip_of("a", bytes(4 << 20), zipfile.ZIP_DEFLATED), from_zip, "ZipArchiveLoader", zipfile.BadZipFile
    ),
    "rar, truncated": Bad(
        RAR, RAR[:-60], lambda files: files.load_from_rar().map(read), "RarArchiveLoader", rarfile.Error
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
    "csv, unbalanced quote that swallows too much": Bad(
        b"a,b\n", b'a,"b\n' + TEXT * 50, lambda files: files.parse_csv_as_dict(), "CSVDictParser", csv.Error
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
    "gzip, truncated": Bad(
        GZIP, GZIP[:-3], lambda files: files.decompress("gzip").map(read), "Decompressor", (EOFError, OSError)
    ),
}


class AnyPath(dict[str, str]):
    def __init__(self, digest: str) -> None:
        self.digest = digest

    def __contains__(self, path: object) -> bool:
        return True

    def __missing__(self, path: str) -> str:
        return self.digest


def message(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def open_below(folder: str) -> list[str]:
    found = []
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for link in itertools.chain.from_iterable(glob.glob(f"/proc/{process}/fd/*") for process in ["self", *children]):
        with suppress(FileNotFoundError, ProcessLookupError):  # the file was closed, or the process has ended
            if (target := os.readlink(link)).startswith(folder):
                found.append(target)
    return found


@pytest.mark.usefixtures("small_bombs")
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_is_named_and_leaves_the_loader_usable_and_no_file_open(kind: str, tmp_path: pathlib.Path) -> None:
    case, folder = KINDS[kind], str(tmp_path)
    for name in ("0-good", "1-bad", "2-good"):
        (tmp_path / name).write_bytes(case.good)
    pipe = case.pipe(FileLister(folder).sharding_filter().open_files(mode="b"))
    whole = list(pipe)
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    with DataLoader2(pipe, reading_service=service) as loader:
        (tmp_path / "1-bad").write_bytes(case.bad)
        for _ in range(2):
            with pytest.raises(case.error) as failure:
                list(loader)
            assert "1-bad" in message(failure.value)
            assert case.names in message(failure.value)
            del failure
            wait_for(lambda: not open_below(folder), 20)  # Workers that read ahead may close files late.
        (tmp_path / "1-bad").write_bytes(case.good)
        assert sorted(map(str, loader)) == sorted(map(str, whole))
        wait_for(lambda: not open_below(folder), 20)
