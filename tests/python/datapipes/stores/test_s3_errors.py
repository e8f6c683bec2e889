"""S3FileLister and S3FileLoader explain errors of URLs, servers, credentials and arguments."""

import contextlib
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from programs import output_of
from refusals import refuses
from s3_buckets import LARGE, NAMELESS, listed, serving, urls
from s3_server import fill, s3_server
from stream_checks import read
from torchdata.datapipes.iter import S3FileLister, S3FileLoader


@pytest.fixture(scope="module", autouse=True)
def client():
    with serving() as client:
        yield client


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_an_error_names_pipe_and_url_of_a_missing_object(make):
    name = make.__name__
    with pytest.raises(FileNotFoundError, match=rf"{name}.*s3://no-such-bucket/x.*no such bucket"):
        list(make(["s3://no-such-bucket/x"]))
    with pytest.raises(ValueError, match="no such bucket"):  # torchdata 0.9 also raises ValueError for these arguments.
        list(make(["s3://no-such-bucket/x"]))


def test_a_missing_object_raises_an_error_in_its_turn_and_the_loader_continues():
    source = ["s3://first/train/1.bin", "s3://first/train/missing", "s3://first/train/2.bin"]
    pipe = S3FileLoader(source)
    items = iter(pipe)
    assert read(next(items)) == (source[0], b"\x01")
    with pytest.raises(FileNotFoundError, match=r"S3FileLoader cannot read 's3://first/train/missing'.*no such object"):
        next(items)
    assert read(next(items)) == (source[2], b"\x02\x02")


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_a_url_that_is_not_s3_is_refused(make):
    for url in ("", "bucket/key", "s3://", "s3:///key", "http://bucket/key", "S3://b/k"):
        with pytest.raises(ValueError, match=rf"{make.__name__} expects URLs .* but got {re.escape(repr(url))}"):
            list(make([url]))
    with pytest.raises(TypeError, match=make.__name__):
        list(make([5]))
    with pytest.raises(ValueError, match="s3://bucket/key"):
        list(S3FileLoader(["s3://first/"]))


@pytest.mark.parametrize("key", NAMELESS)
def test_a_key_that_obstore_cannot_name_is_an_error_and_not_another_object(key):
    with pytest.raises(OSError, match=rf"S3FileLoader cannot read .*{re.escape(key.rpartition('/')[2])}.*'\.\.'"):
        list(S3FileLoader([f"s3://nameless/{key}"]))


@pytest.mark.parametrize("prefix", ["", "/", "train", "train/", "train//", "dots/.", "a"])
def test_a_listing_that_would_leave_a_key_out_raises_an_error(prefix):
    with pytest.raises(OSError, match=rf"S3FileLister cannot .*s3://nameless/{prefix}"):
        listed(f"s3://nameless/{prefix}")
    assert listed("s3://nameless/other/") == urls("nameless", "other/")


def test_a_key_whose_slash_obstore_removes_is_not_confused_with_another(client):
    for key in ("/a", "a", "b"):
        client.put_object(Bucket="vacant", Key=key, Body=b"x")
    try:
        with pytest.raises(OSError, match="S3FileLister cannot list .*begins or ends with a slash"):
            listed("s3://vacant")
        assert listed("s3://vacant/a") == ["s3://vacant/a"]
    finally:
        for key in ("/a", "a", "b"):
            client.delete_object(Bucket="vacant", Key=key)


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_a_server_that_never_answers_raises_an_error_after_the_time_out(make, silent):
    pipe = make(["s3://bucket/key"], request_timeout_ms=50, endpoint_url=silent)
    with pytest.raises(TimeoutError, match=rf"{make.__name__}.*s3://bucket/key.*{silent}.*50 ms.*request_timeout_ms"):
        list(pipe)


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_a_server_that_does_not_exist_is_an_error_that_names_it(make):
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(OSError, match=rf"{make.__name__}.*s3://bucket/key.*{nobody}"):
        list(make(["s3://bucket/key"], request_timeout_ms=100, endpoint_url=nobody))


@pytest.fixture
def stalling():
    head = (
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n"
        b'ETag: "x"\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n\r\nbegin'
    )
    taken = []

    def serve():
        with contextlib.suppress(OSError):  # the test closes the server's socket at the end
            while True:
                connection, _ = server.accept()
                connection.recv(65536)
                connection.sendall(head)
                taken.append(connection)

    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(120)
    for connection in taken:
        connection.close()


def test_a_server_that_stops_sending_within_an_object_raises_an_error(stalling):
    [(_, stream)] = S3FileLoader(["s3://bucket/key"], endpoint_url=stalling, request_timeout_ms=50)
    with pytest.raises(TimeoutError, match=r"S3FileLoader.*s3://bucket/key.*50 ms"):
        stream.read()


