"""S3FileLister and S3FileLoader list and read objects of a complete S3 server on the local machine."""

import copy
import gc
import importlib
import os
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from process_checks import loader, wait_for
from programs import output_of
from resuming import with_state
from s3_buckets import FOLDER, LARGE, STRANGE, listed, serving, urls
from s3_server import KEYS_PER_PAGE
from stream_checks import check_restore, open_files, read
from torchdata.datapipes.iter import S3FileLister, S3FileLoader
from torchdata.datapipes.iter.stores.s3_object import PART_SIZE, S3Recipe
from torchdata.datapipes.state import load_state, save_state
from waiting import check_in_forked_child


@pytest.fixture(scope="module", autouse=True)
def client():
    with serving() as client:
        yield client


def test_the_objects_whose_keys_begin_with_a_prefix_are_listed_in_order():
    for prefix in ("", "t", "train/", "train/3", "train/3.bin", "train-", "other/x.txt", "nothing", "empty", "empty/"):
        assert listed(f"s3://first/{prefix}") == urls("first", prefix)
    assert listed("s3://second") == listed("s3://second/") == urls("second")
    assert listed("s3://vacant") == []


def test_strange_keys_are_listed_and_read():
    for key in STRANGE:
        url = f"s3://second/{key}"
        assert listed(url) == [url]
        assert [*map(read, S3FileLoader([url]))] == [(url, key.encode())]


def test_several_buckets_and_prefixes_are_listed_in_order():
    roots = ["s3://second/", "s3://first/train/", "s3://vacant", "s3://first/o"]
    assert listed(*roots) == urls("second") + urls("first", "train/") + urls("first", "o")


