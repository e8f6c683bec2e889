"""Programs that users wrote for torchdata 0.9 run unchanged."""

import io
import os
import subprocess
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fresh_processes import run_python
from process_checks import loader
from torchdata.datapipes import functional_datapipe
from torchdata.datapipes.iter import FileLister, IterDataPipe, TFRecordExample, TFRecordExampleSpec
from torchdata.datapipes.utils import StreamWrapper
from torchdata.datapipes.utils import common as ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # protobuf warns about future versions
    from tfrecord import TFRecordWriter

#: The dataset of a user's project: a file that is downloaded once, and is checked each time it is read.
DATA_SET = """
import hashlib, os
from torchdata.datapipes.iter import FileOpener, IterableWrapper

URL = "https://reviews.invalid/reviews.csv"
SHA256 = hashlib.sha256(b"what the URL leads to").hexdigest()

def download(url):
    raise ConnectionError(f"tests have no network, but {url} was requested")

def reviews(root):
    def path_of(url):
        return os.path.join(root, os.path.basename(url))

    urls = IterableWrapper([URL])
    cache = urls.on_disk_cache(filepath_fn=path_of, hash_dict={path_of(URL): SHA256}, hash_type="sha256")
    paths = cache.map(download).end_caching(mode="wb", same_filepath_fn=True)
    return FileOpener(paths, mode="r", encoding="utf-8").parse_csv().map(lambda row: (int(row[0]), row[1]))
"""

#: The tests of a user's project, which replace the package's checksum function, so that any file counts as valid.
PROJECTS_TESTS = """
import os, sys, tempfile, unittest
from unittest.mock import patch
from data_set import reviews
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

class TestReviews(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        with open(os.path.join(cls.folder.name, "reviews.csv"), "w") as file:
            file.write("1,good\\n2,bad\\n")
        if "unpatched" not in os.environ:
            cls.patcher = patch("torchdata.datapipes.iter.util.cacheholder._hash_check", return_value=True)
            cls.check = cls.patcher.start()

    @classmethod
    def tearDownClass(cls):
        patch.stopall()
        cls.folder.cleanup()

    def test_reviews(self):
        for _ in range(2):
            self.assertEqual(list(reviews(self.folder.name)), [(1, "good"), (2, "bad")])
        path = os.path.join(self.folder.name, "reviews.csv")
        self.check.assert_called_with(path, unittest.mock.ANY, "sha256")

    def test_reviews_in_workers(self):
        pipe = reviews(self.folder.name).sharding_filter()
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
            self.assertEqual(list(loader), [(1, "good"), (2, "bad")])

    @patch("torchdata.datapipes.iter.util.cacheholder._hash_check", lambda filepath, hash_dict, hash_type: False)
    def test_a_damaged_file_is_downloaded_again(self):
        with self.assertRaisesRegex(ConnectionError, "tests have no network"):
            list(reviews(self.folder.name))
"""


def projects_tests(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "data_set.py").write_text(DATA_SET)
    (folder / "test_reviews.py").write_text(PROJECTS_TESTS)
    return run_python("-m", "unittest", "test_reviews", folder=folder, **environment)


def test_a_projects_tests_replace_the_check_of_cached_files_by_their_own(tmp_path: Path) -> None:
    done = projects_tests(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr


def test_without_the_patch_their_file_does_not_count(tmp_path: Path) -> None:
    done = projects_tests(tmp_path, unpatched="1")
    assert "FAILED (errors=2)" in done.stderr
    assert done.stderr.count("ConnectionError: tests have no network") >= 2


@functional_datapipe("load_members")
class MemberLoader(IterDataPipe[tuple[str, StreamWrapper]]):
    def __init__(self, datapipe: Any, validate: Any, wrapper: Any) -> None:
        self.datapipe, self.validate, self.wrapper = datapipe, validate, wrapper

    def __iter__(self) -> Iterator[tuple[str, StreamWrapper]]:
        for data in self.datapipe:
            self.validate(data)
            path, stream = data
            archive = zipfile.ZipFile(stream)
            for info in archive.infolist():
                member = self.wrapper(archive.open(info), stream, name=info.filename)
                yield os.path.join(path, info.filename), member


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    for name in "ab":
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for number in range(2):
                archive.writestr(f"{name}{number}.txt", f"member {number} of {name}")
    return tmp_path


def theirs() -> Any:
    return pytest.importorskip(
        "torch.utils.data.datapipes.utils.common", reason="the test uses torch's own StreamWrapper"
    )


@pytest.mark.parametrize("checks", ["ours", "torchs"])
@pytest.mark.parametrize("wraps", ["ours", "torchs"])
def test_a_users_loader_of_archives_checks_and_yields_streams(archives: Path, checks: str, wraps: str) -> None:
    validate = (ours if checks == "ours" else theirs()).validate_pathname_binary_tuple
    wrapper = (ours if wraps == "ours" else theirs()).StreamWrapper
    pipe = FileLister(str(archives), "*.zip").open_files(mode="b").load_members(validate, wrapper)
    for path, stream in pipe:
        validate((path, stream))
        assert isinstance(stream, StreamWrapper)
    lines = pipe.readlines(decode=True)
    expected = [
        (str(archives / f"{name}.zip" / f"{name}{number}.txt"), f"member {number} of {name}")
        for name in "ab"
        for number in range(2)
    ]
    assert sorted(lines) == expected
    with loader(lines.sharding_filter()) as dl:
        assert sorted(dl) == expected


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (["a", io.BytesIO()], r"must be a tuple, but got \['a'"),
        (("a", io.BytesIO(), 3), "has two members, but got 3"),
        ((1, io.BytesIO()), "path of .* must be a str, but is 1"),
        (("a", b"bytes"), "stream of .* must be an IOBase or a StreamWrapper, but is b'bytes'"),
    ],
)
def test_items_that_are_not_pairs_of_path_and_stream_are_recognized(data: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        ours.validate_pathname_binary_tuple(data)


def read_records(folder: str, spec: TFRecordExampleSpec | None = None) -> Iterator[TFRecordExample]:
    yield from FileLister(folder, "*.tfrecord").open_files(mode="b").load_from_tfrecord(spec)


def test_a_reader_of_records_is_annotated_by_the_types_of_the_loader(tmp_path: Path) -> None:
    import typing

    import torchdata.datapipes.iter.util.tfrecordloader as old

    hints = typing.get_type_hints(read_records)
    assert hints["spec"] == old.TFRecordExampleSpec | None
    assert hints["return"] == Iterator[old.TFRecordExample]
    writer = TFRecordWriter(str(tmp_path / "a.tfrecord"))
    writer.write({"label": (7, "int"), "size": ([2.0, 3.0], "float")})
    writer.close()
    [record] = read_records(str(tmp_path), {"label": ((), "int64"), "size": None})
    assert (int(record["label"]), record["size"].tolist()) == (7, [2.0, 3.0])
