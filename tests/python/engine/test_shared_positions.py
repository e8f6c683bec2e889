"""If forked workers read a file through an inherited descriptor, they share its position, and a warning is emitted."""

import itertools
import os
import threading
import warnings

import pytest

import families
from families import FAMILIES
from process_checks import MULTIPROCESSING, loader, nothing_is_left  # noqa: F401
from torchdata._engine.processes import positions
from torchdata.datapipes.iter import IterableWrapper

COUNT, ROW = 200, 1024
PATTERN = "workers read `rows.bin` through a file position that they share: open it in the worker"

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="this kernel counts no reads")


@pytest.fixture(autouse=True)
def nothing_was_reported(monkeypatch):
    monkeypatch.setattr(positions, "_reported", set())


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "rows.bin"
    file.write_bytes(bytes(COUNT * ROW))
    return file


@pytest.fixture
def file(path):
    with open(path, "rb", buffering=0) as opened:
        yield opened


def row(file, x):
    file.seek(x * ROW)
    return file.read(1)


def shown(family, function, workers=2, epochs=2, method="fork", between=lambda: None):
    before, families.WORKERS = families.WORKERS, workers
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(epochs):
                with FAMILIES[family](method, function, COUNT) as items:
                    for _ in items:
                        between()
    finally:
        families.WORKERS = before
    return [str(one.message) for one in found if "position" in str(one.message)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_position_that_workers_share_causes_one_warning(family, file, path):
    (message,) = shown(family, lambda x: row(file, x) and x)
    assert message.startswith(PATTERN)
    assert str(path) in message
    positions._reported.clear()
    assert shown(family, lambda x: row(file, x) and x, workers=1) == []

    def opens(x):
        with open(path, "rb") as own:
            return row(own, x) and x

    assert shown(family, opens, between=lambda: row(file, 5)) == [], "reads of the main process are not reported"


class OpensAgain:
    def __init__(self, path):
        self.path, self.file = path, None

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.path = state["path"]
        self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - the process closes it

    def __call__(self, x):
        if self.file is None:
            self.__setstate__({"path": self.path})
        return row(self.file, x)[0]


@pytest.mark.parametrize(("method", "family"), [("spawn", "DataLoader2"), *(("fork", family) for family in FAMILIES)])
def test_an_object_that_reopens_its_file_when_unpickled_has_a_position_in_each_worker(family, method, path):
    rows = bytes(x % 256 for x in range(COUNT))
    path.write_bytes(b"".join(bytes([x]) * ROW for x in rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with FAMILIES[family](method, OpensAgain(path), COUNT) as items:
            assert bytes(items) == rows


def test_reads_of_a_thread_in_the_main_process_are_not_mistaken_for_reads_of_workers(file, path):
    over, began = threading.Event(), threading.Event()

    def read_on():
        while not over.is_set():
            row(file, 7)
            began.set()

    def opens(x):
        with open(path, "rb") as own:
            return row(own, x) and x

    thread = threading.Thread(target=read_on)
    thread.start()
    try:
        assert began.wait(60)
        assert shown("DataLoader2", opens) == []
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("reads", "count"), [("dispatched", 0), ("mapped", 1)])
def test_a_file_that_only_the_dispatching_process_reads_causes_no_warning(reads, count, file):
    calls = itertools.count()

    def read(x):
        row(file, next(calls) % COUNT)  # The file position differs from epoch to epoch.
        return x

    functions = {"dispatched": (read, abs), "mapped": (abs, read)}[reads]
    pipe = IterableWrapper(range(COUNT)).map(functions[0]).sharding_round_robin_dispatch(MULTIPROCESSING)
    with warnings.catch_warnings(record=True) as found, loader(pipe.map(functions[1]), 3) as dl:
        warnings.simplefilter("always")
        for _ in range(3):
            assert sorted(dl) == list(range(COUNT))
    assert sum(PATTERN in str(one.message) for one in found) == count