def test_a_server_that_ends_while_an_object_is_read_raises_an_error_and_others_are_read_afterwards():
    with s3_server() as other:
        client = fill(other, {"short": {"lived": LARGE}})
        client.close()
        [(_, stream)] = S3FileLoader(["s3://short/lived"], endpoint_url=other, request_timeout_ms=5000)
        assert stream.read(100) == LARGE[:100]
    with pytest.raises(OSError, match=r"S3FileLoader cannot read 's3://short/lived'"):
        stream.read()
    assert listed("s3://first") == urls("first")


@pytest.mark.parametrize("make", [S3FileLister, S3FileLoader])
def test_missing_credentials_are_an_error_that_names_the_variables(make, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(PermissionError, match=rf"{make.__name__}.*s3://first/train/1.bin.*AWS_ACCESS_KEY_ID"):
        list(make(["s3://first/train/1.bin"], region="eu-west-1"))


def test_objects_that_may_not_be_read_are_an_error_that_names_them(client):
    unsigned = {"config": {"skip_signature": True}}
    with pytest.raises(PermissionError, match=r"S3FileLoader.*s3://first/train/1.bin.*credentials"):
        list(S3FileLoader(["s3://first/train/1.bin"], **unsigned))
    client.put_object_acl(Bucket="first", Key="train/1.bin", ACL="public-read")
    assert read(next(iter(S3FileLoader(["s3://first/train/1.bin"], **unsigned))))[1] == b"\x01"


@pytest.fixture
def asked():
    seen = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<ListBucketResult/>")

        def log_message(self, *_):
            pass

    def ask(**options):
        assert listed("s3://first", endpoint_url=f"http://127.0.0.1:{server.server_port}", **options) == []
        headers = seen.pop()
        signed = re.search(r"Credential=(.*?)/\d+/(.*?)/", headers.get("Authorization", "")) or (None, None, None)
        return signed[1], signed[2], headers.get("x-amz-security-token")

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield ask
        server.shutdown()


@pytest.mark.parametrize("profile", [None, "other"])
def test_credentials_and_region_are_read_from_the_files_of_a_profile(profile, tmp_path, monkeypatch, asked):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    credentials, config = tmp_path / "credentials", tmp_path / "config"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    credentials.write_text(
        "[default]\naws_access_key_id = one\naws_secret_access_key = x%y\n"
        "[other]\naws_access_key_id = two\naws_secret_access_key = z\naws_session_token = t\n"
    )
    config.write_text("[default]\nregion = eu-north-1\n[profile other]\nregion = us-west-2\n")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    key, region, token = ("two", "us-west-2", "t") if profile else ("one", "eu-north-1", None)
    assert asked() == (key, region, token)
    assert asked(config={"skip_signature": True}) == (None, None, None)
    assert asked(region="us-east-2") == (key, "us-east-2", token)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from the environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert asked() == ("from the environment", region, None)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert asked() == ("from the environment", "eu-west-1", None)


def test_the_endpoint_is_taken_from_the_argument_before_the_environment(client, monkeypatch, silent):
    endpoint = client.meta.endpoint_url
    monkeypatch.setenv("AWS_ENDPOINT_URL", silent)
    assert listed("s3://first", endpoint_url=endpoint) == urls("first")
    assert listed("s3://first", config={"endpoint": endpoint}) == urls("first")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    assert listed("s3://first") == urls("first")


test_wrong_arguments_are_refused_by_the_constructor = refuses(
    (lambda: S3FileLister("s3://bucket"), TypeError, "S3FileLister.*wrap it"),
    (lambda: S3FileLister(5), TypeError, "S3FileLister"),
    (lambda: S3FileLister([], length=-2), ValueError, "S3FileLister: length"),
    (lambda: S3FileLister([], masks=5), TypeError, "S3FileLister: masks"),
    (lambda: S3FileLister([], region=None), TypeError, "S3FileLister: region"),
    (lambda: S3FileLister([], request_timeout_ms=0), ValueError, "S3FileLister: request_timeout_ms"),
    (lambda: S3FileLister([], request_timeout_ms=-2), ValueError, "S3FileLister: request_timeout_ms"),
    (lambda: S3FileLister([], endpoint_url="localhost:9000"), ValueError, "S3FileLister: endpoint_url.*http"),
    (lambda: S3FileLister([], config=["a"]), TypeError, "S3FileLister: config"),
    (lambda: S3FileLoader("s3://bucket/key"), TypeError, "S3FileLoader.*wrap it"),
    (lambda: S3FileLoader([], buffer_size=0), ValueError, "S3FileLoader: buffer_size"),
    (lambda: S3FileLoader([], buffer_size="1"), TypeError, "S3FileLoader: buffer_size"),
    (lambda: S3FileLoader([], request_timeout_ms="1"), TypeError, "S3FileLoader: request_timeout_ms"),
    (lambda: listed("s3://first", config={"nonsense": 1}), OSError, "S3FileLister.*nonsense"),
)


def test_building_the_pipes_imports_no_library():
    script = (
        "import sys; from torchdata.datapipes.iter import *; S3FileLister(['s3://b']).load_files_by_s3(); "
        "assert not {'obstore', 'concurrent.futures'} & sys.modules.keys()"
    )
    output_of(script, options=["-W", "error"])
