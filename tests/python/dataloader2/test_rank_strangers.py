"""Rank 0 listens only on the addresses that the job needs. Connections of unrelated programs use few resources."""

import resource
import socket
import threading
import time

import pytest

from torchdata._native import Meeting
from torchdata._ranks import opening

HELLO, WELCOME = b"h" * 16, b"w" * 16


@pytest.fixture(autouse=True)
def no_interface(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


@pytest.mark.parametrize("host", ["localhost", "127.0.1.9", "LOCALHOST"])
def test_rank_0_listens_only_on_loopback_if_the_store_is_there(host):
    listener, offer = opening._listen(host)
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert (offer["addresses"], offer["is_anywhere"]) == (["127.0.0.1"], False)
        assert opening._addresses_to_try(offer, host) == ["127.0.0.1"]


@pytest.mark.parametrize("towards", ["127.0.0.3", "127.0.1.1", None, "192.0.2.1"])
def test_rank_0_listens_on_the_address_towards_the_store_or_on_all_if_it_is_unknown(towards, monkeypatch):
    monkeypatch.setattr(opening, "_addresses_towards", lambda host: [towards] if towards else [])
    is_known = towards == "127.0.0.3"
    if is_known:
        monkeypatch.setattr(opening, "_is_loopback", lambda host: False)
    listener, offer = opening._listen("store.example")
    with listener:
        assert listener.getsockname()[0] in (["127.0.0.3"] if is_known else ["0.0.0.0", "::"])
        tried = opening._addresses_to_try(offer, "store.example")
        assert tried == ["127.0.0.3"] if is_known else tried[-3:] == ["store.example", "127.0.0.1", "::1"]


def test_connections_without_the_secret_cost_no_memory_and_no_time():
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    meeting = Meeting.host(listener.detach(), 2, HELLO, WELCOME)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    over = threading.Event()

    def flood():
        content = b"\5\0\0" * 20_000
        while not over.is_set():
            try:
                with socket.create_connection(address, 1) as stranger:
                    while not over.is_set():
                        stranger.send(content)
            except OSError:
                continue

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        begun = time.monotonic()
        what, ranks, _ = meeting.open(0.5)
        assert (what, ranks) == ("absent", [1])
        assert time.monotonic() - begun < 30
    finally:
        over.set()
        thread.join()
        meeting.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
