"""Tools that read the counters of other programs report and skip invalid memory, and never trust its contents."""

import fcntl
import os
import struct
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest

from process_checks import FINDS_MEMORY, no_earlier_loader  # noqa: F401
from torchdata._native import StatsBoard
from torchdata._observe.outside import attaching, top
from torchdata._observe.outside.attaching import find
from torchdata._observe.stats.reading import read_board
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter import IterableWrapper

pytestmark = FINDS_MEMORY

PAGE, ROLE, PIPES = 4096, 4, 28


def planted(change=lambda content: None, seals=fcntl.F_SEAL_SHRINK):
    board = StatsBoard(2, 1, 2, True)
    board.adopt(0, 1, 0)
    content = bytearray(os.pread(board.fileno(), 1 << 24, 0))
    change(content)
    made = os.memfd_create("torchdata-stats", os.MFD_ALLOW_SEALING)
    os.write(made, content)
    if seals:
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    board.close_descriptor()
    return made


def packed(offset, value):
    return lambda content: struct.pack_into("<I", content, offset, value)


@pytest.mark.parametrize(
    ("change", "seals", "words"),
    [
        (packed(PAGE + ROLE, 77), fcntl.F_SEAL_SHRINK, "page 0 of the counters contains a process"),
        (packed(PAGE + PIPES, 2**32 - 1), fcntl.F_SEAL_SHRINK, "page 0 of the counters counts more pipes"),
        (packed(12, 2**32 - 1), fcntl.F_SEAL_SHRINK, "its sizes are inconsistent"),
        (lambda content: None, 0, "not sealed against shrinking"),
    ],
)
def test_a_damaged_board_is_named_and_the_other_boards_are_shown(change, seals, words):
    attaching._reported.clear()
    descriptors = [planted(), planted(change, seals), planted()]
    try:
        with pytest.warns(RuntimeWarning, match=f"process {os.getpid()} has counters that cannot be shown: .*{words}"):
            assert len(find(os.getpid())) == 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # A live display searches every second.
            assert len(find(os.getpid())) == 2
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_a_board_that_becomes_damaged_leaves_the_view():
    descriptor = planted()
    try:
        (one,) = find(os.getpid())
        view = top._View(one)
        assert view.is_readable()
        os.pwrite(descriptor, struct.pack("<I", 77), PAGE + ROLE)
        assert not view.is_readable()
    finally:
        os.close(descriptor)


def test_names_of_pipes_and_command_lines_are_shown_without_control_characters():
    pipe = IterableWrapper([1])
    board = StatsBoard(1, 1, 2, True)
    board.adopt(0, 1, 0)
    board.bind(0, [(token_of(pipe), "evil\x1b]0;owned\x07", "a\x9b2J\n", None, 0, 0)], 0)
    (shown,) = read_board(board).pages[0]["pipes"]
    assert (shown["label"], shown["location"]) == ("evil\\x1b]0;owned\\x07", "a\\x9b2J\\x0a")
    program = [
        "-c",
        "input()",
        "\x1b]52;c;eA==\x07",
        "--api-key",
        "hunter2!",
        "--password=hunter3!",
        "https://u:hunter4@h/",
    ]
    with subprocess.Popen([sys.executable, *program], stdin=subprocess.PIPE) as child:
        command = attaching._command(child.pid)
        while "-c" not in command:  # The forked process needs some time until it runs the new program.
            command = attaching._command(child.pid)
        child.communicate(b"\n")
    assert "\x1b" not in command
    assert "hunter" not in command
    assert "\\x1b]52" in command


def container(folder, host=(100, 1), **processes):
    for name, (here, there) in processes.items():
        inside = folder / str(here)
        (inside / "ns").mkdir(parents=True)
        (inside / "ns" / "pid").symlink_to("pid:[1]" if name.startswith("host") else "pid:[2]")
        numbers = f"{here}" if name.startswith("host") else f"{here}\t{there}"
        (inside / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\nThreads:\t1\n")
    (folder / "self").symlink_to(str(host[0]))


def test_processes_in_a_container_are_shown_with_their_ids_outside_the_container(tmp_path, monkeypatch):
    container(tmp_path, host_shell=(100, 100), main=(200, 7), worker=(201, 8), host_other=(7, 7))
    monkeypatch.setattr(attaching, "_PROC", str(tmp_path))
    assert attaching._numbers(200) == {7: 200, 8: 201}
    assert attaching._numbers(7) is None
    assert attaching._numbers(999) is None
    board = SimpleNamespace(
        full=True,
        read=lambda: [{"page": number, "pid": pid, "pipes": [], "machine": ""} for number, pid in enumerate((7, 9))],
    )
    pages = read_board(board, {7: 200, 8: 201}).pages
    assert [page["pid"] for page in pages.values()] == [200, 0]
