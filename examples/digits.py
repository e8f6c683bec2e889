"""The common parts of the examples: a pipeline of handwritten digits, and two models that learn to classify them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

#: The number of digits for training; the remaining digits are for testing.
TRAINED_ON = 1437


def normalised(sample: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns an image of 8 x 8 pixels as 64 numbers between 0 and 1, and its label."""
    image, label = sample
    return (np.asarray(image, dtype=np.float32) / 16).reshape(64), int(label)


def training_digits(batch_size: int) -> IterDataPipe[Any]:
    """Returns batches of shuffled training digits. With workers, `sharding_filter` divides the items among them."""
    digits = load_digits()
    samples = list(zip(digits.images[:TRAINED_ON], digits.target[:TRAINED_ON], strict=True))
    pipe = IterableWrapper(samples, deepcopy=False).shuffle(buffer_size=TRAINED_ON).sharding_filter()
    return pipe.map(normalised).batch(batch_size).collate()


def test_digits() -> tuple[Any, Any]:
    """Returns all test digits at once, as NumPy arrays."""
    digits = load_digits()
    samples = zip(digits.images[TRAINED_ON:], digits.target[TRAINED_ON:], strict=True)
    images, labels = zip(*map(normalised, samples), strict=True)
    return np.stack(images), np.array(labels)


def torch_model() -> Any:
    """Returns a small network in PyTorch."""
    from torch import nn

    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def torch_accuracy(model: Any) -> float:
    """Returns the fraction of the test digits that the model classifies correctly."""
    import torch

    images, labels = test_digits()
    with torch.no_grad():
        return float((model(torch.from_numpy(images)).argmax(1).numpy() == labels).mean())
