"""AISFileLister and AISFileLoader work with a server that imitates an AIStore cluster."""

import os
import pickle
import random
import re
import socket
import tracemalloc

import pytest
import requests
from aistore.sdk import Client
from aistore.sdk.errors import AISError, ErrBckNotFound, ErrObjNotFound

from ais_server import NAMES_PER_PAGE, ais_server
from process_checks import loader
from resuming import with_state
from stream_checks import check_restore, open_files, read
from torchdata.datapipes.iter import AISFileLister, AISFileLoader, IterableWrapper
from torchdata.datapipes.state import save_state

LARGE = random.Random(1).randbytes(5_000_000)
SMALL = {f"train/{number:02}.bin": bytes([number]) * number for number in range(2 * NAMES_PER_PAGE + 2)}
BUCKETS = {
    "ais://first": {**SMALL, "train-1.tar": b"t", "other/x.txt": b"x"},
    "aws://first": {"elsewhere": b"of another provider"},
    "ais://second": {"a b.txt": b"1", "é/ü ñ.txt": b"2", "100%25#?&.txt": b"3"},
    "ais://large": {"object": LARGE, "lines": b"one\ntwo\nthree\n", "short.cut": b"x" * 1000},
    "ais://vacant": {},
}


@pytest.fixture(scope="module")
def cluster():
    with ais_server(BUCKETS) as url:
        yield url


def urls(bucket, prefix=""):
    return [f"{bucket}/{name}" for name in sorted(BUCKETS[bucket]) if name.startswith(prefix)]


@pytest.mark.parametrize("prefix", ["", "t", "train", "train/", "train/03", "other/x.txt", "nothing"])
def test_the_objects_whose_names_begin_with_a_prefix_are_listed(cluster, prefix):
    assert list(AISFileLister([f"ais://first/{prefix}"], cluster)) == urls("ais://first", prefix)


def test_several_buckets_and_providers_are_listed_in_order_and_unusual_names_are_read(cluster):
    roots = ["ais://second", "aws://first", "ais://vacant", "ais://first/o"]
    expected = urls("ais://second") + urls("aws://first") + urls("ais://first", "o")
    assert list(IterableWrapper(roots).list_files_by_ais(url=cluster)) == expected
    assert list(AISFileLister(roots, cluster.removeprefix("http://"))) == expected
    assert dict(map(read, AISFileLoader(urls("ais://second"), cluster))) == {
        f"ais://second/{name}": content for name, content in BUCKETS["ais://second"].items()
    }


def test_a_listing_resumes_from_a_name_at_every_position(cluster):
    def build(*roots):
        return AISFileLister([*roots, "ais://second", "ais://first/o"], cluster)

    list(build())  # From this request on, the connection stays open.
    assert len(check_restore(build, sockets=False)) == 4
    root = "ais://first/train/"
    pipe = build(root)
    items = iter(pipe)
    head = [next(items) for _ in range(NAMES_PER_PAGE + 1)]
    state = pickle.dumps(save_state(pipe))
    assert len(state) < 1000, "the state holds a position, not the names"
    assert head + list(with_state(build(root), pickle.loads(state))) == list(build(root))


def test_objects_that_are_left_unread_own_no_connections(cluster):
    list(map(read, AISFileLoader(urls("ais://second"), cluster)))
    before = open_files()
    kept = list(AISFileLister(["ais://first/"], cluster).load_files_by_ais(url=cluster))
    assert open_files() <= before + 2
    assert dict(map(read, kept)) == {f"ais://first/{name}": data for name, data in BUCKETS["ais://first"].items()}


def test_streams_seek_like_files(cluster):
    [(_, stream)] = AISFileLoader(["ais://large/object"], cluster)
    for offset, size in ((100, 70_000), (3_000_000, 700_000), (5, 0), (3_700_001, 10), (len(LARGE) + 5, 1)):
        assert stream.seek(offset) == offset
        assert stream.read(size) == LARGE[offset : offset + size]
    assert stream.seek(-10, os.SEEK_END) == len(LARGE) - 10
    assert stream.read() == LARGE[-10:]


def test_reading_a_large_object_keeps_little_of_it(cluster):
    [(_, stream)] = AISFileLoader(["ais://large/object"], cluster)
    stream.read(1)
    tracemalloc.start()
    try:
        while stream.read(50_000):
            pass
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_copy_of_a_stream_resumes_in_the_same_version_or_fails(cluster):
    versions = Client(cluster).bucket("vacant").object("changing")
    versions.get_writer().put_content(b"before")
    [(_, stream)] = AISFileLoader(["ais://vacant/changing"], cluster)
    stream.read(2)
    kept = pickle.dumps(stream)
    assert pickle.loads(kept).read() == b"fore"
    versions.get_writer().put_content(b"afterwards")
    with pytest.raises(OSError, match=r"AISFileLoader.*ais://vacant/changing.*changed"):
        pickle.loads(kept).read()


