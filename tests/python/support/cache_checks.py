"""Creates pipelines with an on-disk cache, and checks that no lock is held."""

import os

import pytest

from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.iter.disk_cache import locks

#: Ignores the warning about unsharded sources, because the workers of a test request the same files on purpose.
unsharded = pytest.mark.filterwarnings("ignore:.*no later pipe divides the items among the workers")


@pytest.fixture(autouse=True)
def no_lock_is_left():
    yield
    assert not locks._held


class Maker:
    def __init__(self):
        self.made = []

    def __call__(self, path):
        self.made.append(os.path.basename(path))
        return path, f"content of {os.path.basename(path)}".encode()


def cached(folder, names, maker=None, between=lambda pipe: pipe, mode="wb", timeout=300, **options):
    section = IterableWrapper([str(folder / name) for name in names]).on_disk_cache(**options)
    return between(section).map(maker or Maker()).end_caching(mode=mode, timeout=timeout)


def names(paths):
    return [os.path.basename(path) for path in paths]


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def content_after_a_kill(folder):
    return {
        name: text for name, text in content(folder).items() if not os.path.basename(name).startswith(".torchdata-")
    }


def made(*files):
    return {name: f"content of {name}" for name in files}


def members(path):
    return [(f"{path}.{i}", f"member {i}".encode()) for i in range(3)]


def archives(folder, keys, unpack=members, **options):
    section = IterableWrapper([str(folder / key) for key in keys]).on_disk_cache()
    return section.flatmap(unpack).end_caching(**options)


def is_free(path):
    lock = locks.acquire(str(path))
    if lock is not None:
        lock.release()
    return lock is not None
