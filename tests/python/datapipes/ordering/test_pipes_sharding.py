"""A sharding filter divides items among processes, and may skip items of other shards without reading them."""

from array import array
from collections.abc import Callable, Iterator
from itertools import chain, islice, product
from typing import Any

import numpy as np
import pytest

from families import Mapped
from random_graphs.users import Passing
from refusals import refuses
from resuming import with_state
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.state import save_state

COUNT = 23


class Letters(list[str]):
    """A user-defined list class, which could override `__iter__`, so that pipes must not read such lists by index."""


SOURCES: dict[str, Callable[[], IterDataPipe]] = {
    "range": lambda: IterableWrapper(range(COUNT)),
    "range backwards": lambda: IterableWrapper(range(50, 50 - 2 * COUNT, -2)),
    "range of large numbers": lambda: IterableWrapper(range((1 << 63) - 5, (1 << 63) - 5 + COUNT)),
    "range of larger numbers": lambda: IterableWrapper(range(1 << 70, (1 << 70) + COUNT)),
    "list": lambda: IterableWrapper([str(n) for n in range(COUNT)]),
    "the list itself": lambda: IterableWrapper([[n] for n in range(COUNT)], deepcopy=False),
    "tuple": lambda: IterableWrapper(tuple(range(COUNT))),
    "array": lambda: IterableWrapper(array("I", range(COUNT))),
    "NumPy array": lambda: IterableWrapper(np.arange(3 * COUNT).reshape(COUNT, 3)),
    "empty": lambda: IterableWrapper([]),
    "data set": lambda: IterableWrapper(Mapped(lambda index: index * index, COUNT)),
    "map pipe": lambda: SequenceWrapper(list(range(COUNT))).to_iter_datapipe(),
    "map pipe, some indices": lambda: SequenceWrapper(list(range(COUNT))).to_iter_datapipe([3, 5, 1, 1, 0, 22]),
    "map pipe, shuffled": lambda: SequenceWrapper(list(range(COUNT))).shuffle().set_seed(4),
    "map pipe, sampled": lambda: SequenceWrapper(list(range(COUNT))).sample_by(list(range(0, COUNT, 2))),
    "a list of one's own": lambda: IterableWrapper(Letters("abcdefghijklmnopqrstuvw")),
    "text": lambda: IterableWrapper("abcdefghijklmnopqrstuvw"),
    "set": lambda: IterableWrapper(set(range(COUNT))),
}


class Whole(Passing):
    one_to_one = True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)


def plain(items: Any) -> list[Any]:
    return [item.tolist() if hasattr(item, "tolist") else item for item in items]


def share(source: IterDataPipe, shards: int, shard: int, block: int | None) -> Any:
    pipe = source.sharding_filter().set_sharding_block(block)
    pipe.apply_sharding(shards, shard)
    return pipe


