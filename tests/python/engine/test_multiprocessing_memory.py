"""The shared memory of worker processes is released. Damaged memory or a full disk causes a clear error."""

import gc
import os
import platform
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from families import TORCH
from leftovers import OURS
from process_checks import METHODS, loader, nothing_is_left, wait_for  # noqa: F401
from programs import output_of
from torchdata.datapipes.iter import IterableWrapper

PORTABLE = os.environ.get("TORCHDATA_PORTABLE") == "1"


def resident():
    text = Path("/proc/self/smaps").read_text()
    ours = re.findall(OURS + r"[^\n]*\n(?:[A-Z].*\n)*?Rss: +(\d+) kB", text)
    return 1024 * sum(map(int, ours))


class LargeTensors:
    SIZE = 16 << 20

    def __init__(self):
        self.kept = []

    def __call__(self, x):
        import torch

        torch.empty(self.SIZE, dtype=torch.uint8).fill_(1)
        self.kept += [torch.tensor(float(x)), torch.ones(2).unsqueeze(0)]
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not TORCH, reason="torch's tensors need torch")
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from Linux's /proc")
def test_a_worker_that_creates_large_tensors_reuses_their_memory(monkeypatch):
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    pipe = IterableWrapper(range(120)).map(LargeTensors())
    # The worker is spawned, because a forked worker would inherit torch's decision whether to align tensors to pages.
    with loader(pipe, num_workers=1, multiprocessing_context="spawn") as dl:
        grown = list(dl)
    # After 60 items, new tensors must mostly reuse the memory of earlier tensors.
    assert grown[-1] - grown[60] < 12 * LargeTensors.SIZE


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc retains freed memory")
def test_an_idle_worker_returns_the_memory_of_its_shuffle_buffer():
    def held(pid):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return 1024 * int(re.search(r"Anonymous: +(\d+) kB", text)[1])

    pipe = IterableWrapper(range(200)).map(lambda x: np.full(50_000, x)).shuffle(buffer_size=100)
    with loader(pipe, num_workers=1) as dl:
        for _ in range(2):
            iterator = iter(dl)
            numbers = {int(next(iterator)[0])}
            (pid,) = dl.reading_service._children.pids
            full = held(pid)
            assert len(numbers | {int(array[0]) for array in iterator}) == 200
            wait_for(lambda full=full, pid=pid: time.sleep(0.05) or held(pid) < full - (30 << 20))


@pytest.mark.parametrize("ended", [True, False])
def test_the_memory_of_a_large_item_is_freed_whether_the_worker_computes_waits_or_idles(ended):
    count = 8 if ended else 1_000_000
    with loader(
        IterableWrapper(range(count)).map(lambda x: np.full(4 << 20 if x == 0 else 4 << 10, x)), num_workers=1
    ) as dl:
        iterator = iter(dl)
        array = next(iterator)
        assert array.nbytes == 32 << 20
        assert array.sum() == 0  # computing the sum has mapped all pages in this process
        assert resident() >= 32 << 20
        del array
        if ended:
            assert [int(array[0]) for array in iterator] == list(range(1, 8))
        wait_for(lambda: time.sleep(0.05) or resident() < 8 << 20)  # each measurement takes some milliseconds
        if not ended:
            assert int(next(iterator)[0]) == 1


@pytest.mark.skipif(PORTABLE, reason="the portable fallback polls, so processes are not woken")
def test_arrays_that_are_deleted_one_by_one_do_not_wake_the_worker():
    def switches(pid):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)[1])

    pipe = IterableWrapper(range(12)).map(lambda x: [np.full(1100, x + i) for i in range(400)])
    with loader(pipe, num_workers=1, worker_prefetch_cnt=1) as dl:
        iterator = iter(dl)
        next(iterator)
        (pid,) = dl.reading_service._children.pids
        counts = []
        for _ in range(5):
            arrays = next(iterator)
            time.sleep(0.1)  # The worker needs one second to fall asleep.
            before, began = switches(pid), time.monotonic()
            while arrays:
                arrays.pop()
                time.sleep(0.0002)
            # A waiting worker wakes up ten times a second to check for commands. These wake-ups are subtracted.
            counts.append(switches(pid) - before - 10 * (time.monotonic() - began))
        assert sorted(counts)[2] < 40, counts


def foreign_mappings(pid):
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if "memfd:torchdata " in line})


