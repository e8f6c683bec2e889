"""If the source of a loader is a set, all processes read the set in the same order, or an error names the set."""

import enum
from collections.abc import Callable
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest

from programs import output_of
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes._pipe.datasets import UnorderedSet, in_fixed_order
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import SequenceWrapper


class Color(enum.Enum):
    RED = object()
    GREEN = object()
    BLUE = object()


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Nameless:
    """A class without an order, so that sets of its objects cannot be sorted."""


SETS: dict[str, set[Any]] = {
    "strings": set("abcdefgh"),
    "numbers": {3, 1, 2},
    "paths": {Path(f"folder/{name}.jpg") for name in "abcdefgh"},
    "members of an Enum": set(Color),
    "flags": {Access.READ, Access.WRITE, Access.READ | Access.WRITE, Access(0)},
    "frozensets": {frozenset({name, "z"}) for name in "abcdefgh"},
    "nested": {(frozenset({Path(name), Color.RED}), 1) for name in "abcdefgh"},
    "mixed": {"a", b"a", 1, None, Path("a"), Color.RED, ("a",), frozenset({"a"})},
}

PRINT = "print(*map(repr, read(SETS[sys.argv[1]])), sep='\\n')\n"
READERS = {
    "DataLoader2": "from torchdata.dataloader2 import DataLoader2\n"
    "from torchdata.datapipes.iter import IterableWrapper\n"
    "def read(members): return DataLoader2(IterableWrapper(members))\n",
    "nodes": "from torchdata.nodes import IterableWrapper, Loader\n"
    "def read(members): return Loader(IterableWrapper(members))\n",
    "samplers of nodes": "from torchdata.nodes import Loader, SamplerWrapper\n"
    "def read(members): return Loader(SamplerWrapper(members))\n",
    "StatefulDataLoader": "from torchdata.stateful_dataloader import StatefulDataLoader\n"
    "def read(members):\n"
    "    return StatefulDataLoader(Same(), sampler=members, batch_size=None)\n"
    "class Same:\n"
    "    def __getitem__(self, index): return index\n"
    "    def __len__(self): return 8\n",
}


def read_with_hash_seed(readers: list[str], members: str, seed: int) -> list[str]:
    program = "".join(READERS[reader] + PRINT for reader in readers)
    printed = output_of(f"import sys\nfrom test_sets import SETS\n{program}", members, PYTHONHASHSEED=str(seed))
    return [line.partition(" at 0x")[0] if "object" in line else line for line in printed.splitlines()]


@pytest.mark.parametrize(("readers", "members"), [(["DataLoader2"], "mixed"), ([*READERS][1:], "paths")])
def test_sets_are_read_in_the_same_order_for_every_hash_seed(readers: list[str], members: str) -> None:
    if "nodes" in readers:
        pytest.importorskip("torch")
    lines, again = (read_with_hash_seed(readers, members, seed) for seed in (1, 2))
    assert lines == again
    assert len(lines) == len(readers) * len(SETS[members])


@pytest.mark.parametrize("members", SETS)
def test_the_order_does_not_depend_on_how_a_set_was_made(members: str) -> None:
    ordered = in_fixed_order(SETS[members])
    assert ordered == in_fixed_order({*ordered[::-1]}) == in_fixed_order(frozenset(ordered))
    assert set(ordered) == SETS[members]
    if members in ("strings", "numbers", "paths"):
        assert list(IterableWrapper(SETS[members])) == sorted(SETS[members])


def test_paths_of_two_systems_with_the_same_words_have_an_order() -> None:
    both = [PurePosixPath("a"), PureWindowsPath("a")]
    assert in_fixed_order(set(both)) == in_fixed_order({*both[::-1]}) == both


def test_workers_with_hash_seeds_of_their_own_share_out_a_set() -> None:
    members = SETS["paths"] | SETS["strings"]
    service = MultiProcessingReadingService(2, "spawn")
    with DataLoader2(IterableWrapper(members).sharding_filter(), reading_service=service) as loader:
        assert list(loader) == in_fixed_order(members)


def nameless() -> set[Any]:
    return {Nameless() for _ in range(5)}


def test_a_set_that_cannot_be_sorted_is_read_in_its_own_order_by_one_process() -> None:
    members = nameless()
    assert set(DataLoader2(IterableWrapper(members, deepcopy=False))) == members


def test_a_set_that_cannot_be_sorted_is_refused_by_workers_and_by_states() -> None:
    pipe = IterableWrapper(nameless())
    refused = pytest.raises(UnorderedSet, match="a set has a member of type Nameless, so its order.*give a list")
    with DataLoader2(pipe.sharding_filter(), reading_service=MultiProcessingReadingService(2)) as loader, refused:
        list(loader)
    loader = DataLoader2(pipe)
    next(iter(loader))
    with refused:
        loader.state_dict()


def test_nodes_refuse_a_state_from_inside_a_set_that_nothing_sorts() -> None:
    pytest.importorskip("torch")
    from torchdata.nodes import IterableWrapper, Loader

    members = nameless()
    loader = Loader(IterableWrapper(members))
    assert set(loader) == members
    list(islice(loader, 2))
    state = loader.state_dict()
    other = Loader(IterableWrapper(members))
    other.load_state_dict(state)
    with pytest.raises(UnorderedSet, match="type Nameless"):
        list(other)


def test_a_stateful_loader_refuses_a_sampler_that_is_an_unsortable_set() -> None:
    pytest.importorskip("torch")
    from torchdata.stateful_dataloader import StatefulDataLoader

    with pytest.raises(UnorderedSet, match="type Nameless"):
        StatefulDataLoader([1, 2], sampler=nameless())


@pytest.mark.parametrize("read", ["to_iter_datapipe", "shuffle"])
def test_indices_that_are_a_set_are_sorted(read: str) -> None:
    make: Callable[..., Any] = getattr(SequenceWrapper({Path(name): name for name in "abcd"}), read)
    pipe = make(indices={Path(name) for name in "dcba"})
    assert list(pipe if read == "to_iter_datapipe" else pipe.set_shuffle(False)) == list("abcd")