@pytest.mark.parametrize("build", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize(("shards", "block"), [(2, 1), (3, 2), (30, 1), (4, 5)])
def test_a_share_is_the_same_whether_other_items_are_skipped_or_read(
    build: Callable[[], IterDataPipe], shards: int, block: int
) -> None:
    for shard in {*range(min(shards, 4)), COUNT - 1, COUNT, shards - 1} & {*range(shards)}:
        pipes = [build(), build()]
        ours, theirs = share(pipes[0], shards, shard, block), share(Whole(pipes[1]), shards, shard, block)
        for _ in range(2):
            mine, others = iter(ours), iter(theirs)
            assert [token_of(pipe).yielded for pipe in pipes] == [0, 0]
            for item in others:
                assert plain([next(mine)]) == plain([item])
                assert token_of(pipes[0]).yielded == token_of(pipes[1]).yielded
                assert ours.state_dict() == theirs.state_dict()
            assert next(mine, "end") == "end"
            assert next(mine, "end") == "end"
            assert token_of(pipes[0]).yielded == token_of(pipes[1]).yielded
            for pipe in pipes:
                getattr(pipe, "set_seed", id)(5)


@pytest.mark.parametrize("build", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("block", [1, 3])
def test_a_state_resumes_with_any_number_of_shares_at_every_position(
    build: Callable[[], IterDataPipe], block: int
) -> None:
    whole = plain(build())
    owners = [[index for index in range(len(whole)) if index // block % 2 == shard] for shard in range(2)]
    for shard, own in enumerate(owners):
        for taken in range(len(own) + 1):
            pipe = share(build(), 2, shard, block)
            iterator = iter(pipe)
            assert plain(islice(iterator, taken)) == [whole[index] for index in own[:taken]]
            state = save_state(pipe)
            last = own[taken - 1] if taken else -1
            for shards in (2, 5):
                restored = with_state(share(build(), shards, shard, block), state)
                left = [index for index in range(last + 1, len(whole)) if index // block % shards == shard]
                assert plain(restored) == [whole[index] for index in left]


def test_skipping_takes_no_time() -> None:
    for source in (IterableWrapper(range(1 << 60)), SequenceWrapper(range(1 << 60)).to_iter_datapipe()):
        shards = 1 << 57
        assert list(share(source, shards, 3, None)) == list(range(3, 1 << 60, shards))
        assert token_of(source).yielded == 1 << 60


def test_a_list_that_grows_or_shrinks_is_read_up_to_its_current_end() -> None:
    for change in (lambda items: items.append(len(items)), lambda items: items.pop()):
        found = []
        for hide in (Whole, lambda pipe: pipe):
            items = list(range(8))
            pipe = share(hide(IterableWrapper(items, deepcopy=False)), 3, 1, None)
            mine = []
            for item in pipe:
                mine.append(item)
                if len(items) < 15:
                    change(items)
            found.append(mine)
        assert found[0] == found[1]


def test_an_invalidated_iterator_skips_nothing() -> None:
    source = IterableWrapper(list(range(COUNT)))
    pipe = share(source, 3, 0, None)
    old = iter(pipe)
    next(old)
    new = iter(source)
    assert list(islice(new, 4)) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="invalidated"):
        next(old)
    assert token_of(source).yielded == 4
    assert next(new) == 4


@pytest.mark.parametrize(("shards", "block"), [(1, None), (2, None), (3, 2), (4, 5), (5, 1)])
def test_the_lengths_of_shards_are_the_numbers_of_their_items(shards: int, block: int | None) -> None:
    for shard in range(shards):
        pipe = IterableWrapper(range(23)).sharding_filter().set_sharding_block(block)
        pipe.apply_sharding(shards, shard)
        assert len(pipe) == len(list(pipe))
        assert list(pipe.set_sharding_enabled(False)) == list(range(23))
        assert len(pipe) == 23


def test_sharding_cannot_mix_the_default_group_with_others() -> None:
    for first, second in ((1, 2), (3, 1)):
        pipe = IterableWrapper(range(3)).sharding_filter()
        pipe.apply_sharding(2, 0, SHARDING_PRIORITIES(first))
        with pytest.raises(RuntimeError, match="cannot mix DEFAULT"):
            pipe.apply_sharding(2, 0, SHARDING_PRIORITIES(second))


test_impossible_shards_are_refused = refuses(
    (lambda: IterableWrapper([]).sharding_filter().apply_sharding(2, 2), ValueError, "should be smaller than num_of"),
    (lambda: IterableWrapper([]).sharding_filter().apply_sharding(0, 0), ValueError, "must be at least 1"),
    (lambda: IterableWrapper([]).sharding_filter().apply_sharding(2, -1), ValueError, "must be at least 0"),
    (lambda: IterableWrapper([]).sharding_filter().apply_sharding("2", 0), TypeError, "must be an integer"),
    (lambda: IterableWrapper([]).sharding_filter().apply_sharding(2, 0, "ranks"), TypeError, "must be an integer"),
)


@pytest.mark.parametrize("is_chain", [True, False])
def test_a_level_of_sharding_can_have_a_number_of_the_user_s_own(is_chain: bool) -> None:
    levels = {SHARDING_PRIORITIES.DISTRIBUTED: 2, SHARDING_PRIORITIES.MULTIPROCESSING: 3, 40: 2}
    shares = []
    for numbers in product(*map(range, levels.values())):
        filters = [IterableWrapper(range(30)).sharding_filter(None if not is_chain else 40)]
        if is_chain:
            filters.append(filters[0].sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING))
            filters.append(filters[1].sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED))
        for (level, shards), number in zip(levels.items(), numbers, strict=True):
            for pipe in filters:
                pipe.apply_sharding(shards, number, level)
        shares.append(list(filters[-1]))
        assert len(filters[-1]) == len(shares[-1])
    assert sorted(chain.from_iterable(shares)) == list(range(30))
    assert shares[-1] == [11, 23]


def test_torch_s_sharding_priorities_are_accepted() -> None:
    torch_sharding = pytest.importorskip("torch.utils.data.datapipes.iter.sharding")
    priorities = torch_sharding.SHARDING_PRIORITIES
    pipe = IterableWrapper(range(10)).sharding_filter(priorities.MULTIPROCESSING)
    pipe.apply_sharding(2, 1, priorities.MULTIPROCESSING)
    pipe.apply_sharding(5, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    assert list(pipe) == [1, 3, 5, 7, 9]
    assert not IterableWrapper([]).sharding_round_robin_dispatch(priorities.MULTIPROCESSING).is_replicable()
