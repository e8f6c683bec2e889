"""Streams over HTTP are read like files, and are not reopened if the content on the server has changed."""

import io
import os
import pickle
import subprocess
import tracemalloc

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resuming import with_state
from stream_checks import check_restore, open_files
from torchdata.datapipes.iter import GDriveReader, HttpReader
from torchdata.datapipes.state import load_state, save_state

CONTENT = b"".join(b"line %d\n" % number for number in range(40))

QUERIES = [
    {},
    {"ranges": "no"},
    {"validator": "weak"},
    {"validator": "date"},
    {"validator": "none"},
    {"chunked": 1},
    {"chunked": 1, "ranges": "no"},
    {"endless": 1},
    {"gzip": 1},
]

READS = st.one_of(
    st.tuples(st.just("read"), st.integers(0, 200)),
    st.tuples(st.just("readline"), st.integers(-1, 20)),
    st.tuples(st.just("tell")),
    st.tuples(st.just("read1"), st.just(1)),
    st.tuples(st.just("readlines"), st.integers(1, 50)),
)


def stream_of(*urls, **options):
    [(_, stream)] = HttpReader(urls, **options)
    return stream


def again(stream):
    return pickle.loads(pickle.dumps(stream))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(READS, max_size=12), query=st.sampled_from(QUERIES), copies=st.sets(st.integers(0, 11)))
def test_a_stream_reads_like_a_file_also_through_copies(web, plan, query, copies):
    model, stream = io.BufferedReader(io.BytesIO(CONTENT)), stream_of(web.url("a", CONTENT, **query))
    for step, (method, *arguments) in enumerate(plan):
        if step in copies:
            stream = again(stream)
        assert getattr(stream, method)(*arguments) == getattr(model, method)(*arguments)
    assert again(stream).read() == CONTENT[model.tell() :]
    assert list(stream) == list(model)
    assert (stream.read(), stream.tell()) == (b"", len(CONTENT))
    stream.close()


def test_a_copy_requests_nothing_before_it_is_read_and_then_only_the_rest(web):
    before, stream = open_files(), stream_of(web.url("a", CONTENT))
    stream.read(100)
    tag = stream.headers["ETag"]
    web.forget_requests()
    twin = again(stream)
    assert web.requests() == []
    assert twin.headers == {}
    assert twin.status is None
    assert twin.read() == CONTENT[100:]
    [request] = web.requests()
    assert (request["Range"], request["If-Range"]) == ("bytes=100-", tag)
    assert twin.status == 206
    web.forget_requests()
    assert again(twin).read() == b""
    assert web.requests() == [], "nothing is requested at the end"
    twin.close()
    stream.close()
    assert open_files() == before


NEW_CONTENTS = {"longer": CONTENT + b"more", "shorter": CONTENT[:50], "other": b"y" * len(CONTENT)}

#: Changes of a file that a loader can detect from the headers of responses. Without an ETag or a date, a loader
#: detects that a file has changed only if the file has a new size.
CHANGES = [
    (kind, ranges, change)
    for kind, ranges in (("strong", "yes"), ("strong", "no"), ("weak", "yes"), ("date", "no"), ("none", "yes"))
    for change in NEW_CONTENTS
    if (kind, change) != ("none", "other")
]


@pytest.mark.parametrize(("kind", "ranges", "change"), CHANGES)
def test_a_file_that_has_changed_raises_an_error(web, kind, ranges, change):
    url = web.url("a", CONTENT, validator=kind, ranges=ranges)
    before = open_files()
    stream = stream_of(url)
    stream.read(100)
    saved = pickle.dumps(stream)
    stream.close()
    web.url("a", NEW_CONTENTS[change])
    os.utime(web.folder / "a", (1e9, 1e9))
    twin = pickle.loads(saved)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"HttpReader cannot continue to read 'http.*the file has changed"):
            twin.read()
    assert open_files() == before


def test_an_unread_stream_may_belong_to_a_changed_file(web):
    stream = stream_of(web.url("a", CONTENT))
    twin = again(stream)
    web.url("a", b"new content")
    assert twin.read(3) == b"new"
    assert again(twin).read() == b" content"
    stream = stream_of(web.url("a", CONTENT, chunked=1, validator="none"))
    stream.read(100)
    twin = again(stream)
    web.url("a", CONTENT[:50])
    with pytest.raises(RuntimeError, match="it ends 50 bytes before"):
        twin.read()


