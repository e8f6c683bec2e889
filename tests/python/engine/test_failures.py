"""Even an exception that cannot be recreated from its arguments is sent to another process, and is raised there."""

import dataclasses
import email.message
import io
import pickle
import sys
import threading
import traceback
import types
import urllib.error
from concurrent.futures import CancelledError
from functools import partial

import pytest

from torchdata._engine.items.failures import describe, reraise


def raised_elsewhere(error, where="worker process 0"):
    try:
        raise error
    except BaseException as caught:
        description = pickle.dumps(describe(caught, where))
    with pytest.raises(BaseException) as arrived:  # noqa: PT011 - any
        reraise(pickle.loads(description))
    _met.extend((error, arrived.value))
    return arrived.value


_met: list[BaseException] = []


@pytest.fixture(autouse=True)
def _files_of_exceptions_are_closed():
    """Closes the files of exceptions, because Python 3.14 warns if an HTTPError with an open file is deleted."""
    yield
    while _met:
        error = _met.pop()
        _met.extend(error.exceptions if isinstance(error, BaseExceptionGroup) else ())
        if isinstance(error, urllib.error.HTTPError) and "_closer" in vars(error):
            error.close()


def message_of(error):
    return "".join(traceback.format_exception(error))


class KeywordOnly(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


class WithSlots(Exception):
    __slots__ = ("__hidden", "why")

    def __init__(self, why):
        self.why = why
        self.__hidden = why

    def __str__(self):
        return f"because of {self.why}, {self.__hidden}"


class Delegates(Exception):
    def __init__(self, inner):
        super().__init__("delegated")
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Computes(Exception):
    def __init__(self):
        super().__init__("computed")

    def __getattr__(self, name):
        return self.__dict__[name]


class HasAll(Exception):
    def __getattr__(self, name):
        return f"its {name}"


class ReducesToAnother(Exception):
    def __reduce__(self):
        return RuntimeError, ("another",)


class ReduceFails(Exception):
    def __reduce__(self):
        raise OSError("no")


class Changes(Exception):
    def __init__(self, text):
        super().__init__(f"<{text}>")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class OfFile(OSError):
    def __init__(self, path):
        super().__init__(2, "gone", path)
        self.extra = 1


class OddNew(Exception):
    def __new__(cls, one, two):
        return super().__new__(cls, one)

    def __init__(self, one, two):
        super().__init__(one)
        self.two = two


def http_error(file):
    return urllib.error.HTTPError("http://host/file", 404, "Not Found", email.message.Message(), file)


@pytest.mark.parametrize(
    ("error", "text", "attributes"),
    [
        (KeywordOnly(code=3), "code 3", {"code": 3}),
        (WithSlots(5), "because of 5, 5", {"why": 5}),
        (Delegates({1: 2}), "delegated", {"inner": {1: 2}}),
        (Computes(), "computed", {}),
        (HasAll("all"), "all", {}),
        (ReducesToAnother("this one"), "this one", {}),
        (ReduceFails("this one"), "this one", {}),
        (Changes("a"), "<a>", {}),
        (Frozen(7), "7", {"code": 7}),
        (OfFile("data.bin"), "[Errno 2] gone: 'data.bin'", {"errno": 2, "filename": "data.bin", "extra": 1}),
        (OddNew("one", "two"), "one", {"two": "two"}),
        (partial(http_error, None), "HTTP Error 404: Not Found", {"code": 404, "filename": "http://host/file"}),
        (partial(http_error, io.BytesIO(b"x")), "HTTP Error 404: Not Found", {"code": 404, "msg": "Not Found"}),
        (KeyError("k"), "k", {"args": ()}),
        (FileNotFoundError(2, "No such file", "data.bin"), "data.bin", {"filename": "data.bin"}),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "can't decode byte 0xff", {"object": b"\xff"}),
        (ImportError("no", name="module"), "no", {"name": "module"}),
        (ValueError(), "ValueError", {}),
        (CancelledError(3), "3", {}),  # this class is derived from Exception, unlike asyncio's CancelledError
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_class_text_traceback_and_attributes_arrive(error, text, attributes):
    error = error() if isinstance(error, partial) else error
    arrived = raised_elsewhere(error)
    assert type(arrived) is type(error)
    assert f"Caught {type(error).__name__} in worker process 0.\nOriginal Traceback" in message_of(arrived)
    assert text in message_of(arrived)
    assert "in raised_elsewhere" in message_of(arrived)
    for name, value in attributes.items():
        if name != "args":
            assert getattr(arrived, name) == value


def test_an_exception_whose_text_raises_arrives_with_its_traceback():
    class Mute(Exception):
        def __str__(self):
            raise OSError("no text")

    arrived = raised_elsewhere(Mute(1))
    assert type(arrived).__name__ == "Mute"
    assert "Caught Mute in worker process 0" in message_of(arrived)


def test_attributes_that_do_not_pickle_or_are_large_are_left_out_and_named():
    class Holds(Exception):
        def __init__(self):
            super().__init__("holds much")
            self.lock, self.batch, self.number = threading.Lock(), bytes(50 << 20), 3

    error = Holds()
    description = pickle.dumps(describe(error, "worker process 0"))
    assert len(description) < 1 << 20
    arrived = raised_elsewhere(error)
    assert (type(arrived).__name__, arrived.number) == ("Holds", 3)
    assert not hasattr(arrived, "lock")
    assert "Its attributes lock, batch could not be sent" in message_of(arrived)
    assert "holds much" in str(arrived)


def test_arguments_that_do_not_pickle_leave_the_class_and_the_text():
    arrived = raised_elsewhere(ValueError(threading.Lock()))
    assert type(arrived) is ValueError
    assert "unlocked _thread.lock" in str(arrived)


class Network(ConnectionError):
    """An exception that the main process can import, unlike the subclass that the worker raises."""


def test_an_exception_whose_class_the_main_process_lacks_is_raised_as_the_nearest_base_class(monkeypatch):
    cls = type("Timeout", (Network,), {"__module__": "only_in_the_worker"})
    with monkeypatch.context() as worker:
        worker.setitem(sys.modules, "only_in_the_worker", types.SimpleNamespace(Timeout=cls))
        try:
            raise cls("after 3 s")
        except cls as error:
            description = pickle.dumps(describe(error, "worker process 1"))
    with pytest.raises(Network, match=r"Caught Timeout in worker process 1\.\n(.*\n)*.*Timeout: after 3 s") as caught:
        reraise(pickle.loads(description))
    assert type(caught.value) is Network


def test_an_exception_without_a_suitable_base_class_arrives_as_a_runtime_error_with_its_text():
    class Locked(Exception):
        def __init__(self, lock):
            self.lock = lock

        def __str__(self):
            return f"is locked: {self.lock.locked()}"

    arrived = raised_elsewhere(Locked(threading.Lock()))
    assert type(arrived) is RuntimeError
    assert "Caught Locked in worker process 0" in str(arrived)
    assert "is locked: False" in str(arrived)


class Group(ExceptionGroup):
    def derive(self, members):
        return Group(self.message, members)


def test_members_of_a_group_arrive_with_their_own_classes():
    group = Group("several", [http_error(None), ExceptionGroup("inner", [KeywordOnly(code=4), KeyError("k")])])
    group.number = 5
    arrived = raised_elsewhere(group)
    assert (type(arrived), arrived.number) == (Group, 5)
    http, inner = arrived.exceptions
    assert (http.code, str(http)) == (404, "HTTP Error 404: Not Found")
    assert [type(one) for one in inner.exceptions] == [KeywordOnly, KeyError]
    assert arrived.subgroup(KeywordOnly) is not None


def test_causes_and_notes_are_shown():
    try:
        try:
            raise Computes
        except Computes as cause:
            raise KeywordOnly(code=1) from cause
    except KeywordOnly as raised:
        raised.add_note("a note of the user's")
        error = raised
    text = message_of(raised_elsewhere(error))
    assert "Computes: computed" in text
    assert "direct cause" in text
    assert text.count("a note of the user's") == 1


def test_an_error_that_passes_two_processes_keeps_the_first_text():
    arrived = raised_elsewhere(raised_elsewhere(KeywordOnly(code=3), "dispatching process"), "worker process 1")
    assert type(arrived) is KeywordOnly
    assert "Caught KeywordOnly in dispatching process" in message_of(arrived)
    assert "worker process 1" not in message_of(arrived)
