"""A process receives its first array even if a signal handler raises while the extension looks up NumPy's C API."""

import pytest

from programs import run

#: Each attempt runs in a forked process, because a process receives its first array only once. A worker sends SIGINT
#: to the main process just before it sends the array, so the signal handler raises while the array is received.
TRIES = """
import os, signal, sys, time
if {loaded}:
    import numpy
from process_checks import loader
from torchdata.datapipes.iter import IterableWrapper
from waiting import check_in_forked_child

class Interrupted(Exception):
    pass

def handler(number, frame):
    raise Interrupted

first = True

def array(main, delay, size):
    global first
    import numpy
    made = numpy.ones(size)
    if first:
        os.kill(main, signal.SIGINT)
        time.sleep(delay)
    first = False
    return made

def one_try(number):
    signal.signal(signal.SIGINT, handler)
    main, delay = os.getpid(), number % 10 * {step}
    served = loader(IterableWrapper([number] * 3).map(lambda _: array(main, delay, {size})), 1)
    seen = interrupted = 0
    try:
        iterator = iter(served)
        while seen < 2:  # after an interruption, the next attempt must succeed
            try:
                assert next(iterator).sum() == {size}
                seen += 1
            except Interrupted:
                interrupted += 1
                iterator = iter(served)
    except Interrupted:
        interrupted += 1
    while signal.getsignal(signal.SIGINT) is handler:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except Interrupted:  # raised if a second worker was started
            interrupted += 1
    served.shutdown()
    return interrupted

total = 0
for number in range({tries}):
    reading, writing = os.pipe()
    check_in_forked_child(lambda: os.write(writing, bytes([one_try(number)])))
    total += os.read(reading, 1)[0]
print(total)
"""


@pytest.mark.parametrize(
    ("loaded", "size", "tries", "step"),
    [(False, 100, 5, 0.0005), (True, 100, 3, 0.0005), (False, 5_000_000, 3, 0.004)],
    ids=["without NumPy in main", "with NumPy in main", "40 MB"],
)
def test_a_handler_that_raises_while_the_first_array_is_decoded_raises_out_of_the_loop(loaded, size, tries, step):
    done = run(TRIES.format(loaded=loaded, size=size, tries=tries, step=step))
    assert done.returncode == 0, done.stderr
    assert "panicked" not in done.stderr
    assert int(done.stdout) >= tries, "signals were swallowed"
