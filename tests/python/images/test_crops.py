"""`random_resized_crop` crops images by the same rules as torchvision, with any random generator."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refusals import refuses
from torchdata.images import center_crop, random_resized_crop


def module(seed: int) -> Any:
    random.seed(seed)
    return random


def of_torch(seed: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.Generator().manual_seed(seed)


GENERATORS = pytest.mark.parametrize(
    "make", [random.Random, module, np.random.default_rng, np.random.RandomState, of_torch]
)


def distance(values: list[float]) -> float:
    """Returns the Kolmogorov-Smirnov distance between numbers and the uniform distribution from 0 to 1."""
    ordered, count = np.sort(values), len(values)
    steps = np.arange(1, count + 1) / count
    return float(max((steps - ordered).max(), (ordered - steps + 1 / count).max()))


@GENERATORS
def test_a_seed_gives_the_same_boxes_each_time(make: Callable[[int], Any]) -> None:
    boxes = [[random_resized_crop(rng, 640, 427) for _ in range(20)] for rng in map(make, (1, 1, 2))]
    assert boxes[0] == boxes[1] != boxes[2]
    assert len(set(boxes[0])) > 15


@GENERATORS
def test_area_ratio_and_position_are_distributed_as_in_torchvision(make: Callable[[int], Any]) -> None:
    rng, side, count = make(7), 100_000, 2000
    areas, ratios, across, down = [], [], [], []
    for _ in range(count):
        left, top, right, bottom = random_resized_crop(rng, side, side, scale=(0.1, 0.5), ratio=(0.5, 2.0))
        width, height = right - left, bottom - top
        areas.append((width * height / side**2 - 0.1) / 0.4)
        ratios.append((math.log(width / height) - math.log(0.5)) / math.log(4))
        across.append(left / (side - width))
        down.append(top / (side - height))
    bound = 1.95 / math.sqrt(count)  # Only one seed in a thousand exceeds the bound.
    for values in (areas, ratios, across, down):
        assert distance(values) < bound
    pairs = np.corrcoef([areas, ratios, across, down])
    assert np.abs(pairs - np.eye(4)).max() < 0.1, "the four numbers are independent"


def test_boxes_are_within_images_of_all_sizes() -> None:
    rng = random.Random(3)
    for _ in range(3000):
        width, height = rng.randint(1, 60), rng.randint(1, 60)
        left, top, right, bottom = random_resized_crop(rng, width, height)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


class Counting(random.Random):
    draws = 0

    def random(self) -> float:
        self.draws += 1
        return super().random()


@pytest.mark.parametrize(
    ("size", "ratio", "box"),
    [
        ((1000, 10), (3 / 4, 4 / 3), (493, 0, 506, 10)),
        ((10, 1000), (3 / 4, 4 / 3), (0, 493, 10, 506)),
        ((10, 10), (1.0, 1.0), (0, 0, 10, 10)),
    ],
)
def test_after_ten_tries_the_center_is_cropped(size: Any, ratio: Any, box: Any) -> None:
    rng = Counting(0)
    assert random_resized_crop(rng, *size, scale=(4.0, 5.0), ratio=ratio) == box
    assert rng.draws == 20, "each try draws an area and a ratio"


def test_the_first_crop_that_fits_is_used() -> None:
    class Given:
        def __init__(self, *numbers: float) -> None:
            self.numbers = list(numbers)

        def random(self) -> float:
            return self.numbers.pop(0)

    # The first drawn crop is wider than the image, so a second crop is drawn.
    rng = Given(1.0, 1.0, (0.25 - 0.08) / 0.92, 0.5, 0.0, 0.999)
    assert random_resized_crop(rng, 100, 100) == (50, 0, 100, 50)
    assert rng.numbers == []


test_invalid_arguments_are_refused = refuses(
    (lambda: random_resized_crop(7, 5, 5), TypeError, "drawn from a random.Random"),
    (lambda: random_resized_crop(random, 0, 5), ValueError, "0 x 5 pixels cannot be cropped"),
    (lambda: random_resized_crop(random, 5, 5, scale=(1, 0.5)), ValueError, "scale must be two positive numbers"),
    (lambda: random_resized_crop(random, 5, 5, ratio=(0, 1)), ValueError, "ratio must be two positive numbers"),
    (lambda: center_crop(5, 5, share=0), ValueError, "share must be above 0"),
    (lambda: center_crop(5, 5, ratio=-1), ValueError, "ratio positive"),
)


def test_the_middle_has_the_size_that_the_share_and_the_ratio_determine() -> None:
    assert center_crop(640, 480) == (110, 30, 530, 450)
    assert center_crop(480, 640, share=1) == (0, 80, 480, 560)
    assert center_crop(100, 100, share=1, ratio=2) == (0, 25, 100, 75)
    assert center_crop(1, 1, share=0.1) == (0, 0, 1, 1)
