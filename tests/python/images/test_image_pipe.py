"""`.decode_image()` decodes the images in items. The loader's seed determines its random crops and flips."""

import io
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from needing import needs

pytest.importorskip("PIL.Image", reason="images are decoded by Pillow")
pytest.importorskip("simplejpeg", reason="simplejpeg writes the JPEG files of the tests")
needs("sklearn", "the tests decode its sample photographs")

from pictures import jpeg  # noqa: E402
from resuming import begun, check_resumes, epochs_of  # noqa: E402
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService  # noqa: E402
from torchdata.datapipes.iter import IterableWrapper  # noqa: E402
from torchdata.datapipes.state import load_state, save_state  # noqa: E402
from torchdata.images import center_crop, decode, random_resized_crop  # noqa: E402

COUNT = 24


def numbered() -> IterableWrapper[Any]:
    return IterableWrapper([(number, jpeg(number)) for number in range(COUNT)], deepcopy=False)


def augmented(sharded: bool = True, **options: Any) -> Any:
    pipe = numbered()
    pipe = pipe.shuffle().sharding_filter() if sharded else pipe
    return pipe.decode_image(16, crop="random", flip=0.5, input_col=1, **options)


@pytest.mark.filterwarnings("ignore:on_error has skipped:RuntimeWarning")
def test_broken_images_are_skipped_and_logged_by_name(tmp_path: Path) -> None:
    items = [(f"{number}.jpg", jpeg(number)) for number in range(4)]
    items[1] = ("1.jpg", items[1][1][:40])
    items[2] = ("2.jpg", b"no image")

    def build() -> Any:
        pipe = IterableWrapper(items, deepcopy=False).decode_image(9, input_col=1)
        return pipe.on_error("skip", log=tmp_path / "log")

    assert [name for name, _ in build()] == ["0.jpg", "3.jpg"]
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["item"], line["notes"][0]) for line in lines] == [
        (1, "ImageDecoder was decoding '1.jpg'."),
        (2, "ImageDecoder was decoding '2.jpg'."),
    ]
    pipe, other = build(), build()
    next(iter(pipe))
    load_state(other, save_state(pipe))
    assert [name for name, _ in other] == ["3.jpg"]


@pytest.mark.parametrize("flip", [0, 1])
def test_the_center_is_cropped_without_random_numbers(flip: float) -> None:
    content = jpeg(3)
    expected = decode(content, 9, crop=center_crop, flip=flip == 1)
    for _ in range(2):
        [pixels] = IterableWrapper([content]).decode_image(9, crop="center", flip=flip)
        assert (pixels == expected).all()
    with pytest.raises(ValueError, match="write crop='center'"):
        IterableWrapper([content]).decode_image(9, crop=center_crop)


def test_items_are_images_or_hold_one(tmp_path: Path) -> None:
    content = jpeg(3)
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    expected = decode(content, 9)
    [plain] = IterableWrapper([content]).decode_image(9)
    [by_path] = IterableWrapper([str(path)]).decode_image(9)
    [by_index] = IterableWrapper([("a", content, 7)]).decode_image(9, input_col=1)
    [by_key] = IterableWrapper([{"jpg": content}]).decode_image(9, input_col="jpg", output_col="image")
    [(_, of_stream)] = IterableWrapper([str(path)]).open_files("b").decode_image(9, input_col=1)
    for found in (plain, by_path, by_index[1], by_key["image"], of_stream):
        assert np.array_equal(found, expected)
    assert by_index[::2] == ("a", 7)
    assert by_key["jpg"] == content
    assert len(numbered().decode_image(input_col=1)) == COUNT


def test_a_stream_is_closed_even_after_an_error() -> None:
    for content in (jpeg(3), b"no image"):
        stream = io.BytesIO(content)
        pipe = IterableWrapper([("a.jpg", stream)], deepcopy=False).decode_image(9, input_col=1)
        if content == b"no image":
            with pytest.raises(ValueError, match="does not support its format") as failure:
                list(pipe)
            assert "ImageDecoder was decoding 'a.jpg'." in failure.value.__notes__
        else:
            list(pipe)
        assert stream.closed


def test_the_pipe_takes_the_arguments_of_decode() -> None:
    content = jpeg(9)
    half = partial(random_resized_crop, scale=(0.5, 0.5))
    [part] = IterableWrapper([content]).decode_image(crop=half).set_seed(1)
    whole = decode(content)
    assert 0.4 < part.size / whole.size < 0.6
    [box] = IterableWrapper([content]).decode_image(crop=(0, 0, 1, 1), mode="L", layout="CHW")
    assert np.array_equal(box, decode(content, crop=(0, 0, 1, 1), mode="L", layout="CHW"))
    [mirrored] = IterableWrapper([content]).decode_image(flip=1)
    assert np.array_equal(mirrored, whole[:, ::-1])


def test_without_random_arguments_no_seed_is_drawn() -> None:
    random.seed(0)
    before = random.getstate()
    list(numbered().decode_image(8, input_col=1))
    assert random.getstate() == before


def test_workers_make_the_same_pixels_each_time_and_resume_exactly() -> None:
    def made(state: Any) -> DataLoader2[Any]:
        pipe = augmented().map(lambda item: (item[0], item[1].tobytes()))
        return begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=2)), state)

    first, second, *_ = whole = check_resumes(made, (1, 0), (1, 7), (1, 20))
    assert {number for number, _ in first} == set(range(COUNT))
    assert dict(first) != dict(second)
    assert epochs_of(made(None)) == whole[:2]


def test_batches_of_tensors_reach_main() -> None:
    torch = pytest.importorskip("torch")
    pipe = augmented(layout="CHW", as_tensor=True).batch(8).collate()
    arrays = augmented(layout="CHW").batch(8).collate(to="numpy")
    service = MultiProcessingReadingService(num_workers=2)
    with DataLoader2(pipe, reading_service=service) as loader, DataLoader2(arrays, reading_service=service) as other:
        loader.seed(2)
        other.seed(2)
        for (numbers, tensors), (same, pixels) in zip(loader, other, strict=True):
            assert type(tensors) is torch.Tensor
            assert tuple(tensors.shape[1:]) == (3, 16, 16)
            assert numbers.tolist() == same.tolist()
            assert np.array_equal(tensors.numpy(), pixels)
