"""A loader over nodes runs epochs, saves and loads states, and begins each epoch at the correct item."""

from typing import Any

import pytest

from node_sources import Epochs, Positions, numbers
from resumed import loaded
from torchdata.nodes import IterableWrapper, Loader, Prefetcher, SamplerWrapper, Stateful
from torchdata.nodes.loader import LoaderIterator


def test_a_state_is_asked_for_before_within_and_after_a_loop() -> None:
    loader = Loader(numbers(4))
    beginning = loader.state_dict()
    assert beginning == loader.state_dict()
    iterator = iter(loader)
    assert next(iterator) == 0
    middle = loader.state_dict()
    assert list(iterator) == [1, 2, 3]
    end = loader.state_dict()
    for state, rest in ((beginning, [0, 1, 2, 3]), (middle, [1, 2, 3]), (end, [0, 1, 2, 3])):
        other = loaded(Loader(numbers(4)), state)
        assert other.state_dict() == state
        assert list(other) == rest
        loader.load_state_dict(state)
        assert list(loader) == rest


@pytest.mark.parametrize("makes", [numbers, lambda count: Prefetcher(numbers(count), 2)])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_iterator_that_has_yielded_nothing_takes_a_state_that_is_loaded(makes: Any, is_resumed: bool) -> None:
    states = []
    loader = Loader(makes(6))
    for _ in iter(loader):
        states.append(loader.state_dict())
    loader = Loader(makes(6))
    if is_resumed:
        loader.load_state_dict(states[0])
    iterator = iter(loader)
    assert iterator.has_next()
    loader.load_state_dict(states[2])
    assert next(iterator) == 3
    assert loader.state_dict()["num_yielded"] == 4
    assert list(iterator) == [4, 5]
    assert list(loader) == [0, 1, 2, 3, 4, 5]


def test_an_iterator_that_has_yielded_items_refuses_a_state_by_name() -> None:
    loader = Loader(numbers(6))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    next(iterator)
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="after this iterator had yielded items"):
            next(iterator)
    assert loader.state_dict() == state
    assert list(loader) == [1, 2, 3, 4, 5]


def test_the_end_of_an_epoch_resumes_with_the_next_one_or_stays_the_end() -> None:
    for restarts, expected in ((True, [(1, 0), (1, 1)]), (False, [])):
        loader = Loader(SamplerWrapper(Epochs(2)), restart_on_stop_iteration=restarts)
        list(loader)
        other = loaded(Loader(SamplerWrapper(Epochs(2)), restart_on_stop_iteration=restarts), loader.state_dict())
        assert list(other) == expected
        assert list(other) == [(1 + restarts, 0), (1 + restarts, 1)]


def test_has_next_takes_no_item() -> None:
    iterator = LoaderIterator(Loader(IterableWrapper([None, 1])))
    state = iterator.state_dict()
    assert iterator.has_next()
    assert iterator.has_next()
    assert iterator.state_dict() == state
    assert list(iterator) == [None, 1]
    assert not iterator.has_next()
    loader = Loader(IterableWrapper([None, 0, None]))  # Even None and 0 are items.
    next(iter(loader))
    assert list(loaded(loader, loader.state_dict())) == [0, None]


def test_a_stateful_iterable_is_restored_by_its_own_state() -> None:
    assert isinstance(Positions(1), Stateful)
    loader = Loader(IterableWrapper(Positions(4)))
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [1, 2]
    state = loader.state_dict()
    assert state["root"] == {"_num_yielded": 2, "iterable": {"position": 2}}
    positions = Positions(4)
    assert list(loaded(Loader(IterableWrapper(positions)), state)) == [3, 4]
    assert positions.begun == 0


def test_data_that_has_become_shorter_than_the_state_raises_an_error() -> None:
    for node in (numbers(2), SamplerWrapper(range(2))):
        node.reset({"_num_yielded": 3, "_epoch": 0})
        with pytest.raises(ValueError, match="saved after 3 items, but there are only 2"):
            next(node)


def test_an_epoch_counts_once_an_item_is_requested_by_the_user_or_a_node_that_reads_ahead() -> None:
    for node, first in ((SamplerWrapper(Epochs(1)), 0), (Prefetcher(SamplerWrapper(Epochs(1)), 2), 2)):
        loader = Loader(node)
        iter(loader), iter(loader)
        assert [list(loader), list(loader)] == [[(first, 0)], [(first + 1, 0)]]
        loader.shutdown()


def test_a_loaded_epoch_that_is_abandoned_at_once_counts_from_where_it_began() -> None:
    saved = Loader(SamplerWrapper(Epochs(2)))
    next(iter(saved))
    loader = loaded(Loader(SamplerWrapper(Epochs(2))), saved.state_dict())
    iter(loader)
    assert list(loader) == list(saved) == [(1, 0), (1, 1)]
