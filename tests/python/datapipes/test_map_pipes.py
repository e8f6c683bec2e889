"""Map-style pipes can be shuffled, and can be converted to iterable-style pipes."""

import copy
import pickle
import threading
import warnings

import pyarrow
import pytest

from families import Mapped
from pipes_of_users import plus_one
from refusals import refuses
from stream_checks import check_restore
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes


def numbers(count=10):
    return map_pipes.SequenceWrapper(range(count))


PIPES = {
    "SequenceWrapper": (lambda: map_pipes.SequenceWrapper([3, 1, 2]), [3, 1, 2]),
    "Mapper": (lambda: numbers(3).map(plus_one), [1, 2, 3]),
    "Mapper, by default": (lambda: numbers(3).map(), [0, 1, 2]),
    "Batcher": (lambda: numbers(5).batch(2), [[0, 1], [2, 3], [4]]),
    "Batcher, dropping": (lambda: numbers(5).batch(2, drop_last=True), [[0, 1], [2, 3]]),
    "Batcher, of tuples": (lambda: numbers(4).batch(2, wrapper_class=tuple), [(0, 1), (2, 3)]),
    "Concater": (lambda: numbers(2).concat(map_pipes.SequenceWrapper("ab"), numbers(1)), [0, 1, "a", "b", 0]),
    "Concater, by plus": (lambda: numbers(2) + numbers(1), [0, 1, 0]),
    "Zipper": (lambda: numbers(3).zip(map_pipes.SequenceWrapper("ab")), [(0, "a"), (1, "b")]),
    "UnZipper": (lambda: numbers(2).zip(map_pipes.SequenceWrapper("ab")).unzip(2, columns_to_skip=[0])[0], ["a", "b"]),
    "ArrowParts": (lambda: map_pipes.ArrowParts(pyarrow.table({"a": pyarrow.chunked_array([[1, 2], [3]])})), [0, 1]),
    "InMemoryCacheHolder": (lambda: numbers(3).map(plus_one).in_memory_cache(), [1, 2, 3]),
    "IterToMapConverter": (lambda: iter_pipes.IterableWrapper(range(3)).enumerate().to_map_datapipe(), [0, 1, 2]),
}


@pytest.mark.parametrize("name", PIPES)
def test_a_map_pipe_is_read_by_index_and_knows_its_length(name):
    build, expected = PIPES[name]
    pipe = build()
    assert len(pipe) == len(expected)
    assert [pipe[index] for index in range(len(pipe))] == expected
    assert list(pipe) == expected
    for index in (len(pipe), -len(pipe) - 1):
        with pytest.raises(IndexError):
            build()[index]


@pytest.mark.parametrize("name", PIPES)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pipe: pickle.loads(pickle.dumps(pipe))])
def test_copies_are_equal_whether_or_not_the_original_was_read(name, copied):
    build, expected = PIPES[name]
    pipe = build()
    assert list(copied(pipe)) == expected
    assert list(pipe) == expected
    assert list(copied(pipe)) == expected


class BreaksHalfWay(map_pipes.MapDataPipe):
    def __getitem__(self, index):
        if index == 1:
            raise OSError(5, "Input/output error")
        return index

    def __len__(self):
        return 3


@pytest.mark.parametrize(
    "build",
    [
        lambda source: source.map(plus_one),
        lambda source: source.batch(1),
        lambda source: source.concat(numbers(2)),
        lambda source: source.zip(numbers(3)),
        lambda source: source.in_memory_cache(),
        lambda source: source.zip(numbers(3)).unzip(2)[0],
    ],
    ids=["map", "batch", "concat", "zip", "in_memory_cache", "unzip"],
)
def test_the_exception_of_a_source_is_raised_unchanged_and_the_other_items_can_be_read(build):
    pipe = build(BreaksHalfWay())
    expected = build(numbers(3))
    for _ in range(2):
        assert pipe[0] == expected[0]
        with pytest.raises(OSError, match="Input/output error") as failure:
            pipe[1]
        assert failure.value.errno == 5
        assert pipe[2] == expected[2]


test_wrong_arguments_are_refused_by_the_constructor = refuses(
    (lambda: map_pipes.SequenceWrapper(5), TypeError, "SequenceWrapper.*index"),
    (lambda: map_pipes.Mapper(numbers(), 5), TypeError, "fn must be a function"),
    (lambda: map_pipes.Mapper(5, plus_one), TypeError, "MapDataPipe"),
    (lambda: map_pipes.Mapper(iter_pipes.IterableWrapper([]), plus_one), TypeError, "to_map_datapipe"),
    (lambda: map_pipes.Batcher(numbers(), "2"), TypeError, "batch_size"),
    (lambda: map_pipes.Batcher(numbers(), 2, wrapper_class=3), TypeError, "wrapper_class"),
    (lambda: map_pipes.Concater(), ValueError, "Expected at least one DataPipe"),
    (lambda: map_pipes.Concater(numbers(), [1]), TypeError, "input 1 .*Expected all inputs to be `MapDataPipe`"),
    (lambda: map_pipes.Zipper(), ValueError, "Expected at least one DataPipe"),
    (lambda: map_pipes.Zipper(numbers(), [1]), TypeError, "Expected all inputs to be `MapDataPipe`"),
    (lambda: map_pipes.UnZipper(numbers(), 2, [0, 1]), RuntimeError, "filtered out"),
    (lambda: map_pipes.UnZipper(numbers(), 2, [2]), ValueError, "columns_to_skip"),
    (lambda: map_pipes.InMemoryCacheHolder(3), TypeError, "source_dp"),
    (lambda: map_pipes.Shuffler(numbers(), indices=5), TypeError, "indices"),
    (lambda: map_pipes.Shuffler(iter_pipes.IterableWrapper([])), TypeError, "to_map_datapipe"),
    (lambda: map_pipes.IterToMapConverter(numbers()), TypeError, "only apply on IterDataPipe"),
    (lambda: map_pipes.IterToMapConverter(iter_pipes.IterableWrapper([]), 5), TypeError, "key_value_fn"),
)


