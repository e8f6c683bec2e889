"""FSSpecFileLister, FSSpecFileOpener and FSSpecSaver work with files on disk, in memory and in archives."""

import gzip
import os
import pickle
import stat
import zipfile

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFile
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from process_checks import loader
from refusals import refuses
from resuming import with_state
from stream_checks import check_restore, read
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
from torchdata.datapipes.state import load_state, save_state

NAMES = ["b.txt", "a.txt", "c.png", "sub/z.txt", "été 100%.txt"]
FILES = ["a.txt", "b.txt", "c.png", "sub", "été 100%.txt"]


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"content of {name}\n")
    with zipfile.ZipFile(tmp_path / "sub" / "x.zip", "w") as archive:
        for name in ("in/one.txt", "in/two.png", "three.txt"):
            archive.writestr(name, name)
    return str(tmp_path)


@pytest.fixture
def memory():
    fs = fsspec.filesystem("memory")
    before = dict(fs.store), list(fs.pseudo_dirs)
    for name in NAMES:
        fs.pipe(f"/tests/{name}", name.encode())
    yield fs
    fs.store.clear()
    fs.store.update(before[0])
    fs.pseudo_dirs[:] = before[1]


def test_local_names_begin_with_the_root_and_are_yielded_in_order(folder):
    for start, end in (("", ""), ("file://", "/"), ("local://", "")):
        assert list(FSSpecFileLister(start + folder + end)) == [f"{start}{folder}/{name}" for name in FILES]


def test_names_in_memory_are_listed_and_opened(memory):
    for root in ("memory://tests", "memory:///tests", "memory://tests/"):
        names = list(FSSpecFileLister(root, "*.*"))
        assert names == [f"memory:///tests/{name}" for name in sorted(NAMES) if "/" not in name]
        assert [read(item)[1] for item in FSSpecFileOpener(names)] == [name.rsplit("/", 1)[1] for name in names]


@pytest.mark.parametrize(
    ("inside", "found"),
    [("", ["in", "three.txt"]), ("in", ["in/one.txt", "in/two.png"]), ("in/one.txt", ["in/one.txt"])],
)
def test_the_chain_of_an_archive_stays_on_its_members(folder, inside, found):
    chain = f"::file://{folder}/sub/x.zip"
    names = list(FSSpecFileLister(f"zip://{inside}{chain}"))
    assert names == [f"zip://{name}{chain}" for name in found]
    members = [name for name in names if "." in name.partition("::")[0]]
    items = check_restore(lambda: FSSpecFileOpener(members, "rb"))
    assert items == [(name, name[6:].partition("::")[0].encode()) for name in members]


def test_a_local_cache_before_a_protocol_is_kept_in_the_names(folder):
    root = f"simplecache::file://{folder}"
    names = list(FSSpecFileLister(root, "*.txt"))
    assert names == [f"{root}/{name}" for name in FILES if name.endswith(".txt")]
    assert read(next(iter(FSSpecFileOpener(names))))[1] == "content of a.txt\n"


@pytest.mark.parametrize(
    ("masks", "found"),
    [("*.txt", [0, 1, 4]), (["*/a.*", "*.png"], [0, 2]), ("a*", []), ([], [0, 1, 2, 3, 4]), ("*/sub", [3])],
)
def test_masks_match_the_whole_path(folder, masks, found):
    expected = [f"file://{folder}/{FILES[index]}" for index in found]
    assert list(FSSpecFileLister(f"file://{folder}", masks)) == expected


def test_options_are_passed_to_the_file_system(folder):
    assert list(FSSpecFileLister("zip://in", fo=f"{folder}/sub/x.zip")) == ["zip://in/one.txt", "zip://in/two.png"]
    [(_, stream)] = FSSpecFileOpener(["zip://in/one.txt"], fo=f"{folder}/sub/x.zip")
    assert stream.read() == "in/one.txt"


def test_a_restored_listing_resumes_after_its_last_name_although_other_files_changed(memory):
    pipe = FSSpecFileLister("memory://tests", "*.*")
    items = iter(pipe)
    assert [next(items), next(items)][1].endswith("b.txt")
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    memory.rm("/tests/a.txt")
    memory.pipe("/tests/zzz.txt", b"")
    other = with_state(FSSpecFileLister("memory://tests", "*.*"), state)
    assert [name.rsplit("/", 1)[1] for name in other] == ["c.png", "zzz.txt", "été 100%.txt"]
    memory.rm("/tests/b.txt")
    load_state(other, state)
    with pytest.raises(RuntimeError, match=r"FSSpecFileLister.*memory://tests.*b\.txt"):
        list(other)


