"""A test server in a separate process, which exits when its standard input ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from socketserver import BaseServer
from typing import NoReturn


@contextlib.contextmanager
def server_process(*arguments: str, told: str = "") -> Iterator[str]:
    """Runs Python with `arguments`, and sends the line `told` to the standard input of the process. Yields the URL with
    the port that the process prints.
    """
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if told:
                process.stdin.write(told + "\n")
                process.stdin.flush()
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()


def serve(server: BaseServer) -> NoReturn:
    """Runs a server in this process, which was started by `server_process`. Prints the port of the server."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)
