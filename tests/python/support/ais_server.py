"""Imitates an AIStore cluster that lists, reads and writes objects in memory.

A separate process runs the server, because tests count open files. If an object's name ends in `.cut`, the server sends
only a part of the object."""

import json
import sys
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from server_process import Answering, serve, server_process

NAMES_PER_PAGE = 5


class Cluster(Answering):
    wbufsize = -1  # a buffer sends each answer in one piece, without delay
    buckets: dict[str, dict[str, tuple[bytes, int]]] = {}  # noqa: RUF012

    def _parts(self) -> tuple[str, str, str]:
        url = urlsplit(self.path)
        _, _, kind, bucket, *name = url.path.split("/", 4)
        provider = parse_qs(url.query).get("provider", ["ais"])[0]
        return kind, f"{provider}://{bucket}", unquote(name[0]) if name else ""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind, bucket, name = self._parts()
        if bucket not in self.buckets:
            self.answer(f'bucket "{bucket}" does not exist'.encode(), 404)
        elif kind == "buckets":
            self._list(bucket, json.loads(body)["value"])
        elif name not in self.buckets[bucket]:
            self.answer(f'object "{bucket}/{name}" does not exist'.encode(), 404)
        else:
            self._read(name, *self.buckets[bucket][name])

    def _list(self, bucket: str, message: dict[str, str]) -> None:
        import msgspec

        token = message["continuation_token"]
        names = [name for name in sorted(self.buckets[bucket]) if name.startswith(message["prefix"]) and name > token]
        page = names[:NAMES_PER_PAGE]
        answer = {
            "UUID": "1",
            "ContinuationToken": page[-1] if len(names) > len(page) else "",
            "Flags": 0,
            "Entries": [{"n": name} for name in page] or None,
        }
        self.answer(msgspec.msgpack.encode(answer), headers={"Content-Type": "application/msgpack"})

    def _read(self, name: str, content: bytes, version: int) -> None:
        content, status, headers = self.requested(content)
        headers["Ais-Version"] = str(version)
        if name.endswith(".cut"):
            headers["Content-Length"] = str(len(content))
            content = content[: len(content) // 2]
            self.close_connection = True
        self.answer(content, status, headers)

    def do_PUT(self) -> None:
        _, bucket, name = self._parts()
        content = self.rfile.read(int(self.headers["Content-Length"]))
        version = self.buckets[bucket][name][1] + 1 if name in self.buckets[bucket] else 1
        self.buckets[bucket][name] = content, version
        self.answer(b"")


def ais_server(buckets: dict[str, dict[str, bytes]]) -> AbstractContextManager[str]:
    as_text = {
        bucket: {name: content.hex() for name, content in objects.items()} for bucket, objects in buckets.items()
    }
    return server_process(__file__, input_line=json.dumps(as_text))


if __name__ == "__main__":
    for bucket, objects in json.loads(sys.stdin.readline()).items():
        Cluster.buckets[bucket] = {name: (bytes.fromhex(content), 1) for name, content in objects.items()}
    serve(ThreadingHTTPServer(("127.0.0.1", 0), Cluster))
