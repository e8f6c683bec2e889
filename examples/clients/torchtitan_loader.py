"""torchtitan's loader on this package resumes at its saved position. See docs/guides/old-clients.md."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader


class Stream(IterableDataset):
    """A stream of twelve samples with its current position."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while self.place < 12:
            self.place += 1
            yield {"input": torch.tensor(self.place)}, torch.tensor(self.place)

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


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
