"""The numbers in docs/limits.md agree with the code, and its statements about long graphs are true."""

import os
from pathlib import Path
from typing import Any

import pytest

from limits_table import held_for, of_the_code
from random_graphs.users import Passing
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper

PORTABLE = os.environ.get("TORCHDATA_PORTABLE") == "1"
PAGE = Path(__file__).parents[3] / "docs" / "limits.md"


def ten_times(x: int) -> int:
    return 10 * x


def test_the_page_has_the_numbers_of_the_code() -> None:
    page = PAGE.read_text()
    rows = [f"| {name} | {value} |" for name, value in of_the_code()]
    assert [row for row in rows if row not in page] == []


@pytest.mark.skipif(PORTABLE, reason="the portable fallback keeps file descriptors open to reserve space")
def test_main_holds_the_documented_number_of_descriptors_for_each_worker() -> None:
    held_for(1)  # Some files are opened only once per process, by the first loader.
    each, rest = divmod(held_for(6) - held_for(2), 4)
    assert f"| open file descriptors in the main process (Linux) | {each} per worker, plus " in PAGE.read_text()
    assert rest == 0


def test_a_long_graph_is_listed_up_to_the_documented_length_and_loads() -> None:
    listed = next(value for name, value in of_the_code() if name.startswith("pipes of a process"))
    pipe: Any = IterableWrapper(range(9))
    for _ in range(int(listed) + 5):
        pipe = pipe.map(abs)
    with DataLoader2(pipe.map(ten_times)) as loader:
        for epoch in (1, 2):
            assert list(loader) == list(range(0, 90, 10))
            stats = loader.stats()
            assert (stats.items, stats.epochs, len(stats.pipes)) == (9 * epoch, epoch, int(listed))
        assert [pipe.name for pipe in stats.pipes if pipe.name != "Mapper(abs)"] == [
            "IterableWrapper",
            "Mapper(ten_times)",
        ]
        assert {pipe.items_out for pipe in stats.pipes} == {18}
    with DataLoader2(type("N" * 300, (Passing,), {})(IterableWrapper(range(9)))) as loader:
        assert list(loader) == list(range(9))
        assert max(len(listed.name) for listed in loader.stats().pipes) == 127