@pytest.mark.skipif(PORTABLE, reason="the portable fallback keeps file descriptors open to reserve space")
@pytest.mark.parametrize("method", METHODS)
def test_a_child_holds_its_own_and_main_two_descriptors_for_each(method):
    with loader(IterableWrapper(range(2)).sharding_filter(), 1, multiprocessing_context=method) as dl:
        list(dl)  # multiprocessing starts its fork server and resource tracker only once per process.
    del dl
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with (
        loader(IterableWrapper(range(40)).sharding_filter(), 2) as other,
        loader(IterableWrapper(range(40)).sharding_filter(), 5, multiprocessing_context=method) as dl,
    ):
        others, iterator = iter(other), iter(dl)
        assert next(others) == 0
        assert [next(iterator) for _ in range(5)] == [0, 1, 2, 3, 4]  # each worker has sent an item
        pids = dl.reading_service._children.pids
        # Each worker has two pidfds: one for managing its process, and one for reading its items.
        assert len(os.listdir("/proc/self/fd")) - before <= 2 * 7 + 8
        counts = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
        assert max(counts) - min(counts) <= 1, counts
        # A worker maps three memory regions: bells, control link and data link.
        assert {foreign_mappings(pid) for pid in pids} == {3}


FULL_TMPDIR = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
FULL_TMPDIR += ['mount -t tmpfs -o size=1m tmpfs "$FULL" && exec "$0" "$@"']


HEAD = """
import os, sys
import numpy as np
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
def make(f, **options):
    dp = IterableWrapper(range(6)).map(f)
    return DataLoader2(dp, reading_service=MultiProcessingReadingService(1, "fork", **options))
"""


def run_in_small_tmpdir(tmp_path, body):
    full = tmp_path / "small"
    full.mkdir()
    environment = {**os.environ, "TORCHDATA_PORTABLE": "1", "TMPDIR": str(full), "FULL": str(full)}
    command = [*FULL_TMPDIR, sys.executable, "-c", HEAD + textwrap.dedent(body)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)


def mounts():
    try:
        probe = ["unshare", "--user", "--map-root-user", "--mount", "true"]
        return subprocess.run(probe, capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


needs_mounts = pytest.mark.skipif(not mounts(), reason="this machine does not allow tests to mount file systems")


@needs_mounts
def test_items_that_find_no_room_in_a_small_tmpdir_arrive(tmp_path):
    done = run_in_small_tmpdir(
        tmp_path,
        """
        received = list(make(lambda x: np.full(1 << 20, x)))
        assert [(a[0], a[-1], a.nbytes) for a in received] == [(x, x, 8 << 20) for x in range(6)]
        print("done")
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@needs_mounts
def test_an_error_names_the_remedy_for_a_full_tmpdir(tmp_path):
    done = run_in_small_tmpdir(
        tmp_path,
        """
        with open(os.path.join(os.environ["TMPDIR"], "filler"), "wb", buffering=0) as file:
            try:
                while True: file.write(bytes(4096))
            except OSError: pass
        try: list(make(str))
        except OSError as error: print(error.errno, error)
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"28 .*no space for \d+ bytes of shared memory .*small.*TMPDIR", done.stdout), done.stdout


SHORT_OF_MEMORY = """
    import resource
    from pathlib import Path

    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import IterableWrapper

    def text(n):
        return chr(97 + n) * (100 << 20)

    def limit(more):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))

    service = MultiProcessingReadingService(num_workers=1, memory_budget=%d << 20)
    loader = DataLoader2(IterableWrapper(range(3)).map(text), reading_service=service)
    items = iter(loader)
    assert next(items) == text(0)
    limit(75 << 20)
    try:
        next(items)
    except MemoryError as error:
        print(error)
    limit(2 << 30)
    assert list(loader) == [text(n) for n in range(3)]
    loader.shutdown()
    print("complete")
"""


@pytest.mark.parametrize("budget", [1024, 0])
def test_an_item_for_which_main_has_no_memory_raises_an_error_and_the_next_epoch_is_complete(budget):
    # With a memory budget of 0, workers split each item into several messages.
    error, end = output_of(SHORT_OF_MEMORY % budget).splitlines()
    assert re.search(r"no memory for \d+ bytes of an item that has arrived: use smaller items", error), error
    assert end == "complete"
