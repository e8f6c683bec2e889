"""S3FileLister, S3FileLoader, against a real S3 server on loopback."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import os
import pickle
import random
import re
import socket
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from process_checks import METHODS, loader, wait_for
from s3_server import ENVIRONMENT, KEYS_PER_PAGE, fill, s3_server
from stream_checks import check_abandoned, check_restore, open_files, read
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, S3FileLister, S3FileLoader
from torchdata.datapipes.iter._s3_object import PART_SIZE
from torchdata.datapipes.iter._s3_profile import profile_settings
from torchdata.datapipes.state import load_state, save_state

LARGE = random.Random(1).randbytes(3 * PART_SIZE + 12345)
FOLDER = {f"train/{number}.bin": bytes([number]) * number for number in range(7)}
STRANGE = ["a b.txt", "é/ü ñ.txt", "100%25.txt", "q?x=1&y=2#z.txt", "+plus+.txt", "日本/語.txt"]
BUCKETS = {
    "first": {
        **FOLDER,
        "train": b"a key like the folder",
        "train-1.tar": b"t",
        "other/x.txt": b"x",
        "empty/": b"",
    },
    "second": {name: name.encode() for name in STRANGE},
    "many": {f"{number:05}": b"" if number == 7 else b"x" for number in range(3 * KEYS_PER_PAGE + 50)},
    "large": {"object": LARGE, "lines": b"one\ntwo\nthree\n"},
    "vacant": {},
}


@pytest.fixture(scope="module")
def client():
    with s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(name, value)
        client = fill(endpoint, BUCKETS)
        yield client
        client.close()


pytestmark = pytest.mark.usefixtures("client")


@pytest.fixture
def deaf():
    """The URL of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def urls(bucket, prefix=""):
    return [
        f"s3://{bucket}/{key}" for key in sorted(BUCKETS[bucket]) if key.startswith(prefix) and key[-1] != "/"
    ]


def listed(*roots, **options):
    return list(S3FileLister(roots, **options))


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "t",
        "train",
        "train/",
        "train/3",
        "train/3.bin",
        "train-",
        "o",
        "other/x.txt",
        "nothing",
        "empty",
        "empty/",
    ],
)
def test_the_objects_whose_keys_begin_with_a_prefix_are_listed_in_order(prefix):
    assert listed(f"s3://first/{prefix}") == urls("first", prefix)


def test_a_bucket_is_listed_with_and_without_a_slash():
    assert listed("s3://second") == listed("s3://second/") == urls("second")
    assert listed("s3://vacant") == []


@pytest.mark.parametrize("key", STRANGE)
def test_strange_keys_are_listed_and_read(key):
    url = f"s3://second/{key}"
    assert listed(url) == [url]
    [(found, stream)] = S3FileLoader([url])
    assert (found, stream.read()) == (url, key.encode())


def test_several_buckets_and_prefixes_come_one_after_the_other():
    roots = ["s3://second/", "s3://first/train/", "s3://vacant", "s3://first/o"]
    assert listed(*roots) == urls("second") + urls("first", "train/") + urls("first", "o")


@pytest.mark.parametrize("at_once", [60, 1000])
def test_listings_of_many_pages_are_complete_and_go_on_within_a_page(at_once, monkeypatch):
    monkeypatch.setattr("torchdata.datapipes.iter.s3._KEYS_PER_PAGE", at_once)
    assert listed("s3://many") == urls("many")
    assert listed("s3://many/001") == urls("many", "001")
    pipe = S3FileLister(["s3://many"])
    items = iter(pipe)
    head = [next(items) for _ in range(2 * KEYS_PER_PAGE + 34)]
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    assert len(pickle.dumps(state)) < 1000, "the state holds a place, not the names"
    other = S3FileLister(["s3://many"])
    load_state(other, state)
    assert head + list(other) == urls("many")


PARTS = st.text(alphabet="ab01~ .é/", min_size=1, max_size=6)


def is_a_key(text):
    return all(part not in ("", ".", "..") for part in text.split("/"))


