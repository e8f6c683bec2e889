"""verl's sampler with this package's loader resumes at its saved position. See docs/guides/old-clients.md."""

from __future__ import annotations

from omegaconf import OmegaConf
from verl.trainer.ppo.utils import create_rl_sampler

from torchdata.stateful_dataloader import StatefulDataLoader

PROMPTS = list(range(12))


def loader(workers: int) -> StatefulDataLoader:
    sampler = create_rl_sampler(OmegaConf.create({"shuffle": True, "seed": 1}), PROMPTS)
    return StatefulDataLoader(PROMPTS, batch_size=2, num_workers=workers, sampler=sampler)


def main() -> None:
    for workers in (0, 1):
        first = loader(workers)
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        rest = [batch.tolist() for batch in batches]
        resumed = loader(workers)
        resumed.load_state_dict(state)
        print(f"{workers} workers: resumes at its position: {[batch.tolist() for batch in resumed] == rest}")


if __name__ == "__main__":
    main()
