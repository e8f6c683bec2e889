"""Exceptions that control a process (sys.exit(), StopIteration, …) are errors if a worker raises them."""

from __future__ import annotations

import pytest

from process_checks import loader, nothing_is_left, with_methods  # noqa: F401
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe


class OwnExit(BaseException):
    """A user's class that is not derived from Exception."""


STEERING = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "OwnExit": lambda: OwnExit("enough"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError()]),
}


class RaisesAt:
    """Raises what `STEERING` says when the item comes."""

    def __init__(self, at, name):
        self.at = at
        self.name = name

    def __call__(self, x):
        if x == self.at:
            raise STEERING[self.name]()
        return x


class EndsLoops(IterDataPipe):
    """A pipe whose `__iter__` raises. A StopIteration there does not mean the end of the data."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        raise StopIteration(5)


@pytest.mark.parametrize(("method", "at"), with_methods(7, 0))
def test_sys_exit_in_a_worker_is_an_error_that_names_it_and_does_not_end_main(method, at):
    datapipe = IterableWrapper(range(20)).sharding_filter().map(RaisesAt(at, "SystemExit"))
    with loader(datapipe, multiprocessing_context=method) as dl:
        for _ in range(2):  # the loader stays usable
            received = []
            with pytest.raises(RuntimeError, match=r"Caught SystemExit in worker process [01].*sys\.exit") as caught:
                for x in dl:
                    received.append(x)
            assert received == list(range(at))
            assert "in __call__" in str(caught.value)  # the worker's traceback
            assert type(caught.value.__cause__) is SystemExit


@pytest.mark.parametrize("name", STEERING)
def test_what_is_no_exception_arrives_as_a_runtime_error_that_it_caused(name):
    datapipe = IterableWrapper(range(9)).sharding_filter().map(RaisesAt(3, name))
    with (
        loader(datapipe) as dl,
        pytest.raises(RuntimeError, match=f"Caught {name} in worker process 1") as caught,
    ):
        list(dl)
    assert type(caught.value) is RuntimeError
    assert type(caught.value.__cause__).__name__ == name


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt"])
@pytest.mark.parametrize("threaded", ["prefetch", "threadpool_map"])
def test_in_a_thread_of_a_worker_too(name, threaded):
    datapipe = IterableWrapper(range(9)).sharding_filter()
    raises = RaisesAt(4, name)
    datapipe = datapipe.map(raises).prefetch(2) if threaded == "prefetch" else datapipe.threadpool_map(raises)
    with loader(datapipe) as dl, pytest.raises(RuntimeError, match=f"Caught {name} in worker process 0"):
        list(dl)


def test_a_stop_iteration_of_a_pipe_is_not_taken_for_the_end_of_the_data():
    with (
        loader(EndsLoops(IterableWrapper(range(9)).sharding_filter())) as dl,
        pytest.raises(RuntimeError, match="Caught StopIteration in worker process 0"),
    ):
        list(dl)
