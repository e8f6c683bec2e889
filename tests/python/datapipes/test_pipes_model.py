"""Every pipe in `pipes_table` yields the expected items, and has an exact state at every position."""

import copy
import gc
import itertools
import pickle
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipes_table import BAD_ARGUMENTS, ELSEWHERE, ROWS, Row, seed
from refusals import refuses
from resuming import with_state
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes._pipe.graph.traversal import is_pipe, walk
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.state import is_restorable, load_state, save_state

pytestmark = [
    pytest.mark.filterwarnings("ignore:Some child DataPipes are not exhausted"),
    pytest.mark.filterwarnings("ignore:The length of this HeaderIterDataPipe"),
    pytest.mark.filterwarnings("ignore:FileLister found no file"),  # some folders of the tests are empty
]

ITEMS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 0, 7]

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


class SourceBroke(Exception):
    def __init__(self, position: int) -> None:
        super().__init__(f"broke at {position}")
        self.position = position


class FailingSource(IterDataPipe):
    def __init__(self, items: list[int], fail_at: int) -> None:
        self.items, self.fail_at = items, fail_at

    def __iter__(self) -> Iterator[int]:
        for position, item in enumerate(self.items):
            if position == self.fail_at:
                raise SourceBroke(position)
            yield item

    def __len__(self) -> int:
        return len(self.items)


def built(row: Row, items: list[int] | None = None, **params: Any) -> Any:
    source_items = ITEMS if items is None else items
    return row.build(lambda: IterableWrapper(source_items), **(params or row.example))


def modelled(row: Row, items: list[int] | None = None, **params: Any) -> list[Any]:
    return row.model(list(ITEMS if items is None else items), **(params or row.example))


def positions(pipe: Any) -> Iterator[tuple[list[Any], bytes]]:
    head: list[Any] = []
    iterator = iter(pipe)
    yield head, cloudpickle.dumps(save_state(pipe))
    for item in iterator:
        head = [*head, item]
        yield head, cloudpickle.dumps(save_state(pipe))
    yield head, cloudpickle.dumps(save_state(pipe))


@each_row
def test_every_position_is_restored_exactly(row: Row) -> None:
    whole = seed(built(row), 1)
    first = list(whole)
    second = list(seed(whole, 2))
    for head, state in positions(seed(built(row), 1)):
        restored = with_state(built(row), pickle.loads(state))
        assert head + list(restored) == first
        assert list(seed(restored, 2)) == second, f"the epoch after restoring at {len(head)}"


@each_row
def test_a_restored_pipe_is_saved_and_restored_again(row: Row) -> None:
    first = list(seed(built(row), 1))
    for head, state in list(positions(seed(built(row), 1)))[1::2]:
        untouched, advanced = built(row), built(row)
        load_state(untouched, pickle.loads(state))
        load_state(advanced, pickle.loads(cloudpickle.dumps(save_state(untouched))))
        more = list(itertools.islice(advanced, 1))
        third = with_state(built(row), pickle.loads(cloudpickle.dumps(save_state(advanced))))
        assert head + more + list(third) == first


@each_row
def test_a_state_is_loaded_into_a_pipe_that_was_iterated_before(row: Row) -> None:
    pipe = seed(built(row), 1)
    first = list(pipe)
    for head, state in list(positions(seed(pipe, 1)))[::2]:
        next(iter(pipe), None)
        load_state(pipe, pickle.loads(state))
        assert head + list(pipe) == first
        load_state(pipe, pickle.loads(state))
        iter(pipe)
        assert list(seed(pipe, 1)) == first, "a second iteration after the load starts over"


@each_row
@settings(max_examples=8)
@given(data=st.data())
def test_a_pipe_yields_its_model_s_items_from_any_position_for_any_parameters(row: Row, data: st.DataObject) -> None:
    items = data.draw(st.lists(st.integers(0, 20), max_size=15))
    params = {name: data.draw(strategy, label=name) for name, (strategy, _) in row.params.items()}
    whole = modelled(row, items, **params)
    position = data.draw(st.integers(0, len(whole) + 1), label="position")
    pipe = seed(built(row, items, **params), 1)
    iterator = iter(pipe)
    head = list(itertools.islice(iterator, position))  # The last position is after the end of the iteration.
    restored = with_state(built(row, items, **params), pickle.loads(cloudpickle.dumps(save_state(pipe))))
    assert head + list(iterator) == head + list(restored) == whole


