"""The demo's training: a softmax classifier in NumPy, trained on the loader's batches."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FEATURES", "Epoch", "Softmax", "epoch", "hash_of", "small"]


class Softmax:
    """A linear classifier of images with the softmax cross-entropy loss, trained by gradient descent."""

    def __init__(self, pixels: int, classes: int = 10, rate: float = 0.5) -> None:
        import numpy as np

        self.weights = np.zeros((pixels + 1, classes))
        self.rate = rate

    def _features(self, images: Any) -> Any:
        """Returns images as rows of numbers from 0 to 1, with a constant 1 for the bias: (n, pixels + 1)."""
        import numpy as np

        return np.pad(images.reshape(len(images), -1) / 255.0, ((0, 0), (0, 1)), constant_values=1.0)

    def predict(self, images: Any) -> Any:
        return (self._features(images) @ self.weights).argmax(axis=1)

    def step(self, images: Any, labels: Any) -> tuple[float, int]:
        """Returns the sum of the losses and the number of correct predictions of the model before this step."""
        import numpy as np

        features = self._features(images)
        scores = features @ self.weights
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        slope = odds / odds.sum(axis=1, keepdims=True)
        own = np.arange(len(labels)), labels
        loss, right = -np.log(slope[own]).sum(), (scores.argmax(axis=1) == labels).sum()
        slope[own] -= 1.0
        self.weights -= self.rate * features.T @ slope / len(labels)
        return float(loss), int(right)


FEATURES = 14 * 14 * 3


@dataclass
class Epoch:
    #: For each batch, a hash of the names and pixels of its samples.
    batches: list[str] = field(default_factory=list)
    count: int = 0
    #: The duration in seconds.
    seconds: float = 0.0
    #: Mean cross-entropy and accuracy. Each sample is evaluated before the model is trained on this sample.
    loss: float = 0.0
    accuracy: float = 0.0


def small(images: Any) -> Any:
    """Reduces images of 224 x 224 pixels to 14 x 14 means, which are the input of `Softmax`."""
    n, height, width, colours = images.shape
    # Summing over the contiguous rows first is much faster than summing over both axes at once.
    rows = images.reshape(n, 14, height // 14, width * colours).sum(axis=2, dtype="uint16")
    sums = rows.reshape(n, 14, 14, width // 14, colours).sum(axis=3, dtype="uint32")
    return sums / (height // 14 * (width // 14))


def epoch(batches: Any, model: Softmax | None = None, with_hashes: bool = False) -> Epoch:
    """Consumes all batches.

    Args:
        model: the model to train on the batches, or None.
        with_hashes: whether to compute a hash of each batch, so that the batches of two runs can be compared.
    """
    result, start = Epoch(), time.perf_counter()
    for batch in batches:
        if model is not None:
            loss, right = model.step(small(batch["image"]), batch["label"])
            result.loss += loss
            result.accuracy += right
        if with_hashes:
            result.batches.append(hash_of(batch))
        result.count += len(batch["label"])
    result.seconds = time.perf_counter() - start
    result.loss /= max(result.count, 1)
    result.accuracy /= max(result.count, 1)
    return result


def hash_of(batch: dict[str, Any]) -> str:
    """Returns a hash of a batch, which also depends on the order of the samples."""
    return hashlib.sha256("\n".join(batch["name"]).encode() + batch["image"].tobytes()).hexdigest()
