"""S3FileLister and S3FileLoader read from local servers that imitate Google Cloud Storage and Azure."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from process_checks import loader
from s3_buckets import FOLDER, serving
from stream_checks import check_restore, read
from torchdata.datapipes.iter import S3FileLister, S3FileLoader

BLOB = (
    "<Blob><Name>{}</Name><Properties><Last-Modified>Sat, 01 Jan 2000 00:00:00 GMT</Last-Modified>"
    '<Content-Length>{}</Content-Length><Content-Type>x</Content-Type><Etag>"1"</Etag></Properties></Blob>'
)


class Azure(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        name, prefix = unquote(url.path).removeprefix("/first/"), parse_qs(url.query).get("prefix", [""])[0]
        if "comp=list" in url.query:
            blobs = "".join(BLOB.format(key, len(content)) for key, content in FOLDER.items() if key.startswith(prefix))
            self.answer(200, f"<EnumerationResults><Blobs>{blobs}</Blobs></EnumerationResults>".encode())
        elif name not in FOLDER:
            self.answer(404, b"<Error><Code>BlobNotFound</Code></Error>")
        elif not FOLDER[name]:
            self.answer(416, b"")
        else:
            start, end = map(int, re.findall(r"\d+", self.headers["x-ms-range"] or self.headers["Range"]))
            piece, size = FOLDER[name][start : end + 1], len(FOLDER[name])
            self.answer(206, piece, **{"Content-Range": f"bytes {start}-{start + len(piece) - 1}/{size}"})

    def do_HEAD(self):
        name = unquote(urlsplit(self.path).path).removeprefix("/first/")
        self.answer(200 if name in FOLDER else 404, FOLDER.get(name, b""))

    def answer(self, status, body, **headers):
        self.send_response(status)
        stated = {"ETag": '"1"', "Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT", "Content-Length": str(len(body))}
        for header, value in {**stated, **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def azure():
    with ThreadingHTTPServer(("127.0.0.1", 0), Azure) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {"account_name": "test", "skip_signature": True}
        yield {"endpoint_url": f"http://127.0.0.1:{server.server_port}", "config": config}
        server.shutdown()


@pytest.fixture
def google():
    """Runs an S3 server instead of Google Cloud Storage, because the protocols differ only in request signatures."""
    with serving() as client:
        everybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::first*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": everybody})
        client.put_bucket_policy(Bucket="first", Policy=policy)
        for key in FOLDER:
            client.put_object_acl(Bucket="first", Key=key, ACL="public-read")
        yield {"endpoint_url": client.meta.endpoint_url, "config": {"skip_signature": True}}


@pytest.mark.parametrize(("scheme", "server"), [("gs", "google"), ("az", "azure")])
def test_objects_of_another_provider_are_listed_and_read_here_and_in_workers_and_restored(scheme, server, request):
    options = request.getfixturevalue(server)
    expected = [(f"{scheme}://first/{key}", content) for key, content in sorted(FOLDER.items())]

    def build():
        pipe = S3FileLister([f"{scheme}://first/train/"], **options).sharding_filter()
        return pipe.load_files_by_s3(**options)

    assert check_restore(build, sockets=False) == expected
    with loader(build().map(read)) as workers:
        assert sorted(workers) == expected
    with pytest.raises(FileNotFoundError, match=rf"{scheme}://first/missing.*no such object"):
        list(S3FileLoader([f"{scheme}://first/missing"], **options))
