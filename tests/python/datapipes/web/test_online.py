"""HttpReader, GDriveReader and OnlineReader read from a local server, and explain the server's errors."""

import base64
import os
import pickle
import time

import pytest
import requests

from process_checks import MULTIPROCESSING, loader, nothing_is_left  # noqa: F401
from stream_checks import open_files
from torchdata.datapipes.iter import GDriveReader, HttpReader, IterableWrapper, OnlineReader
from torchdata.datapipes.iter.web import client as _http
from torchdata.datapipes.iter.web import gdrive as _gdrive

READERS = [HttpReader, GDriveReader, OnlineReader]


def opened(reader, *urls, **options):
    return [(title, stream.read()) for title, stream in reader(IterableWrapper(urls), **options)]


def test_urls_become_pairs_of_url_and_stream_in_order(web):
    urls = [web.url(f"{number}.txt", b"content %d" % number) for number in range(3)]
    assert opened(HttpReader, *urls) == [(url, b"content %d" % n) for n, url in enumerate(urls)]
    assert [url for url, _ in IterableWrapper(urls).read_from_http(5, False)] == urls
    assert opened(OnlineReader, urls[0].encode()) == [(urls[0].encode(), b"content 0")]


@pytest.mark.parametrize(
    "query", [{"chunked": 1}, {"endless": 1}, {"gzip": 1}, {"gzip": 1, "chunked": 1}, {"redirect": "/a"}], ids=str
)
def test_transfer_and_redirects_do_not_show(web, query):
    content = bytes(range(256)) * 1000
    web.url("a", content)
    [(url, stream)] = HttpReader([web.url("a", **query)])
    assert url == web.url("a", **query)
    assert stream.read(100_000) + stream.read() == content
    assert stream.status == 200


def test_the_server_is_asked_not_to_compress_unless_the_user_wants_it(web):
    url = web.url("a", b"x")
    opened(HttpReader, url)
    opened(HttpReader, url, headers={"accept-encoding": "gzip"})
    assert [request["Accept-Encoding"] for request in web.requests()] == ["identity", "gzip"]


def test_options_are_passed_on_to_requests(web):
    url = web.url("a", b"x")
    opened(HttpReader, url, auth=("name", "secret"), headers={"X-Kind": "test"}, params={"page": 3})
    [request] = web.requests()
    assert base64.b64decode(request["Authorization"].split()[1]) == b"name:secret"
    assert (request["X-Kind"], request["path"]) == ("test", "/a?page=3")
    moved = web.url("a", redirect="/a")
    assert opened(HttpReader, moved, allow_redirects=False) == [(moved, b"")]


def test_a_stream_can_be_read_before_its_body_is_complete(web):
    url = web.url("a", b"first line\nsecond", wait="go", after=11)
    [(_, stream)] = HttpReader([url])
    assert stream.readline() == b"first line\n"
    web.url("go", b"")
    assert stream.read() == b"second"


def test_connections_are_used_again_and_closed_with_the_iteration(web):
    urls = [web.url(str(number), b"x" * 100_000, **({"hangup": 1} if number == 2 else {})) for number in range(4)]
    before = open_files()
    pipe = HttpReader(urls)
    assert [len(stream.read()) for _, stream in pipe] == [100_000] * 4
    assert open_files() == before
    ports = [request["peer"] for request in web.requests()]
    assert ports[0] == ports[1] == ports[2] != ports[3], "a request is repeated after a closed connection"


def test_streams_outlive_the_iteration_that_opened_them(web):
    before = open_files()
    urls = [web.url(str(number), b"x" * 1_000_000) for number in range(3)]
    pairs = list(HttpReader(urls))
    assert open_files() == before + 3
    assert [len(stream.read()) for _, stream in pairs] == [1_000_000] * 3
    pairs[0][1].close()
    assert open_files() == before


def test_connections_that_a_parent_opened_are_left_to_it(monkeypatch):
    with _http.Connections(_http.Retrying("HttpReader", 3)) as connections:
        first = connections.session().get_adapter("http://x")
        assert connections.session().get_adapter("http://x") is first
        monkeypatch.setattr(os, "getpid", lambda: 1)
        assert connections.session().get_adapter("http://x") is not first


@pytest.mark.parametrize(("query", "message"), [({}, "404 Client Error"), ({"status": 500}, "500 Server Error")])
def test_an_error_response_names_pipe_and_url(web, query, message):
    before, url = open_files(), web.url("nothing", **query)
    for reader, link in ((HttpReader, url), (GDriveReader, web.root + "/uc?export=download&id=missing")):
        with pytest.raises(requests.HTTPError, match=rf"{reader.__name__} cannot open '{web.root}") as failure:
            opened(reader, link)
        assert (message if reader is HttpReader else "404") in str(failure.value)
        assert failure.value.response.status_code == (query.get("status", 404) if reader is HttpReader else 404)
        assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value)
        del failure
    assert open_files() == before
    with pytest.raises(requests.ConnectionError, match=r"HttpReader cannot open 'http://127.0.0.1:1/x'"):
        opened(HttpReader, "http://127.0.0.1:1/x")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("ftp://host/file", requests.exceptions.InvalidSchema, "ftp://host/file"),
        ("/a/path", requests.exceptions.MissingSchema, "/a/path"),
        (5, requests.exceptions.MissingSchema, "5 of type int"),
        ("http://[::1/x", requests.exceptions.InvalidURL, "Invalid IPv6"),
        ("http://", requests.exceptions.InvalidURL, "http://"),
    ],
)
def test_a_url_that_is_not_http_raises_a_value_error(reader, url, error, message):
    with pytest.raises(error) as failure:
        list(reader([url]))
    assert isinstance(failure.value, ValueError)
    assert reader.__name__ in str(failure.value)
    assert message in str(failure.value)


