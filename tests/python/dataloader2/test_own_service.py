"""A user-defined reading service that uses only documented names has all features of the package's services."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from kept_state import KeptState
from one_rank import Alone
from resuming import begun, check_resumes, resumed, stopped
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    RankInEpoch,
    ReadingServiceInterface,
    SequentialReadingService,
    Shares,
)
from torchdata.dataloader2.graph import set_graph_random_seed
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe


class Elsewhere:
    def __init__(self, graph: Any) -> None:
        self.graph, self.is_paused = graph, False


class FromElsewhere(KeptState, IterDataPipe[Any]):
    kept = ("position",)

    def __init__(self, elsewhere: Elsewhere) -> None:
        self.elsewhere = elsewhere
        self.position = 0

    def reset(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        for item in islice(self.elsewhere.graph, self.position, None):
            self.position += 1
            yield item


class OwnService(ReadingServiceInterface):
    def initialize(self, datapipe: Any) -> Any:
        self.elsewhere = Elsewhere(datapipe)
        return FromElsewhere(self.elsewhere)

    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        set_graph_random_seed(self.elsewhere.graph, copy.copy(seed_generator))
        return iter_reset_fn

    def count_shares(self) -> Shares:
        return Shares()

    def _pause(self, pause_fn: Any = None) -> Any:
        self.elsewhere.is_paused = True
        return pause_fn

    def _resume(self, resume_fn: Any = None) -> Any:
        self.elsewhere.is_paused = False
        return resume_fn

    def _limit(self, num_batches: int | None, limit_fn: Any = None) -> Any:
        return limit_fn

    def stats_notes(self) -> list[str]:
        return ["the graph runs elsewhere"]


def shuffled(count: int = 20) -> Any:
    return IterableWrapper(range(count)).shuffle(buffer_size=7).map(str)


def loader_of(pipe: Any, service: Any = None, seed: int = 3) -> DataLoader2[Any]:
    return begun(DataLoader2(pipe, reading_service=service or OwnService()), seed=seed)


def test_every_item_is_yielded_and_counted_in_an_order_that_depends_on_the_seed() -> None:
    with loader_of(shuffled()) as loader, loader_of(shuffled()) as other:
        epochs = [list(loader), list(loader)]
        assert epochs == [list(other), list(other)]
        stats = loader.stats()
    assert "the graph runs elsewhere" in str(stats)
    assert [(pipe.name, pipe.items_out) for pipe in stats.pipes] == [("FromElsewhere", 40)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(map(str, range(20)))


def test_a_loader_has_the_length_that_its_service_and_its_shares_determine() -> None:
    class Twice(OwnService):
        def count_items(self, datapipe: Any) -> int:
            return 40

    class Four(OwnService):
        def count_shares(self) -> Shares:
            return Shares(workers=2, ranks=2)

    with loader_of(shuffled().batch(3)) as loader:
        assert len(loader) == len(list(loader)) == len(loader) == 7
    with loader_of(shuffled(), Twice()) as loader:
        assert len(loader) == 40
    with loader_of(IterableWrapper(range(11)).sharding_filter().batch(2), Four()) as loader:
        assert len(loader) == 3  # the two workers of the second rank create 3 and 2 batches


def test_a_state_resumes_with_exactly_the_remaining_items_in_a_new_loader() -> None:
    def made(state: Any) -> DataLoader2[Any]:
        return begun(DataLoader2(shuffled(), reading_service=OwnService()), state)

    for epoch in check_resumes(made, (0, 5), (0, -2), (1, 0), (1, -1)):
        assert sorted(epoch) == sorted(map(str, range(20)))


def test_a_limit_pauses_the_pipe_and_its_service() -> None:
    with loader_of(shuffled()) as loader:
        iterator = iter(loader)
        iterator.limit(4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = list(iterator)
        elsewhere = loader.reading_service.elsewhere
        assert len(found) == 4
        assert elsewhere.is_paused
        assert list(iterator) == []
        iterator.resume()
        assert not elsewhere.is_paused
        iterator.limit(None)
        assert len(list(iterator)) == 16


def test_a_service_learns_whether_pipes_are_timed_and_which_shards_a_resumed_epoch_has() -> None:
    shown: list[tuple[bool, int | None, RankInEpoch | None]] = []

    class Recording(OwnService):
        def before_initialize(
            self, full_stats: bool, resumed: Callable[[], Sequence[Any] | None], ranks: Callable[[], RankInEpoch | None]
        ) -> None:
            shards = resumed()
            shown.append((full_stats, None if shards is None else len(shards), ranks()))

        def __deepcopy__(self, memo: dict[int, Any]) -> Recording:
            return self

    for workers in (None, 0, 3):
        with DataLoader2(shuffled(), reading_service=Recording(), stats="full") as loader:
            if workers is not None:
                loader.load_state_dict(_state_after_one(workers))
            # The pipeline is not sharded, so each shard yields all items.
            assert len(list(loader)) == 20 * (workers or 1) - (workers is not None)
            assert len(list(loader)) == 20 * (workers or 1)
    assert shown == [(True, None, None), (True, None, None), (True, 3, None)]


def _state_after_one(workers: int) -> dict[str, Any]:
    service = MultiProcessingReadingService(workers) if workers else OwnService()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no pipe distributes the items among the workers
        with loader_of(shuffled(), service) as loader:
            next(iter(loader))
            return loader.state_dict()


def test_an_own_service_works_after_a_distributed_service_with_length_state_and_pausing() -> None:
    def service() -> SequentialReadingService:
        return SequentialReadingService(DistributedReadingService(process_group=Alone()), OwnService())

    with loader_of(shuffled(), service()) as loader:
        iterator = iter(loader)
        assert len(loader) == 20
        first = list(islice(iterator, 6))
        state = loader.state_dict()
        iterator.limit(2)
        paused = list(iterator)
        assert len(paused) == 2
        iterator.resume()
        iterator.limit(None)
        tail = paused + list(iterator)
        assert "the graph runs elsewhere" in str(loader.stats())
    with loader_of(shuffled(), service()) as other:
        other.load_state_dict(state)
        assert list(other) == tail
    assert len(set(first + tail)) == 20


class _Plain:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def initialize(self, datapipe: Any) -> Any:
        self.calls.append("initialize")
        return datapipe

    def finalize(self) -> None:
        self.calls.append("finalize")

    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        self.calls.append("begin")
        return iter_reset_fn

    def finalize_iteration(self) -> None:
        self.calls.append("end")


def test_a_service_with_only_the_methods_of_0_9_works_as_before() -> None:
    loader: DataLoader2[Any] = DataLoader2(IterableWrapper(range(5)), reading_service=_Plain())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="depends on how _Plain divides the items"):
        len(loader)
    assert list(loader) == list(range(5))
    assert next(iter(loader)) == 0
    loader.shutdown()
    assert loader.reading_service.calls == ["initialize", "begin", "end", "begin", "end", "finalize"]


@pytest.mark.parametrize(
    "service", [_Plain, lambda: SequentialReadingService(_Plain(), MultiProcessingReadingService(2))]
)
def test_a_loader_with_a_service_of_0_9_resumes_silently(service: Callable[[], Any], capfd: Any) -> None:
    def loader() -> DataLoader2[Any]:
        return DataLoader2(IterableWrapper(range(8)).sharding_filter(), reading_service=service())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for read in (0, 3):
            _, state = stopped(loader(), read)
            assert resumed(loader(), state) == [list(range(read, 8))]
    assert capfd.readouterr() == ("", "")
