"""The main process raises exceptions of workers with their type, position and origin."""

import copy
import email.message
import os
import re
import sys
import threading
import traceback
import urllib.error

import pytest

from families import FAMILIES
from process_checks import MULTIPROCESSING, identity, loader, nothing_is_left, with_methods  # noqa: F401
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe


class FailsAt:
    def __init__(self, at, make_error):
        self.at = at
        self.make_error = make_error

    def __call__(self, x):
        if x == self.at:
            raise self.make_error()
        return x


def key_error():
    return KeyError("missing")


@pytest.mark.parametrize(
    ("method", "failure"), with_methods((11, key_error), (0, key_error), (19, key_error), (7, SystemExit))
)
def test_an_exception_arrives_in_order_with_type_origin_and_traceback(method, failure):
    at, make_error = failure
    error, words = KeyError, ("KeyError", "")
    if make_error is SystemExit:
        error, words = RuntimeError, ("SystemExit", r".*sys\.exit")
    datapipe = IterableWrapper(range(20)).sharding_filter().map(FailsAt(at, make_error))
    with loader(datapipe, multiprocessing_context=method) as dl:
        for _ in range(2):  # after the error, the loader can be used again
            received = []
            with pytest.raises(error) as caught:
                for x in dl:
                    received.append(x)
            assert received == list(range(at))
            assert type(caught.value) is error
            assert error is KeyError or type(caught.value.__cause__) is SystemExit
            assert re.search(rf"Caught {words[0]} in worker process {at % 2}{words[1]}", str(caught.value))
            assert "in __call__" in str(caught.value)
            assert "raise self.make_error()" in str(caught.value)


def http_error():
    return urllib.error.HTTPError("http://host/file", 404, "Not Found", email.message.Message(), None)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exception_that_its_arguments_do_not_rebuild_arrives_in_all_families(family):
    with FAMILIES[family]("fork", FailsAt(3, http_error)) as items, pytest.raises(urllib.error.HTTPError) as caught:
        list(items)
    text = "".join(traceback.format_exception(caught.value))
    assert "Caught HTTPError in " in text
    assert "in __call__" in text
    assert (caught.value.code, caught.value.filename, str(caught.value)) == (
        404,
        "http://host/file",
        "HTTP Error 404: Not Found",
    )
    caught.value.close()  # from Python 3.14 on, the exception warns if it is not closed


def failing_init(datapipe, worker_info):
    if worker_info.worker_id == 1:
        raise LookupError("no such data")
    return datapipe


def failing_reset(datapipe, worker_info, seed_generator):
    raise LookupError("no such epoch")


def exiting_init(datapipe, worker_info):
    if worker_info.worker_id == 1:
        sys.exit("no data today")
    return datapipe


def stopping_init(datapipe, worker_info):
    raise StopIteration


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"worker_init_fn": failing_init}, LookupError, "Caught LookupError in worker process 1"),
        ({"worker_reset_fn": failing_reset}, LookupError, "Caught LookupError in worker process 0"),
        ({"worker_init_fn": lambda *_: None}, TypeError, "worker_init_fn must return"),
        ({"worker_init_fn": exiting_init}, RuntimeError, "Caught SystemExit in worker process 1"),
        ({"worker_reset_fn": lambda *_: sys.exit()}, RuntimeError, "Caught SystemExit in worker process 0"),
        ({"worker_init_fn": stopping_init}, RuntimeError, "Caught StopIteration in worker process 0"),
    ],
)
def test_failing_hooks_are_reported_in_every_epoch(options, error, match):
    with loader(IterableWrapper(range(9)).sharding_filter(), **options) as dl:
        for _ in range(2):
            with pytest.raises(error, match=match):
                list(dl)


@pytest.mark.parametrize(
    ("at", "make_error"), [(7, key_error), (0, key_error), (19, key_error), (5, SystemExit), (5, KeyboardInterrupt)]
)
def test_an_exception_in_the_dispatching_process_names_it(at, make_error):
    name, error = ("KeyError", KeyError) if make_error is key_error else (make_error.__name__, RuntimeError)
    failing = IterableWrapper(range(20)).map(FailsAt(at, make_error))
    with loader(failing.sharding_round_robin_dispatch(MULTIPROCESSING).map(identity)) as dl:
        for _ in range(2):
            received = []
            with pytest.raises(error, match=f"Caught {name} in dispatching process") as caught:
                for x in dl:
                    received.append(x)
            assert received == list(range(at))
            assert "worker process" not in str(caught.value)


def test_an_import_error_of_the_users_module_under_spawn_is_reported(tmp_path, monkeypatch):
    module = tmp_path / "only_in_main.py"
    module.write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise ImportError('not here')\ndef f(x): return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_in_main

    datapipe = IterableWrapper(range(9)).sharding_filter().map(only_in_main.f)
    with (
        loader(datapipe, multiprocessing_context="spawn") as dl,
        pytest.raises(ImportError, match="Caught ImportError in worker process 0"),
    ):
        list(dl)


class HoldsLock(IterDataPipe):
    def __init__(self):
        self.guard = None

    def open(self):
        self.guard = threading.Lock()
        return self

    def __iter__(self):
        yield from range(4)

    def __deepcopy__(self, memo):
        return copy.copy(self)


def test_a_pipe_that_does_not_pickle_is_named_with_its_attribute_unless_workers_are_forked():
    pipe = HoldsLock().open().map(identity)
    with (
        loader(pipe, multiprocessing_context="spawn") as dl,
        pytest.raises(TypeError, match="its attribute 'guard' .*create files, locks and connections in"),
    ):
        next(iter(dl))
    with loader(pipe, 1) as dl:
        assert list(dl) == list(range(4))


class OwnExit(BaseException):
    """A user-defined class that is not derived from Exception."""


STEERING = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "OwnExit": lambda: OwnExit("enough"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError()]),
}


class EndsLoops(IterDataPipe):
    def __iter__(self):
        raise StopIteration(5)


@pytest.mark.parametrize("name", STEERING)
def test_an_object_that_is_not_an_exception_arrives_as_a_runtime_error(name):
    datapipe = IterableWrapper(range(9)).sharding_filter().map(FailsAt(3, STEERING[name]))
    with loader(datapipe) as dl, pytest.raises(RuntimeError, match=f"Caught {name} in worker process 1") as caught:
        list(dl)
    assert type(caught.value) is RuntimeError
    assert type(caught.value.__cause__).__name__ == name


@pytest.mark.parametrize(("name", "threaded"), [("SystemExit", "prefetch"), ("KeyboardInterrupt", "threadpool_map")])
def test_an_exit_or_interrupt_in_a_thread_of_a_worker_arrives_as_a_runtime_error(name, threaded):
    datapipe = IterableWrapper(range(9)).sharding_filter()
    raises = FailsAt(4, STEERING[name])
    datapipe = datapipe.map(raises).prefetch(2) if threaded == "prefetch" else datapipe.threadpool_map(raises)
    with loader(datapipe) as dl, pytest.raises(RuntimeError, match=f"Caught {name} in worker process 0"):
        list(dl)


def test_a_stop_iteration_of_a_pipe_is_not_mistaken_for_the_end_of_the_data():
    with loader(EndsLoops(), 1) as dl, pytest.raises(RuntimeError, match="Caught StopIteration in worker process 0"):
        list(dl)
