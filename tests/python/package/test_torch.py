"""PyTorch's tools and its DataLoader accept pipes of this package, and this package accepts PyTorch's pipes."""

import copy
import pickle
from typing import Any

import pytest

from fresh_processes import run_python
from pipes_of_users import Cutting, TupleState, plus_one, worker_of_torch
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.graph import find_dps, list_dps, traverse_dps
from torchdata.dataloader2.graph.settings import apply_random_seed
from torchdata.datapipes import functional_datapipe
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.state import save_state

torch = pytest.importorskip("torch", reason="the tests use torch beside this package")
data = torch.utils.data


class Doubles:
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        for item in self.source:
            yield item
            yield -item


class TorchDoubler(Doubles, data.IterDataPipe):
    pass


class OurDoubler(Doubles, IterDataPipe):
    pass


def shuffled_and_sharded() -> Any:
    return IterableWrapper(range(20)).shuffle().sharding_filter().map(plus_one)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_of_torch_reads_our_pipes_and_applies_its_settings(workers: int) -> None:
    def loader(shuffle: bool) -> Any:
        return data.DataLoader(shuffled_and_sharded(), batch_size=None, num_workers=workers, shuffle=shuffle)

    assert list(loader(False)) == list(range(1, 21))
    torch.manual_seed(3)
    first = list(loader(True))
    torch.manual_seed(3)
    assert list(loader(True)) == first != list(range(1, 21))
    assert sorted(first) == list(range(1, 21))
    batches = [batch.tolist() for batch in data.DataLoader(shuffled_and_sharded(), 8, num_workers=workers)]
    assert [len(batch) for batch in batches] == ([8, 8, 4] if workers == 0 else [8, 8, 2, 2])
    by_index = data.DataLoader(SequenceWrapper(range(6)).map(plus_one), 3, num_workers=workers)
    assert [batch.tolist() for batch in by_index] == [[1, 2, 3], [4, 5, 6]]


def types_of(graph: Any) -> Any:
    return [(type(pipe).__name__, types_of(sources)) for pipe, sources in graph.values()]


