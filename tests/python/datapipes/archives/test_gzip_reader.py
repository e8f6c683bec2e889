"""The extension's reader of gzip streams, against Python's gzip module."""

from __future__ import annotations

import gzip
import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata._native import GzipReader


def inflated(reader: GzipReader) -> bytes:
    return b"".join(iter(reader.read, b""))


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(1, 50),
    st.integers(0, 9),
)
def test_members_and_zeros_between_them_are_read_whatever_the_pieces(
    members: list[bytes], zeros: int, piece: int, unread: int
) -> None:
    file = b"".join(gzip.compress(member) + bytes(zeros) for member in members)
    stream = io.BytesIO(file[unread:])
    reader = GzipReader(lambda size: stream.read(min(size, piece)), file[:unread])
    assert inflated(reader) == b"".join(members) == gzip.decompress(file)
    assert reader.read() == b""


def test_large_members_come_in_bounded_pieces() -> None:
    content = os.urandom(1 << 20) + bytes(50 << 20)
    pieces = list(iter(GzipReader(io.BytesIO(gzip.compress(content, 1)).read).read, b""))
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 256 << 10


WHOLE = gzip.compress(b"content" * 100, mtime=0)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (WHOLE[:-1], EOFError, "before its end-of-stream marker"),
        (WHOLE[:5], EOFError, "before its end-of-stream marker"),
        (b"", EOFError, "before its end-of-stream marker"),
        (WHOLE[:-5] + b"\0" + WHOLE[-4:], OSError, "no valid gzip stream"),
        (WHOLE + b"\x1fother bytes that look like a member", OSError, "no valid gzip stream"),
        (b"no gzip at all, but long enough", OSError, "no valid gzip stream"),
        (WHOLE[:20] + b"\xff\xff\xff\xff" + WHOLE[24:], OSError, "no valid gzip stream"),
    ],
)
def test_damage_is_an_error_behind_what_could_be_read(data: bytes, error: type[Exception], message: str) -> None:
    reader = GzipReader(io.BytesIO(data).read)
    with pytest.raises(error, match=message) as failure:
        inflated(reader)
    assert getattr(failure.value, "errno", None) is None
    ahead = GzipReader(io.BytesIO(WHOLE + data).read)
    assert ahead.read().startswith(b"content" * 100)


def test_what_follows_the_last_member_is_passed_over() -> None:
    assert inflated(GzipReader(io.BytesIO(WHOLE + bytes(9) + b"something else").read)) == b"content" * 100


def test_an_exception_of_the_stream_arrives_as_it_is() -> None:
    class Gone(Exception):
        pass

    def read(size: int) -> bytes:
        raise Gone("the wire is cut")

    with pytest.raises(Gone, match="the wire is cut"):
        GzipReader(read).read()
    with pytest.raises(TypeError, match="must give bytes.*str"):
        GzipReader(io.StringIO("text").read).read()  # type: ignore[arg-type]
