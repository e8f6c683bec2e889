"""Train on several ranks with MPI, without PyTorch: `mpirun -n 2 python examples/ranks_mpirun.py`."""

import numpy as np

from digits import test_digits, training_digits
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)


def gradient(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the gradient of a softmax classifier's cross-entropy."""
    scores = images @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    return images.T @ chances / len(labels)


class MpiRanks:
    """Sends the loader's messages to all ranks of an MPI job."""

    def __init__(self) -> None:
        from mpi4py import MPI  # not imported at the top, because workers import this file, too, but are not MPI ranks

        self.communicator = MPI.COMM_WORLD.Dup()  # separates the loader's messages from those of the training
        self.rank, self.world_size, self.least = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, MPI.MIN

    def broadcast(self, value: int) -> int:
        return self.communicator.bcast(value)

    def all_reduce_min(self, value: int) -> int:
        return self.communicator.allreduce(value, op=self.least)


def main() -> None:
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD
    weights = np.zeros((64, 10))
    # The workers are spawned instead of forked, because many MPI implementations do not support fork.
    service = SequentialReadingService(
        DistributedReadingService(process_group=MpiRanks()),
        MultiProcessingReadingService(num_workers=1, multiprocessing_context="spawn"),
    )
    with DataLoader2(training_digits(batch_size=16), reading_service=service) as loader:
        for epoch in range(5):
            steps = 0
            for images, labels in loader:
                weights -= 0.5 * ranks.allreduce(gradient(weights, images, labels)) / ranks.size
                steps += 1
            if ranks.rank == 0:
                images, labels = test_digits()
                accuracy = (np.argmax(images @ weights, axis=1) == labels).mean()
                print(f"epoch {epoch}: {steps} steps on each rank, {accuracy:.1%} of the test digits", flush=True)


if __name__ == "__main__":
    main()