def test_graph_tools_of_torch_work_on_our_graphs() -> None:
    from torch.utils.data import graph, graph_settings

    pipe = shuffled_and_sharded()
    assert types_of(graph.traverse_dps(pipe)) == types_of(traverse_dps(pipe))
    left, right = IterableWrapper(range(4)).fork(2)
    both = left.zip(right.map(plus_one))
    found = {id(member) for member in graph_settings.get_all_graph_pipes(graph.traverse_dps(both))}
    assert found == {id(member) for member in list_dps(traverse_dps(both))}
    graph_settings.apply_shuffle_settings(pipe, shuffle=False)
    graph_settings.apply_sharding(pipe, 2, 1, data.graph_settings.SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(pipe) == list(range(2, 21, 2))
    graph_settings.apply_shuffle_settings(pipe, shuffle=True)
    orders = []
    for _ in range(2):
        graph_settings.apply_random_seed(pipe, torch.Generator().manual_seed(5))
        orders.append(list(pipe))
    assert orders[0] == orders[1] != list(range(2, 21, 2))
    # torch's graph tools do not remove their pickle hooks, so the package must remove them.
    assert list(pickle.loads(pickle.dumps(IterableWrapper([1, 2])))) == [1, 2]


def test_the_error_for_the_state_of_a_random_pipe_of_torch_names_the_pipe() -> None:
    pipe = data.datapipes.iter.IterableWrapper(range(5)).shuffle().batch(2)
    next(iter(pipe))
    with pytest.raises(TypeError, match="ShufflerIterDataPipe cannot be saved"):
        save_state(pipe)


def test_graphs_of_both_kinds_are_shared_out_among_workers() -> None:
    pipe = TorchDoubler(IterableWrapper(range(6)).sharding_filter()).map(plus_one)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        assert sorted(loader) == sorted([n + 1 for n in range(6)] + [1 - n for n in range(6)])
    theirs = data.datapipes.iter.IterableWrapper(range(7)).shuffle().sharding_filter().map(plus_one)
    with DataLoader2(theirs, reading_service=MultiProcessingReadingService(2)) as loader:
        runs = []
        for _ in range(2):
            loader.seed(1)
            runs.append(list(loader))
    assert runs[0] == runs[1]
    assert sorted(runs[0]) == list(range(1, 8))


def test_datasets_of_torch_work_with_the_wrappers() -> None:
    train, test = data.random_split(range(10), [7, 3], generator=torch.Generator().manual_seed(0))
    assert sorted([*SequenceWrapper(train).map(plus_one), *SequenceWrapper(test).map(plus_one)]) == list(range(1, 11))
    tensors = data.TensorDataset(torch.arange(4))
    assert [int(member) for (member,) in SequenceWrapper(tensors)] == [0, 1, 2, 3]

    class Stream(data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(3))

    assert list(IterableWrapper(Stream(), deepcopy=False).batch(2)) == [[0, 1], [2]]
    assert torch.equal(data.default_collate([1, 2]), next(iter(IterableWrapper([1, 2]).batch(2).collate())))


@pytest.fixture
def forms(request: pytest.FixtureRequest) -> Any:
    ours, theirs = dict(IterDataPipe.functions), dict(data.IterDataPipe.functions)
    yield
    for registry, saved in ((IterDataPipe.functions, ours), (data.IterDataPipe.functions, theirs)):
        registry.clear()
        registry.update(saved)


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("register", [functional_datapipe, data.functional_datapipe], ids=["ours", "theirs"])
@pytest.mark.parametrize("pipe_class", [OurDoubler, TorchDoubler])
def test_forms_registered_with_either_decorator_are_found_on_both_kinds(register: Any, pipe_class: Any) -> None:
    if register is functional_datapipe and pipe_class is TorchDoubler:
        IterDataPipe.register_datapipe_as_function("doubled_for_test", pipe_class)
    else:
        register("doubled_for_test")(pipe_class)
    for source in (IterableWrapper([1, 2]), data.datapipes.iter.IterableWrapper([1, 2])):
        doubled = source.doubled_for_test()
        assert type(doubled) is pipe_class
        assert list(doubled) == [1, -1, 2, -2]


@pytest.mark.usefixtures("forms")
def test_methods_that_users_put_on_one_base_are_found_on_pipes_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IterDataPipe, "ours_for_test", lambda self, n: (type(self).__name__, n), raising=False)
    monkeypatch.setattr(data.IterDataPipe, "theirs_for_test", lambda self, n: (type(self).__name__, n), raising=False)
    for pipe in (IterableWrapper([1]), data.datapipes.iter.IterableWrapper([1])):
        assert pipe.ours_for_test(3) == pipe.theirs_for_test(3) == (type(pipe).__name__, 3)
    with pytest.raises(AttributeError, match="'IterableWrapper' object has no attribute 'nothing_of_this_name'"):
        _ = IterableWrapper([1]).nothing_of_this_name


def test_pipes_with_a_state_of_their_own_are_traversed_copied_and_sent_to_workers() -> None:
    from torch.utils.data import graph

    pipe = TupleState(IterableWrapper(range(4)).sharding_filter(), 10)
    assert types_of(traverse_dps(pipe)) == types_of(graph.traverse_dps(pipe))
    for duplicate in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        assert list(duplicate) == list(duplicate) == [0, 10, 20, 30]
        assert duplicate.resets == 2, "reset() is called at the start of each iteration"
    for method in ("fork", "spawn"):
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, method)) as loader:
            assert [list(loader), list(loader)] == [[0, 10, 20, 30]] * 2


def test_a_running_pipe_may_search_and_change_the_graph_below_it() -> None:
    pipe = Cutting(IterableWrapper([1, 2, 3, 4]).sharding_filter().map(plus_one))
    with DataLoader2(pipe) as loader:
        assert list(loader) == [3, 21, 4, 31, 5, 41, 6, 51]
    # `Cutting` replaces the pipe's source: each item becomes a source of two items, one for each worker.
    for method in ("fork", "spawn"):
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, method)) as loader:
            assert list(loader) == [3, 31, 5, 51]


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_torch_has_the_worker_info_and_a_single_thread_whenever_torch_is_imported(method: str, workers: int) -> None:
    pipe = IterableWrapper(range(4)).sharding_filter().map(worker_of_torch)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, method)) as loader:
        for _ in range(2):
            assert sorted(set(loader)) == [(worker, workers, True, "Mapper", 1) for worker in range(workers)]
    assert data.get_worker_info() is None


def test_seeds_come_from_the_cpu_whatever_the_default_device_is() -> None:
    generator = torch.Generator().manual_seed(3)
    torch.set_default_device("meta")
    try:
        pipe = apply_random_seed(IterableWrapper(range(50)).shuffle().sharding_filter(), generator)
        assert sorted(pipe) == list(range(50))
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
            first, second = list(loader), list(loader)
    finally:
        torch.set_default_device(None)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