def test_a_server_that_never_answers_raises_a_timeout(web, monkeypatch):
    url = web.url("a", b"x" * 10, wait="never")
    with pytest.raises(requests.Timeout, match=r"HttpReader cannot open 'http.*0.2 s of silence"):
        opened(HttpReader, url, timeout=0.2)
    with pytest.raises(requests.Timeout, match=r"30 s to connect and 0.1 s of silence"):
        opened(HttpReader, url, timeout=(30, 0.1))
    assert all(limit is not None for limit in _http.checked_timeout("HttpReader", None))
    assert _http.checked_timeout("HttpReader", float("inf")) == (None, None), "an endless wait must be requested"
    monkeypatch.setattr(_http, "DEFAULT_TIMEOUT", (0.3, 0.3))
    with pytest.raises(requests.Timeout, match="raise it"):
        opened(HttpReader, url)


@pytest.mark.parametrize("reader", [HttpReader, OnlineReader])
def test_urls_that_cannot_be_opened_are_skipped_with_a_warning_that_names_them(web, reader):
    before = open_files()
    good = [web.url(str(number), b"%d" % number) for number in range(3)]
    bad = [web.url("nothing"), "no URL", web.url("0", wait="never"), "http://127.0.0.1:1/x"]
    pipe = reader([bad[0], good[0], bad[1], bad[2], good[1], good[2], bad[3]], skip_on_error=True, timeout=0.3)
    for _ in range(2):
        with pytest.warns(UserWarning, match="skipping") as warned:
            assert [(url, stream.read()) for url, stream in pipe] == [(u, b"%d" % n) for n, u in enumerate(good)]
        messages = [str(warning.message) for warning in warned]
        assert all(url in message and reader.__name__ in message for url, message in zip(bad, messages, strict=True))
        assert all(message.endswith(", skipping...") for message in messages)
    assert open_files() == before


def test_a_source_that_raises_is_not_mistaken_for_a_url_that_cannot_be_opened(web):
    def urls():
        yield web.url("a", b"x")
        raise KeyError("the source")

    items = iter(HttpReader(IterableWrapper(urls(), deepcopy=False), skip_on_error=True))
    next(items)
    with pytest.raises(KeyError, match="the source"):
        next(items)


def test_len_is_the_length_of_the_source():
    for reader in READERS:
        assert len(reader(["http://a", "http://b"])) == 2
        with pytest.raises(TypeError, match=f"{reader.__name__} instance doesn't have valid length"):
            len(reader(IterableWrapper([]).filter(bool)))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (5, {}, TypeError, "source_datapipe"),
        ("http://a", {}, TypeError, "wrap it"),
        ([], {"timeout": 0}, ValueError, "timeout must be positive"),
        ([], {"timeout": (1, -1)}, ValueError, "timeout must be positive"),
        ([], {"timeout": float("nan")}, ValueError, "timeout must be positive"),
        ([], {"timeout": "1"}, TypeError, "timeout must be seconds"),
        ([], {"timeout": True}, TypeError, "timeout must be seconds"),
        ([], {"nonsense": 1}, TypeError, "nonsense cannot be passed to requests"),
        ([], {"stream": False}, TypeError, "stream cannot be passed to requests"),
    ],
)
def test_wrong_arguments_are_refused_by_the_constructor(reader, source, options, error, message):
    with pytest.raises(error, match=rf"{reader.__name__}.*{message}"):
        reader(source, **options)


@pytest.mark.parametrize("id_", ["plain", "form", "title", "cookie", "elsewhere", "encoded"])
def test_a_file_of_google_drive_is_read_with_its_name_after_the_warning_pages(web, id_):
    link = web.drive(id_, b"content of " + id_.encode())
    name = {"encoded": "été"}.get(id_, id_)
    assert opened(GDriveReader, link) == [(f"{name}.txt", b"content of " + id_.encode())]
    assert len(web.requests()) == (1 if id_ in ("plain", "encoded") else 2)


@pytest.mark.parametrize(
    "path",
    [
        "/file/d/plain/view?usp=sharing",
        "/file/d/plain",
        "/a/example.org/file/d/plain/edit",
        "/file/u/1/d/plain/view",
        "/open?id=plain",
        "/uc?id=plain",
        "/uc?id=plain&export=download",
    ],
)
def test_links_to_drive_files_of_all_kinds_lead_to_the_download(web, path):
    web.url("plain", b"x")
    assert opened(GDriveReader, web.root + path) == [("plain.txt", b"x")]
    assert web.requests()[0]["path"].startswith("/uc?")