@pytest.mark.parametrize("make", [AISFileLister, AISFileLoader])
def test_a_missing_bucket_is_the_librarys_error_with_pipe_and_url(cluster, make):
    with pytest.raises(ErrBckNotFound) as failure:
        list(make(["ais://no-such-bucket/x"], cluster))
    [note] = [note for note in failure.value.__notes__ if make.__name__ in note and cluster in note]
    assert "ais://no-such-bucket/x" in note


def test_a_missing_object_raises_an_error_at_once_and_the_loader_continues(cluster):
    source = ["ais://first/train/01.bin", "ais://first/missing", "ais://first/train/02.bin"]
    items = iter(AISFileLoader(source, cluster))
    assert read(next(items))[1] == b"\x01"
    with pytest.raises(ErrObjNotFound) as failure:  # the AIStore library alone would repeat the request forever
        next(items)
    assert issubclass(ErrObjNotFound, AISError)
    assert any("AISFileLoader cannot read 'ais://first/missing'" in note for note in failure.value.__notes__)
    assert read(next(items))[1] == b"\x02\x02"


def test_an_object_that_ends_early_raises_an_error_that_names_it(cluster):
    [(_, stream)] = AISFileLoader(["ais://large/short.cut"], cluster)
    with pytest.raises(OSError, match=r"AISFileLoader cannot read 'ais://large/short\.cut' beyond byte \d+ of 1000"):
        stream.read()


@pytest.mark.parametrize("make", [AISFileLister, AISFileLoader])
def test_connecting_to_a_silent_or_missing_cluster_fails(make, silent):
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    for address, message in ((silent, "timed out"), (nobody, "refused")):
        with pytest.raises(requests.exceptions.ConnectionError, match=message) as failure:
            list(make(["ais://bucket/x"], address, timeout=0.1))
        assert any(make.__name__ in note and address in note for note in failure.value.__notes__)


@pytest.mark.parametrize("make", [AISFileLister, AISFileLoader])
@pytest.mark.parametrize("url", ["", "bucket/name", "ais:///name", "://bucket/name"])
def test_an_invalid_object_url_is_refused(make, url):
    with pytest.raises(ValueError, match=rf"{make.__name__} expects URLs .* but got {re.escape(repr(url))}"):
        list(make([url], "http://localhost:8080"))
    with pytest.raises(ValueError, match="ais://bucket/name"):
        list(AISFileLoader(["ais://first/"], "http://localhost:8080"))


@pytest.mark.parametrize("make", [AISFileLister, AISFileLoader])
@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("ais://bucket", "http://c"), {}, TypeError, "wrap it"),
        ((5, "http://c"), {}, TypeError, ""),
        (([], 5), {}, TypeError, "url"),
        (([], ""), {}, ValueError, "url"),
        (([], "http://c", -2), {}, ValueError, "length"),
        (([], "http://c"), {"timeout": 0}, ValueError, "timeout"),
        (([], "http://c"), {"timeout": "1"}, TypeError, "timeout"),
        (([5], "http://c"), {}, TypeError, "5"),
        ((["ais://"], "http://c"), {}, ValueError, "expects URLs .* but got 'ais://'"),
    ],
)
def test_wrong_values_are_refused_with_a_reason(make, arguments, options, error, message):
    with pytest.raises(error, match=f"{make.__name__}.*{message}"):
        list(make(*arguments, **options))


def test_an_error_names_pipe_and_object_of_a_response_without_a_size(monkeypatch):
    from torchdata.datapipes.iter.stores import aistore

    class Answer:
        def __init__(self, headers):
            self.headers, self.closed = headers, False

        def close(self):
            self.closed = True

    cluster = aistore._Cluster("AISFileLoader", "http://localhost", 1.0)
    for headers in ({}, {"Content-Length": "-1"}, {"Content-Length": "9" * 5000}, {"Content-Length": "many"}):
        answer = Answer(headers)
        monkeypatch.setattr(aistore._AISRecipe, "get", lambda self, start, answer=answer: answer)
        with pytest.raises(OSError, match="AISFileLoader cannot read 'ais://bucket/object': its Content-Length is"):
            aistore._AISObject(aistore._AISRecipe("ais://bucket/object", cluster))
        assert answer.closed


def test_two_workers_each_read_their_share(cluster):
    pipe = AISFileLister(["ais://first/train/"], cluster).sharding_filter().load_files_by_ais(url=cluster).map(read)
    whole = list(pipe)
    with loader(pipe) as running:
        assert [list(running), list(running)] == [whole] * 2