@settings(max_examples=100)
@given(
    keys=st.sets(PARTS.filter(is_a_key), max_size=12),
    prefix=PARTS.filter(lambda text: is_a_key(text.removesuffix("/"))) | st.just(""),
    data=st.data(),
)
def test_any_prefix_of_any_keys_is_listed_from_any_place(keys, prefix, data):
    obstore = importlib.import_module("obstore")
    store = importlib.import_module("obstore.store").MemoryStore()
    for key in keys:
        obstore.put(store, key, b"x")
    pipe = S3FileLister([])
    expected = sorted(key for key in keys if key.startswith(prefix))
    assert [key for page in pipe._pages(obstore, store, prefix, None) for key in page] == expected
    if expected:
        place = data.draw(st.integers(0, len(expected) - 1))
        rest = [key for page in pipe._pages(obstore, store, prefix, expected[place]) for key in page]
        assert rest == expected[place + 1 :]


@pytest.mark.parametrize(
    ("masks", "found"),
    [
        ("*.tar", ["s3://first/train-1.tar"]),
        (["*.txt", "*-1.*"], ["s3://first/other/x.txt", "s3://first/train-1.tar"]),
        ("s3://first/o*", ["s3://first/other/x.txt"]),
        ("nothing", []),
        ([], urls("first")),
    ],
)
def test_masks_match_the_whole_url(masks, found):
    assert listed("s3://first", masks=masks) == found


def test_len_is_what_the_user_declared_or_that_of_the_source():
    assert len(S3FileLister(["s3://first"], length=7)) == 7
    with pytest.raises(TypeError, match="S3FileLister instance doesn't have valid length"):
        len(S3FileLister(["s3://first"]))
    assert len(S3FileLoader(["s3://first/a", "s3://first/b"])) == 2
    with pytest.raises(TypeError, match="S3FileLoader instance doesn't have valid length"):
        len(S3FileLister(["s3://first"]).load_files_by_s3())


def test_a_listing_is_restored_at_every_position_and_after_an_abandoned_iteration():
    def build():
        return S3FileLister(["s3://first/train/", "s3://second", "s3://first/o"], masks=["*.bin", "*.txt"])

    listed("s3://first/o")  # the connection stays open from here on
    check_restore(build, sockets=False)
    check_abandoned(build, sockets=False)


def test_loaded_objects_are_restored_at_every_position():
    def build():
        return S3FileLister(["s3://first/train/"]).load_files_by_s3(buffer_size=2)

    items = check_restore(build, sockets=False)
    assert items == [(f"s3://first/{key}", content) for key, content in sorted(FOLDER.items())]
    check_abandoned(build, sockets=False)


def test_a_shuffle_buffer_of_unread_objects_is_restored_and_owns_no_connections():
    pipe = S3FileLister(["s3://many/000"]).load_files_by_s3()
    before = open_files()
    kept = list(pipe)
    assert len(kept) == 100
    wait_for(lambda: open_files() <= before + 2)  # connections are closed by threads of obstore's
    assert [stream.read() for _, stream in kept] == [b"" if n == 7 else b"x" for n in range(100)]
    del kept
    check_restore(
        lambda: S3FileLister(["s3://first/"]).load_files_by_s3().shuffle(buffer_size=4).set_seed(3),
        seeded=True,
        sockets=False,
    )


@pytest.mark.parametrize("parallel", [True, False, None])
@pytest.mark.parametrize("buffer_size", [None, 100_000, PART_SIZE, 2 * PART_SIZE + 1])
def test_a_large_object_is_read_in_pieces(buffer_size, parallel):
    [(_, stream)] = S3FileLoader(["s3://large/object"], buffer_size=buffer_size, multi_part_download=parallel)
    assert stream.read(1000) == LARGE[:1000]
    assert stream.read() == LARGE[1000:]
    assert stream.read() == stream.read(10) == b""
    assert stream.seek(0) == 0
    pieces = list(iter(lambda: stream.read(777_777), b""))
    assert b"".join(pieces) == LARGE


def test_streams_seek_and_tell_like_files():
    [(_, stream)] = S3FileLoader(["s3://large/object"])
    rng = random.Random(2)
    assert stream.seekable()
    assert stream.readable()
    for _ in range(60):
        place, size = rng.randrange(len(LARGE) + 10), rng.choice([0, 1, 100, 70_000, 700_000])
        assert stream.seek(place) == place
        assert stream.read(size) == LARGE[place : place + size]
        assert stream.tell() == place + len(LARGE[place : place + size])
    assert stream.seek(-10, os.SEEK_END) == len(LARGE) - 10
    assert stream.seek(-5, os.SEEK_CUR) == len(LARGE) - 15
    assert stream.read() == LARGE[-15:]
    with pytest.raises(ValueError, match="before the start"):
        stream.raw.seek(-1)
    with pytest.raises(ValueError, match="whence"):
        stream.raw.seek(0, 7)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read()