def test_without_a_seed_the_generator_of_torch_draws_the_seeds() -> None:
    orders = []
    for _ in range(2):
        torch.manual_seed(11)
        with DataLoader2(
            IterableWrapper(range(50)).shuffle().sharding_filter(), reading_service=MultiProcessingReadingService(2)
        ) as loader:
            orders.append([list(loader), list(loader)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def test_the_loader_of_torch_keeps_its_spawned_workers_between_epochs() -> None:
    options = {"num_workers": 1, "shuffle": True, "persistent_workers": True, "multiprocessing_context": "spawn"}
    loader = data.DataLoader(shuffled_and_sharded(), 4, **options)
    orders = [[item for batch in loader for item in batch.tolist()] for _ in range(3)]
    assert all(sorted(order) == list(range(1, 21)) for order in orders)
    assert orders[0] != orders[1]


def test_the_linter_the_adapters_and_graph_functions_accept_pipes_of_torch() -> None:
    from torchdata.dataloader2.adapter import Shuffle
    from torchdata.dataloader2.graph import remove_dp
    from torchdata.dataloader2.linter import _check_shuffle_before_sharding

    theirs = data.datapipes.iter
    pipe = theirs.IterableWrapper(range(6)).shuffle().sharding_filter().map(plus_one)
    assert _check_shuffle_before_sharding(pipe)
    assert not _check_shuffle_before_sharding(theirs.IterableWrapper(range(6)).sharding_filter().shuffle())
    remove_dp(traverse_dps(pipe), find_dps(traverse_dps(pipe), theirs.ShardingFilter)[0])
    assert list(Shuffle(False)(pipe)) == list(range(1, 7))


def test_graphs_are_pickled_and_sent_to_workers_while_hooks_are_set() -> None:
    pipe = IterableWrapper(range(3)).sharding_filter().map(plus_one)
    for base in (IterDataPipe, data.IterDataPipe):
        seen: list[Any] = []
        base.set_getstate_hook(lambda state, seen=seen: seen.append(state) or state)
        try:
            assert list(pickle.loads(pickle.dumps(pipe))) == list(copy.deepcopy(pipe)) == [1, 2, 3]
            with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "spawn")) as loader:
                assert list(loader) == [1, 2, 3]
        finally:
            base.set_getstate_hook(None)
        assert seen


WITHOUT_DILL = """
import sys
sys.modules["dill"] = None
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.graph import traverse_dps
from torchdata.datapipes.iter import IterableWrapper
if __name__ == "__main__":
    import torch.utils.data.graph
    pipe = IterableWrapper(range(4)).sharding_filter().map(lambda item: item + 1)
    assert len(traverse_dps(pipe)) == len(torch.utils.data.graph.traverse_dps(pipe)) == 1
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "spawn")) as loader:
        print(list(loader))
"""


def test_without_dill_functions_without_a_name_are_traversed_and_sent_all_the_same(tmp_path: Any) -> None:
    script = tmp_path / "without_dill.py"
    script.write_text(WITHOUT_DILL, encoding="utf-8")
    done = run_python("-W", "error", script)
    assert (done.stdout, done.stderr) == ("[1, 2, 3, 4]\n", "")


def test_the_attributes_of_a_loader_are_read_from_outside() -> None:
    from torchdata.dataloader2.adapter import Shuffle

    pipe = IterableWrapper(range(3))
    loader = DataLoader2(pipe)
    assert (loader.datapipe_adapter_fns, loader.reading_service) == (None, None)
    assert isinstance(loader.datapipe, IterableWrapper)
    assert isinstance(DataLoader2(pipe, Shuffle(False)).datapipe_adapter_fns, list)


class Announcing(MultiProcessingReadingService):
    def initialize(self, datapipe: Any) -> Any:
        return super().initialize(datapipe.map(plus_one))

    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        self.epochs = getattr(self, "epochs", 0) + 1
        return super().initialize_iteration(seed_generator, iter_reset_fn)


def test_services_of_users_derive_from_ours() -> None:
    with DataLoader2(IterableWrapper(range(4)).sharding_filter(), reading_service=Announcing(2)) as loader:
        assert [list(loader), list(loader)] == [[1, 2, 3, 4]] * 2
        assert loader.reading_service.epochs == 2
