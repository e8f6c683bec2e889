"""Random loaders, some of them (`random_stateful.py` runs others, for as long as one likes)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from random_stateful import case_of, check

#: The tests are about more workers than small machines have cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

#: Seeds that once showed a mistake.
TOLD = [3, 5, 8, 100030, 100136, 100154, 100219, 500593]


@pytest.mark.parametrize("seed", TOLD)
def test_what_once_went_wrong_does_not_again(seed: int) -> None:
    check(case_of(seed))


def test_random_loaders_go_on_exactly_from_their_states_and_have_torch_s_order() -> None:
    for seed in range(1000, 1024):
        case = case_of(seed)
        try:
            check(case)
        except BaseException as error:
            error.add_note(f"seed {seed}: {case}")
            raise
