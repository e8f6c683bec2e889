"""Python's cyclic garbage collector does not search the objects that workers import or inherit."""

import functools
import gc
import json
import os

import pytest

from families import TORCH
from process_checks import METHODS, identity, loader, nothing_is_left  # noqa: F401 - a fixture
from programs import output_of
from torchdata.datapipes.iter import IterableWrapper

PROGRAM = """
    import gc, json, sys
    {top}
    AT_THE_TOP = gc.get_threshold()
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import IterableWrapper

    def look(number):
        {inside}
        now, kept = gc.get_threshold(), gc.get_freeze_count()
        return {{"top": AT_THE_TOP, "now": now, "enabled": gc.isenabled(), "kept": kept}}

    if __name__ == "__main__":
        {guarded}
        service = MultiProcessingReadingService(1, multiprocessing_context=sys.argv[1])
        loader = DataLoader2(IterableWrapper(range({items})).map(look), reading_service=service)
        seen = list(loader)
        loader.shutdown()
        print(json.dumps(seen))
"""


def seen_in_a_worker(tmp_path, method, top="", guarded="pass", inside="", items=1):
    program = PROGRAM.format(top=top, guarded=guarded, inside=inside, items=items)
    return json.loads(output_of(program, method, file=tmp_path / "program.py", TESTS_LEAN="0"))


@pytest.mark.parametrize("method", METHODS)
def test_a_started_worker_has_the_settings_of_the_main_process_and_its_module(tmp_path, method):
    (seen,) = seen_in_a_worker(tmp_path, method, guarded="gc.set_threshold(600, 9, 8)")
    assert seen["now"] == [600, 9, 8]
    if method == "spawn":
        assert seen["top"][0] >= 100_000, "the collector does not search imported objects"
        assert seen["kept"] > 1000
    (seen,) = seen_in_a_worker(tmp_path, method, top="gc.set_threshold(1234, 5, 6); gc.disable()")
    assert (seen["now"], seen["enabled"]) == ([1234, 5, 6], False)


@pytest.mark.skipif(not TORCH, reason="PyTorch is not installed, and the workers use it")
def test_torch_imported_late_by_a_worker_is_not_searched_either(tmp_path):
    without, late = seen_in_a_worker(tmp_path, "spawn", inside="if number == 1: import torch", items=2)
    assert late["kept"] > 2 * without["kept"]
    assert (late["enabled"], late["now"]) == (True, list(gc.get_threshold()))


def private_kib():
    with open("/proc/self/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))


def grown_by_searching(_):
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
    assert searched > 10_000, "the collector copies the pages that it searches"
    assert kept_out < searched / 4
    del inherited


class Circular:
    def __init__(self, path):
        self.path, self.own = path, self

    def __del__(self, open_file=os.open, write=os.write):  # Only a few modules are still available at interpreter exit.
        write(open_file(self.path, os.O_CREAT | os.O_WRONLY), b"finalised")


def leave_a_cycle(path, datapipe, _worker_info):
    Circular(path)
    return datapipe


def test_cycles_from_the_start_are_finalised_where_a_spawned_worker_ends(tmp_path):
    path = tmp_path / "written"
    leave = functools.partial(leave_a_cycle, str(path))
    pipe = IterableWrapper([0]).map(identity)
    with loader(pipe, num_workers=1, multiprocessing_context="spawn", worker_init_fn=leave) as dl:
        assert list(dl) == [0]
        assert not path.exists()
    assert path.read_text() == "finalised"