@pytest.mark.parametrize("root", ["{}/nowhere", "memory://nowhere", "nothing-known://nowhere", "zip://x::{}/nowhere"])
@pytest.mark.parametrize("make", [FSSpecFileLister, lambda root: FSSpecFileOpener([root])])
def test_an_error_names_pipe_and_url_of_a_missing_object(tmp_path, root, make):
    root = root.format(tmp_path)
    pipe = make(root)
    with pytest.raises((FileNotFoundError, ValueError)) as failure:
        list(pipe)
    assert any(type(pipe).__name__ in note and repr(root) in note for note in failure.value.__notes__)


@pytest.mark.parametrize(("mode", "kind"), [("rt", str), ("rb", bytes)])
def test_files_are_opened_in_the_mode_asked_for_and_restored(folder, mode, kind):
    def build():
        return FSSpecFileLister(f"file://{folder}", "*.txt").open_files_by_fsspec(mode=mode)

    items = check_restore(build)
    contents = [f"content of {name}\n" for name in FILES if name.endswith(".txt")]
    assert [content for _, content in items] == [text if kind is str else text.encode() for text in contents]


def test_options_are_passed_to_open(folder):
    with gzip.open(f"{folder}/packed.txt.gz", "wt", encoding="utf-16") as file:
        file.write("packed")
    options = {"compression": "infer", "encoding": "utf-16"}
    items = check_restore(lambda: FSSpecFileOpener([f"{folder}/packed.txt.gz"], kwargs_for_open=options))
    assert items == [(f"{folder}/packed.txt.gz", "packed")]


@pytest.mark.parametrize(
    ("start", "mode", "data"), [("", "w", "text"), ("file://", "wb", bytearray(b"x")), ("memory:/", "wb", b"bytes")]
)
def test_data_are_saved_and_the_url_is_yielded(tmp_path, memory, start, mode, data):
    target = f"{start}{tmp_path}/file"
    for _ in range(2):
        assert list(FSSpecSaver([("file", data)], mode, lambda name: f"{start}{tmp_path}/{name}")) == [target]
        [(_, stream)] = FSSpecFileOpener([target], "rb")
        assert stream.read() == (data.encode() if mode == "w" else data)
    assert os.listdir(tmp_path) == ([] if "memory" in start else ["file"])


def test_files_are_appended_and_packed_on_request(tmp_path):
    path = f"{tmp_path}/log"
    list(FSSpecSaver([(path, "a"), (path, "b")], "a"))
    assert (tmp_path / "log").read_text() == "ab"
    list(FSSpecSaver([(f"{path}.gz", b"packed")], "wb", kwargs_for_open={"compression": "infer"}))
    assert gzip.decompress((tmp_path / "log.gz").read_bytes()) == b"packed"
    deep = f"{tmp_path}/new/folder/file"
    with pytest.raises(FileNotFoundError):
        list(FSSpecSaver([(deep, "x")]))
    assert list(FSSpecSaver([(deep, "x")], auto_mkdir=True)) == [deep]


def test_a_local_file_is_replaced_only_once_it_is_written_completely(tmp_path, monkeypatch):
    target = tmp_path / "file"
    target.write_text("before")
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    with monkeypatch.context() as patch:

        def broken(descriptor_or_path, *args, **options):
            raise OSError(28, "No space left on device")

        patch.setattr("torchdata.datapipes.iter.streams.atomic_files.os.replace", broken)
        with pytest.raises(OSError, match="No space") as failure:
            list(FSSpecSaver([(str(target), "after")]))
    assert any("FSSpecSaver cannot save" in note and str(target) in note for note in failure.value.__notes__)
    assert target.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]
    list(FSSpecSaver([(str(link), "after")]))
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize(("mode", "data"), [("w", b"bytes"), ("wb", "text"), ("wb", 5), ("w", None)])
def test_data_that_do_not_fit_the_mode_are_refused_before_anything_is_written(tmp_path, memory, mode, data):
    for start in ("", "memory:/"):
        path = f"{start}{tmp_path}/file"
        with pytest.raises(TypeError, match=rf"FSSpecSaver cannot save '{path}'.*{mode}.*{type(data).__name__}"):
            list(FSSpecSaver([(path, data)], mode))
        assert not memory.exists(path) if start else os.listdir(tmp_path) == []


class Uploads(AbstractFileSystem):
    protocol = "uploads"
    done: list[str] = []  # noqa: RUF012

    def _open(self, path, mode="rb", **options):
        return Upload(self, path, mode, block_size=10)


class Upload(AbstractBufferedFile):
    def _initiate_upload(self):
        pass

    def _upload_chunk(self, final=False):
        if final:
            self.fs.done.append(self.path)
        elif self.path.endswith("broken"):
            raise OSError("the connection was lost")
        return True


