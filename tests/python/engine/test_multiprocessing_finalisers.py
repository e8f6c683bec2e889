"""If Ctrl-C arrives while a loader is deleted, KeyboardInterrupt is raised, and all processes and memory are freed."""

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import weakref

import pytest

from handlers import handling
from process_checks import METHODS, children, loader, nothing_is_left, wait_for  # noqa: F401
from programs import output_of
from torchdata._engine.items.codec import loads
from torchdata._engine.processes.crossing import SharedPickle
from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._native import Finalized
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.alone


def as_callback(function):
    function.argtypes, function.restype = [ctypes.py_object], None
    return function


#: Simulates Ctrl-C from C code, so that Python calls the signal handler only at the next line of Python code.
press = as_callback(ctypes.pythonapi["PyErr_SetInterrupt"])
collect = as_callback(ctypes.pythonapi["PyGC_Collect"])


class Drops:
    """An object that calls a C function when it is deleted."""


def drop_under_ctrl_c(make):
    held = [Drops(), make(), Drops()]
    callbacks = [weakref.ref(held[0], collect), weakref.ref(held[2], press)]
    with pytest.raises(KeyboardInterrupt):
        held.clear()  # objects are deleted from last to first
        wait_for(lambda: False)
    assert [callback() for callback in callbacks] == [None, None]


def in_this_process(reads):
    dl = DataLoader2(IterableWrapper(range(9)))
    if reads:
        next(iter(dl))
    return dl


def with_workers(method="fork"):
    dl = loader(IterableWrapper(range(1000)).sharding_filter(), 2, multiprocessing_context=method)
    assert next(iter(dl)) == 0
    return dl


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_before_the_first_line_of_the_finaliser_arrives_and_the_workers_end(method):
    for _ in range(8 if method == "fork" else 2):
        drop_under_ctrl_c(lambda: with_workers(method))
        assert children() == []


@pytest.mark.parametrize("reads", [False, True])
def test_a_signal_arrives_each_time(reads):
    for _ in range(20):
        drop_under_ctrl_c(lambda: in_this_process(reads))


def test_children_that_outlive_their_loader_end_with_the_main_process():
    def make():
        dl = with_workers()
        dl._ended = True  # With this patch, the loader does not end its processes itself.
        return dl.reading_service._children

    for _ in range(3):
        drop_under_ctrl_c(make)
        assert children() == []


class Rang(Exception):
    """The exception that the user's signal handler raises."""


@pytest.mark.parametrize("of", ["loader", "children"])
def test_an_exception_of_a_handler_during_a_deletion_is_raised(of):
    def make():
        dl = with_workers()
        children = dl.reading_service._children
        dl.shutdown()
        return dl if of == "loader" else children

    def ring(*_):
        raise Rang

    with handling(ring, signal.SIGINT):
        for _ in range(3):
            held = [make(), Drops()]
            callback = weakref.ref(held[1], press)
            with pytest.raises(Rang):
                held.clear()
                wait_for(lambda: False)
            assert callback() is None


class Cyclic(DataLoader2):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.itself = self


def test_a_finished_object_in_a_cycle_shuts_down():
    def make():
        service = MultiProcessingReadingService(2)
        dl = Cyclic(IterableWrapper(range(99)).sharding_filter(), reading_service=service)
        next(iter(dl))
        dropped.append(weakref.ref(dl))
        return dl

    dropped = []
    for _ in range(3):
        drop_under_ctrl_c(make)
        assert children() == []
    gc.collect()  # the finalizer creates objects that refer to the loader, so a further collection is needed
    assert [reference() for reference in dropped] == [None] * 3


def test_errors_are_reported_and_an_active_exception_is_still_raised(monkeypatch):
    shown = []

    class Failing(Finalized):
        def _finalize(self, interrupted):
            raise ValueError("no")

    monkeypatch.setattr(sys, "unraisablehook", lambda what: shown.append((what.exc_type, type(what.object))))

    def drop_while_raising():
        _held = Failing()
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        drop_while_raising()
    gc.collect()
    assert shown == [(ValueError, Failing)]


def test_an_interrupt_that_was_noted_elsewhere_is_delivered_at_the_end_of_a_hold():
    with pytest.raises(KeyboardInterrupt), InterruptsDeferred(noted=True):
        pass


class Own(DataLoader2):
    ended = 0

    def __del__(self):
        super().__del__()
        Own.ended += 1


def test_subclasses_may_have_finalisers_that_call_the_base():
    dl = Own(IterableWrapper(range(9)))
    next(iter(dl))
    del dl
    gc.collect()
    assert Own.ended == 1


def test_a_loader_that_was_never_initialised_is_dropped_quietly(capsys):
    DataLoader2.__new__(DataLoader2)
    with pytest.raises(TypeError):
        DataLoader2()
    gc.collect()
    assert capsys.readouterr().err == ""


def test_at_the_end_of_the_program_nothing_is_printed_and_nothing_left():
    program = """
        import sys
        from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        from torchdata.datapipes.iter import IterableWrapper
        dl = DataLoader2(IterableWrapper(range(99)).sharding_filter(), reading_service=MultiProcessingReadingService(2))
        next(iter(dl))
        dl.itself = dl
        sys.modules["keeps"] = dl
        print(*dl.reading_service._children.pids)
    """
    pids = output_of(program).split()
    assert len(pids) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("how", ["dropped", "closed", "adopted"])
def test_a_shared_pickle_closes_its_descriptor_and_no_line_of_python_runs_as_it_is_dropped(how):
    shared = SharedPickle(pickle.dumps([1, 2]))
    if how == "adopted":
        shared = SharedPickle.adopt(os.dup(shared.fileno()))
    assert shared.load(loads) == [1, 2]
    number, seen = shared.fileno(), []
    before = os.fstat(number).st_ino
    if how == "closed":
        shared.close()
        shared.close()
        assert shared.fileno() == -1
    sys.setprofile(lambda frame, event, _: seen.append((event, frame.f_code.co_name)))
    try:
        del shared
    finally:
        sys.setprofile(None)
    assert not [name for event, name in seen if event == "call"]
    with contextlib.suppress(OSError):  # The descriptor's number may already belong to another file.
        assert os.fstat(number).st_ino != before
