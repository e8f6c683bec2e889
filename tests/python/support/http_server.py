"""A local HTTP server for tests, which imitates unusual behavior of real servers.

The server serves the files of a folder on 127.0.0.1. The query of a URL determines how the server sends the requested
file; all parameters of the query are optional. To change a file, a test writes a new version to the folder. The server
runs in a separate process, because tests count open descriptors, and exits when its standard input ends.

- `ranges=no`: the server ignores the header Range. `ranges=wrong`: the server sends a range that was not requested.
- `validator=none|weak|date`: the server sends no ETag, a weak ETag, or only the header Last-Modified.
- `chunked=1`: the server sends chunks without a total length. `endless=1`: the server sends no length, and closes the
  connection at the end of the body.
- `gzip=1`: the server compresses the body, regardless of the request.
- `drop=N`: the server drops the connection after N bytes of the body.
- `wait=NAME`: the server answers only when a file of this name exists. `after=N`: the server sends N
  bytes of the body before it waits for the file NAME.
- `hangup=1`: if the client reuses the connection, the server closes the connection without an answer.
- `status=N`: the server answers with the error status N. `redirect=PATH`: the server redirects to PATH.

Under `/uc` and `/download`, the server behaves like Google Drive."""

import gzip
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from server_process import Answering, serve, server_process

LOG = "requests.log"
SENT = "sent.log"
PIECE = 1 << 14
PAGE = "<html><head><title>Google Drive - {title}</title></head><body>{body}</body></html>"
FORM = (
    '<form id="download-form" action="{action}" method="get"><input type="hidden" name="id" value="{id}">'
    '<input type="hidden" name="confirm" value="yes&amp;no"><input type="submit" value="Download anyway"></form>'
)


class Handler(Answering):
    query: dict[str, str] = {}  # noqa: RUF012  # of the request before

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        hung_up, self.query = "hangup" in self.query, dict(parse_qsl(parts.query))
        if hung_up:
            self.close_connection = True
            return
        headers = {name.title(): value for name, value in self.headers.items()}
        with open(self.server.folder / LOG, "a") as log:
            print(json.dumps({"path": self.path, "peer": self.client_address[1], **headers}), file=log)
        try:
            if parts.path in ("/uc", "/download"):
                self.drive(parts.path)
            elif "status" in self.query:
                self.reply(b"sorry\n", status=int(self.query["status"]))
            elif "redirect" in self.query:
                self.reply(b"", status=302, Location=self.query["redirect"])
            else:
                self.file(self.server.folder / parts.path.lstrip("/"))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def file(self, path: Path) -> None:
        if "wait" in self.query and "after" not in self.query:
            self.wait()
        if not path.is_file():
            self.reply(b"not here\n", status=404)
            return
        body, headers, status = path.read_bytes(), self.validators(path), 200
        if self.query.get("gzip"):
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        elif self.query.get("ranges") != "no":
            condition = self.headers["If-Range"]
            if condition is None or condition in (headers.get("ETag"), headers.get("Last-Modified")):
                body, status, part = self.requested(body, before=self.query.get("ranges") == "wrong")
                headers |= part
        self.reply(body, status, **headers)

    def validators(self, path: Path) -> dict[str, str]:
        kind = self.query.get("validator", "strong")
        tag = '"' + hashlib.sha256(path.read_bytes()).hexdigest()[:8] + '"'
        changed = self.date_time_string(path.stat().st_mtime)
        return {
            "strong": {"ETag": tag, "Last-Modified": changed},
            "weak": {"ETag": "W/" + tag},
            "date": {"Last-Modified": changed},
            "none": {},
        }[kind]

    def reply(self, body: bytes, status: int = 200, **headers: str) -> None:
        chunked, endless = "chunked" in self.query, "endless" in self.query
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif not endless:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        stop = int(self.query.get("drop", self.query.get("after", len(body))))
        self.send(body[:stop], chunked)
        if "after" in self.query:
            self.wait()
            self.send(body[stop:], chunked)
        if "drop" in self.query:
            self.close_connection = True
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    def send(self, body: bytes, chunked: bool) -> None:
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
        for piece in (body[:3], body[3:]) if chunked else pieces:
            if piece:
                with open(self.server.folder / SENT, "ab") as sent:
                    sent.write(b".")
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                self.wfile.flush()

    def wait(self) -> None:
        while not (self.server.folder / self.query["wait"]).exists():
            time.sleep(0.01)

    def drive(self, path: str) -> None:
        id_, confirm = self.query.get("id", ""), self.query.get("confirm")
        if id_ == "quota":
            self.page("Quota exceeded", "Too many users have viewed this file recently.")
        elif id_ == "view":
            self.page("Some viewer", "a sharing page")
        elif id_ == "form" and (path, confirm) != ("/download", "yes&no"):
            action = f"http://{self.headers['Host']}/download"
            self.page("Virus scan warning", FORM.format(action=action, id=id_))
        elif id_ == "elsewhere" and confirm is None:
            self.page("Virus scan warning", FORM.format(action="http://elsewhere.invalid/download", id=id_))
        elif id_ == "title" and confirm != "t":
            self.page("Virus scan warning", "no form here")
        elif id_ == "cookie" and confirm != "secret":
            self.page("Warning", "see the cookie", **{"Set-Cookie": "download_warning_1=secret"})
        elif not (self.server.folder / id_).is_file():
            self.reply(b"not here\n", status=404)
        else:
            file = self.server.folder / id_
            body, status, part = self.requested(file.read_bytes())
            headers = {**self.validators(file), **part}
            name = f"attachment; filename=\"{id_}.txt\"; filename*=UTF-8''{quote(id_)}%C3%A9.txt"
            if id_ == "encoded":
                name = "attachment; filename*=UTF-8''%C3%A9t%C3%A9.txt"
            if id_ == "unnamed":
                name = "attachment"
            self.reply(body, status, **headers, **{"Content-Disposition": name})

    def page(self, title: str, body: str, **headers: str) -> None:
        self.reply(PAGE.format(title=title, body=body).encode(), **headers)


class Listener(ThreadingHTTPServer):
    folder: Path

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Server:
    def __init__(self, folder: Path, root: str) -> None:
        self.folder, self.root = folder, root

    def url(self, name: str, content: bytes | None = None, **query: object) -> str:
        if content is not None:
            (self.folder / name).write_bytes(content)
        options = "&".join(f"{key}={value}" for key, value in query.items())
        return f"{self.root}/{name}" + (f"?{options}" if options else "")

    def drive(self, id_: str, content: bytes | None = None) -> str:
        self.url(id_, content)
        return f"{self.root}/uc?export=download&id={id_}"

    def requests(self) -> list[dict[str, Any]]:
        log = self.folder / LOG
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def sent(self) -> int:
        log = self.folder / SENT
        return PIECE * log.stat().st_size if log.exists() else 0

    def forget_requests(self) -> None:
        for name in (LOG, SENT):
            (self.folder / name).unlink(missing_ok=True)


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    with server_process(__file__, str(folder)) as root:
        yield Server(folder, root)


if __name__ == "__main__":
    listener = Listener(("127.0.0.1", 0), Handler)
    listener.folder = Path(sys.argv[1])
    serve(listener)