def test_lines_are_read_like_those_of_files():
    [(_, stream)] = S3FileLoader(["s3://large/lines"])
    assert stream.readline() == b"one\n"
    assert list(stream) == [b"two\n", b"three\n"]


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_reading_a_large_object_holds_one_piece_at_a_time(client):
    size = 96 << 20
    client.put_object(Bucket="vacant", Key="huge", Body=bytes(size))
    try:
        [(_, stream)] = S3FileLoader(["s3://vacant/huge"], buffer_size=8 << 20)
        stream.read(1)
        gc.collect()
        before, most, read = resident_bytes(), 0, 1
        while piece := stream.read(1 << 20):
            read += len(piece)
            most = max(most, resident_bytes() - before)
        assert read == size
        assert most < size // 2
        assert len(stream.raw._piece) <= 8 << 20
    finally:
        client.delete_object(Bucket="vacant", Key="huge")


def test_a_stream_in_the_middle_of_an_object_is_pickled_and_copied():
    [(_, stream)] = S3FileLoader(["s3://large/object"])
    stream.read(5_000_000)
    for twin in (pickle.loads(pickle.dumps(stream)), copy.deepcopy(stream)):
        assert twin.read(1000) == LARGE[5_000_000:5_001_000]
    assert stream.read(10) == LARGE[5_000_000:5_000_010]


def test_a_copy_of_a_stream_fails_where_the_object_was_changed_meanwhile(client):
    client.put_object(Bucket="vacant", Key="changing", Body=b"before")
    try:
        [(_, stream)] = S3FileLoader(["s3://vacant/changing"])
        client.put_object(Bucket="vacant", Key="changing", Body=b"afterwards")
        with pytest.raises(OSError, match=r"S3FileLoader.*s3://vacant/changing.*changed"):
            pickle.loads(pickle.dumps(stream)).read()
        assert stream.read() == b"before", "its content was on its way already"
    finally:
        client.delete_object(Bucket="vacant", Key="changing")


def test_after_an_error_nothing_of_an_object_is_taken_for_its_end(client):
    client.put_object(Bucket="vacant", Key="changing", Body=LARGE)
    try:
        [(_, stream)] = S3FileLoader(["s3://vacant/changing"], buffer_size=100_000)
        assert stream.read(150_000) == LARGE[:150_000]
        client.put_object(Bucket="vacant", Key="changing", Body=LARGE[1:])
        for place in (200_000, 0, 120_000):
            stream.seek(place)
            with pytest.raises(OSError, match="changed"):
                stream.read(100_000)
        client.put_object(Bucket="vacant", Key="changing", Body=LARGE)
        stream.seek(0)
        assert stream.read() == LARGE, "it is the version that was opened again"
    finally:
        client.delete_object(Bucket="vacant", Key="changing")


def test_archives_are_read_from_objects(client, tmp_path):
    import tarfile
    import zipfile

    (tmp_path / "member").write_bytes(LARGE[:1_000_000])
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(5):
            archive.add(tmp_path / "member", f"{number}.bin")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(5):
            archive.write(tmp_path / "member", f"{number}.bin")
    for name in ("a.tar", "a.zip"):
        client.upload_file(str(tmp_path / name), "vacant", name)
    try:
        for name, load in (("a.tar", "load_from_tar"), ("a.zip", "load_from_zip")):
            build = lambda name=name, load=load: getattr(S3FileLoader([f"s3://vacant/{name}"]), load)()  # noqa: E731
            items = check_restore(build, sockets=False)
            assert [content for _, content in items] == [LARGE[:1_000_000]] * 5
    finally:
        for name in ("a.tar", "a.zip"):
            client.delete_object(Bucket="vacant", Key=name)


def name_and_content(pair):
    return pair[0], pair[1].read(), os.getpid()


