"""Runs a local HTTP server with random faults, and checks that every file is nevertheless read completely."""

import json
import random
import socket
import struct
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from drivers.frame import Driver
from server_process import Answering, serve, server_process

FAULTS = ["503", "500", "429", "429 date", "reset", "hang-up", "cut", "body reset", "wrong length", "slow", "slow body"]
IN_A_ROW = 3
TIMEOUT = 1.0


def content_of(seed: int, number: int) -> bytes:
    chance = random.Random(f"{seed} {number}")
    return chance.randbytes(chance.choice([0, 1, 100, 5_000, 70_000, 300_000]))


class Handler(Answering):
    def do_GET(self) -> None:
        path = urlsplit(self.path).path.strip("/")
        if path == "faults":
            return self.answer(json.dumps(self.server.met).encode())
        body, status, headers = self.requested(content_of(self.server.seed, int(path)))
        headers["ETag"] = f'"{path}"'
        if status == 416:
            return self.answer(body, status, headers)
        fault = self.server.fault_for(path, self.server.chance.random() < self.server.fault_free)
        self.spoil(fault, body, status, headers) if fault else self.answer(body, status, headers)

    def spoil(self, fault: str, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.close_connection = True
        part = body[: self.server.chance.randrange(len(body) + 1)]
        if fault in ("503", "500"):
            self.close_connection = False
            self.answer(b"sorry", int(fault))
        elif fault.startswith("429"):
            when = self.date_time_string() if "date" in fault else self.server.chance.choice(["0", "1"])
            self.answer(b"too many", 429, {"Retry-After": when})
        elif fault == "slow":
            self.connection.recv(1)  # waits until the client closes the connection
        elif fault not in ("reset", "hang-up"):
            extra = 7 if fault == "wrong length" else 1
            headers["Content-Length"] = str(len(body) + extra)
            self.answer(body if fault == "wrong length" else part, status, headers)
            if fault == "slow body":
                self.connection.recv(1)
        if "reset" in fault:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


class Listener(ThreadingHTTPServer):
    def __init__(self, seed: int, faults: list[str], fault_free: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seed, self.chance, self.faults, self.fault_free = seed, random.Random(seed), faults, fault_free
        self.met: Counter[str] = Counter()
        self.in_a_row: Counter[str] = Counter()
        self.lock = threading.Lock()

    def fault_for(self, path: str, fault_free: bool) -> str | None:
        with self.lock:
            if fault_free or self.in_a_row[path] == IN_A_ROW:
                self.in_a_row[path] = 0
                return None
            self.in_a_row[path] += 1
            fault = self.chance.choice(self.faults)
            self.met[fault] += 1
            return fault

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), (ConnectionError, OSError, ValueError)):
            super().handle_error(request, client_address)


class Faulty:
    def __init__(self, root: str, seed: int) -> None:
        self.root, self.seed = root, seed

    def urls(self, count: int) -> list[str]:
        return [f"{self.root}/{number}" for number in range(count)]

    def contents(self, count: int) -> list[bytes]:
        return [content_of(self.seed, number) for number in range(count)]

    def faults(self) -> Counter[str]:
        with urllib.request.urlopen(f"{self.root}/faults") as answer:
            return Counter(json.load(answer))


@contextmanager
def running(seed: int, faults: list[str] = FAULTS, fault_free: float = 0.2) -> Iterator[Faulty]:
    with server_process(__file__, str(seed), ",".join(faults), str(fault_free)) as root:
        yield Faulty(root, seed)


def check(seed: int) -> int:
    from torchdata.datapipes.iter import HttpReader
    from torchdata.datapipes.iter.web import client

    client.BACKOFF, client.LONGEST_WAIT = 0.001, 0.001
    count, size = 50, random.Random(seed).choice([-1, 1000, 100_000])
    with running(seed) as server:
        pipe = HttpReader(server.urls(count), timeout=TIMEOUT, max_retries=10)
        for (url, stream), content in zip(pipe, server.contents(count), strict=True):
            assert b"".join(iter(partial(stream.read, size), b"")) == content, url
        return server.faults().total()


DRIVER = Driver(lambda seed, _: seed, check, "faults")


if __name__ == "__main__":
    serve(Listener(int(sys.argv[1]), sys.argv[2].split(","), float(sys.argv[3])))
