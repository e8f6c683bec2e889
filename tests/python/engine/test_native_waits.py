"""If a signal handler raises while the extension waits, the wait ends, and no item or message is lost."""

import contextlib
import signal
import socket
import threading

import pytest

from handlers import handling
from torchdata._native import BellBoard, Collector, Link, Meeting, Sender, SharedIterator

SECONDS = 60


class Alarm(Exception):
    """The exception that the signal handler raises."""


def ring(number, frame):
    raise Alarm


class Message:
    def __init__(self):
        bells, link = BellBoard(2), Link(0)
        self.sender = Sender([link], bells, 1, [0])
        self.collector = Collector([link], bells, 0, [1], print)

    def wait(self):
        return self.collector.receive(0)

    def provide(self):
        self.sender.send_message("come")

    def close(self):
        """Does nothing. Subclasses stop their threads here."""


class Item(Message):
    def __init__(self):
        super().__init__()
        self.collector.start_epoch(1, 1)
        self.sender.start_epoch(1)
        self.items = iter(self.collector)

    def wait(self):
        return next(self.items)

    def provide(self):
        threading.Thread(target=self.sender.pump, args=(iter(["come"]),), daemon=True).start()

    def close(self):
        self.collector.stop()
        self.collector.finish_epoch(1)


class Room(Message):
    def wait(self):
        self.sender.send_message("x" * (1 << 18))
        return "come"

    def provide(self):
        threading.Thread(target=self.collector.receive, args=(0,), daemon=True).start()


class _Held(SharedIterator):
    def __init__(self):
        self.reads, self.go = threading.Event(), threading.Event()

    def next(self):
        self.reads.set()
        assert self.go.wait(SECONDS)
        return "come"


class Left:
    def __init__(self):
        self.shared = _Held()
        self.thread = threading.Thread(target=next, args=(self.shared,), daemon=True)
        self.thread.start()
        assert self.shared.reads.wait(SECONDS)

    def wait(self):
        assert self.shared.turn.await_left()
        return "come"

    def provide(self):
        self.shared.go.set()

    def close(self):
        self.thread.join(SECONDS)


class InTurn(Left):
    def wait(self):
        return self.shared.turn.call(lambda: "come")


class Rank:
    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.token = bytes(range(16))
        self.meeting = Meeting.host(listener.detach(), 2, self.token, self.token)
        self.others: list[Meeting] = []

    def wait(self):
        return "come" if self.meeting.open(SECONDS) is None else "absent"

    def provide(self):
        def join():
            descriptor = socket.create_connection(self.address).detach()
            other = Meeting.join(descriptor, 1, self.token, self.token, SECONDS)
            self.others.append(other)
            other.open(SECONDS)

        threading.Thread(target=join, daemon=True).start()

    def close(self):
        for meeting in [*self.others, self.meeting]:
            meeting.close()


@pytest.fixture
def alarms():
    with handling(ring, signal.SIGALRM):
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.mark.parametrize("kind", [Message, Item, Room, Left, InTurn, Rank])
def test_an_exception_of_a_signal_handler_ends_a_wait_and_loses_nothing(kind, alarms):
    with contextlib.closing(kind()) as waited:
        for _ in range(2):
            alarms(0.05)
            with pytest.raises(Alarm):
                waited.wait()
        waited.provide()
        assert waited.wait() == "come"
