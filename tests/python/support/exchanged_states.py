"""Saves states of loaders with one version of Python, and loads these states with a different version.

    python -m exchanged_states save FILE
    python -m exchanged_states load FILE

`tools/other_pythons.py` runs this program with each pair of versions. `save` stores a state and the remaining items of
the epoch, and `load` fails if a loader yields different items."""

import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

READ = 7


def squared(number: int) -> int:
    return number * number


def pipeline(workers: int) -> Any:
    pipe = IterableWrapper(range(60)).shuffle(buffer_size=20).sharding_filter().map(squared).batch(2)
    service = MultiProcessingReadingService(workers, multiprocessing_context="spawn") if workers else None
    return DataLoader2(pipe, reading_service=service)


def stateful(workers: int) -> Any:
    import torch

    from torchdata.stateful_dataloader import StatefulDataLoader

    generator = torch.Generator().manual_seed(1)
    return StatefulDataLoader(range(60), batch_size=2, shuffle=True, num_workers=workers, generator=generator)


def nodes() -> Any:
    import torchdata.nodes as nodes

    source = nodes.IterableWrapper(range(60))
    return nodes.Loader(nodes.Batcher(nodes.ParallelMapper(source, squared, num_workers=2), 2))


LOADERS: dict[str, Callable[[], Any]] = {
    "DataLoader2": partial(pipeline, 0),
    "DataLoader2 with 2 workers": partial(pipeline, 2),
    "StatefulDataLoader": partial(stateful, 0),
    "StatefulDataLoader with 2 workers": partial(stateful, 2),
    "nodes": nodes,
}


def loaders(names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        try:
            yield name, LOADERS[name]()
        except ImportError as error:
            print(f"  {name} left out: {error.msg.splitlines()[0]}")


def plain(items: Any) -> list[Any]:
    return [item.tolist() if hasattr(item, "tolist") else list(item) for item in items]


def save(file: Path) -> None:
    saved = {}
    for name, loader in loaders(list(LOADERS)):
        items = iter(loader)
        assert len(list(islice(items, READ))) == READ
        state = loader.state_dict()
        saved[name] = state, plain(items)
    file.write_bytes(pickle.dumps(saved, protocol=5))


def load(file: Path) -> int:
    saved = pickle.loads(file.read_bytes())
    count = 0
    for name, loader in loaders(list(saved)):
        state, expected = saved[name]
        loader.load_state_dict(state)
        found = plain(loader)
        assert found == expected, f"{name}: {found} instead of {expected}"
        count += 1
    return count


if __name__ == "__main__":
    what, path = sys.argv[1], Path(sys.argv[2])
    if what == "save":
        save(path)
    else:
        print(f"  {load(path)} states loaded")
