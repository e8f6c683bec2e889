"""A loader that resumes inside a tar archive yields the remaining members, and rereads only a few bytes."""

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive_bytes import tar_of
from stream_checks import read
from torchdata.datapipes.iter import FSSpecFileOpener, HttpReader, IterDataPipe, TarArchiveLoader
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils import StreamWrapper

#: The size in bytes of each file in an archive, so large that a read-ahead buffer holds only a few files.
SIZE = 100_000
MEMBERS = 40


def shard_of(number: int = 0) -> bytes:
    return tar_of([(f"{number}-{key}.bin", bytes([key]) * SIZE) for key in range(MEMBERS)])


CONTENTS = [bytes([key]) * SIZE for key in range(MEMBERS)]


def resumed_at(build: Callable[[], Any], count: int) -> tuple[list[Any], Any]:
    items = iter(pipe := build())
    head = [read(next(items)) for _ in range(count)]
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    del items, pipe
    load_state(other := build(), state)
    return head, other


class Recording(io.RawIOBase):
    least: ClassVar[int] = 1 << 60

    def __init__(self, path: str, seeks: bool) -> None:
        self.file, self.seeks = open(path, "rb"), seeks  # noqa: SIM115  # closed below

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.seeks

    def tell(self) -> int:
        return self.file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if not self.seeks:
            raise io.UnsupportedOperation("seek")
        return self.file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        Recording.least = min(Recording.least, self.file.tell())
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.file.close()
        super().close()


class Recipe:
    def __init__(self, path: str, seeks: bool) -> None:
        self.path, self.seeks = path, seeks

    def open(self) -> io.BufferedReader:
        return io.BufferedReader(Recording(self.path, self.seeks))


class ReadOnly:
    def __init__(self, path: str, refuses: bool) -> None:
        self.file = open(path, "rb")  # noqa: SIM115  # closed below
        if refuses:
            self.seek = self._refuse

    def _refuse(self, offset: int) -> None:
        raise ValueError("Cannot seek streaming HTTP file")

    def read(self, size: int = -1) -> bytes:
        return self.file.read(size)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


class ReadOnlyRecipe:
    def __init__(self, path: str, refuses: bool) -> None:
        self.arguments = path, refuses

    def open(self) -> ReadOnly:
        return ReadOnly(*self.arguments)


def opened(path: str, kind: str, start: int) -> tuple[str, Any]:
    if kind == "memory":
        stream: Any = io.BytesIO(Path(path).read_bytes())
    elif kind == "file":
        stream = StreamWrapper(open(path, "rb"))  # noqa: SIM115  # the wrapper closes it
    else:
        is_read_only = kind in ("refuses", "reads")
        recipe: Any = ReadOnlyRecipe(path, kind == "refuses") if is_read_only else Recipe(path, kind == "seeks")
        stream = StreamWrapper(recipe.open(), recipe=recipe)
    stream.read(start)
    return path, stream


class Pairs(IterDataPipe[Any]):
    def __init__(self, path: str, kind: str, start: int) -> None:
        self.arguments = path, kind, start

    def __iter__(self) -> Any:
        return iter([opened(*self.arguments)])


STYLES = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
NAMES = st.one_of(st.text("ab/é", min_size=1, max_size=8), st.sampled_from(["n" * 99, "n" * 101, "p/" * 80 + "x"]))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    members=st.lists(st.tuples(NAMES, st.sampled_from([0, 1, 511, 512, 513, 70_000])), min_size=1, max_size=6),
    style=st.sampled_from(STYLES),
    everywhere=st.booleans(),
    kind=st.sampled_from(["seeks", "one way", "refuses", "reads", "memory", "file"]),
    mode=st.sampled_from(["r:*", "r:", "r|*", "r|"]),
    start=st.sampled_from([0, 1, 700]),
    cuts=st.lists(st.integers(0, 3), max_size=5),
)
def test_any_archive_is_resumed_any_number_of_times(
    tmp_path: Path,
    members: list[tuple[str, int]],
    style: int,
    everywhere: bool,
    kind: str,
    mode: str,
    start: int,
    cuts: list[int],
) -> None:
    if style == tarfile.USTAR_FORMAT:  # The ustar format does not support longer names.
        members = [(name[:60], size) for name, size in members]
    contents = [(f"m/{name.strip('/')}x", bytes([number]) * size) for number, (name, size) in enumerate(members)]
    options = {"pax_headers": {"comment": "of all members"}} if everywhere and style == tarfile.PAX_FORMAT else {}
    (tmp_path / "a.tar").write_bytes(b"?" * start + tar_of(contents, format=style, **options))

    def build() -> Any:
        return Pairs(str(tmp_path / "a.tar"), kind, start).load_from_tar(mode)

    expected = [read(item) for item in build()]
    assert [content for _, content in expected] == [content for _, content in contents]
    found: list[Any] = []
    pipe = build()
    for cut in cuts:
        items = iter(pipe)
        found += [read(next(items)) for _ in range(min(cut, len(expected) - len(found)))]
        state = pickle.loads(pickle.dumps(save_state(pipe)))
        load_state(pipe := build(), state)
    assert found + [read(item) for item in pipe] == expected


