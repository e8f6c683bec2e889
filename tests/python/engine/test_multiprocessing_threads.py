"""Under fork, threads can create loaders while another thread triggers the lazy creation of helper objects."""

import pytest

from programs import run

#: Each attempt runs in a forked process, because a process creates the helper objects of loaders only once. In the
#: forked process of an attempt, several threads create loaders while another thread sends items.
ROUNDS = """
import sys, threading, time, traceback
import torchdata.datapipes.iter, torchdata.dataloader2
from loopback import Loopback
from process_checks import loader
from torchdata.datapipes import DataChunk
from torchdata.datapipes.iter import IterableWrapper
from waiting import check_in_forked_child

class Pickled:
    def __eq__(self, other):
        return type(other) is Pickled

def items():
    yield DataChunk([1])
    yield Pickled()
    import numpy
    yield numpy.ones(3)
    yield numpy.float32(1)
    yield 1 << 99

def use():
    if "numpy" in sys.modules:
        received = list(Loopback().send(items()))
    else:
        received = list(served := loader(IterableWrapper([0]).flatmap(lambda _: items()), 1, timeout={deadline}))
        served.shutdown()
    assert len(received) == 5, received

def iterate():
    pipe = IterableWrapper(range(9)).map(float).filter(bool).prefetch(2)
    assert list(pipe) == [float(i) for i in range(1, 9)]

def make(delay):
    time.sleep(delay)
    for _ in range(3):
        served = loader(IterableWrapper([0]).flatmap(lambda _: items()), 2, timeout={deadline})
        assert len(list(served)) == 10
        served.shutdown()

def one_round(number):
    failures = []
    barrier = threading.Barrier(4)

    def guarded(function, *arguments):
        def run():
            try:
                barrier.wait()
                function(*arguments)
            except BaseException:
                failures.append(traceback.format_exc())
        return run

    steps = [guarded(use), guarded(iterate), guarded(make, 0), guarded(make, number * 0.06)]
    threads = [threading.Thread(target=step, daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join({deadline} + 5)
        assert not thread.is_alive()
    assert not failures, "\\n".join(failures)

for number in range({rounds}):
    check_in_forked_child(lambda: one_round(number), {deadline} + 20)
"""


@pytest.mark.parametrize("loaded", ["", "import numpy\n"], ids=["without NumPy in main", "with NumPy in main"])
def test_threads_may_fork_workers_while_others_use_the_extension_for_the_first_time(loaded):
    done = run(loaded + ROUNDS.format(rounds=3, deadline=60), options=["-W", "ignore"])
    assert done.returncode == 0, done.stderr
