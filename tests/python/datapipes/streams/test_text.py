"""LineReader, CSVParser and CSVDictParser split text files into lines and rows."""

import csv
import io
import warnings
from functools import partial

import pytest

from stream_checks import check_restore
from torchdata.datapipes.iter import CSVDictParser, CSVParser, FileLister, IterableWrapper, LineReader
from torchdata.datapipes.iter.streams import text
from torchdata.datapipes.utils import StreamWrapper

TABLE = 'key,item\r\na,"1\r\n2"\r\n\r\nb,é\r\nc,3,extra\r\nd\r\n'


#: Contents of files with all kinds of line ends, characters of several bytes, and no newline at the end.
MIXED = ["one\r\ntwo\n\nthrяe\r四\r\r\nfive\n\r", "", "五\n", "no newline", "\n" * 3, "a\rb\rc\r\nd\n" * 3]
SKIPPING = {"skip_lines": 2, "strip_newline": False}


class TextRecipe:
    def __init__(self, path, **options):
        self.path, self.options = path, options

    def open(self):
        return open(self.path, **self.options)


def text_file(options, path):
    recipe = TextRecipe(path, **options)
    return path, StreamWrapper(recipe.open(), recipe=recipe)


def expected(stream, skip_lines=0, strip_newline=True):
    with stream.file_obj as file:
        lines = list(file)
    if lines and not skip_lines:
        lines[0] = lines[0].removeprefix("\ufeff")
    return [line.strip("\r\n") if strip_newline else line for line in lines[skip_lines:]]


def texts(*contents):
    return IterableWrapper([(f"file{i}", io.StringIO(text)) for i, text in enumerate(contents)])


def blobs(*contents):
    return IterableWrapper([(f"file{i}", io.BytesIO(data)) for i, data in enumerate(contents)])


@pytest.fixture
def folder(tmp_path):
    for number, content in enumerate([TABLE, "", "key,item\r\n", TABLE * 2]):
        (tmp_path / f"{number}.csv").write_bytes(content.encode())
    return str(tmp_path)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, [("file0", "one"), ("file0", "two"), ("file1", "three")]),
        ({"strip_newline": False}, [("file0", "one\r\n"), ("file0", "two"), ("file1", "three\n")]),
        ({"return_path": False}, ["one", "two", "three"]),
        ({"skip_lines": 1}, [("file0", "two")]),
        ({"skip_lines": 5}, []),
    ],
)
def test_the_options_determine_how_lines_are_yielded(options, lines):
    assert list(texts("one\r\ntwo", "three\n").readlines(**options)) == lines


def test_lines_of_bytes_are_decoded_on_demand():
    data = "é\nb\n".encode()
    assert list(blobs(data).readlines(return_path=False)) == ["é".encode(), b"b"]
    assert list(blobs(data).readlines(return_path=False, decode=True)) == ["é", "b"]
    assert list(blobs(b"\xe9\n").readlines(return_path=False, decode=True, encoding="latin-1")) == ["é"]


def test_with_errors_ignore_bytes_are_left_out_with_one_warning(monkeypatch):
    monkeypatch.setattr(text, "_reported", False)
    for _ in range(2):  # With the filter "error", Python raises the warning each time.
        with pytest.raises(UserWarning, match="left out"):
            list(blobs(b"a\xffb\n").parse_csv())
    monkeypatch.setattr(text, "_reported", False)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        lines = list(blobs(b"a\xffb\nc\xe9\n", b"\xfe\n").readlines(decode=True, return_path=False))
        rows = list(blobs(b"a,\xffb\n").parse_csv())
    assert (lines, rows) == (["ab", "c", ""], [["a", "b"]])
    [warning] = shown
    assert r"bytes that are not utf-8 were left out of b'a\xffb'" in str(warning.message)
    assert "errors='strict'" in str(warning.message)
    assert list(blobs(b"a\xffb\n").readlines(decode=True, errors="replace")) == [("file0", "a\ufffdb")]


