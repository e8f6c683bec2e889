"""Pipes combine several inputs, either at random by weight, or in turn until the longest input has ended."""

import random

from pipes_table import seed
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, MultiplexerLongest, SampleMultiplexer


def letters(seed: int | None = None, **weights: float) -> SampleMultiplexer:
    return SampleMultiplexer({IterableWrapper(letter).cycle(): w for letter, w in weights.items()}, seed)


def finite(seed: int | None = None) -> SampleMultiplexer:
    sizes = {"a": (8, 5), "b": (4, 2), "c": (2, 1)}
    return SampleMultiplexer({IterableWrapper(key * size): w for key, (size, w) in sizes.items()}, seed)


def test_a_seed_of_the_constructor_gives_the_choices_of_torchdata_0_9_with_and_without_a_loader() -> None:
    pipe = finite(11)
    assert pipe.set_seed(3) is pipe
    assert ["".join(pipe), "".join(pipe)] == ["aacaaaaabbabcb", "accbaaaaaaabbb"]
    with DataLoader2(finite(11), reading_service=InProcessReadingService()) as loader:
        loader.seed(5)
        assert "".join(loader) == "aacaaaaabbabcb"


def test_a_pipe_without_a_seed_follows_the_one_of_the_loader() -> None:
    runs = []
    for run_seed in (5, 5, 6):
        with DataLoader2(letters(a=1, b=1).header(64), reading_service=InProcessReadingService()) as loader:
            loader.seed(run_seed)
            runs.append("".join(loader))
    assert runs[0] == runs[1] != runs[2]


def test_without_a_seed_every_epoch_draws_new_choices(no_torch: None) -> None:
    pipe = letters(a=1, b=1).header(64)
    random.seed(1)
    first, second = "".join(pipe), "".join(pipe)
    random.seed(1)
    assert ["".join(pipe), "".join(pipe)] == [first, second]
    assert first != second


def test_weights_of_any_magnitude_omit_no_item() -> None:
    pipes = {IterableWrapper("aa"): 1e300, IterableWrapper("bb"): 1e-300, IterableWrapper("cc"): 1}
    assert sorted(SampleMultiplexer(pipes, seed=0)) == list("aabbcc")


def test_workers_make_the_same_choices_before_a_sharding_filter() -> None:
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    pipe = SampleMultiplexer({IterableWrapper(range(20)): 1, IterableWrapper(range(20, 30)): 1})
    with DataLoader2(pipe.sharding_filter(), reading_service=service) as loader:
        assert [sorted(loader) for _ in range(2)] == [list(range(30))] * 2


def test_an_input_is_read_only_in_its_turn() -> None:
    taken: list[str] = []
    left = IterableWrapper("ab").map(lambda item: taken.append(item) or item)
    right = IterableWrapper("xy").map(lambda item: taken.append(item) or item)
    reader = iter(left.mux_longest(right))
    assert next(reader) == "a"
    assert taken == ["a"]
    sampled = seed(SampleMultiplexer({left: 1, right: 1}), 1)
    taken.clear()
    assert taken == [next(iter(sampled))]


def test_plain_iterables_are_inputs_too_and_none_at_all_is_an_empty_pipe() -> None:
    assert list(IterableWrapper("ab").mux_longest([1, 2, 3])) == ["a", 1, "b", 2, 3]
    assert (list(MultiplexerLongest()), len(MultiplexerLongest())) == ([], 0)


def test_the_functional_form_uses_the_weight_that_the_dict_has_for_its_pipe() -> None:
    left, right = IterableWrapper("aaaa"), IterableWrapper("bbbb")
    by_dict = left.sample_multiplex({right: 1, left: 3}, seed=5)
    assert list(by_dict) == list(SampleMultiplexer({right: 1, left: 3}, seed=5))
    by_weight = left.sample_multiplex({right: 1}, 5, 3)
    assert list(by_weight) == list(SampleMultiplexer({left: 3, right: 1}, seed=5))
