"""Secrets that a user passes to pipes in thirty different ways appear in no output of the package."""

import json
import os
import pickle
import traceback
import warnings
from functools import partial
from inspect import Parameter, Signature
from urllib.parse import quote

import pytest

from fresh_processes import SUPPORT, run_python
from torchdata._redacting import digest, is_private, is_secret, printable, redact_error, redacted, shown
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, describe
from torchdata.dataloader2.linter import lint
from torchdata.datapipes._pipe.graph.fingerprint import difference, fingerprint
from torchdata.datapipes._pipe.showing import graph_of_pipe, html_of_pipe
from torchdata.datapipes.iter import FSSpecFileOpener, HttpReader, IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.utils import StreamWrapper

_TOKEN = "q7Rk2vXb9LmT4wZp8NcY3sHd6GfJ1aQe"


def secret(number: int) -> str:
    shift = number % 26
    return _TOKEN[shift:] + _TOKEN[:shift] + f"{number}z"


#: Names of arguments that usually have secret values.
NAMES = (
    ["api_key", "apikey", "apiKey", "access_key", "account_key", "secret_access_key"]
    + ["aws_session_token", "token", "auth_token", "authToken", "password", "passwd", "pwd"]
    + ["db_password", "passphrase", "secret", "client_secret", "dsn", "login", "sas", "sas_token"]
    + ["signature", "sig", "credentials", "cookie", "bearer", "private_key", "connection_string", "jwt"]
    + ["authorization"]
)
assert len(NAMES) == 30


class Remote(IterDataPipe):
    def __init__(self, source, **arguments):
        self.source = source
        for name, value in arguments.items():
            setattr(self, name, value)

    def __iter__(self):
        yield from self.source


Remote.__init__.__signature__ = Signature(
    [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in ("self", "source", *NAMES, "plain")]
)


def fetch(item, *_, **__):
    return item


def planted() -> dict[str, str]:
    return {name: f"hunter{number}!" for number, name in enumerate(NAMES)}


def assert_hidden(text: str, secrets) -> None:
    found = [one for one in secrets if one in text or quote(one, safe="") in text]
    assert not found, f"{found} in {text}"


def shown_of(pipe) -> str:
    graph = graph_of_pipe(pipe)
    state = DataLoader2(pipe).state_dict(with_pipe=False)
    return "\n".join(
        [str(pipe), repr(pipe), html_of_pipe(pipe), str(graph), repr(vars(graph))]
        + [json.dumps(fingerprint(pipe)), describe(state), repr(state), "\n".join(map(str, lint(pipe)))]
        + [repr([vars(node) for group in graph.groups for node in group.nodes])]
    )


@pytest.mark.filterwarnings("ignore")
def test_secrets_are_recognized_by_their_names_and_not_shown():
    secrets = planted()
    pipe = Remote(IterableWrapper(range(3)), **secrets, plain="visible").map(partial(fetch, api_key="hunter-p!"))
    text = shown_of(pipe)
    assert_hidden(text, [*secrets.values(), "hunter-p!"])
    assert "visible" in text