@pytest.mark.parametrize("method", METHODS)
def test_two_workers_share_the_objects_after_the_parent_used_s3(client, method):
    expected = [(f"s3://first/{key}", content) for key, content in sorted(FOLDER.items())]
    # Said here, because a fork server has the environment of the test that started it.
    options = {
        "endpoint_url": client.meta.endpoint_url,
        "config": {"access_key_id": "test", "secret_access_key": "test"},
        "region": "us-east-1",
    }
    pipe = S3FileLister(["s3://first/train/"], **options).sharding_filter().load_files_by_s3(**options)
    assert [read(item) for item in pipe] == expected
    kept = next(iter(S3FileLoader(["s3://large/object"])))  # an answer that is still under way
    workers = loader(pipe.map(name_and_content), multiprocessing_context=method)
    try:
        for _ in range(2):
            found = list(workers)
            assert sorted((url, content) for url, content, _ in found) == expected
            assert len({pid for *_, pid in found} - {os.getpid()}) == 2
            assert [read(item) for item in pipe] == expected, "the parent goes on with it"
    finally:
        workers.shutdown()
    assert kept[1].read() == LARGE


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_errors_arrive_from_workers_as_they_are(method):
    pipe = IterableWrapper(["s3://first/missing"]).sharding_filter().load_files_by_s3()
    workers = loader(pipe, multiprocessing_context=method)
    try:
        with pytest.raises(FileNotFoundError, match=r"S3FileLoader.*s3://first/missing"):
            list(workers)
    finally:
        workers.shutdown()


def test_a_forked_child_of_a_forked_child_reads_and_so_does_a_stream_that_it_inherited():
    [(_, inherited)] = S3FileLoader(["s3://large/object"])
    expected = listed("s3://first/train/")

    def works():
        return listed("s3://first/train/") == expected and inherited.read(10) == LARGE[:10]

    def forked(function):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if function() else 2
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    assert forked(lambda: works() and forked(lambda: listed("s3://first/train/") == expected))
    assert forked(lambda: forked(works)), "also where the child between used nothing"
    assert works()


