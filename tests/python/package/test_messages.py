"""The package's messages contain the fragments of torchdata 0.9's messages that old code searches for."""

import io
import re
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cache_checks import cached
from process_checks import identity, loader
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, ReadingServiceInterface
from torchdata.dataloader2.graph import remove_dp, traverse_dps
from torchdata.dataloader2.random import SeedGenerator
from torchdata.datapipes.iter import Concater, IterableWrapper, IterDataPipe, SampleMultiplexer, Zipper
from torchdata.datapipes.map import SequenceWrapper


class Unsized(IterDataPipe[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def ints() -> IterableWrapper[int]:
    return IterableWrapper(range(5))


def raises_key_error(item: Any) -> Any:
    raise KeyError(f"text for {item}")


def dispatched() -> None:
    with loader(IterableWrapper(["a"]).map(raises_key_error).sharding_round_robin_dispatch().map(identity)) as dl:
        list(dl)


def joined_by_a_full_buffer() -> None:
    list(ints().zip_with_iter(IterableWrapper([4, 3, 2, 1, 0]).map(identity), identity, buffer_size=3))


def remove_source() -> None:
    source = ints()
    remove_dp(traverse_dps(source.map(identity)), source)


def remove_last() -> None:
    last = ints().map(identity)
    remove_dp(traverse_dps(last), last)


def remove_joint() -> None:
    joint = ints().zip(ints())
    remove_dp(traverse_dps(joint.map(identity)), joint)


def loaded_too_late() -> None:
    dataloader = DataLoader2(ints())
    state = dataloader.state_dict()
    next(iter(dataloader))
    dataloader.load_state_dict(state)


class Plain(ReadingServiceInterface):
    def initialize(self, datapipe: Any) -> Any:
        return datapipe


def limited() -> None:
    iter(DataLoader2(ints(), reading_service=Plain())).limit(2)


def length_of_uneven_split() -> None:
    first, _ = ints().random_split({"a": 0.3, "b": 0.7}, 0, total_length=5)
    len(first)


NO_LENGTH = r"instance doesn't have valid length$"
FUNCTION_LENGTH = r"length relies on the output of its function\."

#: Each row contains a call, the type of the exception or warning that it causes, and fragments of the message.
ROWS: list[tuple[Any, ...]] = [
    (dispatched, KeyError, "Caught KeyError in dispatching process", "Original Traceback", "KeyError: 'text for a'"),
    (lambda: ints().cycle(-1), ValueError, "Expected non-negative count"),
    (lambda: ints().repeat(-1), ValueError, "Expected non-negative count"),
    (
        lambda: len(Unsized().header(3)),
        UserWarning,
        "length of this HeaderIterDataPipe is inferred to be equal to its limit",
    ),
    (
        lambda: list(ints().add_index()),
        NotImplementedError,
        "We only support adding index to row or batch in dict type",
    ),
    (joined_by_a_full_buffer, UserWarning, "Buffer reaches the upper limit"),
    (lambda: len(Unsized().enumerate().to_map_datapipe()), UserWarning, "Data from prior DataPipe"),
    (lambda: len(ints().map_batches(identity, 2)), TypeError, FUNCTION_LENGTH),
    (
        lambda: list(ints().zip_with_map(SequenceWrapper([0]), identity)),
        KeyError,
        "is not a valid key in the given MapDataPipe",
    ),
    (lambda: ints().max_token_bucketize(5, min_len=-1), ValueError, "``min_len`` should be larger than 0"),
    (length_of_uneven_split, TypeError, "Lengths of the split cannot be known in advance"),
    (lambda: ints().round_robin_demux(0), ValueError, "Expected `num_instaces`"),
    (lambda: ints().sample_multiplex({}), ValueError, "Empty dictionary"),
    (lambda: SampleMultiplexer({}), ValueError, "Empty dictionary"),
    (lambda: list(IterableWrapper(["f{01..999}"]).shard_expand()), ValueError, "must not start with 0"),
    (lambda: len(Unsized().zip_longest(ints())), TypeError, NO_LENGTH),
    (lambda: len(Unsized().threadpool_map(identity)), TypeError, NO_LENGTH),
    (lambda: len(Unsized().batch(2)), TypeError, NO_LENGTH),
    (lambda: len(Unsized().header(None)), TypeError, NO_LENGTH),
    (lambda: len(ints().flatmap(identity)), TypeError, FUNCTION_LENGTH, NO_LENGTH),
    (lambda: len(ints().shuffled_flatmap(str)), TypeError, FUNCTION_LENGTH, NO_LENGTH),
    (lambda: len(ints().demux(2, bool)[0]), TypeError, NO_LENGTH),
    (lambda: len(ints().fullsync()), TypeError, NO_LENGTH),
    (lambda: len(IterableWrapper(["f"]).open_files()), TypeError, NO_LENGTH),
    (lambda: len(IterableWrapper(iter([1]), deepcopy=False)), TypeError, NO_LENGTH),
    (lambda: list(IterableWrapper([("f", io.BytesIO())]).check_hash({})), RuntimeError, "Unspecified hash for file"),
    (lambda: ints().batch(0), AssertionError, "Batch size is required to be larger than 0!$"),
    (lambda: SequenceWrapper([1]).batch(0), AssertionError, "Batch size is required to be larger than 0!$"),
    (lambda: ints().bucketbatch(0), AssertionError, "Batch size is required to be larger than 0!$"),
    (lambda: ints().map_batches(identity, 0), AssertionError, "Batch size is required to be larger than 0!$"),
    (lambda: list(ints().unbatch(unbatch_level=3)), IndexError, "unbatch_level 3 exceeds the depth of the DataPipe"),
    (lambda: ints().shuffle(buffer_size=0), AssertionError, "buffer_size should be larger than 0$"),
    (lambda: ints().shuffled_flatmap(identity, buffer_size=0), AssertionError, "buffer_size should be larger than 0$"),
    (lambda: Concater([1]), TypeError, "Expected all inputs to be `IterDataPipe`$"),  # type: ignore[arg-type]
    (lambda: Zipper([1]), TypeError, "All inputs are required to be `IterDataPipe`"),  # type: ignore[arg-type]
    (lambda: ints().groupby(identity, group_size=0), AssertionError, "group_size must be > 0 and <= buffer_size$"),
    (
        lambda: ints().groupby(identity, guaranteed_group_size=3),
        AssertionError,
        "guaranteed_group_size must be > 0 and <= group_size and group_size must be set",
    ),
    (lambda: ints().prefetch(0), ValueError, "'buffer_size' is required to be a positive integer.$"),
    (
        lambda: ints().threadpool_map(identity, scheduled_tasks=0),
        ValueError,
        "'scheduled_tasks' is required to be a positive integer.$",
    ),
    (lambda: ints().readlines(skip_lines=-1), ValueError, "'skip_lines' is required to be a positive integer.$"),
    (
        lambda: ints().zip_with_iter(ints(), identity, buffer_size=0),
        ValueError,
        "'buffer_size' is required to be either None or a positive integer.$",
    ),
    (
        lambda: ints().zip_with_iter(1, identity),
        TypeError,
        "ref_datapipe must be a IterDataPipe, but its type is <class 'int'> instead.$",
    ),  # type: ignore[arg-type]
    (
        lambda: list(ints().zip_with_iter(IterableWrapper([9]), identity)),
        BufferError,
        "No matching key can be found from reference DataPipe for the data 0",
    ),
    (
        lambda: ints().max_token_bucketize(5, min_len=3, max_len=2),
        ValueError,
        "``min_len`` should be larger than 0 and equal to or smaller than ``max_len``.$",
    ),
    (
        lambda: ints().max_token_bucketize(5, max_len=9),
        ValueError,
        "``max_token_count`` must be equal to or greater than ``max_len``.$",
    ),
    (
        lambda: SequenceWrapper([(1, 2)]).unzip(sequence_length=0),
        ValueError,
        "Expected `sequence_length` larger than 0, but 0 is found$",
    ),
    (lambda: SampleMultiplexer({ints(): 0}), ValueError, "Expecting a positive and non-zero weight, got 0$"),
    (
        lambda: list(IterableWrapper(["f{10..9}"]).shard_expand()),
        ValueError,
        "shard_expand: low bound must be shorter than high bound$",
    ),
    (lambda: list(IterableWrapper(["f{3..1}"]).shard_expand()), ValueError, "shard_expand: bad range in .*shard spec"),
    (
        lambda: list(ints().filter(identity)),
        ValueError,
        "Boolean output is required for `filter_fn` of FilterIterDataPipe, got",
    ),
    (
        lambda: ints().map(remove_dp),
        ValueError,
        "The function remove_dp takes 2 positional parameters, but 1 are required.$",
    ),
    (
        lambda: ints().async_map_batches(identity, 2),
        ValueError,
        "Expected a corotine function with an async def syntax, but got a <class 'function'>$",
    ),  # type: ignore[arg-type]
    (lambda: ints().decompress(file_type="x"), ValueError, "'x' is not a valid CompressionType$"),
    (lambda: ints().check_hash({}, hash_type="x"), ValueError, r"Invalid hash_type requested, should be one of \["),
    (lambda: list(IterableWrapper([("f", io.BytesIO())]).check_hash({"f": "0"})), RuntimeError, "does not match"),
    (
        lambda: Unsized().random_split({"a": 1}, 0),
        TypeError,
        "RandomSplitter needs `total_length`, but it is unable to infer it from the `source_datapipe`",
    ),
    (lambda: ints().random_split({"a": 1}, 0, target="b"), KeyError, "does not match any key in `weights`"),
    (lambda: len(Unsized().header(None)), TypeError, "The length of this HeaderIterDataPipe cannot be determined."),
    (
        lambda: ints().fork(2, buffer_size=-1),
        UserWarning,
        "Unlimited buffer size is set for `fork`, please be aware of OOM at random places",
    ),
    (
        lambda: ints().round_robin_demux(1),
        UserWarning,
        "is an no-op and returns the provided `datapipe` in a list directly",
    ),
    (
        lambda: list(IterableWrapper([[1]]).slice([0], stop=1)),
        UserWarning,
        "A list of indices was passed as well as a stop or step for the slice",
    ),
    (
        lambda: list(IterableWrapper([{"a": 1}]).slice(0)),
        UserWarning,
        "Dictionaries are not sliced by steps, only direct index",
    ),
    (lambda: list(ints().slice(0)), UserWarning, "The next item was not an iterable and cannot be filtered"),
    (loaded_too_late, RuntimeError, "DataLoaderV2 iterator has already been created"),
    (limited, UserWarning, "ReadingService doesn't support `limit`.$"),
    (
        lambda: MultiProcessingReadingService(1, "x"),
        ValueError,
        "Please choose one available multiprocessing context from",
    ),
    (lambda: SeedGenerator(1).spawn(-1), ValueError, "Expected `rank` equal or larger than 0, but got -1.$"),
    (remove_joint, RuntimeError, "Cannot remove the receiving DataPipe"),
    (remove_source, RuntimeError, "Cannot remove the source DataPipe"),
    (remove_last, RuntimeError, "Cannot remove the receiving DataPipe"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2])
def test_a_message_holds_the_fragment_that_old_code_matches(row: tuple[Any, ...]) -> None:
    act, kind, *fragments = row
    if issubclass(kind, Warning):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                act()
            except BufferError:  # The error message contains an item that a full buffer has dropped.
                assert act is joined_by_a_full_buffer
        text = "\n".join(str(warning.message) for warning in caught if issubclass(warning.category, kind))
    else:
        with pytest.raises(kind) as raised:
            act()
        assert type(raised.value) is kind
        text = str(raised.value)
    for fragment in fragments:
        assert re.search(fragment, text), f"{fragment!r} is not in {text!r}"


@pytest.mark.parametrize("reader", ["pipe", "worker of torch"])
def test_a_file_that_is_not_written_in_time_raises_an_on_disk_cache_exception(reader: str, tmp_path: Path) -> None:
    pipe: Any = cached(tmp_path, "a", timeout=0.1)
    if reader != "pipe":
        data = pytest.importorskip("torch.utils.data", reason="the test uses torch's DataLoader")
        pipe = data.DataLoader(pipe, batch_size=None, num_workers=1)
    begun, release = threading.Event(), threading.Event()

    def make(path: str) -> tuple[str, bytes]:
        begun.set()
        assert release.wait(120)
        return path, b""

    with ThreadPoolExecutor(1) as threads:
        threads.submit(list, cached(tmp_path, "a", make))
        assert begun.wait(120)
        try:
            with pytest.raises(Exception, match="OnDiskCache Exception"):
                list(pipe)
        finally:
            release.set()
