"""Panics in the extension become exceptions in the program, and never end the process."""

import pytest

from programs import run

#: Rust code that receives a PanicException panics, so Python code can cause a panic.
SCRIPT = """
before = set(BaseException.__subclasses__())
from torchdata import _native
(PanicException,) = [
    found for found in set(BaseException.__subclasses__()) - before if found.__name__ == "PanicException"
]
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

class Broken(IterDataPipe):
    def __init__(self, describes=True):
        self.describes = describes

    def __iter__(self):
        yield 1
        raise (PanicException if self.describes else ValueError)("it broke")

    def __repr__(self):
        if not self.describes:
            raise PanicException("no words")
        return "a pipe"

def caught(pipe):
    iterator = iter(pipe)
    assert next(iterator) == 1
    try:
        next(iterator)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

"""


def caught(expression):
    done = run(SCRIPT + f"print(caught({expression}))")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("pipe", ["Broken()", "Broken().map(abs).filter(bool)"])
def test_a_panic_below_a_pipe_passes_through_its_guard_unchanged(pipe):
    assert caught(pipe) == "PanicException: it broke\n"


def test_a_panic_in_a_slot_of_the_guard_is_an_exception():
    text = caught("Broken(describes=False)")
    assert text.startswith("SystemError: an error inside torchdata's extension")
    assert "no words" in text
