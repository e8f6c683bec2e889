"""`torchdata.images.decode` and `decode_batch` return the same pixels as Pillow, with and without simplejpeg."""

import io
import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from needing import needs

Image = pytest.importorskip("PIL.Image", reason="images are decoded by Pillow")
pytest.importorskip("simplejpeg", reason="the tests compare the decoders of simplejpeg and Pillow")
needs("sklearn", "the tests decode its sample photographs")

from PIL import ImageOps  # noqa: E402

import torchdata  # noqa: E402
import torchdata.images._pictures as pictures_module  # noqa: E402
from pictures import by_pillow, encoded, jpeg, photographs, pixels  # noqa: E402
from torchdata.images import decode, decode_batch, random_resized_crop  # noqa: E402

ONE_PIXEL = b"P5 1 1 255 7"
BOTH = pytest.mark.parametrize("library", ["simplejpeg", "Pillow"])


@pytest.fixture
def decoder(library: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if library == "Pillow":
        monkeypatch.setattr(pictures_module, "simplejpeg", lambda: None)
    return library


def no_pillow(*args: Any) -> Any:
    raise AssertionError("Pillow was used")


def differs(one: Any, other: Any) -> int:
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    return int(np.abs(one.astype(np.int32) - other).max(initial=0))


def test_hundreds_of_jpeg_files_are_decoded_bit_for_bit_as_pillow_does(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [jpeg(number) for number in range(420)]
    for content in contents[:140:2]:
        assert np.array_equal(decode(content, mode="L"), by_pillow(content, "L"))
    wanted = [by_pillow(content) for content in contents]
    monkeypatch.setattr(pictures_module._pillow, "opened", no_pillow)
    for content, expected in zip(contents, wanted, strict=True):
        assert np.array_equal(decode(content), expected)


@BOTH
def test_parts_are_resized_as_pillow_does_it_to_one_level(decoder: str) -> None:
    rng = random.Random(1)
    for number in range(120):
        content = jpeg(number)
        height, width = by_pillow(content).shape[:2]
        box = random_resized_crop(rng, width, height)
        size = rng.randint(1, 160), rng.randint(1, 160)
        for mode in ("RGB", "L"):
            assert np.array_equal(decode(content, crop=box, mode=mode), by_pillow(content, mode, box))
            found = decode(content, size, crop=box, mode=mode)
            assert differs(found, by_pillow(content, mode, box, size)) <= 1
            planar = decode(content, size, crop=box, mode=mode, layout="CHW", flip=True)
            assert np.array_equal(planar, found[:, ::-1].transpose(2, 0, 1))
            assert planar.flags.c_contiguous


def test_images_are_the_same_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [jpeg(number) for number in range(60)]
    ways: list[dict[str, Any]] = [{"size": (20, 31)}, {"size": 9, "scale": "fast"}, {"scale": "fast", "mode": "L"}]
    found = [[decode(content, **way) for way in ways] for content in contents]
    monkeypatch.setattr(pictures_module, "simplejpeg", lambda: None)
    for content, row in zip(contents, found, strict=True):
        for way, one in zip(ways, row, strict=True):
            assert np.array_equal(one, decode(content, **way)), way


@pytest.mark.parametrize("resample", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_every_filter_matches_pillow(resample: str) -> None:
    least = 1 if resample in ("bilinear", "hamming") else 0
    for number in range(30):
        content, size = jpeg(number), (40 - number, 10 + number)
        found = decode(content, size, resample=resample)
        assert differs(found, by_pillow(content, size=size, filter=resample.upper())) <= least


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_other_formats_are_decoded_by_pillow(format: str) -> None:
    for number in range(6):
        content = encoded(np.ascontiguousarray(pixels(number)), format)
        assert np.array_equal(decode(content), by_pillow(content))
        assert differs(decode(content, (17, 23)), by_pillow(content, size=(17, 23))) <= 1


def test_transparency_is_kept_by_rgba_and_resized_as_pillow_does() -> None:
    rng = np.random.default_rng(0)
    content = encoded(rng.integers(0, 256, (40, 30, 4), dtype=np.uint8), "PNG")
    assert np.array_equal(decode(content, mode="RGBA"), by_pillow(content, "RGBA"))
    assert np.array_equal(decode(content, (9, 8), mode="RGBA"), by_pillow(content, "RGBA", size=(9, 8)))
    assert np.array_equal(decode(content), by_pillow(content))
    mirrored = decode(content, (9, 8), mode="RGBA", layout="CHW", flip=True)
    assert np.array_equal(mirrored, by_pillow(content, "RGBA", size=(9, 8))[:, ::-1].transpose(2, 0, 1))
    assert np.array_equal(decode(jpeg(3), mode="RGBA"), by_pillow(jpeg(3), "RGBA"))


def test_16_bit_grey_images_keep_16_bits() -> None:
    grey = np.random.default_rng(0).integers(0, 65536, (20, 30), dtype=np.uint16)
    content = encoded(Image.fromarray(grey), "PNG")
    assert np.array_equal(decode(content, mode="I;16")[..., 0], grey)
    assert np.array_equal(decode(content, mode="I;16", crop=(3, 4, 10, 20))[..., 0], grey[4:20, 3:10])
    small = decode(content, (10, 15), mode="I;16")
    assert (small.shape, small.dtype) == ((10, 15, 1), np.uint16)
    assert abs(float(small.mean()) - grey.mean()) < 500
    assert np.array_equal(decode(content), by_pillow(content)), "8 bits of them are what Pillow says"
    with pytest.raises(ValueError, match=r"16 bits of grey, but the image has Pillow's mode 'RGB'"):
        decode(encoded(pixels(1), "PNG"), mode="I;16")


def test_cmyk_is_converted_by_pillow() -> None:
    for number in range(4):
        content = encoded(Image.fromarray(np.ascontiguousarray(pixels(number))).convert("CMYK"))
        assert np.array_equal(decode(content), by_pillow(content))
        assert np.array_equal(decode(content, scale="fast"), by_pillow(content))


@BOTH
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_rotated_upright_on_request(decoder: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(np.ascontiguousarray(photographs()[0][:120, :90]), exif=exif)
    with Image.open(io.BytesIO(content)) as image:
        upright = ImageOps.exif_transpose(image.convert("RGB"))
    expected = np.asarray(upright)
    assert np.array_equal(decode(content, exif=True), expected)
    assert np.array_equal(decode(content), by_pillow(content)), "by default, the orientation is ignored"
    box = (10, 20, expected.shape[1] - 5, expected.shape[0] - 7)
    small = np.asarray(upright.crop(box).resize((31, 40), Image.Resampling.BILINEAR))
    assert differs(decode(content, (40, 31), crop=box, exif=True), small) <= 1
    assert decode(content, (9, 8), exif=True, scale="fast").shape == (9, 8, 3)


@BOTH
def test_fast_decodes_at_a_fraction_that_is_no_smaller_than_the_result(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[Any] = []
    for cls in (pictures_module._Jpeg, pictures_module._Other):
        plain = cls.reduce

        def seen(self: Any, width: int, height: int, plain: Any = plain) -> int:
            factor: int = plain(self, width, height)
            sizes.append((self.height, self.width))
            return factor

        monkeypatch.setattr(cls, "reduce", seen)
    content = encoded(np.ascontiguousarray(photographs()[0]))  # 427 x 640 pixels
    for size, box, decoded in [
        (300, None, (427, 640)),
        (200, None, (214, 320)),
        ((107, 160), None, (107, 160)),
        (50, None, (54, 80)),
        (5, None, (54, 80)),
        (100, (100, 100, 300, 300), (214, 320)),
        (101, (100, 100, 300, 300), (427, 640)),
    ]:
        sizes.clear()
        found = decode(content, size, crop=box, scale="fast")
        assert sizes == [decoded]
        exact = decode(content, size, crop=box).astype(np.int32)
        mean = np.abs(found.astype(np.int32) - exact).mean()
        assert mean < 12
    assert decode(content, 300, scale="fast").shape == (300, 300, 3)
    png = encoded(photographs()[0], "PNG")
    assert np.array_equal(decode(png, 50, scale="fast"), decode(png, 50)), "only JPEG images are reduced early"


def test_bytes_paths_and_files_are_accepted(tmp_path: Path) -> None:
    content = jpeg(3)
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    expected = by_pillow(content)
    file = io.BytesIO(content)
    for data in (content, bytearray(content), memoryview(content), str(path), path, file, np.frombuffer(content, "u1")):
        assert np.array_equal(decode(data), expected)
    assert not file.closed
    with path.open("rb") as opened:
        assert np.array_equal(decode(opened), expected)


def test_arrays_are_writable_and_not_shared_with_other_code() -> None:
    first = decode(jpeg(3), 20)
    kept = first.copy()
    second = decode(jpeg(5), 20)
    assert np.array_equal(first, kept)
    assert not np.shares_memory(first, second)
    assert first.flags.writeable
    assert first.flags.c_contiguous


@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_result_is_created_in_the_shared_memory_that_sends_items(
    as_tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if as_tensor:
        pytest.importorskip("torch")
    made: list[Any] = []
    plain = torchdata.empty

    def empty(*args: Any) -> Any:
        made.append(plain(*args))
        return made[-1]

    monkeypatch.setattr(torchdata, "empty", empty)
    contents = [jpeg(3)] * 2
    found = [  # Assertions would keep references to their operands, so `found` is computed before.
        decode(contents[0], as_tensor=as_tensor) is made[0],
        decode(contents[0], 9, layout="CHW", as_tensor=as_tensor) is made[1],
        decode_batch(contents, 9, as_tensor=as_tensor) is made[2],
    ]
    kept = plain(1, "uint8")
    alone = [kept]
    holders = sys.getrefcount(alone[0]) - 1  # minus the reference that the list holds
    counts = [sys.getrefcount(made[number]) for number in range(3)]
    assert found == [True] * 3
    assert counts == [holders] * 3, "no further reference exists, so the result is sent without a copy"


def test_tensors_are_made_on_request() -> None:
    torch = pytest.importorskip("torch")
    content = jpeg(3)
    made = decode(content, (30, 40), layout="CHW", as_tensor=True)
    assert type(made) is torch.Tensor
    assert (tuple(made.shape), made.dtype) == ((3, 30, 40), torch.uint8)
    assert np.array_equal(made.numpy(), decode(content, (30, 40), layout="CHW"))
    batch = decode_batch([content] * 2, (30, 40), layout="CHW", as_tensor=True)
    assert np.array_equal(batch[1].numpy(), made.numpy())
    out = torch.zeros((2, 3, 30, 40), dtype=torch.uint8)
    assert decode_batch([content] * 2, (30, 40), out, layout="CHW") is out
    assert torch.equal(out, batch)


def test_the_crop_may_be_a_function_of_the_size() -> None:
    content = jpeg(9)
    asked = []

    def left_half(width: int, height: int) -> tuple[int, int, int, int]:
        asked.append((height, width))
        return 0, 0, max(1, width // 2), height

    half = decode(content, crop=left_half)
    assert [(*asked[0], 3)] == [decode(content).shape]
    assert np.array_equal(half, decode(content)[:, : half.shape[1]])


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_a_batch_is_the_same_with_any_number_of_threads(threads: int, layout: Any) -> None:
    contents = [jpeg(number) for number in range(20)]
    flips = [number % 2 == 0 for number in range(20)]
    crop = partial(random_resized_crop, random.Random(5))
    batch = decode_batch(contents, (40, 30), threads=threads, crop=crop, flip=flips, layout=layout)
    crop = partial(random_resized_crop, random.Random(5))
    for number, content in enumerate(contents):
        one = decode(content, (40, 30), crop=crop, flip=number % 2 == 0, layout=layout)
        assert np.array_equal(batch[number], one)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("torchdata-images")]
    out = np.zeros_like(batch)
    assert decode_batch(contents, (40, 30), out, threads, layout=layout) is out
    assert out.any()
    assert decode_batch([], 8, threads=threads).shape == (0, 8, 8, 3)


def test_images_are_decoded_in_many_threads_at_once() -> None:
    contents = [jpeg(number) for number in range(24)]
    expected = [decode(content, 30) for content in contents]
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda number: decode(contents[number % 24], 30), range(144))
        assert all(np.array_equal(one, expected[number % 24]) for number, one in enumerate(found))


@BOTH
def test_a_file_that_is_cut_off_raises_an_error_that_names_it_or_is_kept(decoder: str, tmp_path: Path) -> None:
    whole = encoded(np.ascontiguousarray(photographs()[1]))
    path = tmp_path / "cut.jpg"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.jpg'? cannot be decoded: .*truncated") as failure:
        decode(path)
    assert isinstance(failure.value.__cause__, OSError)
    kept = decode(path, truncated="keep")
    assert kept.shape == (427, 640, 3)
    assert np.array_equal(kept[:100], by_pillow(whole)[:100])
    png = encoded(photographs()[1], "PNG")
    kept = decode(png[: len(png) // 2], truncated="keep")
    assert np.array_equal(kept[:60], photographs()[1][:60])
    with pytest.raises(ValueError, match=r"cannot be decoded"):
        decode(png[: len(png) // 2])
    with pytest.raises(ValueError, match=r"cannot be decoded"):
        decode(whole[:100], truncated="keep")


@BOTH
def test_damaged_files_decode_as_in_pillow_or_raise_one_kind_of_error(decoder: str) -> None:
    rng = random.Random(3)
    refused = 0
    for number in range(90):
        damaged = bytearray(jpeg(number % 40) if number % 3 else encoded(np.ascontiguousarray(pixels(number)), "PNG"))
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        content = bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = by_pillow(content)
            except Exception:
                expected = None
            try:
                found = decode(content)
            except (ValueError, Image.DecompressionBombError):
                refused += 1
                assert expected is None
            else:
                assert expected is not None
                assert np.array_equal(found, expected)
    assert 0 < refused < 90


@BOTH
def test_pillows_limit_of_pixels_holds(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(np.ascontiguousarray(photographs()[0]))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 427 * 640 // 2 - 1)
    with pytest.raises(Image.DecompressionBombError, match=r"exceeds") as failure:
        decode(content)
    assert f"This happened while decoding an image of {len(content):,} bytes." in failure.value.__notes__
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 427 * 640 - 1)
    with pytest.warns(Image.DecompressionBombWarning, match=r"exceeds"):
        decode(content)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode(content).shape == (427, 640, 3)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (b"", {}, ValueError, "an image of 0 bytes cannot be decoded: it is empty"),
        (io.BytesIO(), {}, ValueError, "BytesIO'? cannot be decoded: it is empty"),
        (b"no image at all", {}, ValueError, "Pillow does not support its format"),
        (io.StringIO("text"), {}, TypeError, "open for reading bytes"),
        (5, {}, TypeError, "not as int"),
        ("/nowhere/a.jpg", {}, FileNotFoundError, "nowhere"),
        (ONE_PIXEL, {"size": 0}, ValueError, "size must be a positive integer"),
        (ONE_PIXEL, {"size": (1, 2, 3)}, ValueError, "size must be a positive integer"),
        (ONE_PIXEL, {"size": 1.5}, ValueError, "size must be a positive integer"),
        (ONE_PIXEL, {"mode": "HSV"}, ValueError, "mode must be one of 'RGB'"),
        (ONE_PIXEL, {"layout": "WHC"}, ValueError, "layout must be one of 'HWC', 'CHW'"),
        (ONE_PIXEL, {"scale": 2}, ValueError, "scale must be one of"),
        (ONE_PIXEL, {"resample": "cubic"}, ValueError, "resample must be one of"),
        (ONE_PIXEL, {"truncated": True}, ValueError, "truncated must be one of"),
        (ONE_PIXEL, {"crop": (0, 0, 2, 1)}, ValueError, "reaches beyond an image of 12 bytes, which has 1 x 1"),
        (ONE_PIXEL, {"crop": (0, 0, 0, 1)}, ValueError, "is empty"),
        (ONE_PIXEL, {"crop": (0, 0, 1)}, TypeError, "crop must be four integers"),
        (ONE_PIXEL, {"crop": (0, 0, 1, 0.5)}, TypeError, "crop must be four integers"),
    ],
)
def test_bad_input_raises_an_error_that_names_it(
    data: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        decode(data, **options)


def test_an_error_of_a_batch_names_the_bad_image_or_argument() -> None:
    whole = encoded(np.ascontiguousarray(photographs()[1]))
    for bad in (b"x", whole[:9000]):
        for threads in (0, 2):
            with pytest.raises(ValueError, match=r"cannot be decoded") as failure:
                decode_batch([whole, whole, bad, whole], 8, threads=threads)
            assert "decode_batch was decoding image 2 of the batch." in failure.value.__notes__
    for options, message in [
        ({"size": None}, "size is needed"),
        ({"size": 8, "threads": -1}, "threads must not be negative"),
        ({"size": 8, "flip": [True]}, "flip has 1 members for 2 images"),
        ({"size": 8, "out": np.zeros((2, 8, 8, 4), "u1")}, "out must be a writable uint8 array"),
        ({"size": 8, "out": np.zeros((2, 8, 8, 3), "f4")}, "out must be a writable uint8 array"),
        ({"size": 8, "out": np.zeros((2, 8, 16, 3), "u1")[:, :, ::2]}, "in C order"),
    ]:
        with pytest.raises(ValueError, match=message):
            decode_batch([whole] * 2, **options)  # type: ignore[arg-type]


def test_the_extension_refuses_arrays_that_are_not_images() -> None:
    from torchdata._native import resize_pixels

    image, out = np.zeros((4, 5, 3), np.uint8), np.zeros((2, 2, 3), np.uint8)
    region = (0, 0, 5, 4)
    for args, error in [
        ((image, (0, 0, 6, 4), "bilinear", out), ValueError),
        ((image, (0, 0, float("nan"), 4), "bilinear", out), ValueError),
        ((image, (-1, 0, 5, 4), "bilinear", out), ValueError),
        ((image, (2, 0, 2, 4), "bilinear", out), ValueError),
        ((image, region, "bicubic", out), ValueError),
        ((image, region, "bilinear", out[..., :1].copy()), BufferError),
        ((image[:, ::2], region, "bilinear", out), BufferError),
        ((image[0], region, "bilinear", out), BufferError),
        ((image, region, "bilinear", image), BufferError),
        ((image.repeat(2, 2), region, "bilinear", out.repeat(2, 2)), ValueError),
        ((image.astype("f4"), region, "bilinear", out), BufferError),
        ((image, region, "bilinear", bytes(12)), BufferError),
        ((np.zeros((0, 5, 3), np.uint8), region, "bilinear", out), BufferError),
    ]:
        with pytest.raises(error):
            resize_pixels(*args)
    assert sys.getrefcount(image) < 30, "the buffers were released"