def test_a_resource_key_is_kept_and_other_urls_are_unchanged():
    link = "https://drive.google.com/file/d/AbC/view?resourcekey=0-x_y&usp=sharing"
    assert _gdrive.download_url(link) == "https://drive.google.com/uc?export=download&id=AbC&resourcekey=0-x_y"
    for other in ("https://drive.google.com/uc?export=download&id=A&confirm=t", "https://docs.google.com/x/d/A/edit"):
        assert _gdrive.download_url(other) == other


@pytest.mark.parametrize(
    ("id_", "message"),
    [("quota", "quota was exceeded"), ("view", "a page instead of a file"), ("unnamed", "no file name")],
)
def test_an_error_explains_why_a_drive_file_is_unavailable(web, id_, message):
    before, link = open_files(), web.drive(id_, b"x")
    with pytest.raises(RuntimeError, match=rf"GDriveReader.*{message}") as failure:
        opened(GDriveReader, link)
    assert link in str(failure.value)
    with pytest.warns(UserWarning, match=message):
        assert opened(GDriveReader, link, skip_on_error=True) == []
    del failure
    assert open_files() == before


def test_only_the_last_part_of_a_server_s_file_name_is_used():
    class Response:
        headers: dict[str, str] = {}  # noqa: RUF012

    client, response = _gdrive.DriveClient("GDriveReader", None, _http.Retrying("GDriveReader", 3), {}), Response()
    for text, name in {
        'attachment; filename="../../.ssh/authorized_keys"': "authorized_keys",
        'attachment; filename="/etc/passwd"': "passwd",
        'attachment; filename="..\\..\\a.exe"': "a.exe",
        'attachment; filename="C:\\\\a.tar"': "a.tar",
        "attachment; filename*=UTF-8''..%2F..%2Fb.tar": "b.tar",
    }.items():
        response.headers = {"content-disposition": text}
        assert client.title("link", response) == name
    for text in ('filename=".."', 'filename="a/"', 'filename="."', "filename*=UTF-8''a%00b", "filename*=UTF-8''%2E%2E"):
        response.headers = {"content-disposition": f"attachment; {text}"}
        with pytest.raises(RuntimeError, match="GDriveReader found no file name in the response to .*'link'"):
            client.title("link", response)


def test_a_page_of_a_hostile_server_costs_no_more_than_a_page_of_drive():
    from torchdata.datapipes.iter.web.gdrive_page import Page

    size, began = _gdrive._LARGEST_PAGE, time.process_time()
    for piece in ("<title>Google Drive - ", "<", "<!--", "<a ", "</", "<![if x", "&#", "<?", '<a b="'):
        assert Page((piece * size)[:size]).action is None
    assert time.process_time() - began < 30, "parsing 1 MiB took too long"


def test_only_forms_of_google_receive_the_user_s_settings():
    page = "https://drive.google.com/uc?id=x"
    for target in ("https://drive.usercontent.google.com/download", "https://drive.google.com/uc"):
        assert _gdrive._trusted(target, page)
    for target in ("http://drive.google.com/uc", "https://evilgoogle.com/uc", "https://elsewhere.invalid/"):
        assert not _gdrive._trusted(target, page)


def test_the_online_reader_chooses_by_host(web, monkeypatch):
    monkeypatch.setattr("torchdata.datapipes.iter.web.online.HOSTS", frozenset({"localhost"}))
    link = web.drive("plain", b"x").replace("127.0.0.1", "localhost")
    url = web.url("plain")
    assert opened(OnlineReader, link, url) == [("plain.txt", b"x"), (url, b"x")]
    assert opened(OnlineReader, web.drive("plain", b"x"))[0][0] != "plain.txt"


def test_hosts_of_google_drive_are_compared_whole():
    pipe = OnlineReader([])
    drive = [f"https://{host}/uc?id=x" for host in ("drive.google.com", "DOCS.google.com:443", "u:p@drive.google.com")]
    other = [f"https://{host}/uc" for host in ("google.com", "drive.google.com.evil.org", "xdrive.google.com")]
    assert all(isinstance(pipe._client(url), _gdrive.DriveClient) for url in drive)
    assert not any(isinstance(pipe._client(url), _gdrive.DriveClient) for url in other)


def test_a_pipe_can_be_pickled_with_its_source(web):
    pipe = pickle.loads(pickle.dumps(HttpReader([web.url("a", b"x")], headers={"X-Kind": "test"})))
    assert [stream.read() for _, stream in pipe] == [b"x"]


def test_a_function_that_old_code_patches_in_for_proxies_is_called(web, monkeypatch):
    url = web.url("a", b"x")
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setattr("torchdata.datapipes.iter.load.online._get_proxies", lambda: {"http": "http://127.0.0.1:9/"})
    with pytest.raises(requests.exceptions.ProxyError):
        opened(HttpReader, url)
    assert opened(HttpReader, url, proxies={"http": None}) == [(url, b"x")]
