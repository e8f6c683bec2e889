"""The check for leftovers in shared memory finds leftovers of tests, and ignores other programs."""

from __future__ import annotations

import os

import pytest

from leftovers import SHARED_MEMORY, shared_files


@pytest.fixture
def made():
    """Makes a file in shared memory, empty and closed, which is gone after the test."""
    paths = []

    def make(name):
        paths.append(SHARED_MEMORY / name)
        paths[-1].touch()
        return paths[-1]

    yield make
    for path in paths:
        path.unlink(missing_ok=True)


def test_a_lock_is_ours_while_its_file_is_open(made):
    path = made("leftovers-test-open")
    assert path.name not in shared_files()
    with path.open():
        assert path.name in shared_files()
    assert path.name not in shared_files()


def test_a_lock_file_is_ours_if_our_process_id_is_in_its_name(made):
    assert made(f"torch_{os.getpid()}_1").name in shared_files()
    assert made(f".torchdata-{os.getpid()}-0").name in shared_files()
    assert made(f"torch_{os.getpid()}1_1").name not in shared_files()
    assert made(f"psm_{os.getpid()}_0").name not in shared_files()
    assert made(f"mpich_shm_{os.getpid()}_0").name not in shared_files(), "a number that is meant to be hexadecimal"
    assert made(f"torch_1_{os.getpid()}").name not in shared_files(), "a number that was drawn"
