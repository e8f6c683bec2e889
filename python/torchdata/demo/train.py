"""The demo's training: a softmax classifier in NumPy, trained on what the loader yields.

Role: the consumer. Runs in the main process; the progress bar shows only where a person looks at the terminal.
"""

from __future__ import annotations

import hashlib
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torchdata.demo.data import optional

__all__ = ["Epoch", "Softmax", "epoch"]


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

    def step(self, images: Any, labels: Any) -> tuple[float, int]:
        """One step of gradient descent on a batch.

        Returns:
            The sum of the losses, and how many classes were right, before the step.
        """
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


@dataclass
class Epoch:
    """What came of one epoch."""

    #: A hash of the order of sample names.
    order: str = ""
    #: Samples.
    count: int = 0
    #: Seconds that it took, and how many of these the main process waited for batches, the workers' start included.
    seconds: float = 0.0
    waited: float = 0.0
    #: Mean cross-entropy of the samples, and the share that the model got right, each before it learnt from them.
    loss: float = 0.0
    accuracy: float = 0.0


class _NoBar:
    def update(self, count: int) -> None:
        """Shows nothing."""


def _bar(total: int, title: str) -> AbstractContextManager[Any]:
    """Shows how many of `total` samples have come, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext(_NoBar())
    bar: AbstractContextManager[Any] = optional("tqdm").tqdm(total=total, desc=title, unit="img")
    return bar


def epoch(batches: Any, total: int, title: str, model: Softmax | None = None) -> Epoch:
    """Consumes one epoch of `total` samples, and trains `model` on it if there is one."""
    result, order = Epoch(), hashlib.sha256()
    with _bar(total, title) as bar:
        start = asked = time.perf_counter()
        iterator = iter(batches)
        while (batch := next(iterator, None)) is not None:
            result.waited += time.perf_counter() - asked
            order.update("\n".join(batch["name"]).encode())
            count = len(batch["label"])
            if model is not None:
                loss, right = model.step(batch["image"], batch["label"])
                result.loss += loss
                result.accuracy += right
            result.count += count
            bar.update(count)
            asked = time.perf_counter()
        ended = time.perf_counter()
    result.waited += ended - asked
    result.seconds = ended - start
    result.order = order.hexdigest()[:12]
    result.loss /= max(result.count, 1)
    result.accuracy /= max(result.count, 1)
    return result
