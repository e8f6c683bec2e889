"""torchtune's data loader, built from this package's nodes, resumes at its saved position.

See docs/guides/old-clients.md.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from torchtune.data._utils import get_dataloader, get_multi_dataset, load_hf_dataset


def keep(sample: Any) -> Any:
    return sample


def loader(folder: str, workers: int) -> Any:
    file = Path(folder, "samples.json")
    file.write_text("\n".join(json.dumps({"number": number}) for number in range(12)))

    def samples(seed: int) -> Any:
        return load_hf_dataset("json", keep, seed=seed, data_files=str(file), split="train", cache_dir=folder)

    mixed = get_multi_dataset(
        {"some": samples(1), "others": samples(2)}, {"some": 0.7, "others": 0.3}, "ALL_DATASETS_EXHAUSTED", seed=3
    )
    return get_dataloader(mixed, keep, batch_size=2, num_workers=workers)


def numbers(batch: Any) -> Any:
    return batch["number"].tolist()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for workers in (0, 2):
            first = loader(folder, workers)
            batches = iter(first)
            seen = [numbers(next(batches)) for _ in range(3)]
            state = first.state_dict()
            rest = list(map(numbers, batches))
            resumed = loader(folder, workers)
            resumed.load_state_dict(state)
            print(f"{workers} workers: resumes at its position: {list(map(numbers, resumed)) == rest}")
            print(f"all samples came: {sorted({n for batch in seen + rest for n in batch}) == list(range(12))}")


if __name__ == "__main__":
    main()