@each_row
def test_iterating_after_an_epoch_or_a_break_starts_over(row: Row) -> None:
    expected = modelled(row)
    pipe = seed(built(row), 1)
    assert list(pipe) == expected
    for stop in {1, 2, len(expected) // 2, len(expected)} & {*range(1, len(expected) + 1)}:
        for count, _ in enumerate(seed(pipe, 1), 1):
            if count == stop:
                break
        assert list(seed(pipe, 1)) == expected


@each_row
def test_copies_start_over_and_do_not_change_the_original(row: Row) -> None:
    expected = modelled(row)
    pipe = seed(built(row), 1)
    iterator = iter(pipe)
    head = list(itertools.islice(iterator, 2))
    for duplicate in (copy.deepcopy(pipe), pickle.loads(cloudpickle.dumps(pipe))):
        assert list(seed(duplicate, 1)) == expected
    assert head + list(iterator) == expected


class Noting(IterDataPipe):
    def __init__(self, count: int, before: list[int]) -> None:
        self.count = count
        self.before = before
        self.held: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            if number in self.before and number not in self.held:
                gc.collect()
                self.held[number] = tracemalloc.get_traced_memory()[0]
            yield number

    def __len__(self) -> int:
        return self.count


def held(row: Row, few: int, many: int) -> tuple[int, int]:
    sources: list[Noting] = []

    def source() -> Noting:
        sources.append(Noting(many, [few, many - 1]))
        return sources[-1]

    pipe = seed(row.build(source, **row.example), 1)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in pipe:
            pass
        gc.collect()
        after = [tracemalloc.get_traced_memory()[0], *(source.held.get(many - 1, 0) for source in sources)]
        return max(source.held.get(few, 0) for source in sources), max(after)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("row", [row for row in ROWS if not row.grows], ids=lambda row: row.name)
def test_memory_does_not_grow_with_the_number_of_items(row: Row) -> None:
    held(row, 20, 50)
    gc.freeze()  # The garbage collector skips the objects of earlier tests after `freeze`.
    growth = []
    for few, more in ((250, 500), (1000, 2000), (8000, 3000)):  # some pipes reach their maximum memory late
        before, after = held(row, few, few + more)
        growth.append((after - (before or held(row, few // 2, few)[1])) / more)
        if growth[-1] < 12:
            return
    pytest.fail(f"each further item takes at least 1.5 pointers of memory: {growth} bytes")


def in_turn(*shares: list[Any]) -> list[Any]:
    nothing = object()
    return [item for turn in itertools.zip_longest(*shares, fillvalue=nothing) for item in turn if item is not nothing]


def named(name: str, item: Any) -> tuple[str, Any]:
    return name, item


IN_WORKERS = [row for row in ROWS if not row.not_in_workers]
AT_ONCE = 12


@pytest.mark.parametrize("first", range(0, len(IN_WORKERS), AT_ONCE), ids=lambda first: IN_WORKERS[first].name)
def test_two_workers_each_process_their_share(first: int) -> None:
    """Each loader reads the pipes of several rows of `ROWS`, because starting workers for every row would take long."""
    rows = IN_WORKERS[first : first + AT_ONCE]
    pipes = [row.build(lambda: IterableWrapper(ITEMS).sharding_filter(), **row.example) for row in rows]
    tagged = [pipe.map(partial(named, row.name)) for row, pipe in zip(rows, pipes, strict=True)]
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    runs = []
    with DataLoader2(tagged[0].mux_longest(*tagged[1:]), reading_service=service) as loader:
        for _ in range(2):
            loader.seed(1)
            runs.append(list(loader))
        for _ in itertools.islice(loader, 2 * len(rows)):  # The loop leaves the epoch after the first items.
            pass
        loader.seed(1)
        runs.append(list(loader))
    shares = (ITEMS[0::2], ITEMS[1::2])
    expected = in_turn(
        *(in_turn(*([(row.name, item) for item in modelled(row, share)] for row in rows)) for share in shares)
    )
    assert [name for name, _ in runs[0]] == [name for name, _ in expected]
    for row in rows:
        found = [[item for name, item in run if name == row.name] for run in runs]
        if row.random:
            assert found[1] == found[2] == found[0], row.name
        else:
            assert found == [[item for name, item in expected if name == row.name]] * 3, row.name


@pytest.mark.parametrize("row", [row for row in ROWS if row.reads_items], ids=lambda row: row.name)
@pytest.mark.parametrize("fail_at", [0, 5])
def test_the_exception_of_a_source_is_raised_unchanged_with_the_name_of_the_pipe(row: Row, fail_at: int) -> None:
    pipe = seed(row.build(lambda: FailingSource(ITEMS, fail_at), **row.example), 1)
    with pytest.raises(SourceBroke) as caught:
        list(pipe)
    assert caught.value.position == fail_at
    assert any("FailingSource" in note for note in caught.value.__notes__)


@each_row
def test_the_length_is_the_number_of_items_or_a_type_error(row: Row) -> None:
    pipe = built(row)
    if row.length is None:
        assert len(pipe) == len(modelled(row))
    elif isinstance(row.length, int):
        assert len(pipe) == row.length
    else:
        with pytest.raises(TypeError, match=row.length):
            len(pipe)


@each_row
def test_an_older_iterator_is_invalidated_by_a_newer_one(row: Row) -> None:
    pipe = seed(built(row), 1)
    older = iter(pipe)
    newer = iter(seed(pipe, 1))
    assert list(newer) == modelled(row)
    with pytest.raises(RuntimeError, match="invalidated"):
        next(older)


@each_row
def test_a_state_of_another_pipeline_is_refused(row: Row) -> None:
    pipe = built(row)
    iter(pipe)
    with pytest.raises(ValueError, match="another pipeline"):
        load_state(built(row).map(abs).map(abs), save_state(pipe))


test_bad_arguments_are_named_at_construction = refuses(*BAD_ARGUMENTS)


def test_every_public_pipe_has_a_row_or_tests_of_its_own() -> None:
    forms = {getattr(form, "__wrapped__", form).__name__: name for name, form in IterDataPipe.functions.items()}
    built_pipes = {type(pipe).__name__ for row in ROWS for pipe in walk(built(row))}
    named = {row.name for row in ROWS}
    public = {name for name in iter_pipes.__all__ if issubclass(getattr(iter_pipes, name), IterDataPipe)}
    public.remove("IterDataPipe")
    lacking = {name for name in public - built_pipes if forms.get(name) not in named}
    assert lacking == set(ELSEWHERE)
    for name, module in ELSEWHERE.items():
        (file,) = Path(__file__).parents[1].rglob(module)
        assert name in file.read_text(encoding="utf-8")


@each_row
def test_pipes_of_the_library_are_restored_and_never_replayed(row: Row) -> None:
    assert all(map(is_pipe, walk(built(row))))
    own = [pipe for pipe in walk(built(row)) if type(pipe).__module__.startswith("torchdata.")]
    assert [pipe for pipe in own if isinstance(pipe, IterDataPipe) and not is_restorable(pipe)] == []
