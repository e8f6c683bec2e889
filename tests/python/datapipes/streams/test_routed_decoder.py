"""RoutedDecoder decodes files with the handlers of `torchdata.datapipes.utils.decoder`."""

import io
import json
import pickle
from typing import Any

import numpy as np
import pytest

from refusals import refuses
from stream_checks import open_files
from torchdata.datapipes.iter import FileLister, IterableWrapper, RoutedDecoder
from torchdata.datapipes.utils import StreamWrapper
from torchdata.datapipes.utils.decoder import (
    Decoder,
    ImageHandler,
    basichandlers,
    extension_extract_fn,
    handle_extension,
    imagehandler,
)

Image = pytest.importorskip("PIL.Image")

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 14


def png(pixels: Any = PIXELS) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


CONTENT = {
    "a.txt": "é".encode(),
    "b.json": b'{"width": 3}',
    "c.cls": b" 7\n",
    "d.pickle": pickle.dumps({1, 2}),
    "e.xyz": b"\xff\xfe",
    "f.png": png(),
    "g.id": b"no number",
    "h.txt": b"",
}


@pytest.fixture
def folder(tmp_path: Any) -> str:
    for name, content in CONTENT.items():
        (tmp_path / name).write_bytes(content)
    return str(tmp_path)


def decoded(folder: str) -> dict[str, Any]:
    pipe = FileLister(folder).open_files(mode="b").routed_decode()
    return {path.rpartition("/")[2]: content for path, content in pipe}


@pytest.mark.usefixtures("no_torch")
def test_files_are_decoded_by_their_extension_and_closed(folder: str) -> None:
    before = open_files()
    found = decoded(folder)
    assert open_files() == before
    image = found.pop("f.png")
    assert (image.dtype, image.shape) == (np.float32, (3, 2, 3))
    np.testing.assert_array_equal(image, PIXELS.transpose(2, 0, 1).astype(np.float32) / 255)
    assert found == {
        "a.txt": "é", "b.json": {"width": 3}, "c.cls": 7, "d.pickle": {1, 2}, "e.xyz": b"\xff\xfe",
        "g.id": b"no number", "h.txt": "",
    }  # fmt: skip


def test_with_torch_loaded_images_are_tensors_as_torch_s_own_handlers_make_them(folder: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data.datapipes.utils import decoder as theirs

    found = decoded(folder)["f.png"]
    assert isinstance(found, torch.Tensor)
    handlers = theirs.basichandlers, theirs.imagehandler("torch")
    pairs, others = (FileLister(folder).open_files(mode="b").routed_decode(*chosen) for chosen in ((), handlers))
    for (path, content), (other_path, other) in zip(pairs, others, strict=True):
        assert path == other_path
        assert torch.equal(content, other) if isinstance(other, torch.Tensor) else content == other
    for spec in theirs.imagespecs.keys() - {"torchl", "torchl8"}:  # torch fails with these decoding specs.
        ours, other = imagehandler(spec)("PNG", png()), theirs.imagehandler(spec)("PNG", png())
        assert type(ours) is type(other)
        assert getattr(ours, "dtype", None) == getattr(other, "dtype", None)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(other))
    assert imagehandler("torchl")("png", png()).shape == (1, 2, 3)
    stream = io.BytesIO()
    torch.save({"x": torch.ones(2)}, stream)
    [(_, state)] = RoutedDecoder([("a.pt", stream.getvalue())])
    assert torch.equal(state["x"], torch.ones(2))


def test_an_image_with_a_huge_header_is_refused_with_its_path_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)
    with pytest.raises(Image.DecompressionBombError) as failure:
        list(RoutedDecoder([("a.png", png())]))
    message = "\n".join(failure.value.__notes__)
    assert "Set PIL.Image.MAX_IMAGE_PIXELS if you trust the file." in message
    assert "RoutedDecoder was decoding 'a.png'." in message
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert len(list(RoutedDecoder([("a.png", png())]))) == 1


@pytest.mark.parametrize(
    ("extension", "data", "expected"),
    [
        *((extension, b"text", "text") for extension in ("txt", "text", "transcript", "")),
        *((name, b"-3", -3) for name in ("cls", "cls2", "class", "count", "index", "inx", "id")),
        *((extension, json.dumps([1, None]).encode(), [1, None]) for extension in ("json", "jsn")),
        *((extension, pickle.dumps((1, 2)), (1, 2)) for extension in ("pyd", "pickle")),
        *((extension, b"text", None) for extension in ("tx", "on", "bin", "TXT")),
    ],
)
def test_basic_handlers_decode_these_extensions(extension: str, data: bytes, expected: Any) -> None:
    assert basichandlers(extension, data) == expected


def test_the_first_handler_that_returns_a_value_decodes() -> None:
    calls: list[str] = []

    def nothing(key: str, data: bytes) -> None:
        calls.append(key)

    pipe = RoutedDecoder([("x.txt", b"ab"), ("y.bin", b"cd")], nothing, basichandlers)
    pipe.add_handler(handle_extension("bin dat", bytes.hex))
    assert list(pipe) == [("x.txt", "ab"), ("y.bin", "6364")]
    assert calls == ["txt"]
    pipe.add_handler()
    assert len(pipe) == 2


def test_extensions_of_several_parts_are_compared_part_by_part() -> None:
    handler = handle_extension("seg.png TXT", lambda data: len(data))
    whole_name = RoutedDecoder([("1.Seg.png", b"abc"), ("1.png", b"abc"), ("1.txt", b"")], handler, key_fn=str)
    assert list(whole_name) == [("1.Seg.png", 3), ("1.png", b"abc"), ("1.txt", b"")]
    assert handler("txt", b"a") == 1
    assert pickle.loads(pickle.dumps(handle_extension("a", len)))("a", b"xy") == 2


