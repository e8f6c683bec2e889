"""Starts the programs of ranks as forks of a process that has imported torch, because the import takes longer than most
runs.

Run as a program, this module reads requests from a socket on its standard input until the client closes the socket.
The module forks the programs of ranks, and sends their exit codes on request."""

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from types import ModuleType
from typing import Any

ORDER = 1 << 20

_server: socket.socket | None = None


class ForkedProgram:
    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        reading, writing = os.pipe()
        try:
            self.pid: int = _ask({"arguments": arguments, "environment": environment}, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._output = reading
        self._process = os.pidfd_open(self.pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._process], [], [], 0)[0]:
            self.returncode = os.waitstatus_to_exitcode(_ask({"reap": self.pid}))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._process], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float = 60.0) -> tuple[str, None]:
        until, written = time.monotonic() + timeout, b""
        while self._output >= 0:
            if not select.select([self._output], [], [], max(0.0, until - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired("a rank", timeout, written)
            more = os.read(self._output, 1 << 16)
            written += more
            if not more:
                os.close(self._output)
                self._output = -1
        self.wait(timeout)
        return written.decode(), None

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        for descriptor in (self._output, self._process):
            if descriptor >= 0:
                os.close(descriptor)
        self._output = self._process = -1


def imports(*modules: str) -> None:
    _ask({"modules": modules})


def _ask(order: dict[str, Any], *descriptors: int) -> int:
    global _server
    if _server is None:
        _server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # As with torchrun, each rank runs torch's operators in one thread.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [sys.executable, __file__], stdin=theirs, env=environment, start_new_session=True
            )
        atexit.register(process.wait, 10)
        atexit.register(_server.close)
    _server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER)
    socket.send_fds(_server, [json.dumps(order).encode()], descriptors)
    answer = _server.recv(ORDER)
    assert answer, "the process that starts ranks has ended"
    return int(answer)


def serve(asked: socket.socket) -> None:
    import numpy as np
    import torch.distributed  # noqa: F401

    import torchdata.dataloader2
    import torchdata.datapipes.iter
    import torchdata.datapipes.state  # noqa: F401

    started: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, ORDER, 1)
        if not message:
            break
        order = json.loads(message)
        if "modules" in order:
            for name in order["modules"]:
                importlib.import_module(name)
            asked.send(b"0")
            continue
        if "reap" in order:
            started.discard(order["reap"])
            asked.send(str(os.waitpid(order["reap"], 0)[1]).encode())
            continue
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            asked.close()
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(descriptors[0], 1)
            os.dup2(descriptors[0], 2)
            os.close(descriptors[0])
            os.environ.clear()
            os.environ.update(order["environment"])
            sys.argv = order["arguments"]
            sys.path[0] = os.path.dirname(sys.argv[0])
            np.random.seed()
            return
        os.close(descriptors[0])
        started.add(pid)
        asked.send(str(pid).encode())
    for pid in started:  # the tests' process has exited
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=os.dup(0)))
    program = ModuleType("__main__")
    program.__file__ = sys.argv[0]
    sys.modules["__main__"] = program
    with open(sys.argv[0], encoding="utf-8") as script:
        code = compile(script.read(), sys.argv[0], "exec")
    exec(code, program.__dict__)
