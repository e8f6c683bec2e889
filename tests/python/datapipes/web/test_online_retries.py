"""After faults of servers and networks, requests are repeated, and incomplete response bodies are continued."""

import pickle
import time
from typing import Any

import pytest
import requests
import urllib3

import faulty_http
from process_checks import nothing_is_left  # noqa: F401
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import GDriveReader, HttpReader, IterableWrapper, OnlineReader
from torchdata.datapipes.iter.web import client

CONTENT = b"".join(b"line %d\n" % number for number in range(20_000))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", 0.001)
    monkeypatch.setattr(client, "LONGEST_WAIT", 0.001)


@pytest.mark.usefixtures("fast")
def test_no_fault_of_a_server_ends_an_epoch_or_changes_a_byte() -> None:
    with faulty_http.running(seed=2) as server:
        pipe = IterableWrapper(server.urls(40)).sharding_filter()
        pipe = HttpReader(pipe, timeout=faulty_http.TIMEOUT, max_retries=10).map(lambda item: item[1].read())
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as loader:
            assert list(loader) == server.contents(40)
            retries = sum(pipe.retries for pipe in loader.stats().pipes)
            shown = str(loader.stats())
        faults = server.faults().total()
    assert faults > 40
    assert retries >= faults  # Timeouts on a busy machine cause additional retries.
    assert "requests sent again after a fault" in shown


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("fault", faulty_http.FAULTS)
def test_each_permanent_fault_raises_an_error(fault: str) -> None:
    with faulty_http.running(1, [fault], fault_free=0.0) as server:
        [url], [content] = server.urls(1), server.contents(1)
        with pytest.raises((requests.RequestException, urllib3.exceptions.HTTPError), match="HttpReader"):
            [stream.read() for _, stream in HttpReader([url], timeout=faulty_http.TIMEOUT, max_retries=0)]
        assert server.faults() == {fault: 1}
        [(_, stream)] = HttpReader([url], timeout=faulty_http.TIMEOUT, max_retries=10)
        assert stream.read() == content
        assert server.faults() == {fault: faulty_http.IN_A_ROW}


@pytest.mark.parametrize("query", [{}, {"ranges": "no"}, {"chunked": 1}, {"validator": "weak"}, {"validator": "none"}])
def test_a_body_that_is_cut_is_continued_where_it_was_cut(web: Any, query: dict[str, Any]) -> None:
    url = web.url("a", CONTENT, drop=100_000, **query)
    [(_, stream)] = HttpReader([url])
    if query.get("ranges") == "no":  # without ranges, each answer ends at the same byte
        with pytest.raises(urllib3.exceptions.ProtocolError, match="from byte 100000 on"):
            stream.read()
        return
    lines = list(stream)
    assert b"".join(lines) == CONTENT
    asked = [request.get("Range") for request in web.requests()]
    assert asked[0] is None
    assert all(range_ is not None for range_ in asked[1:])
    conditions = [request.get("If-Range") for request in web.requests()[1:]]
    assert all((condition is None) == (query.get("validator") in ("weak", "none")) for condition in conditions)


def test_a_file_that_changes_during_a_break_raises_an_error(web: Any) -> None:
    url = web.url("a", CONTENT, drop=100_000)
    [(_, opened)] = HttpReader([url])
    assert opened.read(10) == CONTENT[:10]
    web.url("a", CONTENT[::-1])
    with pytest.raises(RuntimeError, match=r"HttpReader cannot continue to read .*the file has changed: its ETag"):
        opened.read()


def test_a_copy_of_a_continued_stream_has_its_position(web: Any) -> None:
    [(_, stream)] = HttpReader([web.url("a", CONTENT, drop=100_000)])
    assert stream.read(150_000) == CONTENT[:150_000]
    twin = pickle.loads(pickle.dumps(stream))
    assert twin.read() == stream.read() == CONTENT[150_000:]


@pytest.mark.parametrize(
    ("query", "message", "requests_sent"),
    [
        ({"status": 503}, "': 503 ", 3),
        ({"status": 404}, "': 404 ", 1),
        ({"wait": "no"}, "0.1 s of silence, in 3 att", 3),
    ],
)
def test_only_temporary_error_responses_and_silence_are_retried(
    web: Any, query: dict[str, Any], message: str, requests_sent: int
) -> None:
    with pytest.raises((requests.HTTPError, requests.ReadTimeout), match=rf"HttpReader cannot open 'http.*{message}"):
        list(HttpReader([web.url("a", b"x", **query)], timeout=0.1, max_retries=2))
    assert len(web.requests()) == requests_sent


@pytest.mark.parametrize("asked", ["0", "1000000", "Wed, 21 Oct 2065 07:28:00 GMT"])
def test_a_server_does_not_make_a_reader_wait_for_long(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    policy = client.Retrying("HttpReader", 3).policy()
    answer = urllib3.HTTPResponse(status=429, headers={"Retry-After": asked})
    policy = policy.increment("GET", "/", response=answer)
    policy.sleep(answer)
    assert slept == ([] if asked == "0" else [client.LONGEST_WAIT])


@pytest.mark.parametrize("reader", [HttpReader, OnlineReader, GDriveReader])
def test_the_number_of_retries_is_checked_and_pickles(reader: Any) -> None:
    with pytest.raises(ValueError, match=f"{reader.__name__}: max_retries"):
        reader([], max_retries=-1)
    with pytest.raises(TypeError, match=f"{reader.__name__}: max_retries"):
        reader([], max_retries=1.5)
    assert pickle.loads(pickle.dumps(reader([], max_retries=7)))._retrying.max_retries == 7