@pytest.mark.filterwarnings("ignore")
def test_secrets_without_a_name_are_recognized_by_their_format():
    tokens = [secret(number) for number in range(30)]
    known = ["AKIAIOSFODNN7EXAMPLE", "hf_abcdefghijklmnopqrstuvwxyz", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"]
    source = IterableWrapper(range(3))
    for token in [*tokens, *known]:
        source = source.map(partial(fetch, index=token))
    assert_hidden(shown_of(source), [*tokens, *known])


@pytest.mark.filterwarnings("ignore")
def test_secrets_in_urls_are_not_shown():
    urls = [f"https://user{n}:pw{n}!x@host/a?X-Amz-Signature=sig{n}x&id=7&blob={secret(n)}" for n in range(10)]
    secrets = [part for n in range(10) for part in (f"user{n}:", f"pw{n}!x", f"sig{n}x", secret(n))]
    for url in urls:
        assert "host/a" in redacted(url)
        assert "id=7" in redacted(url)
        pipe = Remote(IterableWrapper([url]), plain=url)
        assert_hidden(shown_of(pipe), secrets)
    assert_hidden(repr(StreamWrapper(None, name=urls[0])), secrets)


def raised_by(pipe) -> str:
    try:
        list(pipe)
    except Exception as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError("nothing was raised")


URL = "http://user7:pw7!x@127.0.0.1:9/a.tar?X-Amz-Signature=sig7x&blob=" + secret(7)
IN_URL = ["user7", "pw7!x", "sig7x", secret(7)]


def test_errors_of_http_and_fsspec_show_no_secret_of_their_urls():
    for url in (URL, URL.replace("http", "gopher"), "http://user7:pw7!x@[/a", b"\xff" + URL.encode()):
        assert_hidden(raised_by(HttpReader(IterableWrapper([url]), timeout=2)), IN_URL)
    assert_hidden(raised_by(FSSpecFileOpener(IterableWrapper([URL]))), IN_URL)
    assert_hidden(raised_by(FSSpecFileOpener(IterableWrapper([URL.replace("http", "nothing")]))), IN_URL)
    assert_hidden(raised_by(IterableWrapper([URL]).open_files()), IN_URL)
    assert_hidden(raised_by(IterableWrapper([URL]).list_files_by_s3()), IN_URL)


def test_warnings_of_what_is_skipped_show_no_secret():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(HttpReader(IterableWrapper([URL]), timeout=2, skip_on_error=True)) == []
    assert_hidden("\n".join(str(one.message) for one in caught), IN_URL)
    assert "skipping" in str(caught[-1].message)


def test_errors_of_workers_show_no_secret():
    with DataLoader2(
        HttpReader(IterableWrapper([URL]).sharding_filter(), timeout=2),
        reading_service=MultiProcessingReadingService(1),
    ) as loader:
        assert_hidden(raised_by(loader), IN_URL)


def test_errors_of_users_keep_their_messages():
    def fail(item):
        raise KeyError(URL)

    with pytest.raises(KeyError) as caught:
        list(IterableWrapper([1]).map(fail))
    assert caught.value.args == (URL,)


class Response:
    def __init__(self, real_url):
        self.real_url = real_url

    def _replace(self, real_url):
        return Response(real_url)


def test_errors_with_lazy_messages_are_redacted():
    class ClientError(Exception):
        __module__ = "aiohttp.client"

        def __init__(self, info):
            super().__init__(info)
            self.request_info = info

        def __str__(self):
            return f"403, url={self.request_info.real_url}"

    error = ClientError(Response(URL))
    redact_error(error)
    assert_hidden(str(error), IN_URL)
    assert "127.0.0.1" in str(error)


def test_an_attribute_that_cannot_be_pickled_is_not_printed():
    pipe = Remote(IterableWrapper([1]))

    class Client:
        def __repr__(self):
            return "Client(hunter2!)"

        def __reduce__(self):
            raise TypeError("no")

    pipe.api_key = Client()
    with pytest.raises(TypeError, match="'api_key'") as caught:
        DataLoader2(pipe).state_dict(with_pipe=True)
    assert "hunter2!" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_fingerprints_distinguish_secrets_in_every_process():
    def graph(value):
        return Remote(IterableWrapper([1]), password=value, plain=f"https://u:{value}@host/")

    mine, same, other = (fingerprint(graph(value)) for value in ("hunter2", "hunter2", "hunter3"))
    assert mine == same
    words = difference(mine, other, "here")
    assert "password=…" in words
    assert "hunter" not in json.dumps([mine, other]) + words
    state = DataLoader2(graph("hunter2")).state_dict(with_pipe=False)
    program = "import sys; sys.path[:0] = sys.argv[1:]; import json; import test_secrets as t; " + (
        "from torchdata.datapipes.iter import IterableWrapper;"
        "print(json.dumps(t.fingerprint(t.Remote(IterableWrapper([1]), password='hunter2', plain='https://u:hunter2@host/'))))"
    )
    done = run_python("-W", "ignore", "-c", program, os.path.dirname(__file__), SUPPORT)
    assert json.loads(done.stdout) == json.loads(state["pipeline"]["fingerprint"]), done.stderr
    assert pickle.dumps(state).count(b"hunter") == 0


def test_a_digest_has_too_few_digits_to_find_a_password_by():
    assert len(digest("password", "x")) == 4
    assert digest("password", "x") != digest("token", "x")


@pytest.mark.parametrize(
    "name",
    ["key", "fn", "batch_size", "pin_memory", "root", "masks", "buffer_size", "key_fn", "path", "column_names", "seed"]
    + ["length", "sort_key", "passes", "author", "designation", "pattern", "assignment"],
)
def test_ordinary_names_are_shown(name):
    assert not is_private(name)


@pytest.mark.parametrize(
    "text",
    ["train", "imagenet-train-{000000..001281}.tar", "/data/Train2017/images/part_00017_of_01024.parquet"]
    + ["0" * 40, "2026-11-25T13:30:00.000000", "s3://bucket/prefix/file-0001.tar", "IterDataPipeSerializationWrapper"]
    + ["the quick brown fox jumps over 13 lazy dogs", "resnet50-bottleneck-features-v2-final", ""],
)
def test_ordinary_values_are_shown(text):
    assert not is_secret(text)
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("HTTPSConnectionPool(host='h'): Max retries exceeded with url: /a?sig=abc (Caused by x)", "abc"),
        ("curl -H 'Authorization: Bearer abcdefgh123'", "abcdefgh123"),
        ("{'api_key': 'abc', 'n': 1}", "abc"),
        ("password=abc host=h", "abc"),
        ("zip://a.txt::https://u:abc@h/x.zip", "abc"),
        ("postgres://u:abc@h/db", "abc"),
        ("https://h/#access_token=abc&x=1", "abc"),
        ("s3://key:abc@bucket/x", "abc"),
    ],
)
def test_only_secrets_are_removed_from_texts_of_libraries(text, hidden):
    assert hidden not in redacted(text)
    assert redacted(text).startswith(text[:3])


def test_control_characters_are_escaped():
    text = "a\x1b]52;c;ZXZpbA==\x07b\x9b31mc\u202ed\r\nx"
    assert printable(text) == "a\\x1b]52;c;ZXZpbA==\\x07b\\x9b31mc\\u202ed\\x0d\\x0ax"
    assert printable("a\n\tb", lines=True) == "a\n\tb"
    assert shown("é\n") == "'é\\n'"


def test_map_pipes_show_no_data():
    pipe = SequenceWrapper(["hunter1!", "hunter2!"])
    assert_hidden(str(pipe), ["hunter1!", "hunter2!"])
