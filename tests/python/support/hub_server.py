"""A local Hugging Face Hub with one dataset, which answers only the requests that `datasets` sends to stream rows."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from server_process import Answering

NAME = "owner/numbers"
COMMIT = "c0ffee" * 6 + "c0ff"


class _Handler(Answering):
    def do_GET(self) -> None:
        path, files = urlsplit(self.path).path, self.server.files
        self.server.asked.append(path)
        api, contents = f"/api/datasets/{NAME}", f"/datasets/{NAME}/resolve/"
        if path.startswith(f"{api}/tree"):
            found = [{"type": "file", "path": name, **_meta(body)} for name, body in files.items()]
            self.answer(json.dumps(found).encode())
        elif path.startswith(api):
            siblings = [{"rfilename": name} for name in files]
            shown = {"id": NAME, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
            self.answer(json.dumps(shown).encode())
        elif path.startswith(contents) and (name := path.rpartition("/")[2]) in files:
            body, status, headers = self.requested(files[name])
            self.answer(body, status, {"ETag": f'"{_meta(files[name])["oid"]}"', "X-Repo-Commit": COMMIT, **headers})
        else:
            self.answer(b"", 404, {"X-Error-Code": "EntryNotFound" if path.startswith(contents) else "RepoNotFound"})

    do_HEAD = do_GET


def _meta(body: bytes) -> dict[str, Any]:
    return {"size": len(body), "oid": hashlib.sha1(body).hexdigest()}


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
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