@pytest.mark.parametrize("at_once", [KEYS_PER_PAGE * 3 // 5, 1000])
def test_listings_of_many_pages_are_complete_and_resume_within_a_page(at_once, monkeypatch):
    monkeypatch.setattr("torchdata.datapipes.iter.stores.s3._KEYS_PER_PAGE", at_once)
    assert listed("s3://many") == urls("many")
    assert listed("s3://many/0004") == urls("many", "0004")
    pipe = S3FileLister(["s3://many"])
    items = iter(pipe)
    head = [next(items) for _ in range(2 * KEYS_PER_PAGE + KEYS_PER_PAGE // 3)]
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    assert len(pickle.dumps(state)) < 1000, "the state holds a position, not the names"
    assert head + list(with_state(S3FileLister(["s3://many"]), state)) == urls("many")


PARTS = st.text(alphabet="ab01~ .é/", min_size=1, max_size=6)


def is_a_key(text):
    return all(part not in ("", ".", "..") for part in text.split("/"))


@settings(max_examples=50)
@given(
    keys=st.sets(PARTS.filter(is_a_key), max_size=12),
    prefix=PARTS.filter(lambda text: is_a_key(text.removesuffix("/"))) | st.just(""),
    data=st.data(),
)
def test_any_prefix_of_any_keys_is_listed_from_any_key(keys, prefix, data):
    obstore = importlib.import_module("obstore")
    store = importlib.import_module("obstore.store").MemoryStore()
    for key in keys:
        obstore.put(store, key, b"x")
    pipe = S3FileLister([])
    expected = sorted(key for key in keys if key.startswith(prefix))
    assert [key for page in pipe._pages(obstore, store, prefix, None) for key in page] == expected
    if expected:
        offset = data.draw(st.integers(0, len(expected) - 1))
        rest = [key for page in pipe._pages(obstore, store, prefix, expected[offset]) for key in page]
        assert rest == expected[offset + 1 :]


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


def test_len_is_the_declared_length_or_the_length_of_the_source():
    assert len(S3FileLister(["s3://first"], length=7)) == 7
    with pytest.raises(TypeError, match="S3FileLister instance doesn't have valid length"):
        len(S3FileLister(["s3://first"]))
    assert len(S3FileLoader(["s3://first/a", "s3://first/b"])) == 2
    with pytest.raises(TypeError, match="S3FileLoader instance doesn't have valid length"):
        len(S3FileLister(["s3://first"]).load_files_by_s3())


def test_a_shuffle_buffer_of_unread_objects_is_restored_and_owns_no_connections():
    pipe = S3FileLister(["s3://many/0000", "s3://many/0001"]).load_files_by_s3()
    before = open_files()
    kept = list(pipe)
    assert len(kept) == 20
    wait_for(lambda: open_files() <= before + 2)  # threads of obstore close the connections
    assert [stream.read() for _, stream in kept] == [b"" if n == 7 else b"x" for n in range(20)]
    del kept
    check_restore(
        lambda: S3FileLister(["s3://first/train/"]).load_files_by_s3().shuffle(buffer_size=4).set_seed(3),
        seeded=True,
        sockets=False,
    )


@pytest.mark.parametrize(
    ("buffer_size", "parallel"), [(None, None), (1_000_000, False), (PART_SIZE, True), (2 * PART_SIZE + 1, True)]
)
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
        offset, size = rng.randrange(len(LARGE) + 10), rng.choice([0, 1, 100, 70_000, 700_000])
        assert stream.seek(offset) == offset
        assert stream.read(size) == LARGE[offset : offset + size]
        assert stream.tell() == offset + len(LARGE[offset : offset + size])
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


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_reading_a_large_object_holds_one_piece_at_a_time(client):
    size = 24 << 20
    client.put_object(Bucket="vacant", Key="huge", Body=bytes(size))
    try:
        [(_, stream)] = S3FileLoader(["s3://vacant/huge"], buffer_size=4 << 20)
        stream.read(1)
        gc.collect()
        before, most, read = resident_bytes(), 0, 1
        while piece := stream.read(1 << 20):
            read += len(piece)
            most = max(most, resident_bytes() - before)
        assert read == size
        assert most < size // 2
        assert len(stream.raw._piece) <= 4 << 20
    finally:
        client.delete_object(Bucket="vacant", Key="huge")


def test_a_stream_in_the_middle_of_an_object_is_pickled_and_copied():
    [(_, stream)] = S3FileLoader(["s3://large/object"])
    stream.read(5_000_000)
    for twin in (pickle.loads(pickle.dumps(stream)), copy.deepcopy(stream)):
        assert twin.read(1000) == LARGE[5_000_000:5_001_000]
    assert stream.read(10) == LARGE[5_000_000:5_000_010]


def test_a_copy_of_a_stream_fails_if_the_stored_object_has_changed(client):
    client.put_object(Bucket="vacant", Key="changing", Body=b"before")
    try:
        [(_, stream)] = S3FileLoader(["s3://vacant/changing"])
        client.put_object(Bucket="vacant", Key="changing", Body=b"afterwards")
        with pytest.raises(OSError, match=r"S3FileLoader.*s3://vacant/changing.*changed"):
            pickle.loads(pickle.dumps(stream)).read()
        assert stream.read() == b"before", "the response had been requested before the change"
    finally:
        client.delete_object(Bucket="vacant", Key="changing")


def test_after_an_error_a_partial_object_does_not_look_complete(client):
    client.put_object(Bucket="vacant", Key="changing", Body=LARGE)
    try:
        [(_, stream)] = S3FileLoader(["s3://vacant/changing"], buffer_size=100_000)
        assert stream.read(150_000) == LARGE[:150_000]
        client.put_object(Bucket="vacant", Key="changing", Body=LARGE[1:])
        for offset in (200_000, 0, 120_000):
            stream.seek(offset)
            with pytest.raises(OSError, match="changed"):
                stream.read(100_000)
        client.put_object(Bucket="vacant", Key="changing", Body=LARGE)
        stream.seek(0)
        assert stream.read() == LARGE, "the stream reads the reopened version"
    finally:
        client.delete_object(Bucket="vacant", Key="changing")


def test_a_shard_is_resumed_after_its_last_member(client, tmp_path, monkeypatch):
    import tarfile

    (tmp_path / "member").write_bytes(LARGE[:1_000_000])
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(12):
            archive.add(tmp_path / "member", f"{number}.bin")
    client.upload_file(str(tmp_path / "a.tar"), "vacant", "a.tar")
    build = lambda: S3FileLoader(["s3://vacant/a.tar"]).load_from_tar()  # noqa: E731
    asked, get = [], S3Recipe.get

    def noting(self, start, size):
        asked.append(start)
        return get(self, start, size)

    monkeypatch.setattr(S3Recipe, "get", noting)
    try:
        items = iter(pipe := build())
        for _ in range(10):
            assert read(next(items))[1] == LARGE[:1_000_000]
        offset = pipe._archive.tar.offset
        state = pickle.loads(pickle.dumps(save_state(pipe)))
        del items, pipe
        asked.clear()
        load_state(other := build(), state)
        assert [content for _, content in map(read, other)] == [LARGE[:1_000_000]] * 2
        assert asked[0] == min(asked) == offset - 1
        client.put_object(Bucket="vacant", Key="a.tar", Body=LARGE)
        load_state(other := build(), state)
        with pytest.raises(OSError, match="the object was changed after it was opened") as caught:
            list(other)
        assert any("TarArchiveLoader" in note for note in caught.value.__notes__)
    finally:
        client.delete_object(Bucket="vacant", Key="a.tar")


def name_and_content(pair):
    return pair[0], pair[1].read(), os.getpid()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_two_workers_share_the_objects_after_the_parent_used_s3(client, method):
    expected = [(f"s3://first/{key}", content) for key, content in sorted(FOLDER.items())]
    options = {
        "endpoint_url": client.meta.endpoint_url,
        "config": {"access_key_id": "test", "secret_access_key": "test"},
        "region": "us-east-1",
    }
    pipe = S3FileLister(["s3://first/train/"], **options).sharding_filter().load_files_by_s3(**options)
    assert [read(item) for item in pipe] == expected
    kept = next(iter(S3FileLoader(["s3://large/object"])))  # keeps a response that was not read to its end
    with loader(pipe.map(name_and_content), multiprocessing_context=method) as workers:
        for _ in range(2):
            found = list(workers)
            assert sorted((url, content) for url, content, _ in found) == expected
            assert len({pid for *_, pid in found} - {os.getpid()}) == 2
            assert [read(item) for item in pipe] == expected, "the parent process can still read"
    assert kept[1].read() == LARGE


def test_a_forked_child_of_a_forked_child_reads_and_so_does_a_stream_that_it_inherited():
    [(_, inherited)] = S3FileLoader(["s3://large/object"])
    expected = listed("s3://first/train/")

    def lists():
        assert listed("s3://first/train/") == expected

    def works():
        lists()
        assert inherited.read(10) == LARGE[:10]

    check_in_forked_child(lambda: (works(), check_in_forked_child(lists)))
    check_in_forked_child(lambda: check_in_forked_child(works))
    works()


def test_a_forked_child_can_exit_as_python_does():
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
    output_of(script, options=["-W", "error"])


def test_an_error_of_a_child_that_cannot_unpickle_its_program_contains_advice(monkeypatch):
    listed("s3://first")
    from torchdata.datapipes.iter.stores import s3_client as _s3_client

    monkeypatch.setattr(_s3_client, "_process", _s3_client._Process(inherited=True))
    monkeypatch.setattr(os, "memfd_create", lambda name: (_ for _ in ()).throw(OSError("not allowed")))
    with pytest.raises(RuntimeError, match="not allowed.*spawn"):
        listed("s3://first")