@pytest.mark.parametrize(
    ("encoding", "mode"), [("utf-8", "b"), ("utf-8-sig", "t"), ("utf-16", "b"), ("utf-16-le", "t"), ("utf-32", "b")]
)
def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path, encoding, mode):
    content = "\ufeff" + TABLE if encoding in ("utf-8", "utf-16-le") else TABLE
    (tmp_path / "a.csv").write_bytes(content.encode(encoding))
    options = {} if mode == "t" else {"decode": True, "encoding": encoding}

    def files():
        return FileLister(str(tmp_path)).open_files(mode=mode, encoding=encoding if mode == "t" else None)

    cell = "1\r\n2" if mode == "b" else "1\n2"
    assert list(files().parse_csv(**options)) == [
        ["key", "item"],
        ["a", cell],
        [],
        ["b", "é"],
        ["c", "3", "extra"],
        ["d"],
    ]
    assert next(iter(files().parse_csv_as_dict(**options))).keys() == {"key", "item"}
    assert list(files().readlines(return_path=False, **options)) == TABLE.splitlines()
    check_restore(lambda: files().parse_csv(**options))
    check_restore(lambda: files().readlines(skip_lines=1, strip_newline=mode == "t", **options))


def test_a_file_with_only_a_byte_order_mark_has_no_rows():
    assert list(blobs(b"\xef\xbb\xbf").parse_csv()) == []
    assert list(blobs(b"\xef\xbb\xbf").readlines(decode=True)) == []
    assert list(blobs(b"\xef\xbb\xbfa\n").readlines(return_path=False)) == [b"\xef\xbb\xbfa"]


def test_lines_of_utf_16_are_cut_where_their_text_ends():
    odd = "\u0a0a\u0d0aone\n\u010a two\n"  # In this encoding, some characters contain the byte of a newline.
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        files = blobs(odd.encode(encoding))
        lines = files.readlines(decode=True, encoding=encoding, return_path=False, strip_newline=False)
        assert list(lines) == ["\u0a0a\u0d0aone\n", "\u010a two\n"]
    with pytest.raises(UnicodeDecodeError, match="of 'file0'"):
        list(blobs("a\n".encode("utf-16") + b"x").parse_csv(encoding="utf-16", errors="strict"))


@pytest.mark.parametrize("make", ["readlines", "parse_csv", "parse_csv_as_dict"])
def test_a_strict_decoding_error_names_path_and_line(make):
    with pytest.raises(UnicodeDecodeError, match=r"after line [12] of 'file0'.*errors='replace'"):
        list(getattr(blobs(b"one\ntwo\na\xffb\n"), make)(decode=True, errors="strict"))


@pytest.mark.parametrize("newline", [None, "", "\n", "\r", "\r\n"])
@pytest.mark.parametrize(
    ("encoding", "options"),
    [("utf-8", {}), ("utf-16", SKIPPING), ("shift_jis", {}), ("iso2022_jp", SKIPPING), ("utf-8", SKIPPING)],
)
def test_each_line_of_a_text_file_is_restored(tmp_path, newline, encoding, options):
    for number, content in enumerate(MIXED):
        (tmp_path / f"{number}.txt").write_bytes(content.encode(encoding))
    paths = sorted(map(str, tmp_path.iterdir()))
    opened = partial(text_file, {"encoding": encoding, "newline": newline})
    lines = check_restore(lambda: IterableWrapper(paths).map(opened).readlines(**{**options, "return_path": False}))
    assert lines == [line for path in paths for line in expected(opened(path)[1], **options)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "shift_jis"])
@pytest.mark.parametrize("options", [{}, SKIPPING])
def test_each_line_of_bytes_is_restored(tmp_path, encoding, options):
    for number, content in enumerate(MIXED):
        (tmp_path / f"{number}.txt").write_bytes(content.encode(encoding))
    reads = {"decode": True, "encoding": encoding, **options}
    paths = sorted(map(str, tmp_path.iterdir()))
    lines = check_restore(lambda: IterableWrapper(paths).open_files(mode="b").readlines(**reads, return_path=False))
    opened = partial(text_file, {"encoding": encoding, "newline": "\n"})
    assert lines == [line for path in paths for line in expected(opened(path)[1], **options)]


