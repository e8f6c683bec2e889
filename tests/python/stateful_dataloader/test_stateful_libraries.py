"""Training libraries that read a StatefulDataLoader are stopped and restarted, and resume exactly."""

import functools
import gc
import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import name_wheel
import pytest

from fresh_processes import FreshProcesses
from library_trainers import EPOCHS, STEPS
from needing import needs
from process_checks import children, shared_mappings
from resumed import loaded
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{name}Warning") for name in ("Deprecation", "Future", "User", "Resource")
]


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    before = set(children())  # A server process of a library may end during the test.
    yield
    gc.collect()
    assert (set(children()) - before, shared_mappings()) == (set(), 0)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Creates the metadata of a distribution `torchdata` if the metadata is missing, because Accelerate requires it."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("names")
        with zipfile.ZipFile(name_wheel.build(folder)) as wheel:
            wheel.extractall(folder)
        return folder

    return make


LIBRARIES = {
    "accelerate": ["accelerate", "torch._dynamo"],
    "lightning": ["lightning"],
    "transformers": ["transformers.trainer"],
}


@pytest.fixture(scope="module")
def processes() -> Iterator[FreshProcesses]:
    modules = [module for name, needed in LIBRARIES.items() if importlib.util.find_spec(name) for module in needed]
    with FreshProcesses("library_trainers", *modules, limit=100.0) as processes:
        yield processes


@pytest.fixture(scope="module", params=LIBRARIES)
def train(request: pytest.FixtureRequest, processes: FreshProcesses) -> Any:
    needs(request.param, "the test uses this package")

    def run(workers: int, folder: Path, **more: Any) -> Any:
        options = {"library": request.param, "workers": workers, "folder": folder}
        return processes.call("library_trainers:train", **options, **more)

    return run


@pytest.fixture(scope="module")
def whole(train: Any, names: Any) -> Any:
    return functools.cache(lambda workers: train(workers, names()))


@pytest.mark.parametrize(("workers", "stop"), [(0, STEPS + 1), (2, 2)], ids=["second epoch", "middle, workers"])
def test_a_library_s_trainer_resumes_in_a_new_process_as_if_it_had_not_been_stopped(
    train: Any, whole: Any, names: Any, workers: int, stop: int
) -> None:
    folder = names()
    before = train(workers, folder, stop=stop)
    after = train(workers, folder, resumes=True)
    assert len(whole(workers)["seen"]) == EPOCHS * STEPS
    assert len(before["seen"]) == stop
    assert before["seen"] + after["seen"] == whole(workers)["seen"]
    assert after["weights"] == whole(workers)["weights"]


def rows(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for number in range(10):
            yield {"n": 10 * shard + number}


@pytest.mark.parametrize(("workers", "taken"), [(0, 3), (2, 3)])
def test_an_iterable_dataset_of_huggingface_saves_its_own_position(workers: int, taken: int) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")

    def loader() -> Any:
        dataset = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]})
        dataset = dataset.with_format("torch")
        return StatefulDataLoader(dataset, batch_size=3, num_workers=workers)

    whole = [batch["n"].tolist() for batch in loader()]
    first = loader()
    iterator = iter(first)
    head = [next(iterator)["n"].tolist() for _ in range(taken)]
    later = loaded(loader(), first.state_dict())
    rest = [batch["n"].tolist() for batch in later]
    assert (head, rest) == (whole[:taken], whole[taken:])