def test_a_failed_upload_is_aborted():
    fsspec.register_implementation("uploads", Uploads, clobber=True)
    Uploads.done.clear()
    for mode, data in (("wb", b"x" * 100), ("w", "x" * 100_000)):
        with pytest.raises(OSError, match="the connection was lost") as failure:
            list(FSSpecSaver([("uploads://whole", data), ("uploads://broken", data)], mode))
        assert any("uploads://broken" in note for note in failure.value.__notes__)
    assert Uploads.done == ["whole"] * 2


class OnThreads(AsyncFileSystem):
    """A file system that runs operations in fsspec's thread, which does not exist in a forked process."""

    protocol = "onthreads"
    cachable = True

    async def _info(self, path, **options):
        return {"name": path, "size": 0, "type": "file" if path.endswith(".txt") else "directory"}

    async def _ls(self, path, detail=True, **options):
        names = [f"{path}/{number}.txt" for number in range(6)]
        return [await self._info(name) for name in names] if detail else names

    async def _cat_file(self, path, start=None, end=None, **options):
        return path.encode()

    def _open(self, path, mode="rb", **options):
        return MemoryFile(None, None, self.cat_file(path))


def name_and_content(pair):
    return pair[0], pair[1].read(), os.getpid()


@pytest.mark.parametrize("start", ["onthreads://dir", "{}"])
def test_two_forked_workers_share_the_files_after_the_parent_read_them(folder, start):
    fsspec.register_implementation("onthreads", OnThreads, clobber=True)
    root = start.format(folder)
    pipe = FSSpecFileLister(root, "*.txt").sharding_filter().open_files_by_fsspec(mode="rb")
    expected = [read(item) for item in pipe]
    assert len(expected) >= 3
    with loader(pipe.map(name_and_content)) as workers:
        found = list(workers)
    assert sorted(item[:2] for item in found) == sorted(expected)
    assert len({pid for *_, pid in found}) == 2
    assert [read(item) for item in pipe] == expected


test_wrong_values_are_refused_with_a_reason = refuses(
    (lambda: FSSpecFileLister(5), TypeError, "FSSpecFileLister"),
    (lambda: FSSpecFileLister("x", masks=5), TypeError, "FSSpecFileLister: masks"),
    (lambda: list(FSSpecFileLister([5])), TypeError, "FSSpecFileLister.*5"),
    (lambda: FSSpecFileOpener("a.txt"), TypeError, "FSSpecFileOpener.*wrap it"),
    (lambda: FSSpecFileOpener([], mode="q"), ValueError, "FSSpecFileOpener: mode"),
    (lambda: FSSpecFileOpener([], mode=None), TypeError, "FSSpecFileOpener: mode"),
    (lambda: FSSpecFileOpener([], kwargs_for_open=5), TypeError, "FSSpecFileOpener: kwargs_for_open"),
    (lambda: list(FSSpecFileOpener([5])), TypeError, "FSSpecFileOpener.*5"),
    (lambda: FSSpecSaver("a.txt"), TypeError, "FSSpecSaver.*wrap it"),
    (lambda: FSSpecSaver([], mode="r"), ValueError, "FSSpecSaver: mode.*'wb'"),
    (lambda: FSSpecSaver([], mode="b"), ValueError, "FSSpecSaver: mode"),
    (lambda: FSSpecSaver([], filepath_fn="x"), TypeError, "FSSpecSaver: filepath_fn"),
    (lambda: list(FSSpecSaver(["x"])), ValueError, "FSSpecSaver expects pairs.*'x'"),
    (lambda: list(FSSpecSaver([5])), TypeError, "FSSpecSaver expects pairs.*5"),
    (lambda: list(FSSpecSaver([(5, "x")])), TypeError, "FSSpecSaver expects a str as path.*5"),
)


@pytest.mark.parametrize(("error", "attempts"), [(ConnectionResetError, 3), (TimeoutError, 3), (PermissionError, 1)])
def test_opening_is_retried_after_a_temporary_error(monkeypatch, error, attempts):
    fs, calls = fsspec.filesystem("memory"), []
    fs.pipe("/again", b"content")
    right = type(fs).open

    def faulty(self, path, *args, **kwargs):
        calls.append(path)
        if len(calls) < 3:
            raise error("faulty")
        return right(self, path, *args, **kwargs)

    monkeypatch.setattr(type(fs), "open", faulty)
    monkeypatch.setattr("torchdata.datapipes._pipe.retrying.PAUSE", 0.001)
    with DataLoader2(FSSpecFileOpener(["memory://again"], mode="rb").map(lambda pair: pair[1].read())) as loader:
        if attempts == 1:
            with pytest.raises(PermissionError, match="faulty"):
                list(loader)
        else:
            with pytest.warns(
                UserWarning, match="FSSpecFileOpener: opening 'memory://again' failed, and is tried again"
            ):
                assert list(loader) == [b"content"]
        assert sum(pipe.retries for pipe in loader.stats().pipes) == attempts - 1
    assert len(calls) == attempts
