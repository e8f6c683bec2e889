"""StatefulDataLoader loads states that torchdata 0.11 has saved with `upstream_states.py`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from resumed import loaded
from upstream_states import loader_of, plain

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SAVED = Path(__file__).parents[1] / "data/upstream_states.pt"


@pytest.fixture(scope="module")
def saved() -> list[dict[str, Any]]:
    return torch.load(SAVED, weights_only=True)  # type: ignore[no-any-return]


def cases(saved: list[dict[str, Any]], workers: int) -> list[dict[str, Any]]:
    found = [one for one in saved if one["case"][2] == workers]
    return [one for number, one in enumerate(found) if not workers or (number + number // 4) % 2 == 0]


def rest_of(one: dict[str, Any], workers: int) -> list[Any]:
    dataset, options, _, _ = one["case"]
    loader = loaded(loader_of(dataset, options, workers), one["state"])
    return [plain(batch) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_of_the_epoch_equals_the_rest_with_upstream_s_loader(
    saved: list[dict[str, Any]], workers: int
) -> None:
    tried = 0
    for one in cases(saved, workers):
        if one["rest"]:
            assert rest_of(one, workers) == one["rest"], one["case"]
            tried += 1
    assert tried > (25 if workers else 50)


@pytest.mark.parametrize("workers", [0, 2])
def test_after_the_last_batch_a_whole_epoch_follows(saved: list[dict[str, Any]], workers: int) -> None:
    for one in cases(saved, workers):
        if not one["rest"]:
            found = rest_of(one, workers)
            if one["case"][1] in ("shuffled", "seeded", "distributed", "replacement"):
                assert len(found) == len(one["before"]), one["case"]
            elif one["case"][0] != "CountedNumbers":  # `CountedNumbers` continues to count in the next epoch.
                assert found == one["before"], one["case"]


@pytest.mark.parametrize("workers", [0, 3])
def test_a_map_style_state_of_two_workers_loads_with_any_number(saved: list[dict[str, Any]], workers: int) -> None:
    tried = [one for one in cases(saved, 2) if one["case"][0] == "Numbers" and one["rest"]]
    for one in tried:
        assert rest_of(one, workers) == one["rest"], one["case"]
    assert len(tried) > 10


def test_a_damaged_state_of_torchdata_is_refused(saved: list[dict[str, Any]]) -> None:
    [one] = [one for one in saved if one["case"] == ["Numbers", "plain", 2, 3]]
    loader = loader_of("Numbers", "plain", 2)
    del one["state"]["_snapshot"]["_main_snapshot"]
    with pytest.raises(ValueError, match="damaged"):
        loader.load_state_dict(one["state"])
