"""The demo's training: a softmax classifier in NumPy, trained on what the loader yields.

Role: the consumer. Runs in the main process; the progress bar shows only where a person looks at the terminal.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from torchdata.demo.data import optional

__all__ = ["Softmax", "epoch", "progress"]


class Softmax:
    """A linear classifier of images with the softmax cross-entropy loss, trained by gradient descent."""

    def __init__(self, pixels: int, classes: int = 10, rate: float = 0.5) -> None:
        import numpy as np

        self.weights = np.zeros((pixels + 1, classes))
        self.rate = rate

    def _features(self, images: Any) -> Any:
        """Images as rows of numbers from 0 to 1, with a constant one for the bias: (n, pixels + 1)."""
        import numpy as np

        return np.pad(images.reshape(len(images), -1) / 255.0, ((0, 0), (0, 1)), constant_values=1.0)

    def predict(self, images: Any) -> Any:
        """The likeliest class of each image."""
        return (self._features(images) @ self.weights).argmax(axis=1)

    def step(self, images: Any, labels: Any) -> None:
        """One step of gradient descent on a batch."""
        import numpy as np

        features = self._features(images)
        scores = features @ self.weights
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        slope = odds / odds.sum(axis=1, keepdims=True)
        slope[np.arange(len(labels)), labels] -= 1.0
        self.weights -= self.rate * features.T @ slope / len(labels)


def progress(batches: Any, total: int, title: str) -> Iterator[Any]:
    """Passes batches on and shows how many of `total` samples have come, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield from batches
        return
    with optional("tqdm").tqdm(total=total, desc=title, unit="img") as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch["label"]))


def epoch(batches: Any, total: int, title: str, model: Softmax | None = None) -> tuple[str, int, float]:
    """Consumes one epoch, and trains `model` on it if there is one.

    Returns:
        A hash of the order of sample names, the number of samples, and the seconds it took.
    """
    order, count, start = hashlib.sha256(), 0, time.perf_counter()
    for batch in progress(batches, total, title):
        order.update("\n".join(batch["name"]).encode())
        count += len(batch["label"])
        if model is not None:
            model.step(batch["image"], batch["label"])
    return order.hexdigest()[:12], count, time.perf_counter() - start
