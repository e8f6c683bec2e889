"""torch's own `default_collate` in workers of ours: it stacks where items leave by, and gives what it gives in main."""

from __future__ import annotations

from typing import Any

import pytest

from process_checks import METHODS, loader, nothing_is_left  # noqa: F401
from torchdata.datapipes.iter import IterableWrapper

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import default_collate, get_worker_info  # noqa: E402

ROWS = 6_000


def sample(number: int) -> dict[str, Any]:
    return {
        "image": torch.full((ROWS,), float(number)),
        "label": number,
        "array": torch.arange(3).numpy() + number,
    }


class Collated:
    """Collates by torch's function, and says of the images where they lie."""

    def __call__(self, batch: list[Any]) -> Any:
        from torchdata._engine import tensors

        collated = default_collate(batch)
        return collated, get_worker_info().id, collated["image"].data_ptr() in tensors._rooms


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_made_in_the_memory_that_they_leave_by(method: str) -> None:
    pipe = IterableWrapper(range(24)).sharding_filter().map(sample).batch(4).map(Collated())
    expected = [default_collate([sample(n) for n in range(first, 24, 2)][start : start + 4])
                for start in (0, 4, 8) for first in (0, 1)]  # fmt: skip
    with loader(pipe, 2, multiprocessing_context=method) as dl:
        for _ in range(2):
            got = list(dl)
            assert [(worker, there) for _, worker, there in got] == [(0, True), (1, True)] * 3
            for (collated, _, _), right in zip(got, expected, strict=True):
                assert collated.keys() == right.keys()
                for name in right:
                    assert torch.equal(collated[name], right[name])
                    assert collated[name].dtype == right[name].dtype


class Odd:
    """What torch's function collates by other means, or refuses."""

    def __call__(self, number: int) -> Any:
        if number % 2 == 0:
            return default_collate([torch.ones(3, dtype=torch.complex64).conj()] * 2)
        try:
            return default_collate([torch.ones(3), torch.ones(4)])
        except RuntimeError as error:
            return str(error)


def test_what_cannot_be_stacked_is_left_to_torch() -> None:
    with loader(IterableWrapper(range(2)).sharding_filter().map(Odd()), 2) as dl:
        first, second, *_ = dl
    assert torch.equal(first, torch.ones(2, 3, dtype=torch.complex64))
    assert "equal size" in second


def own_way(batch: Any, *, collate_fn_map: Any = None) -> str:
    return "own"


def two_collated(number: int) -> Any:
    return default_collate([torch.ones(2)] * 2)


def test_a_function_that_users_put_into_torchs_table_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, own_way)
    with loader(IterableWrapper(range(2)).sharding_filter().map(two_collated), 2) as dl:
        assert list(dl) == ["own", "own"]


def test_the_table_of_the_main_process_is_left_alone() -> None:
    from torch.utils.data._utils import collate

    with loader(IterableWrapper(range(2)).sharding_filter(), 2) as dl:
        assert list(dl) == [0, 1]
    assert collate.default_collate_fn_map[torch.Tensor] is collate.collate_tensor_fn
