"""Tests which states a loader accepts or refuses, for example states of other ranks, datasets or samplers."""

import itertools
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

import rank_forkserver
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from ranks import environment_of_ranks
from resumed import WORKERS, TakesOnce, epochs_of, loaded, plain, saved, seed_all
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


def state_after(loader: Any, batches: int | None) -> Any:
    for _ in itertools.islice(loader, batches):
        pass
    return saved(loader)


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("makes", [lambda: (range(12), True), lambda: (TakesOnce(), None)], ids=["shuffled", "stream"])
def test_an_iterator_that_was_made_before_the_load_resumes_from_the_state(makes: Any, options: dict[str, Any]) -> None:
    def make() -> Any:
        dataset, shuffle = makes()
        return StatefulDataLoader(dataset, batch_size=2, shuffle=shuffle, **options)

    seed_all()
    whole = epochs_of(make(), 2)
    seed_all()
    state = state_after(make(), 1)
    seed_all()
    loader = make()
    iterator = iter(loader)
    loader.load_state_dict(state)
    assert plain(next(iterator)) == whole[0][1]
    state = loader.state_dict()
    assert [plain(batch) for batch in iterator] == whole[0][2:]
    assert epochs_of(loader, 1) == [whole[1]]
    assert epochs_of(loaded(make(), state), 2) == [whole[0][2:], whole[1]]


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("makes", [lambda: range(12), TakesOnce], ids=["indexed", "stream"])
def test_an_iterator_loads_a_state_if_it_has_yielded_nothing_and_otherwise_refuses_it_by_name(
    makes: Any, options: dict[str, Any]
) -> None:
    def make() -> Any:
        return StatefulDataLoader(makes(), batch_size=2, **options)

    [whole] = epochs_of(make(), 1)
    states = [state_after(make(), batches) for batches in (1, 3)]
    loader = loaded(make(), states[0])
    iterator = iter(loader)
    loader.load_state_dict(states[1])
    assert plain(next(iterator)) == whole[3]
    loader.load_state_dict(states[0])
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"load_state_dict\(\) was called after this iterator had returned batches"
        ):
            next(iterator)
    assert epochs_of(loader, 1) == [whole[1:]]


def test_an_iterator_that_ended_before_a_load_raises_an_error_that_explains_it() -> None:
    state = state_after(StatefulDataLoader(range(4), batch_size=2), 2)
    loader = loaded(StatefulDataLoader(range(4), batch_size=2), state)
    iterator = iter(loader)
    assert list(iterator) == []
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="after this iterator had ended"):
        next(iterator)


def test_a_state_that_another_loop_has_loaded_does_not_change_older_iterators() -> None:
    loader = StatefulDataLoader(range(12), batch_size=2)
    state = state_after(loader, 2)
    first = iter(loader)
    loader.load_state_dict(state)
    assert len(list(loader)) == 4
    assert len(list(first)) == 6


def ranks(count: int, rank: int, length: int = 40, sampler: Any = DistributedSampler) -> Any:
    dataset = range(length)
    return StatefulDataLoader(dataset, batch_size=4, sampler=sampler(dataset, count, rank))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("batches", [0, 1, None])
@pytest.mark.parametrize(
    ("saves", "loads", "message"),
    [
        (lambda: ranks(2, 0), lambda: ranks(1, 0), "by one of 2 ranks, and the sampler of this loader .* among 1"),
        (
            lambda: ranks(2, 0, sampler=StatefulDistributedSampler),
            lambda: ranks(4, 0, sampler=StatefulDistributedSampler),
            "Use 2 ranks, or a state that was saved at the end of an epoch",
        ),
        (
            lambda: ranks(2, 0, sampler=StatefulDistributedSampler),
            lambda: ranks(2, 0, length=60, sampler=StatefulDistributedSampler),
            "a dataset with 40 samples, and this one has 60",
        ),
        (
            lambda: StatefulDataLoader(range(40), batch_size=4, shuffle=True),
            lambda: StatefulDataLoader(range(60), batch_size=4, shuffle=True),
            "a dataset with 40 samples, and this one has 60",
        ),
        (
            lambda: StatefulDataLoader(range(40), batch_size=4, shuffle=True),
            lambda: StatefulDataLoader(range(40), batch_size=4),
            "a RandomSampler as its sampler, and this loader has a SequentialSampler",
        ),
        (
            lambda: ranks(2, 0),
            lambda: StatefulDataLoader(range(40), batch_size=4, shuffle=True),
            "a DistributedSampler as its sampler, and this loader has a RandomSampler",
        ),
    ],
)
def test_a_state_of_another_order_is_refused_after_the_first_batch_unless_strict_is_false(
    saves: Any, loads: Any, message: str, batches: int | None, strict: bool
) -> None:
    state = state_after(saves(), batches)
    loader = loaded(loads(), state, strict=strict)
    if batches and strict:
        with pytest.raises(ValueError, match=message):
            iter(loader)
    else:
        [whole], (rest, following) = epochs_of(loads(), 1), epochs_of(loader, 2)
        assert [len(batch) for batch in rest] == [len(batch) for batch in whole[batches or 0 :]]
        if not batches:
            assert all(
                len({*itertools.chain(*epoch)}) == len([*itertools.chain(*whole)]) for epoch in (rest, following)
            )


def test_indices_may_be_given_as_another_kind_of_sequence() -> None:
    state = state_after(StatefulDataLoader(range(40), batch_size=4, sampler=range(8)), 1)
    loader = StatefulDataLoader(range(40), batch_size=4, sampler=list(range(8)))
    assert epochs_of(loaded(loader, state), 1) == [[[4, 5, 6, 7]]]


@pytest.mark.parametrize("batches", [1, None])
def test_a_state_of_another_rank_is_loaded_with_a_warning_that_names_both(batches: int | None) -> None:
    states = [state_after(ranks(2, rank), batches) for rank in range(2)]
    whole = epochs_of(ranks(2, 1), 1)[0]
    loader = loaded(ranks(2, 1), states[0])
    with pytest.warns(RuntimeWarning, match="rank 1 loads the state of rank 0"):
        assert epochs_of(loader, 1) == [whole[batches:] if batches else whole]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert epochs_of(loaded(loader, states[1]), 1) == [whole[batches:] if batches else whole]


@pytest.fixture(scope="module", autouse=True)
def programs_that_have_imported_torch() -> None:
    rank_forkserver.imports("torch.distributed")


def test_the_program_of_the_guide_resumes_where_each_rank_stopped(tmp_path: Path) -> None:
    import torch.distributed as dist

    guide = Path(__file__).parents[3] / "docs" / "guides" / "stateful-ranks.md"
    program = guide.read_text().split("```python\n")[1].split("```")[0]
    assert program.count('f"loader-') == 2
    (tmp_path / "train.py").write_text(program.replace('f"loader-', f'f"{tmp_path}/loader-'))

    def run(*arguments: str) -> list[str]:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        common |= environment_of_ranks()
        command = [str(tmp_path / "train.py"), *arguments]
        ranks = [rank_forkserver.ForkedProgram(command, {**common, "RANK": str(rank)}) for rank in range(2)]
        lines = []
        for rank in ranks:
            output, _ = rank.communicate(timeout=240)
            assert rank.returncode == 0, output[-3000:]
            lines += re.findall(r"rank \d, epoch \d: \[[\d, ]+\] \d\.\d{4}", output)
            rank.end()
        return sorted(lines)

    whole = run()
    assert len(whole) == 2 * 3 * 5
    stopped = run("7")
    assert len(stopped) == 2 * 7
    assert sorted(stopped + run("resume", "7")) == whole
