"""WebDataset groups the files of tar archives into samples."""

import io
import re
import subprocess
import tarfile
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive_bytes import tar_of
from stream_checks import check_restore, open_files
from torchdata.datapipes.iter import FileLister, FileOpener, IterableWrapper, WebDataset
from torchdata.datapipes.iter.streams import webdataset
from torchdata.datapipes.utils import StreamWrapper


def gathered(paths: list[str]) -> list[Any]:
    samples: list[dict[str, Any]] = []
    for number, path in enumerate(paths):
        folder, _, name = path.replace("\\", "/").rpartition("/")
        stem, dot, extension = name.partition(".")
        key = f"{folder}/{stem}" if "/" in path.replace("\\", "/") else stem
        if not dot:
            continue
        if not samples or samples[-1]["__key__"] != key:
            samples.append({"__key__": key})
        samples[-1][dot + extension] = number
    return samples


def numbered(paths: list[str]) -> Any:
    return IterableWrapper([(path, number) for number, path in enumerate(paths)])


@given(st.lists(st.text("ab./\\", max_size=5)))
def test_any_paths_are_gathered_as_in_the_model(paths: list[str]) -> None:
    assert list(numbered(paths).webdataset(strict=False)) == gathered(paths)


def outcome(paths: list[str], generation: int = 1 << 15) -> str:
    """Returns "right" if the samples are correct, or else the class of the error and the sample that it names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webdataset, "_GENERATION", generation)
        try:
            assert list(numbered(paths).webdataset()) == gathered(paths)
        except ValueError as error:
            kind = "twice" if "has two files" in str(error) else "scattered"
            return f"{kind} " + re.findall(r"sample '(.*?)'", str(error))[0]
        return "right"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["1.txt", "1.cls", "2.txt", "2.cls"], "right"),
        (["1.txt", "1.cls", "1.txt"], "twice 1"),
        (["1.txt", "2.txt", "1.cls", "2.cls"], "scattered 1"),
        (["1.txt", "1.cls", "2.txt", "1.txt"], "scattered 1"),  # an archive with an appended new 1.txt
        (["a.tar/1.txt", "a.tar/2.txt", "a.tar/1.txt", "a.tar/2.txt"], "right"),  # the pipe reads the same shard twice
        (["a.tar/1.txt", "b.tar/1.cls"], "right"),
        (["1.txt", "2.txt", "3.txt", "README", "3.cls", "1.cls"], "scattered 1"),
    ],
)
def test_wrongly_packed_files_raise_errors_that_name_the_sample(paths: list[str], expected: str) -> None:
    assert outcome(paths) == expected


def test_scattered_files_are_noticed_within_some_thousand_samples_and_memory_is_bounded() -> None:
    near = ["1.txt", *(f"{n}.txt" for n in range(2, 9)), "1.cls"]
    assert outcome(near, generation=8) == "scattered 1"
    pipe = numbered([f"{n}.txt" for n in range(100)]).webdataset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webdataset, "_GENERATION", 8)
        assert max(sum(map(len, pipe._gathered)) for _ in pipe) == 16


@given(st.permutations(["1.a", "1.b", "2.a", "2.b", "3.a"]))
def test_any_order_of_files_is_right_or_an_error(paths: list[str]) -> None:
    adjacent = len({path[0] for path in paths}) == sum(a[0] != b[0] for a, b in pairwise(["0", *paths]))
    assert (outcome(paths) == "right") == adjacent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("shards")
    for shard in range(3):
        (root / f"data{shard}").mkdir()
        for number in range(3):
            for extension in ("cls", "seg.png", "txt")[: shard + 1]:
                (root / f"data{shard}" / f"{number}.{extension}").write_text(f"{shard}{number}{extension}")
        (root / f"data{shard}" / "README").write_text("nothing")
        flag = "-czf" if shard == 1 else "-cf"
        subprocess.run(["tar", "--sort=name", flag, f"{shard}.tar", f"data{shard}"], cwd=root, check=True, timeout=250)
    return str(root)


def shards(folder: str, mode: str = "r:*") -> Any:
    return FileLister(folder, "*.tar").open_files(mode="b").load_from_tar(mode=mode)


def read(sample: dict[str, Any]) -> dict[str, Any]:
    return {field: content if isinstance(content, str) else closed(content) for field, content in sample.items()}


def closed(stream: Any) -> bytes:
    with stream:
        content: bytes = stream.read()
    return content


@pytest.mark.parametrize("mode", ["r:*", "r|*"])
def test_samples_of_shards_are_restored_at_every_position(folder: str, mode: str) -> None:
    samples = check_restore(lambda: shards(folder, mode).webdataset(), keep=read)
    assert [sample["__key__"] for sample in samples] == [
        f"{folder}/{shard}.tar/data{shard}/{number}" for shard in range(3) for number in range(3)
    ]
    assert samples[-1][".seg.png"] == b"22seg.png"
    assert [len(sample) for sample in samples] == [2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_a_sample_that_waits_in_a_shuffle_buffer_is_restored(folder: str) -> None:
    build = lambda: shards(folder).webdataset().shuffle(buffer_size=4).set_seed(3)  # noqa: E731
    assert len(check_restore(build, keep=lambda sample: sorted(read(sample).items()), seeded=True)) == 9


def test_streams_of_files_that_are_left_out_or_replaced_are_closed() -> None:
    streams = {name: StreamWrapper(io.BytesIO(b"")) for name in ("README", "1.txt", "1.cls")}
    again = StreamWrapper(io.BytesIO(b"again"))
    files = [*streams.items(), ("1.txt", again)]
    [sample] = IterableWrapper(files, deepcopy=False).webdataset(strict=False)
    assert sample[".txt"] is again
    assert [streams[name].closed for name in streams] == [True, True, False]


def test_a_partly_gathered_sample_in_memory_survives_a_break() -> None:
    files = [(f"{i // 2}.{'ab'[i % 2]}", StreamWrapper(io.BytesIO(bytes([i])))) for i in range(6)]
    build = lambda: IterableWrapper(files).webdataset()  # noqa: E731
    assert len(check_restore(build, keep=read)) == 3


def test_a_failing_source_leaves_no_file_open_and_the_pipe_usable(folder: str, tmp_path: Any) -> None:
    data = bytearray(tar_of((name, bytes(600)) for name in ("1.a", "1.b", "2.a", "2.b")))
    data[data.index(b"2.b") + 10] ^= 0xFF
    (tmp_path / "damaged.tar").write_bytes(data)
    before = open_files()
    pipe = FileOpener([str(tmp_path / "damaged.tar")], mode="b").load_from_tar().webdataset()
    for _ in range(2):
        items = iter(pipe)
        assert next(items)["__key__"].endswith("damaged.tar/1")
        with pytest.raises(tarfile.ReadError, match=r"damaged\.tar"):
            next(items)
        del items
        assert open_files() == before


@pytest.mark.parametrize("item", ["path", ("a.txt",), (5, "data"), {"a.txt": 1}])
def test_items_that_are_not_pairs_raise_a_type_error(item: Any) -> None:
    with pytest.raises(TypeError, match="WebDataset expects"):
        list(WebDataset([item]))
