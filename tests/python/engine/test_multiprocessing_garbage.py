"""Python's cyclic garbage collector does not search the objects that workers import or inherit."""

from __future__ import annotations

import functools
import gc
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap

import pytest

from process_checks import METHODS, identity, loader, nothing_is_left  # noqa: F401 - a fixture
from torchdata.datapipes.iter import IterableWrapper

#: A user's program with three gaps for code: `{top}` at module level, `{guarded}` in the main process, and `{inside}`
#: in the worker.
PROGRAM = """
    import gc, json, sys
    {top}
    AT_THE_TOP = gc.get_threshold()
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import IterableWrapper

    def look(_):
        {inside}
        now, kept = gc.get_threshold(), gc.get_freeze_count()
        return {{"top": AT_THE_TOP, "now": now, "enabled": gc.isenabled(), "kept": kept}}

    if __name__ == "__main__":
        {guarded}
        service = MultiProcessingReadingService(1, multiprocessing_context=sys.argv[1])
        loader = DataLoader2(IterableWrapper([0]).map(look), reading_service=service)
        (seen,) = loader
        loader.shutdown()
        print(json.dumps(seen))
"""


def seen_in_a_worker(tmp_path, method, top="", guarded="pass", inside=""):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(top=top, guarded=guarded, inside=inside)))
    done = subprocess.run(
        [sys.executable, program, method], env={**os.environ, "TESTS_LEAN": "0"},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_garbage_collection_skips_the_imports_of_spawned_workers(tmp_path):
    guarded = "gc.set_threshold(600, 9, 8)"
    seen = seen_in_a_worker(tmp_path, "spawn", guarded=guarded)
    assert seen["top"][0] >= 100_000
    assert seen["now"] == [600, 9, 8], "the thresholds of the main process hold once the worker has started"
    assert seen["kept"] > 1000


@pytest.mark.parametrize("method", METHODS)
def test_thresholds_are_those_of_the_main_process(tmp_path, method):
    assert seen_in_a_worker(tmp_path, method, guarded="gc.set_threshold(600, 9, 8)")["now"] == [600, 9, 8]
    assert seen_in_a_worker(tmp_path, method)["now"] == list(gc.get_threshold())


@pytest.mark.parametrize("method", METHODS)
def test_settings_of_the_main_module_are_kept(tmp_path, method):
    seen = seen_in_a_worker(tmp_path, method, top="gc.set_threshold(1234, 5, 6); gc.disable()")
    assert seen["now"] == [1234, 5, 6]
    assert not seen["enabled"]


def test_torch_imported_late_by_a_worker_is_not_searched_either(tmp_path):
    pytest.importorskip("torch")
    without = seen_in_a_worker(tmp_path, "spawn")
    late = seen_in_a_worker(tmp_path, "spawn", inside="import torch")
    assert late["kept"] > 2 * without["kept"]
    assert late["enabled"]


def with_the_name_of_its_process(_):
    return multiprocessing.current_process().name


@pytest.mark.parametrize("method", METHODS)
def test_names_of_processes_change_nothing_where_they_are_sent(method):
    """If a program joins all children in multiprocessing's list, the program must not wait for the loader's workers."""
    before = gc.get_threshold()
    with loader(IterableWrapper([0]).map(with_the_name_of_its_process), 1, multiprocessing_context=method) as dl:
        received = list(dl)
        assert received == pickle.loads(pickle.dumps(received)) == ["torchdata worker process 0"]
        assert multiprocessing.active_children() == []
    assert gc.get_threshold() == before


def private_kib():
    with open("/proc/self/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))


def grown_by_searching(_):
    """Returns by how many KiB the process's private memory grows in each of two garbage collections.

    The first garbage collection is normal, and the second garbage collection visits all inherited objects.
    """
    before = private_kib()
    gc.collect()
    kept = private_kib()
    gc.unfreeze()
    gc.collect()
    return kept - before, private_kib() - kept


def test_memory_that_forked_workers_inherit_stays_shared():
    inherited = [[i] for i in range(300_000)]
    with loader(IterableWrapper([0]).map(grown_by_searching), num_workers=1) as dl:
        ((kept_out, searched),) = dl
    assert searched > 10_000, "the search copies what it goes through"
    assert kept_out < searched / 4
    del inherited


class Circular:
    """An object that refers to itself, and writes a file when it is finalized."""

    def __init__(self, path):
        self.path, self.own = path, self

    def __del__(self, open_file=os.open, write=os.write):  # few modules are available at interpreter exit
        write(open_file(self.path, os.O_CREAT | os.O_WRONLY), b"finalised")


def leave_a_cycle(path, datapipe, _worker_info):
    Circular(path)
    return datapipe


def test_cycles_from_the_start_are_finalised_where_a_spawned_worker_ends(tmp_path):
    path = tmp_path / "said"
    leave = functools.partial(leave_a_cycle, str(path))
    pipe = IterableWrapper([0]).map(identity)
    with loader(pipe, num_workers=1, multiprocessing_context="spawn", worker_init_fn=leave) as dl:
        assert list(dl) == [0]
        assert not path.exists()
    assert path.read_text() == "finalised"