@pytest.mark.parametrize("mode", ["b", "t"])
@pytest.mark.parametrize("errors", [None, "replace", "ignore"])
def test_each_line_of_a_file_with_invalid_bytes_is_restored(tmp_path, mode, errors):
    (tmp_path / "bad.txt").write_bytes(b"one\ntw\xffo\r\n\xe2\x82\nthree\xf0\n" * 3)
    options = {"encoding": "utf-8", "errors": errors or "ignore"} if mode == "t" else {"mode": "rb"}
    files = [str(tmp_path / "bad.txt")] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = check_restore(
            lambda: IterableWrapper(files).map(partial(text_file, options)).readlines(decode=True, errors=errors)
        )
    mark = "\ufffd" if errors == "replace" else ""
    assert [line for _, line in lines] == ["one", f"tw{mark}o", mark, f"three{mark}"] * 6


def test_rows_are_lists_or_tuples_with_or_without_path():
    assert list(texts("a,1\nb,2").parse_csv()) == [["a", "1"], ["b", "2"]]
    assert list(texts("a,1").parse_csv(as_tuple=True)) == [("a", "1")]
    assert list(texts("a,1").parse_csv(return_path=True)) == [("file0", ["a", "1"])]
    assert list(blobs(b"a;1").parse_csv(delimiter=";")) == [["a", "1"]]


def test_rows_as_dicts_take_each_file_s_first_row_as_keys():
    rows = list(texts("key,item\na,1\n", "item,key\n2,b\n").parse_csv_as_dict())
    assert rows == [{"key": "a", "item": "1"}, {"item": "2", "key": "b"}]
    assert list(texts("# note\nk\nv\n").parse_csv_as_dict(skip_lines=1)) == [{"k": "v"}]


def test_unbalanced_quotes_swallow_the_rest_or_are_an_error_in_strict_mode():
    text = 'a,1\n"b,2\nc,3\n'
    assert list(texts(text).parse_csv()) == [["a", "1"], ["b,2\nc,3\n"]]
    with pytest.raises(csv.Error, match=r"file0.*line 3: unexpected end of data"):
        list(texts(text).parse_csv(strict=True))


def test_rows_of_bytes_that_are_not_decoded_are_an_error_that_names_the_path():
    with pytest.raises(csv.Error, match=r"'file0', line .*bytes"):
        list(blobs(b"a,1\n").parse_csv(decode=False))


def test_a_field_over_the_limit_names_path_and_line():
    with pytest.raises(csv.Error, match=r"'file0', line 2: field larger than"):
        list(texts("a\n" + "x" * (csv.field_size_limit() + 1)).parse_csv())


def test_streams_are_closed_when_they_are_read_and_when_reading_is_abandoned():
    streams = [StreamWrapper(io.StringIO("1\n2\n")) for _ in range(2)]
    lines = iter(IterableWrapper([(str(i), stream) for i, stream in enumerate(streams)], deepcopy=False).readlines())
    for _ in range(3):
        next(lines)
    assert streams[0].closed
    assert not streams[1].closed
    del lines
    assert streams[1].closed


@pytest.mark.parametrize("kind", [LineReader, CSVParser, CSVDictParser])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"skip_lines": -1}, ValueError, "skip_lines"),
        ({"skip_lines": "1"}, TypeError, "skip_lines"),
        ({"encoding": "utf-99"}, ValueError, "encoding.*utf-99"),
        ({"errors": "explode"}, ValueError, "errors.*explode"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_wrong_options_are_refused_by_the_constructor(kind, options, error, message):
    with pytest.raises(error, match=message):
        kind(texts("a"), **options)
