"""In workers, torch's `default_collate` stacks samples directly into memory that is sent without a copy."""

import math
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from fresh_processes import run_program, with_torch
from process_checks import loader, nothing_is_left  # noqa: F401
from torchdata.datapipes.iter import IterableWrapper

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import _utils, default_collate, get_worker_info  # noqa: E402
from torch.utils.data._utils import collate  # noqa: E402

from torchdata._engine.items.torch_worker import collate_where_items_leave  # noqa: E402

ROWS = 6_000


def sample(number: int) -> dict[str, Any]:
    return {"image": torch.full((ROWS,), float(number)), "label": number, "array": torch.arange(3).numpy() + number}


class Collated:
    def __call__(self, batch: list[Any]) -> Any:
        from torchdata._engine.items import tensors

        collated = default_collate(batch)
        return collated, get_worker_info().id, collated["image"].data_ptr() in tensors._rooms


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_batches_are_created_in_the_shared_memory_that_sends_them(method: str, workers: int) -> None:
    pipe = IterableWrapper(range(24)).sharding_filter().map(sample).batch(4).map(Collated())
    expected = [default_collate([sample(n) for n in range(first, 24, workers)][start : start + 4])
                for start in range(0, 24 // workers, 4) for first in range(workers)]  # fmt: skip
    with loader(pipe, workers, multiprocessing_context=method) as dl:
        for _ in range(2):
            got = list(dl)
            assert [worker for _, worker, _ in got] == [*range(workers)] * (6 // workers)
            assert all(there for *_, there in got)
            for (collated, _, _), right in zip(got, expected, strict=True):
                assert collated.keys() == right.keys()
                for name in right:
                    assert torch.equal(collated[name], right[name])
                    assert collated[name].dtype == right[name].dtype


class Odd:
    def __call__(self, number: int) -> Any:
        if number % 2 == 0:
            return default_collate([torch.ones(3, dtype=torch.complex64).conj()] * 2)
        try:
            return default_collate([torch.ones(3), torch.ones(4)])
        except RuntimeError as error:
            return str(error)


def test_items_that_cannot_be_stacked_are_collated_by_torch() -> None:
    with loader(IterableWrapper(range(2)).sharding_filter().map(Odd()), 2) as dl:
        first, second, *_ = dl
    assert collate.default_collate_fn_map[torch.Tensor] is collate.collate_tensor_fn, "torch's own table is unchanged"
    assert torch.equal(first, torch.ones(2, 3, dtype=torch.complex64))
    assert "equal size" in second


def own_way(batch: Any, *, collate_fn_map: Any = None) -> str:
    return "own"


def test_a_function_that_users_add_to_the_collate_table_of_torch_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor, own_way)
    pipe = IterableWrapper(range(2)).sharding_filter().map(lambda _: default_collate([torch.ones(2)] * 2))
    with loader(pipe, 2) as dl:
        assert list(dl) == ["own", "own"]


SHAPES = [(), (3,), (2, 3), (1, 4), (0,), (2, 0)]
KINDS = ["?", "i1", "u2", "u4", "i8", "f2", "f4", "f8", ">f4", "c8", "g", "M8[s]", "U3", "O", "i4,f4"]


def any_array(random: Random, shape: tuple[int, ...], kind: str) -> Any:
    array: Any = numpy.array(random.choices(range(100), k=math.prod(shape))).reshape(shape).astype(kind)
    if random.random() < 0.5:
        return array
    form = random.choice(["locked", "reversed", "every other", "repeated", "transposed", "field", "matrix"])
    if form == "locked":
        array.flags.writeable = False
    elif form == "matrix" and array.ndim == 2:
        return array.view(numpy.matrix)
    elif form == "transposed":
        return numpy.asfortranarray(array)
    elif form == "repeated":
        return numpy.broadcast_to(array[:1], shape) if array.ndim else array
    elif form == "field" and array.ndim and kind == "f4":
        return numpy.zeros(shape, "i1,f4")["f1"]
    elif array.ndim:
        return numpy.repeat(array, 2, axis=0)[::2] if form == "every other" else array[::-1]
    return array


def any_batch(random: Random) -> list[Any]:
    shape, kind = random.choice(SHAPES), random.choice(KINDS)
    batch = [any_array(random, shape, kind) for _ in range(random.randint(1, 4))]
    if random.random() < 0.2:  # One image differs in shape or dtype from the other images.
        batch[-1] = random.choice([any_array(random, shape, random.choice(KINDS)), numpy.zeros((3, 2)), [1, 2, 3], 5])
    if random.random() < 0.3:
        batch = [torch.as_tensor(item) if is_for_torch(item) else item for item in batch]
    if random.random() < 0.1 and isinstance(batch[-1], torch.Tensor) and batch[-1].is_floating_point():
        batch[-1].requires_grad_()
    return batch


def is_for_torch(item: Any) -> bool:
    try:
        torch.as_tensor(item)
    except (TypeError, ValueError):
        return False
    return True


def outcome(batch: list[Any], table: Any) -> Any:
    try:
        return collate.collate(batch, collate_fn_map=table)
    except Exception as error:
        return type(error), str(error)


def changed_module() -> Any:
    module = SimpleNamespace(**{**vars(collate), "default_collate_fn_map": dict(collate.default_collate_fn_map)})
    collate_where_items_leave(module)
    return module


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_arrays_and_tensors_are_collated_as_by_the_function_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.worker, "_worker_info", object())
    own, module = collate.default_collate_fn_map, changed_module()
    assert module.default_collate_fn_map != own
    collated = 0
    for seed in range(1_000):
        batch = any_batch(Random(seed))
        ours, theirs = outcome(batch, module.default_collate_fn_map), outcome(batch, own)
        if isinstance(theirs, torch.Tensor):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), f"seed {seed}"
            assert numpy.array_equal(ours.detach().numpy(), theirs.detach().numpy()), f"seed {seed}"
            collated += 1
        else:
            assert ours == theirs, f"seed {seed}"
    assert 330 < collated < 970


def test_a_user_who_collates_tensors_gets_a_tensor_of_each_array() -> None:
    module = changed_module()
    module.default_collate_fn_map[torch.Tensor] = own_way
    assert outcome([numpy.ones(2)] * 2, module.default_collate_fn_map) == "own"


@pytest.fixture(scope="module", autouse=True)
def started() -> None:
    with_torch()


def test_an_array_that_must_not_be_written_to_is_warned_of_as_by_torch(tmp_path: Path) -> None:
    program = """
import warnings, numpy, torch
from torch.utils.data import _utils
from torchdata._engine.items.torch_worker import collate_where_items_leave
collate_where_items_leave(_utils.collate)
locked = numpy.ones(3)
locked.flags.writeable = False
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    torch.utils.data.default_collate([numpy.ones(3), locked])
print([str(one.message)[:40] for one in told])
"""
    (tmp_path / "program.py").write_text(program)
    run = run_program(tmp_path / "program.py")
    assert (run.stdout, run.stderr) == ("['The given NumPy array is not writable, a']\n", "")