def test_a_wrapped_sequence_is_copied_by_default():
    source = [[1]]
    copied, same = map_pipes.SequenceWrapper(source), map_pipes.SequenceWrapper(source, deepcopy=False)
    source[0].append(2)
    assert (copied[0], same[0]) == ([1], [1, 2])


def test_a_sequence_that_cannot_be_copied_is_read_directly_with_a_warning():
    source = [threading.Lock()]
    with pytest.warns(UserWarning, match="cannot be deep-copied"):
        pipe = map_pipes.SequenceWrapper(source)
    assert pipe[0] is source[0]


def test_a_mapping_is_read_by_its_keys():
    pipe = map_pipes.SequenceWrapper({"a": 100, "b": 200}).map(plus_one)
    assert pipe["b"] == 201
    assert sorted(pipe.shuffle(indices=["a", "b"])) == [101, 201]


def test_an_index_error_within_the_pipe_does_not_look_like_the_end_of_a_batch():
    def lookup(number):
        return [0, 1, 2][number]

    pipe = numbers(5).map(lookup).batch(2)
    assert pipe[0] == [0, 1]
    with pytest.raises(IndexError, match="list index"):
        pipe[1]


def test_zipping_names_the_pipe_that_ended():
    with pytest.raises(IndexError, match=r"Index 2 .*SequenceWrapper"):
        numbers(3).zip(numbers(2))[2]


def test_len_of_a_pipe_without_a_length_raises_an_error():
    class Squares(map_pipes.MapDataPipe):
        def __getitem__(self, index):
            return index * index

    for pipe in (Squares().map(plus_one), Squares().batch(2), Squares().zip(numbers())):
        with pytest.raises(TypeError, match="valid length"):
            len(pipe)
    assert Squares().batch(3)[1] == [9, 16, 25]
    with pytest.raises(TypeError, match="valid length"):
        Squares().shuffle()
    assert sorted(Squares().shuffle(indices=[2, 3])) == [4, 9]


def test_the_cache_asks_its_source_once_per_item():
    asked = []
    pipe = numbers(3).map(asked.append).in_memory_cache()
    for _ in range(2):
        list(pipe)
    assert asked == [0, 1, 2]


def test_the_shuffled_order_is_the_reference_one_for_a_seed_and_shuffling_is_turned_off_and_on():
    pipe = numbers().shuffle().set_seed(0)
    assert list(pipe) == [7, 8, 1, 5, 3, 4, 2, 0, 9, 6]
    assert sorted(pipe) == list(range(10))
    pipe = numbers().shuffle().set_shuffle(False)
    assert list(pipe) == list(range(10))
    assert pipe.set_shuffle(True).set_seed(0) is pipe
    assert list(pipe) == [7, 8, 1, 5, 3, 4, 2, 0, 9, 6]
    assert check_restore(lambda: numbers().shuffle().set_shuffle(False)) == list(range(10))


def test_the_length_of_a_shuffler_is_the_number_of_its_indices():
    assert len(numbers().shuffle()) == 10
    assert len(numbers().shuffle(indices=[1, 2])) == 2


def test_a_pipe_of_pairs_becomes_a_map_by_key():
    source = iter_pipes.IterableWrapper([("a", 1), ("b", 2)])
    pipe = source.to_map_datapipe()
    assert (pipe["a"], pipe["b"], len(pipe)) == (1, 2, 2)
    with pytest.raises(IndexError, match="Index 'c' is invalid"):
        pipe["c"]
    assert source.to_map_datapipe(lambda pair: pair[::-1])[2] == "b"


def test_a_repeated_key_causes_a_warning_and_its_last_value_counts():
    pipe = iter_pipes.IterableWrapper([("a", 1), ("a", 2)]).to_map_datapipe()
    with pytest.warns(UserWarning, match="duplicate key 'a'"):
        assert pipe["a"] == 2


@pytest.mark.parametrize(("item", "error"), [(5, TypeError), ((1, 2, 3), ValueError), ((), ValueError)])
def test_items_that_are_not_pairs_raise_an_error_each_time(item, error):
    pipe = iter_pipes.IterableWrapper([("a", 1), item]).to_map_datapipe()
    for _ in range(2):
        with pytest.raises(error, match="IterToMapConverter"):
            pipe["a"]


def test_len_of_a_map_reads_its_source_only_if_the_source_has_no_length():
    known = iter_pipes.IterableWrapper([("a", 1)]).to_map_datapipe()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(known) == 1
    unknown = iter_pipes.IterableWrapper([("a", 1)]).filter(bool).to_map_datapipe()
    with pytest.warns(UserWarning, match="set_length"):
        assert len(unknown) == 1


def test_every_public_map_pipe_is_covered_here():
    tested = {name.split(",")[0] for name in PIPES} | {"IndexSampler", "Shuffler", "MapDataPipe"}
    assert tested == {name for name in map_pipes.__all__ if isinstance(getattr(map_pipes, name), type)}


class Unsized:
    def __getitem__(self, index):
        return "abc"[index]


def test_a_data_set_that_raises_no_index_error_is_read_by_its_length():
    endless = map_pipes.SequenceWrapper(Mapped(lambda index: index % 4, 4))
    assert list(endless) == [0, 1, 2, 3]
    assert list(endless.map(str)) == ["0", "1", "2", "3"]
    assert endless[5] == 1
    assert list(map_pipes.SequenceWrapper(Unsized()).map(str.upper)) == ["A", "B", "C"]
