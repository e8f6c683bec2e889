"""torchtitan's loader on this package resumes at its saved position. See docs/guides/old-clients.md."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader


class Stream(IterableDataset):
    """A stream of twelve samples with its current position."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while self.position < 12:
            self.position += 1
            yield {"input": torch.tensor(self.position)}, torch.tensor(self.position)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def loader(workers: int) -> ParallelAwareDataloader:
    return ParallelAwareDataloader(Stream(), dp_rank=0, dp_world_size=1, batch_size=2, num_workers=workers)


def main() -> None:
    for workers in (0, 1):
        first = loader(workers)
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        rest = [labels.tolist() for _, labels in batches]
        resumed = loader(workers)
        resumed.load_state_dict(state)
        print(f"{workers} workers: resumes at its position: {[labels.tolist() for _, labels in resumed] == rest}")


if __name__ == "__main__":
    main()