def test_extensions_are_taken_from_the_path_s_last_part() -> None:
    assert [extension_extract_fn(path) for path in ("a.tar.gz", "a.b/c", ".hidden", "x.", "")] == ["gz", "", "", "", ""]
    assert list(RoutedDecoder([("_meta.cls", b"7"), ("", b"x")])) == [("_meta.cls", "7"), ("", "x")]


def test_an_error_in_a_handler_is_raised_unchanged_with_the_path_and_leaves_no_file_open() -> None:
    stream = StreamWrapper(io.BytesIO(b"{"))
    pipe = RoutedDecoder([("bad.json", stream)])
    with pytest.raises(json.JSONDecodeError) as failure:
        list(pipe)
    assert any("RoutedDecoder was decoding 'bad.json'" in note for note in failure.value.__notes__)
    with pytest.raises(Exception, match="cannot identify image"):
        list(RoutedDecoder([("bad.png", b"no image")]))


def test_a_stream_of_text_raises_a_type_error_and_closed() -> None:
    stream = io.StringIO("text")
    with pytest.raises(TypeError, match="binary mode") as failure:
        list(RoutedDecoder([("a.txt", stream)]))
    assert any("'a.txt'" in note for note in failure.value.__notes__)
    assert stream.closed


def test_a_decoder_decodes_pairs_into_a_dict() -> None:
    decoder = Decoder(basichandlers)
    assert decoder([("a.cls", b"1"), ("b.txt", io.BytesIO(b"x"))]) == {"a.cls": 1, "b.txt": "x"}
    assert decoder(None) == {}
    assert decoder(("a.cls", None)) == {"a.cls": None}


test_wrong_arguments_and_items_are_named = refuses(
    (lambda: RoutedDecoder([], "txt"), TypeError, "RoutedDecoder: handler 0 must be a function"),
    (lambda: RoutedDecoder([], key_fn=5), TypeError, "RoutedDecoder: key_fn must be a function"),
    (lambda: RoutedDecoder([]).add_handler(None), TypeError, "handler 0 must be a function"),
    (lambda: RoutedDecoder(5), TypeError, "RoutedDecoder: datapipe must be iterable"),
    (lambda: ImageHandler("cmyk"), AssertionError, "unknown image specification 'cmyk'"),
    (lambda: list(RoutedDecoder(["a.txt"])), TypeError, "RoutedDecoder expects pairs"),
)


class Planted:
    ran: list[str] = []  # noqa: RUF012

    def __reduce__(self) -> tuple[Any, ...]:
        return Planted.ran.append, ("code",)


def decoded_one(name: str, content: bytes, *handlers: Any, **options: Any) -> Any:
    ((_, found),) = IterableWrapper([(name, content)]).routed_decode(*handlers, **options)
    return found


@pytest.mark.parametrize(
    ("extension", "options", "environment"),
    [
        ("pickle", {"allow_pickle": False}, {}),
        ("pyd", {}, {"TORCHDATA_ALLOW_PICKLE": "0"}),
        ("pt", {"allow_pickle": True}, {"TORCHDATA_ALLOW_PICKLE": "0"}),
        ("pickle", {}, {"WDS_SECURE": "1"}),
    ],
)
def test_pickles_are_refused_by_the_argument_and_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, extension: str, options: dict[str, Any], environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ran = pickle.dumps(Planted())
    for handlers in ((), (basichandlers,)):
        with pytest.raises(ValueError, match=rf"a '{extension}' file is a pickle, .* refused by") as failure:
            decoded_one(f"a.{extension}", ran, *handlers, **options)
        assert f"RoutedDecoder was decoding 'a.{extension}'." in failure.value.__notes__
    pipe = IterableWrapper([(f"a.{extension}", ran)]).routed_decode(imagehandler("rgb8"), **options)
    pipe.add_handler(basichandlers)
    with pytest.raises(ValueError, match="is a pickle"):
        list(pipe)
    assert Planted.ran == []
    assert decoded_one("a.json", b"[1]", **options) == [1]
    mine = handle_extension(extension, lambda data: len(data))
    assert decoded_one(f"a.{extension}", ran, mine, **options) == len(ran), "a handler that the user passes is trusted"


def test_pickles_are_read_unless_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TORCHDATA_ALLOW_PICKLE", "1"), ("WDS_SECURE", "0")):
        monkeypatch.setenv(name, value)
    assert decoded_one("a.pickle", pickle.dumps([1]), allow_pickle=True) == [1]
    assert decoded_one("a.pyd", pickle.dumps([2])) == [2]
    with pytest.raises(TypeError, match="allow_pickle must be a bool or None, but got 'no'"):
        RoutedDecoder([], allow_pickle="no")  # type: ignore[arg-type]


def test_a_torch_file_is_read_with_weights_only() -> None:
    torch = pytest.importorskip("torch")
    stream = io.BytesIO()
    torch.save({"w": torch.ones(2)}, stream)
    assert decoded_one("a.pt", stream.getvalue())["w"].tolist() == [1, 1]
    stream = io.BytesIO()
    torch.save(Planted(), stream)
    with pytest.raises(pickle.UnpicklingError, match="weights_only|Weights only"):
        decoded_one("a.pt", stream.getvalue())
    assert Planted.ran == []


@pytest.mark.parametrize(
    ("name", "content"), [("a.json", b"[" * 200_000), ("a.json", b'{"a":' * 200_000), ("a.png", CONTENT["f.png"][:40])]
)
def test_invalid_content_raises_a_value_or_os_error_that_names_the_path(name: str, content: bytes) -> None:
    with pytest.raises((ValueError, OSError)) as failure:
        decoded_one(name, content)
    assert f"RoutedDecoder was decoding {name!r}." in failure.value.__notes__
