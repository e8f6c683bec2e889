"""A process receives its first array even if a signal handler raises while the extension looks up NumPy's C API."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Forks a process for each attempt, because a process receives its first array only once. The worker sends a signal
#: while it creates its first array. The signal's handler in the main process raises an exception. The main process
#: receives the signal while it decodes the array, or shortly before.
TRIES = """
import os, signal, sys, time
if {loaded}:
    import numpy
from process_checks import loader
from torchdata.datapipes.iter import IterableWrapper

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
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writing, bytes([one_try(number)]))
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"try {{number}} ended with {{os.waitstatus_to_exitcode(status)}}"
    total += os.read(reading, 1)[0]
    os.close(reading)
print(total)
"""


@pytest.mark.parametrize("loaded", [False, True], ids=["without NumPy in main", "with NumPy in main"])
@pytest.mark.parametrize(("size", "tries", "step"), [(100, 5, 0.0005), (5_000_000, 3, 0.004)], ids=["800 B", "40 MB"])
def test_a_handler_that_raises_while_the_first_array_is_decoded_raises_out_of_the_loop(loaded, size, tries, step):
    script = TRIES.format(loaded=loaded, size=size, tries=tries, step=step)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stderr
    assert "panicked" not in run.stderr
    assert int(run.stdout) >= tries, "signals were swallowed"
