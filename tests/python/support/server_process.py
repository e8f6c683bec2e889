"""Runs a test server in a separate process, which exits when its standard input ends."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer
from typing import Any, NoReturn


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def requested(self, body: bytes, before: int = 0) -> tuple[bytes, int, dict[str, str]]:
        if not self.headers["Range"]:
            return body, 200, {}
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        start, end = int(first) - before, min(int(last or len(body)) + 1, len(body))
        if start >= len(body):
            return b"", 416, {"Content-Range": f"bytes */{len(body)}"}
        return body[start:end], 206, {"Content-Range": f"bytes {start}-{end - 1}/{len(body)}"}

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def server_process(*arguments: str, input_line: str = "") -> Iterator[str]:
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if input_line:
                process.stdin.write(input_line + "\n")
                process.stdin.flush()
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()


def serve(server: BaseServer) -> NoReturn:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)
