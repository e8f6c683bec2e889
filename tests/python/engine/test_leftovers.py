"""The check for leftovers in shared memory finds leftovers of tests, and ignores other programs."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from leftovers import SHARED_MEMORY, is_gone, shared_files, started_children

#: Creates a file in shared memory, prints its name, and keeps the file open until the end of the input.
OTHER_PROGRAM = """
import os, sys, tempfile
with tempfile.NamedTemporaryFile(dir=sys.argv[1], prefix=f"torch_{os.getpid()}_") as file:
    print(os.path.basename(file.name), flush=True)
    sys.stdin.read()
"""


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


def test_a_file_is_ours_while_we_have_it_open(made):
    path = made("leftovers-test-open")
    assert path.name not in shared_files()
    with path.open():
        assert path.name in shared_files()
    assert path.name not in shared_files()


def test_a_file_is_ours_while_it_is_mapped(made):
    path = made("leftovers-test-mapped")
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    assert path.name in shared_files()
    mapped.close()
    assert path.name not in shared_files()


def test_a_file_is_ours_if_our_number_is_in_its_name(made):
    assert made(f"torch_{os.getpid()}_1").name in shared_files()
    assert made(f".torchdata-{os.getpid()}-0").name in shared_files()
    assert made(f"torch_{os.getpid()}1_1").name not in shared_files()
    assert made(f"psm_{os.getpid()}_0").name not in shared_files()
    assert made(f"mpich_shm_{os.getpid()}_0").name not in shared_files(), "a number that is meant to be hexadecimal"
    assert made(f"torch_1_{os.getpid()}").name not in shared_files(), "a number that was drawn"


def leave(folder):
    Path(folder, f"torch_{os.getpid()}_0").touch()


def test_what_a_child_leaves_is_ours_also_when_it_has_ended():
    with started_children() as started:
        child = get_context("fork").Process(target=leave, args=(SHARED_MEMORY,))
        child.start()
        child.join(120)
    assert started == [child.pid]
    assert is_gone(child.pid)
    name = f"torch_{child.pid}_0"
    try:
        assert name in shared_files(started)
        assert name not in shared_files(), "whose it was is known by the number alone"
    finally:
        (SHARED_MEMORY / name).unlink()


def test_what_other_programs_have_there_is_not_ours():
    """The program's parent has exited, so the program is no longer a descendant of this process."""
    command = [sys.executable, "-c", OTHER_PROGRAM, str(SHARED_MEMORY)]
    launch = f"import subprocess, sys; subprocess.Popen({command!r}, stdin=0, stdout=1)"
    reading, writing = os.pipe()
    launcher = subprocess.Popen([sys.executable, "-c", launch], stdin=reading, stdout=subprocess.PIPE, text=True)
    os.close(reading)
    try:
        name = launcher.stdout.readline().strip()
        assert launcher.wait(120) == 0
        assert (SHARED_MEMORY / name).exists()
        assert name not in shared_files()
    finally:
        os.close(writing)
        launcher.stdout.read()  # it ends with the program
        launcher.stdout.close()
    assert not (SHARED_MEMORY / name).exists()