def test_a_forked_child_that_ends_as_python_does_ends():
    script = f"""
import os, sys
from torchdata.datapipes.iter import S3FileLister, S3FileLoader
[(_, kept)] = S3FileLoader(["s3://large/object"])
urls = list(S3FileLister(["s3://first"]))
pid = os.fork()
if pid == 0:
    assert list(S3FileLister(["s3://first"])) == urls and kept.read(1) == {LARGE[:1]!r}
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


def test_a_child_that_cannot_load_its_copy_says_what_to_do(monkeypatch):
    listed("s3://first")
    from torchdata.datapipes.iter import _s3_client

    monkeypatch.setattr(_s3_client, "_process", _s3_client._Process(inherited=True))
    monkeypatch.setattr(os, "memfd_create", lambda name: (_ for _ in ()).throw(OSError("not allowed")))
    with pytest.raises(RuntimeError, match="not allowed.*spawn"):
        listed("s3://first")


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_what_does_not_exist_is_an_error_that_names_pipe_and_url(make):
    name = make.__name__
    with pytest.raises(FileNotFoundError, match=rf"{name}.*s3://no-such-bucket/x.*no such bucket"):
        list(make(["s3://no-such-bucket/x"]))
    with pytest.raises(ValueError, match="no such bucket"):  # the type that torchdata 0.9 raises
        list(make(["s3://no-such-bucket/x"]))


def test_a_missing_object_is_an_error_when_its_turn_comes_and_the_loader_goes_on_afterwards():
    source = ["s3://first/train/1.bin", "s3://first/train/missing", "s3://first/train/2.bin"]
    pipe = S3FileLoader(source)
    items = iter(pipe)
    assert read(next(items)) == (source[0], b"\x01")
    with pytest.raises(
        FileNotFoundError, match=r"S3FileLoader cannot read 's3://first/train/missing'.*no such object"
    ):
        next(items)
    assert read(next(items)) == (source[2], b"\x02\x02")


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
@pytest.mark.parametrize(
    "url", ["", "bucket", "bucket/key", "s3://", "s3:///key", "http://bucket/key", "S3://b/k"]
)
def test_what_is_no_s3_url_is_refused(make, url):
    with pytest.raises(ValueError, match=rf"{make.__name__} expects URLs .* but got {re.escape(repr(url))}"):
        list(make([url]))


def test_a_bucket_alone_cannot_be_loaded_and_other_types_are_refused():
    for url in ("s3://first", "s3://first/"):
        with pytest.raises(ValueError, match="s3://bucket/key"):
            list(S3FileLoader([url]))
    for make in (S3FileLister, S3FileLoader):
        with pytest.raises(TypeError, match=make.__name__):
            list(make([5]))


@pytest.mark.parametrize("url", ["s3://first//train/1.bin", "s3://first/train/1.bin/", "s3://first//"])
def test_keys_that_begin_or_end_with_a_slash_are_refused_and_not_taken_for_others(url):
    with pytest.raises(OSError, match=rf"S3FileLoader cannot read {url!r}.*slash"):
        list(S3FileLoader([url]))
    if url.startswith("s3://first//"):
        with pytest.raises(OSError, match="S3FileLister.*slash"):
            listed(url)


def test_keys_that_obstore_cannot_name_are_an_error_and_not_left_out(client):
    client.put_object(Bucket="vacant", Key="a//b", Body=b"x")
    try:
        with pytest.raises(OSError, match=r"S3FileLister.*s3://vacant.*a//b"):
            listed("s3://vacant")
        with pytest.raises(OSError, match=r"S3FileLoader.*s3://vacant/a//b.*empty"):
            list(S3FileLoader(["s3://vacant/a//b"]))
    finally:
        client.delete_object(Bucket="vacant", Key="a//b")


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_a_server_that_never_answers_is_an_error_after_the_time_out(make, deaf):
    pipe = make(["s3://bucket/key"], request_timeout_ms=50, endpoint_url=deaf)
    with pytest.raises(
        TimeoutError, match=rf"{make.__name__}.*s3://bucket/key.*{deaf}.*50 ms.*request_timeout_ms"
    ):
        list(pipe)


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_a_server_that_does_not_exist_is_an_error_that_names_it(make):
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(OSError, match=rf"{make.__name__}.*s3://bucket/key.*{nobody}"):
        list(make(["s3://bucket/key"], request_timeout_ms=100, endpoint_url=nobody))


@pytest.fixture
def stalling():
    """The URL of a server that begins to send an object and then falls silent."""
    head = (
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n"
        b'ETag: "x"\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n\r\nbegin'
    )
    taken = []

    def serve():
        with contextlib.suppress(OSError):  # until it is closed
            while True:
                connection, _ = server.accept()
                connection.recv(65536)
                connection.sendall(head)
                taken.append(connection)

    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for connection in taken:
        connection.close()


def test_a_server_that_falls_silent_in_the_middle_of_an_object_is_an_error(stalling):
    [(_, stream)] = S3FileLoader(["s3://bucket/key"], endpoint_url=stalling, request_timeout_ms=50)
    with pytest.raises(TimeoutError, match=r"S3FileLoader.*s3://bucket/key.*50 ms"):
        stream.read()


def test_a_server_that_ends_while_an_object_is_read_is_an_error_and_others_are_read_afterwards():
    with s3_server() as other:
        client = fill(other, {"short": {"lived": LARGE}})
        client.close()
        [(_, stream)] = S3FileLoader(["s3://short/lived"], endpoint_url=other, request_timeout_ms=200)
        assert stream.read(100) == LARGE[:100]
    with pytest.raises(OSError, match=r"S3FileLoader cannot read 's3://short/lived'"):
        stream.read()
    assert listed("s3://first") == urls("first")


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_missing_credentials_are_an_error_that_names_the_variables(make, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(PermissionError, match=rf"{make.__name__}.*s3://first/train/1.bin.*AWS_ACCESS_KEY_ID"):
        list(make(["s3://first/train/1.bin"], region="eu-west-1"))


def test_objects_that_may_not_be_read_are_an_error_that_names_them(client):
    unsigned = {"config": {"skip_signature": True}}
    with pytest.raises(PermissionError, match=r"S3FileLoader.*s3://first/train/1.bin.*credentials"):
        list(S3FileLoader(["s3://first/train/1.bin"], **unsigned))
    client.put_object_acl(Bucket="first", Key="train/1.bin", ACL="public-read")
    assert read(next(iter(S3FileLoader(["s3://first/train/1.bin"], **unsigned))))[1] == b"\x01"


@pytest.mark.parametrize("profile", [None, "other"])
def test_credentials_and_region_are_read_from_the_files_of_a_profile(profile, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    credentials, config = tmp_path / "credentials", tmp_path / "config"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert profile_settings({}) == {}
    credentials.write_text(
        "[default]\naws_access_key_id = one\naws_secret_access_key = x%y\n"
        "[other]\naws_access_key_id = two\naws_secret_access_key = z\naws_session_token = t\n"
    )
    config.write_text("[default]\nregion = eu-north-1\n[profile other]\nregion = us-west-2\n")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
        expected = {
            "access_key_id": "two",
            "secret_access_key": "z",
            "session_token": "t",
            "region": "us-west-2",
        }
    else:
        expected = {"access_key_id": "one", "secret_access_key": "x%y", "region": "eu-north-1"}
    assert profile_settings({}) == expected
    assert listed("s3://first") == urls("first")
    assert profile_settings({"skip_signature": True}) == {"region": expected["region"]}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from the environment")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert profile_settings({}) == {}
    for damaged in (b"no section", b"\xff\xfe"):
        credentials.write_bytes(damaged)
        assert profile_settings({}) == {}


def test_the_endpoint_is_taken_from_the_argument_before_the_environment(client, monkeypatch, deaf):
    endpoint = client.meta.endpoint_url
    monkeypatch.setenv("AWS_ENDPOINT_URL", deaf)
    assert listed("s3://first", endpoint_url=endpoint) == urls("first")
    assert listed("s3://first", config={"endpoint": endpoint}) == urls("first")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    assert listed("s3://first") == urls("first")


class Breaking(IterDataPipe):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        yield from self.items
        raise RuntimeError("the source broke")


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_an_error_of_the_source_arrives_as_it_is_and_leaves_no_file_open(make):
    url = "s3://first/train/1.bin"
    listed(url)
    before = open_files(sockets=False)
    pipe = make(Breaking([url]))
    items = iter(pipe)
    next(items)
    with pytest.raises(RuntimeError, match="the source broke"):
        next(items)
    assert next(iter(pipe)) is not None, "it can be iterated again"
    del items
    assert open_files(sockets=False) == before


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: S3FileLister("s3://bucket"), TypeError, "S3FileLister.*wrap it"),
        (lambda: S3FileLister(5), TypeError, "S3FileLister"),
        (lambda: S3FileLister([], length=-2), ValueError, "S3FileLister: length"),
        (lambda: S3FileLister([], masks=5), TypeError, "S3FileLister: masks"),
        (lambda: S3FileLister([], region=None), TypeError, "S3FileLister: region"),
        (lambda: S3FileLister([], request_timeout_ms=0), ValueError, "S3FileLister: request_timeout_ms"),
        (lambda: S3FileLister([], request_timeout_ms=-2), ValueError, "S3FileLister: request_timeout_ms"),
        (
            lambda: S3FileLister([], endpoint_url="localhost:9000"),
            ValueError,
            "S3FileLister: endpoint_url.*http",
        ),
        (lambda: S3FileLister([], config=["a"]), TypeError, "S3FileLister: config"),
        (lambda: S3FileLoader("s3://bucket/key"), TypeError, "S3FileLoader.*wrap it"),
        (lambda: S3FileLoader([], buffer_size=0), ValueError, "S3FileLoader: buffer_size"),
        (lambda: S3FileLoader([], buffer_size="1"), TypeError, "S3FileLoader: buffer_size"),
        (lambda: S3FileLoader([], request_timeout_ms="1"), TypeError, "S3FileLoader: request_timeout_ms"),
    ],
)
def test_wrong_arguments_are_refused_by_the_constructor(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_unknown_setting_is_an_error_that_names_it():
    with pytest.raises(OSError, match=r"S3FileLister.*nonsense"):
        listed("s3://first", config={"nonsense": 1})


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_without_obstore_the_constructor_names_the_extra(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ModuleNotFoundError, match=rf"{make.__name__}.*torchdata-rs\[s3\]"):
        make(IterableWrapper([]))


def test_building_the_pipes_imports_no_library():
    script = (
        "import sys; from torchdata.datapipes.iter import *; S3FileLister(['s3://b']).load_files_by_s3(); "
        "assert not {'obstore', 'concurrent.futures'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)