@pytest.mark.parametrize("mode", ["r:*", "r|*", "r:"])
def test_a_stream_that_seeks_is_read_from_the_next_header_on(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a.tar").write_bytes(shard_of())
    pipe, other = (Pairs(str(tmp_path / "a.tar"), "seeks", 0).load_from_tar(mode) for _ in range(2))
    items = iter(pipe)
    for _ in range(30):
        read(next(items))
    offset = pipe._archive.tar.offset
    load_state(other, pickle.loads(pickle.dumps(save_state(pipe))))
    Recording.least = 1 << 60
    assert [content for _, content in map(read, other)] == [bytes([key]) * SIZE for key in range(30, MEMBERS)]
    assert Recording.least == offset - 1


def test_members_that_wait_in_a_state_are_read_without_the_start_of_their_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard_of())

    def build() -> Any:
        return Pairs(str(tmp_path / "a.tar"), "seeks", 0).load_from_tar().shuffle(buffer_size=4).set_seed(1)

    expected = [read(item) for item in build()]
    head, other = resumed_at(build, 30)
    Recording.least = 1 << 60
    assert head + [read(item) for item in other] == expected
    assert Recording.least > 20 * SIZE


def http(url: str) -> Any:
    return HttpReader([url]).load_from_tar()


def by_fsspec(url: str) -> Any:
    return FSSpecFileOpener([url], mode="rb", kwargs_for_open={"block_size": SIZE}).load_from_tar()


@pytest.mark.parametrize("build", [http, by_fsspec])
def test_a_shard_on_a_server_is_resumed_by_a_ranged_read(web: Any, build: Any) -> None:
    shard = shard_of()
    url = web.url("a.tar", shard)
    head, pipe = resumed_at(lambda: build(url), 35)
    web.forget_requests()
    assert [content for _, content in head + [read(item) for item in pipe]] == CONTENTS
    ranges = [request["Range"] for request in web.requests() if "Range" in request]
    offset = 35 * (512 + -(-SIZE // 512) * 512)
    assert ranges[0].startswith(f"bytes={offset - 1}-")
    assert web.sent() < len(shard) // 2


@pytest.mark.parametrize(
    "query",
    [
        {"ranges": "no"},
        {"ranges": "no", "chunked": 1},
        {"validator": "none"},
        {"validator": "weak", "chunked": 1},
        {"gzip": 1},
        {"endless": 1},
    ],
)
def test_a_read_resumes_on_servers_of_all_kinds(web: Any, query: dict[str, Any]) -> None:
    """If a server always sends a whole archive, a resumed reader skips the bytes that it has already read."""
    url = web.url("a.tar", shard_of(), **query)
    head, pipe = resumed_at(lambda: http(url), 35)
    assert [content for _, content in head + [read(item) for item in pipe]] == CONTENTS


@pytest.mark.parametrize(("build", "ranges"), [(http, "yes"), (http, "no"), (by_fsspec, "yes")])
def test_a_shard_that_changed_after_saving_raises_an_error_that_names_it(web: Any, build: Any, ranges: str) -> None:
    shard = shard_of()
    url = web.url("a.tar", shard, ranges=ranges)
    _, pipe = resumed_at(lambda: build(url), 35)
    web.url("a.tar", shard + bytes(10240))
    with pytest.raises(
        RuntimeError, match=r"cannot continue to read '.*a\.tar.*because the file has changed"
    ) as caught:
        list(pipe)
    assert any("TarArchiveLoader" in note for note in caught.value.__notes__)


class OneWay(io.RawIOBase):
    def __init__(self, data: bytes, piece: int) -> None:
        self.stream, self.piece = io.BytesIO(data), piece

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self.stream.read(self.piece if size < 0 else min(size, self.piece))


MEMBER_LISTS = st.lists(
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


@settings(max_examples=40)
@given(
    MEMBER_LISTS,
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


def test_zeros_after_a_gzip_stream_and_several_streams_are_read() -> None:
    data = archive_of([("a", 513, tarfile.REGTYPE), ("b", 1, tarfile.REGTYPE)], tarfile.GNU_FORMAT)
    file = gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + bytes(5000)
    assert [stream.read() for _, stream in TarArchiveLoader([("x.tar.gz", io.BytesIO(file))])] == [b"A" * 513, b"B"]
