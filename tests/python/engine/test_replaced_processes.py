"""`StatefulDataLoader` and `ParallelMapper` replace processes that exit or hang, under the same rules."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="nodes and StatefulDataLoader need PyTorch")

from families import Mapped
from hanging import WAYS, Hanging, kill_only_hung
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.nodes import IterableWrapper, Loader, ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = pytest.mark.alone

COUNT, AT = 12, 5
HANGS: dict[str, Any] = {"timeout": 0.4, "on_timeout": "restart"}
EXITS: dict[str, Any] = {"on_worker_exit": "restart"}


def batches(function: Callable[[int], int], workers: int = 2, **options: Any) -> Any:
    options = {"num_workers": workers, "multiprocessing_context": "fork", **options}
    return StatefulDataLoader(Mapped(function, COUNT), None, **options)


def nodes(function: Callable[[int], int], workers: int = 2, **options: Any) -> Any:
    options = {"method": "process", "multiprocessing_context": "fork", **options}
    return Loader(ParallelMapper(IterableWrapper(range(COUNT)), function, workers, **options))


each_family = pytest.mark.parametrize("family", [batches, nodes])


class At:
    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __call__(self, number: int) -> int:
        if number == AT:
            self.act()
        return number


class Exits:
    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = folder, times

    def __call__(self) -> None:
        if (count := len(list(self.folder.iterdir()))) < self.times:
            (self.folder / str(count)).touch()
            os._exit(7)


@pytest.fixture(autouse=True)
def only_hung_processes_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_only_hung(monkeypatch, tmp_path)


@contextlib.contextmanager
def ended(loader: Any) -> Iterator[Any]:
    try:
        yield loader
    finally:
        if isinstance(loader, Loader):
            loader.root.shutdown()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("family", "way"), [*((batches, way) for way in WAYS), (nodes, "sleep"), (nodes, "stop")])
def test_nothing_is_lost_if_a_process_hangs_even_after_a_load(family: Any, way: str, tmp_path: Path) -> None:
    (tmp_path / "resumed").mkdir()
    with ended(family(At(Hanging(way, tmp_path)), **HANGS)) as loader:
        iterator = iter(loader)
        received = [next(iterator) for _ in range(3)]
        state = loader.state_dict()
        with pytest.warns(RuntimeWarning, match="(?s)was therefore killed.*in __call__"):
            assert received + list(iterator) == list(range(COUNT))
    with ended(family(At(Hanging(way, tmp_path / "resumed")), **HANGS)) as loader:
        loader.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match="(?s)was therefore killed.*in __call__"):
            assert list(loader) == list(range(3, COUNT))


@each_family
@pytest.mark.filterwarnings("ignore:.*was therefore killed:RuntimeWarning")
def test_nothing_is_lost_out_of_order_if_a_process_hangs(family: Any, tmp_path: Path) -> None:
    with ended(family(At(Hanging("sleep", tmp_path)), in_order=False, **HANGS)) as loader:
        assert sorted(loader) == list(range(COUNT))


@each_family
@pytest.mark.parametrize("way", ["stop", "loop"])
def test_a_working_process_has_the_time_that_patience_allows(family: Any, way: str, tmp_path: Path) -> None:
    patience, limit = (1.2, "patience") if way == "loop" else (1e6, "timeout")
    with (
        ended(family(At(Hanging(way, tmp_path)), patience=patience, **HANGS)) as loader,
        pytest.warns(RuntimeWarning, match=rf"was therefore killed \(`{limit}`\)"),
    ):
        assert list(loader) == list(range(COUNT))


@each_family
def test_a_warning_reports_the_exit_and_the_replacement(family: Any, tmp_path: Path) -> None:
    with (
        ended(family(At(Exits(tmp_path, 1)), **EXITS)) as loader,
        pytest.warns(RuntimeWarning, match=r"at its (batch|item) number \d.*A new process replaced it"),
    ):
        assert list(loader) == list(range(COUNT))


@each_family
@pytest.mark.parametrize("how", ["exits", "hangs"])
@pytest.mark.filterwarnings("ignore:.*(was therefore killed|A new process):RuntimeWarning")
def test_the_third_process_that_exits_or_hangs_at_an_item_raises_an_error_that_names_it(
    family: Any, how: str, tmp_path: Path
) -> None:
    act, options = (Exits(tmp_path, 3), EXITS) if how == "exits" else (Hanging("sleep", tmp_path, 3), HANGS)
    with ended(family(At(act), workers=1, **options)) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(AT)] == list(range(AT))
        with pytest.raises(WorkerExitedError, match="(?s)in attempt 3 to compute it.*, or correct the") as caught:
            next(iterator)
        assert caught.value.item == AT
        if family is nodes:  # only nodes yield further items after the error
            assert list(iterator) == list(range(AT + 1, COUNT))


@each_family
def test_without_restart_an_exit_is_an_error_and_contradictory_arguments_are_refused(
    family: Any, tmp_path: Path
) -> None:
    with ended(family(At(Exits(tmp_path, 1)))) as loader, pytest.raises(WorkerExitedError, match="exited"):
        list(loader)
    for options, words in (
        ({"on_worker_exit": "again"}, "on_worker_exit must be 'error' or 'restart', but got 'again'"),
        ({"on_timeout": "restart"}, "on_timeout='restart' needs a timeout"),
        ({"patience": 3.0}, "patience needs on_timeout='restart'"),
    ):
        with pytest.raises(ValueError, match=words):
            family(abs, **options)
