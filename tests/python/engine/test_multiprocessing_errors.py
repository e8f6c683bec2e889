"""Exceptions in worker processes arrive with their type, their position and their origin."""

from __future__ import annotations

import copy
import email.message
import os
import sys
import threading
import traceback
import urllib.error
from concurrent.futures import CancelledError

import pytest

from families import FAMILIES
from process_checks import MULTIPROCESSING, identity, loader, nothing_is_left, with_methods  # noqa: F401
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe


class FailsAt:
    """Raises at an item."""

    def __init__(self, at, make_error):
        self.at = at
        self.make_error = make_error

    def __call__(self, x):
        if x == self.at:
            raise self.make_error()
        return x


class NoPickle(Exception):
    """An exception that does not pickle: it holds a lock."""

    def __init__(self):
        super().__init__("locked in")
        self.lock = threading.Lock()


class OddArguments(Exception):
    """An exception whose constructor has unpredictable parameters."""

    def __init__(self, first, *, second):
        super().__init__(f"{first} and {second}")


def key_error():
    return KeyError("missing")


def value_error():
    return ValueError("wrong value")


def os_error():
    return FileNotFoundError(2, "No such file", "data.bin")


def odd_error():
    return OddArguments("one", second="two")


@pytest.mark.parametrize(("method", "at"), with_methods(11, 0, 19))
def test_an_exception_arrives_at_its_place_with_type_origin_and_traceback(method, at):
    datapipe = IterableWrapper(range(20)).sharding_filter().map(FailsAt(at, key_error))
    with loader(datapipe, multiprocessing_context=method) as dl:
        for _ in range(2):  # the loader stays usable
            received = []
            with pytest.raises(KeyError) as caught:
                for x in dl:
                    received.append(x)
            assert received == list(range(at))
            assert type(caught.value) is KeyError
            assert f"Caught KeyError in worker process {at % 2}" in str(caught.value)
            assert "in __call__" in str(caught.value)
            assert "raise self.make_error()" in str(caught.value)


@pytest.mark.parametrize(
    ("make_error", "type_", "text"),
    [
        (value_error, ValueError, "wrong value"),
        (os_error, FileNotFoundError, "data.bin"),
        (NoPickle, NoPickle, "locked in"),
        (odd_error, OddArguments, "one and two"),
        (lambda: CancelledError(3), CancelledError, "3"),  # an Exception, unlike that of asyncio
    ],
)
def test_exceptions_keep_their_type_even_if_they_do_not_pickle(make_error, type_, text):
    with (
        loader(IterableWrapper(range(9)).sharding_filter().map(FailsAt(3, make_error))) as dl,
        pytest.raises(type_, match="Caught .* in worker process 1") as caught,
    ):
        list(dl)
    assert text in str(caught.value)
    if type_ is FileNotFoundError:
        assert caught.value.errno == 2
        assert caught.value.filename == "data.bin"


def http_error():
    return urllib.error.HTTPError("http://host/file", 404, "Not Found", email.message.Message(), None)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exception_that_its_arguments_do_not_rebuild_arrives_in_all_families(family):
    """How it is taken apart is tested in `test_failures.py`."""
    with FAMILIES[family]("fork", FailsAt(3, http_error)) as items, pytest.raises(urllib.error.HTTPError) as caught:
        list(items)
    told = "".join(traceback.format_exception(caught.value))
    assert "Caught HTTPError in " in told
    assert "in __call__" in told
    assert (caught.value.code, caught.value.filename, str(caught.value)) == (
        404,
        "http://host/file",
        "HTTP Error 404: Not Found",
    )
    caught.value.close()  # from Python 3.14 on it warns where nobody does


def test_an_exception_of_a_local_class_names_it():
    class Local(Exception):
        pass

    with (
        loader(IterableWrapper(range(9)).sharding_filter().map(FailsAt(3, lambda: Local("here")))) as dl,
        pytest.raises(Exception, match="Caught Local in worker process 1") as caught,
    ):
        list(dl)
    assert type(caught.value).__name__ == "Local"


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


def exiting_reset(datapipe, worker_info, seed_generator):
    sys.exit()


def stopping_init(datapipe, worker_info):
    raise StopIteration


def returns_nothing(datapipe, worker_info):
    return None


@pytest.mark.parametrize(
    ("method", "failure"),
    with_methods(
        ({"worker_init_fn": failing_init}, LookupError, "Caught LookupError in worker process 1"),
        ({"worker_reset_fn": failing_reset}, LookupError, "Caught LookupError in worker process 0"),
        ({"worker_init_fn": returns_nothing}, TypeError, "worker_init_fn must return"),
        ({"worker_init_fn": exiting_init}, RuntimeError, "Caught SystemExit in worker process 1"),
        ({"worker_reset_fn": exiting_reset}, RuntimeError, "Caught SystemExit in worker process 0"),
        ({"worker_init_fn": stopping_init}, RuntimeError, "Caught StopIteration in worker process 0"),
    ),
)
def test_failing_hooks_are_reported_in_every_epoch(method, failure):
    options, error, match = failure
    with loader(IterableWrapper(range(9)).sharding_filter(), multiprocessing_context=method, **options) as dl:
        for _ in range(2):
            with pytest.raises(error, match=match):
                list(dl)


@pytest.mark.parametrize(
    ("method", "failure"),
    with_methods((7, key_error), (0, key_error), (19, key_error), (5, SystemExit), (5, KeyboardInterrupt)),
)
def test_an_exception_in_the_dispatching_process_names_it(method, failure):
    at, make_error = failure
    name, error = ("KeyError", KeyError) if make_error is key_error else (make_error.__name__, RuntimeError)
    failing = IterableWrapper(range(20)).map(FailsAt(at, make_error))
    datapipe = failing.sharding_round_robin_dispatch(MULTIPROCESSING).map(identity)
    with loader(datapipe, multiprocessing_context=method) as dl:
        for _ in range(2):
            received = []
            with pytest.raises(error, match=f"Caught {name} in dispatching process") as caught:
                for x in dl:
                    received.append(x)
            assert received == list(range(at))
            assert "worker process" not in str(caught.value)


def test_an_import_error_of_the_users_module_under_spawn_is_reported(tmp_path, monkeypatch):
    """The module can be imported in the main process and not in the workers."""
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


def test_a_pipe_that_does_not_pickle_is_named_with_its_attribute():
    with (
        loader(HoldsLock().open().map(identity), multiprocessing_context="spawn") as dl,
        pytest.raises(TypeError, match="its attribute 'guard' .*open files, locks and connections in"),
    ):
        next(iter(dl))


def test_under_fork_nothing_needs_to_pickle():
    with loader(HoldsLock().open().map(identity), 1) as dl:
        assert list(dl) == list(range(4))
