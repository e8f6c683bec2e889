"""FileLister and FileReader of `torchdata.nodes.io` list and read files."""

from __future__ import annotations

import copy
import gzip
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="nodes need PyTorch")
fsspec = pytest.importorskip("fsspec", reason="files are listed and opened by it")

from torchdata.datapipes._pipe import retrying  # noqa: E402
from torchdata.nodes import IterableWrapper, Loader  # noqa: E402
from torchdata.nodes.io import FileLister, FileReader  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "c.json", "deep/d.txt", "deep/deeper/e.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"in {name}\n", encoding="utf-8")
    with gzip.open(tmp_path / "f.gz", "wt") as file:
        file.write("packed")
    return tmp_path


def names(node: Any, folder: Path) -> list[str]:
    return [str(Path(item["data"]).relative_to(folder)) for item in Loader(node)]


def test_files_that_match_come_sorted_without_folders(folder: Path) -> None:
    assert names(FileLister(str(folder), ["*.txt", "*.json", "a*"]), folder) == ["a.txt", "b.txt", "c.json"]
    assert names(FileLister(str(folder), ["**/*.txt"]), folder)[-2:] == ["deep/d.txt", "deep/deeper/e.txt"]
    assert names(FileLister(str(folder)), folder) == ["a.txt", "b.txt", "c.json", "f.gz"]
    assert next(FileLister(str(folder), ["a*"]))["metadata"] == {"fs_protocol": "file", "source": "file"}


def test_files_of_a_store_come_by_urls() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe({"/nodes/one.txt": b"1", "/nodes/two.txt": b"2"})
    node = FileReader(FileLister("memory://nodes", ["*.txt"]), mode="rb")
    assert [(item["data"], item["metadata"]) for item in Loader(node)] == [
        (b"1", {"file_path": "memory:///nodes/one.txt", "fs_protocol": "memory", "source": "memory"}),
        (b"2", {"file_path": "memory:///nodes/two.txt", "fs_protocol": "memory", "source": "memory"}),
    ]
    fs.rm("/nodes", recursive=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_contents_come_in_order_and_states_are_exact(folder: Path, workers: int) -> None:
    def loader() -> Loader[Any]:
        return Loader(FileReader(FileLister(str(folder), ["**/*.txt"]), num_workers=workers))

    with loader() as first:
        came, states = [], []
        for item in first:
            came.append(item["data"])
            states.append(copy.deepcopy(first.state_dict()))
    assert came == ["in a.txt\n", "in b.txt\n", "in deep/d.txt\n", "in deep/deeper/e.txt\n"]
    for number, state in enumerate(states[:-1]):
        with loader() as other:
            other.load_state_dict(state)
            assert [item["data"] for item in other] == came[number + 1 :]


def test_a_state_is_refused_if_there_are_other_files_now(folder: Path) -> None:
    loader = Loader(FileLister(str(folder), ["*.txt"]))
    next(iter(loader))
    state = loader.state_dict()
    (folder / "a.txt").rename(folder / "z.txt")
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="had 2 files that match, but there are other files now"):
        iter(loader)


def test_a_missing_file_raises_an_error_and_an_empty_folder_is_an_empty_epoch(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        next(FileLister(str(folder / "gone"), ["*"]))
    assert list(Loader(FileLister(str(folder), ["*.png"]))) == []
    with pytest.raises(TypeError, match="patterns must be a list"):
        FileLister(str(folder), "*.txt")
    with pytest.raises(FileNotFoundError):
        next(FileReader(IterableWrapper([{"data": str(folder / "gone")}])))


def test_compressed_files_are_unpacked_unless_that_is_disabled(folder: Path) -> None:
    source = IterableWrapper([{"data": str(folder / "f.gz"), "metadata": {"more": 1}}])
    assert next(FileReader(source)) == {
        "data": "packed",
        "metadata": {"file_path": str(folder / "f.gz"), "more": 1},
    }
    packed = next(FileReader(source, mode="rb", transport_params={"compression": "disable"}))["data"]
    assert gzip.decompress(packed) == b"packed"
    with pytest.raises(ValueError, match=r"compression must be one of \.gz"):
        FileReader(source, transport_params={"compression": "zip"})
    with pytest.raises(ValueError, match="mode must be"):
        FileReader(source, mode="w")


@pytest.mark.parametrize(("faults", "retries"), [(2, 3), (3, 2), (1, 0)])
def test_a_file_that_cannot_be_read_is_read_again_as_often_as_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, faults: int, retries: int
) -> None:
    calls, slept, right = [], [], fsspec.open

    def faulty(path: str, **options: Any) -> Any:
        calls.append(path)
        if len(calls) <= faults:
            raise ConnectionResetError("reset")
        return right(path, **options)

    monkeypatch.setattr(fsspec, "open", faulty)
    monkeypatch.setattr(retrying.time, "sleep", slept.append)
    node = FileReader(IterableWrapper([{"data": str(folder / "a.txt")}]), max_retries=retries)
    if faults > retries:
        with pytest.raises(ConnectionResetError), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            next(node)
        assert len(told) == retries
        assert len(calls) == retries + 1
    else:
        with pytest.warns(UserWarning, match="FileReader: reading .* failed, and is tried again in .*: reset"):
            assert next(node)["data"] == "in a.txt\n"
        assert slept == [0.5, 1.0]
