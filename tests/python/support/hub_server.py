"""A local Hugging Face Hub with one dataset, which answers only the requests that `datasets` sends to stream rows.

The server runs in a thread of the test until the `with hub(…)` block ends.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

NAME = "owner/numbers"
COMMIT = "c0ffee" * 6 + "c0ff"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def do_GET(self) -> None:
        path, files = urlsplit(self.path).path, self.server.files
        self.server.asked.append(path)
        api, contents = f"/api/datasets/{NAME}", f"/datasets/{NAME}/resolve/"
        if path.startswith(f"{api}/tree"):
            found = [{"type": "file", "path": name, **_told(body)} for name, body in files.items()]
            self.reply(json.dumps(found).encode())
        elif path.startswith(api):
            siblings = [{"rfilename": name} for name in files]
            told = {"id": NAME, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
            self.reply(json.dumps(told).encode())
        elif path.startswith(contents) and (name := path.rpartition("/")[2]) in files:
            self.content(files[name])
        else:
            self.reply(b"", 404, {"X-Error-Code": "EntryNotFound" if path.startswith(contents) else "RepoNotFound"})

    do_HEAD = do_GET

    def content(self, body: bytes) -> None:
        headers, status = {"ETag": f'"{_told(body)["oid"]}"', "X-Repo-Commit": COMMIT}, 200
        if asked := self.headers["Range"]:
            first, last = (int(place) for place in asked.removeprefix("bytes=").split("-"))
            headers["Content-Range"], status = f"bytes {first}-{last}/{len(body)}", 206
            body = body[first : last + 1]
        self.reply(body, status, headers)

    def reply(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def _told(body: bytes) -> dict[str, Any]:
    return {"size": len(body), "oid": hashlib.sha1(body).hexdigest()}


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serves a dataset that consists of the given files. Yields the hub's address and the list of requested paths."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.files, server.asked = files, []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
