"""Measures how fast this and other libraries read tar archives, TFRecords, cached files and S3 objects in one process.

Every contender is a child process that repeatedly reads one file and its contents. The S3 server is moto, in a process
that exits with the child.
"""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = "COMPARISON_FORMATS"
"""The environment variable that names the folder of the files."""

SIZES = {
    "tar": (1 << 10, 6000),
    "tar-large": (100 << 10, 600),
    "tar-gz": (1 << 10, 6000),
    "tar-gz-large": (100 << 10, 300),
}
"""For each workload, the bytes of a member, and the number of members."""

RECORDS = {"tfrecord": (64, 5000), "tfrecord-large": (100 << 10, 600)}
"""For each workload, the bytes of a record's image, and the number of records."""

SINGLE = {"cache": (1 << 10, 2000), "s3": (100 << 10, 100)}
"""For each workload, the bytes of a file or object, and the number of files or objects."""

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (size, count) in SIZES.items():
        if not (folder / name).exists():
            _write_tar(folder / name, size, count, "w:gz" if "gz" in name else "w")
    for name, (size, count) in RECORDS.items():
        if not (folder / name).exists():
            _write_records(folder / name, size, count)
    for name, (size, count) in SINGLE.items():
        (folder / name).mkdir(exist_ok=True)
        for number in range(count):
            (folder / name / f"{number:06}").write_bytes(_content(size))


def _content(size: int) -> bytes:
    """Returns bytes that compress to half their size, like text."""
    return random.randbytes(size // 2).hex().encode()


def _write_tar(path: Path, size: int, count: int, mode: Any) -> None:
    unfinished = path.with_suffix(".unfinished")
    with tarfile.open(unfinished, mode) as archive:
        for number in range(count):
            info = tarfile.TarInfo(f"images/{number:06}.jpg")
            info.size = size
            archive.addfile(info, io.BytesIO(_content(size)))
    unfinished.rename(path)


def _write_records(path: Path, size: int, count: int) -> None:
    from tfrecord import TFRecordWriter

    unfinished = path.with_suffix(".unfinished")
    writer = TFRecordWriter(str(unfinished))
    for number in range(count):
        box = [number * 0.5, 1.0, 2.0, 3.0]
        writer.write({"image": (_content(size), "byte"), "label": (number, "int"), "box": (box, "float")})
    writer.close()
    unfinished.rename(path)


def _ours_tar(path: str) -> Iterator[Any]:
    from torchdata.datapipes.iter import FileOpener

    for _, stream in FileOpener([path], mode="b").load_from_tar():
        yield stream.read()


def _tarfile(path: str) -> Iterator[Any]:
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                yield stream.read()


def _tarfile_streaming(path: str) -> Iterator[Any]:
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                yield stream.read()


def _webdataset(path: str) -> Iterator[Any]:
    from webdataset.tariterators import tar_file_iterator

    with open(path, "rb") as file:
        for sample in tar_file_iterator(file):
            yield sample["data"]


def _ours_records(path: str) -> Iterator[Any]:
    from torchdata.datapipes.iter import FileOpener

    yield from FileOpener([path], mode="b").load_from_tfrecord()


def _tfrecord(path: str) -> Iterator[Any]:
    from tfrecord import tfrecord_loader

    yield from tfrecord_loader(path, None)


def _paths(path: str) -> list[str]:
    return [entry.path for entry in os.scandir(path)]


def _ours_cache(path: str) -> Iterator[Any]:
    from torchdata.datapipes.iter import IterableWrapper

    cached = IterableWrapper(_paths(path)).on_disk_cache(filepath_fn=str).read_from_http().end_caching()
    for _, stream in cached.open_files("b"):
        yield stream.read()


def _opened(path: str) -> Iterator[Any]:
    for name in _paths(path):
        with open(name, "rb") as file:
            yield file.read()


@cache
def _bucket(path: str) -> Any:
    """Starts a server, sets the environment variables for it, and uploads a file."""
    import boto3

    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=-1, stdout=-1, stderr=subprocess.DEVNULL)
    port = int(server.stdout.readline())  # type: ignore[union-attr]
    keys = dict.fromkeys(["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], "x")
    os.environ.update(keys, AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    client = boto3.client("s3")
    client.create_bucket(Bucket="files")
    for name in _paths(path):
        client.upload_file(name, "files", os.path.basename(name))
    return client, server


def _ours_s3(path: str) -> Iterator[Any]:
    from torchdata.datapipes.iter import S3FileLister

    _bucket(path)
    for _, stream in S3FileLister(["s3://files"]).load_files_by_s3():
        yield stream.read()


def _boto3(path: str) -> Iterator[Any]:
    client, _ = _bucket(path)
    for found in client.list_objects_v2(Bucket="files")["Contents"]:
        yield client.get_object(Bucket="files", Key=found["Key"])["Body"].read()


READERS: dict[str, dict[str, Callable[[str], Iterator[Any]]]] = {
    "tar": {
        "ours": _ours_tar,
        "tarfile": _tarfile,
        "tarfile, streaming": _tarfile_streaming,
        "webdataset": _webdataset,
    },
    "tfrecord": {"ours": _ours_records, "tfrecord": _tfrecord},
    "cache": {"ours": _ours_cache, "open": _opened},
    "s3": {"ours": _ours_s3, "boto3": _boto3},
}
"""For each format and contender, a function that yields the content of all members, or all records as dicts of
arrays."""


def rate(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    name = order["item"]
    read = READERS[name.partition("-")[0]][order["options"].get("library", "ours")]
    path = os.path.join(os.environ[FOLDER], name)
    count = {**SIZES, **RECORDS, **SINGLE}[name][1]
    done, begin = -1, 0.0
    while done < 1 or time.perf_counter() - begin < order["seconds"]:
        found = sum(1 for _ in read(path))
        if found != count:
            raise RuntimeError(f"{path} has {count} records, but {found} were read")
        done += 1
        if done == 0:  # the first pass, which imports modules and fills the page cache, does not count
            begin = time.perf_counter()
    return {"value": done * count / (time.perf_counter() - begin)}, None