def test_another_range_than_requested_raises_an_error(web):
    stream = stream_of(web.url("a", CONTENT, ranges="wrong"))
    stream.read(100)
    with pytest.raises(RuntimeError, match=r"from byte 100, but the server sent bytes 99-"):
        again(stream).read()


def test_reading_a_copy_of_a_removed_file_raises_an_http_error(web):
    stream = stream_of(web.url("a", CONTENT))
    twin = again(stream)
    (web.folder / "a").unlink()
    with pytest.raises(requests.HTTPError, match=r"HttpReader cannot open 'http.*404"):
        twin.read()


def test_a_requested_part_is_read_and_dropped_up_to_the_position(web):
    stream = stream_of(web.url("a", CONTENT), headers={"range": "bytes=10-"})
    assert stream.read(20) == CONTENT[10:30]
    assert again(stream).read() == CONTENT[30:]


def test_streams_move_forward_only(web):
    url = web.url("a", CONTENT)
    with stream_of(url) as stream:
        assert not stream.seekable()
        assert (stream.seek(10), stream.seek(5, io.SEEK_CUR), stream.tell()) == (10, 15, 15)
        assert stream.read(5) == CONTENT[15:20]
        for target in ((3, io.SEEK_SET), (0, io.SEEK_END)):
            with pytest.raises(io.UnsupportedOperation, match=r"can only seek forward.*io.BytesIO"):
                stream.seek(*target)
        assert stream.read() == CONTENT[20:]
    with pytest.raises(ValueError, match="closed"):
        stream.read()


def test_skipped_urls_do_not_change_the_position(web):
    urls = [web.url(name, name.encode()) for name in "abc"]
    urls[1:1] = urls[3:3] = [web.url("missing")]

    with pytest.warns(UserWarning, match="skipping"):
        items = check_restore(lambda: HttpReader(urls, skip_on_error=True))
    assert [content for _, content in items] == [b"a", b"b", b"c"]


def test_a_state_that_holds_streams_loads_in_another_pipe_with_other_settings(web):
    urls = [web.url(str(number), b"%d" % number) for number in range(5)]
    pipe = HttpReader(urls, headers={"X-Run": "first"}).shuffle(buffer_size=3).set_seed(1)
    items = iter(pipe)
    next(items)
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    rest = [stream.read() for _, stream in items]
    assert [stream.read() for _, stream in with_state(HttpReader(urls).shuffle(buffer_size=3), state)] == rest


@pytest.fixture
def shard(web, tmp_path):
    names = [f"{number}.txt" for number in range(4)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(b"%d" % number * 1000)
    subprocess.run(["tar", "-cf", "shard.tar", *names], cwd=tmp_path, check=True, timeout=250)
    return web.url("shard.tar", (tmp_path / "shard.tar").read_bytes())


def test_an_archive_is_read_as_it_arrives_and_restored_at_every_position(shard):
    items = check_restore(lambda: HttpReader([shard]).load_from_tar())
    assert [content for _, content in items] == [b"%d" % number * 1000 for number in range(4)]


def test_an_archive_that_was_removed_is_not_reported_as_damaged(web, shard):
    pipe, other = (HttpReader([shard]).load_from_tar() for _ in range(2))
    items = iter(pipe)
    next(items)
    load_state(other, save_state(pipe))
    (web.folder / "shard.tar").unlink()
    with pytest.raises(requests.HTTPError, match=r"HttpReader cannot open '.*shard.tar'.*404") as failure:
        list(other)
    assert any("TarArchiveLoader" in note for note in failure.value.__notes__)


@pytest.mark.parametrize("id_", ["plain", "form", "cookie"])
def test_a_drive_file_is_opened_again_past_its_pages(web, id_):
    [(_, stream)] = GDriveReader([web.drive(id_, CONTENT)])
    stream.read(100)
    web.forget_requests()
    assert again(stream).read() == CONTENT[100:]
    assert web.requests()[-1]["Range"] == "bytes=100-"


def test_a_large_file_passes_in_constant_memory(web):
    path = web.folder / "sparse"
    with open(path, "wb") as file:
        file.truncate(32 << 20)
    tracemalloc.start()
    try:
        with stream_of(web.url("sparse", validator="date")) as stream:
            while stream.read(100_000):
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
