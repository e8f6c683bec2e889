"""What old code matches in messages: fragments of those of torchdata 0.9 stand in ours."""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cache_checks import cached
from process_checks import loader
from torchdata.dataloader2.graph import remove_dp, traverse_dps
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, SampleMultiplexer
from torchdata.datapipes.map import SequenceWrapper


class Unsized(IterDataPipe[int]):
    """A source that does not know its length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def ints() -> IterableWrapper[int]:
    return IterableWrapper(range(5))


def same(item: Any) -> Any:
    return item


def raises_key_error(item: Any) -> Any:
    raise KeyError(f"text for {item}")


def dispatched() -> None:
    with loader(IterableWrapper(["a"]).map(raises_key_error).sharding_round_robin_dispatch().map(same)) as dl:
        list(dl)


def joined_by_a_full_buffer() -> None:
    list(ints().zip_with_iter(IterableWrapper([4, 3, 2, 1, 0]).map(same), same, buffer_size=3))


def remove_source() -> None:
    source = ints()
    remove_dp(traverse_dps(source.map(same)), source)


def remove_last() -> None:
    last = ints().map(same)
    remove_dp(traverse_dps(last), last)


def length_of_uneven_split() -> None:
    first, _ = ints().random_split({"a": 0.3, "b": 0.7}, 0, total_length=5)
    len(first)


NO_LENGTH = r"instance doesn't have valid length$"
FUNCTION_LENGTH = r"length relies on the output of its function\."

#: What is done, the kind of exception or warning, and the regular expressions that its text is searched for.
ROWS: dict[str, tuple[Callable[[], Any], type[BaseException], tuple[str, ...]]] = {
    "exception in the dispatching process": (
        dispatched,
        KeyError,
        ("Caught KeyError in dispatching process", "Original Traceback", "KeyError: 'text for a'"),
    ),
    "cycle": (lambda: ints().cycle(-1), ValueError, ("Expected non-negative count",)),
    "repeat": (lambda: ints().repeat(-1), ValueError, ("Expected non-negative count",)),
    "header": (
        lambda: len(Unsized().header(3)),
        UserWarning,
        ("length of this HeaderIterDataPipe is inferred to be equal to its limit",),
    ),
    "add_index": (
        lambda: list(ints().add_index()),
        NotImplementedError,
        ("We only support adding index to row or batch in dict type",),
    ),
    "zip_with_iter": (joined_by_a_full_buffer, UserWarning, ("Buffer reaches the upper limit",)),
    "to_map_datapipe": (
        lambda: len(Unsized().enumerate().to_map_datapipe()),
        UserWarning,
        ("Data from prior DataPipe",),
    ),
    "map_batches": (lambda: len(ints().map_batches(same, 2)), TypeError, (FUNCTION_LENGTH,)),
    "zip_with_map": (
        lambda: list(ints().zip_with_map(SequenceWrapper([0]), same)),
        KeyError,
        ("is not a valid key in the given MapDataPipe",),
    ),
    "max_token_bucketize": (
        lambda: ints().max_token_bucketize(5, min_len=-1),
        ValueError,
        ("``min_len`` should be larger than 0",),
    ),
    "random_split": (
        length_of_uneven_split,
        TypeError,
        ("Lengths of the split cannot be known in advance",),
    ),
    "round_robin_demux": (lambda: ints().round_robin_demux(0), ValueError, ("Expected `num_instaces`",)),
    "sample_multiplex": (lambda: ints().sample_multiplex({}), ValueError, ("Empty dictionary",)),
    "SampleMultiplexer": (lambda: SampleMultiplexer({}), ValueError, ("Empty dictionary",)),
    "shard_expand": (
        lambda: list(IterableWrapper(["f{01..999}"]).shard_expand()),
        ValueError,
        ("must not start with 0",),
    ),
    "len of zip_longest": (lambda: len(Unsized().zip_longest(ints())), TypeError, (NO_LENGTH,)),
    "len of threadpool_map": (lambda: len(Unsized().threadpool_map(same)), TypeError, (NO_LENGTH,)),
    "len of batch": (lambda: len(Unsized().batch(2)), TypeError, (NO_LENGTH,)),
    "len of header": (lambda: len(Unsized().header(None)), TypeError, (NO_LENGTH,)),
    "len of flatmap": (lambda: len(ints().flatmap(same)), TypeError, (FUNCTION_LENGTH, NO_LENGTH)),
    "len of shuffled_flatmap": (
        lambda: len(ints().shuffled_flatmap(str)),
        TypeError,
        (FUNCTION_LENGTH, NO_LENGTH),
    ),
    "len of a demux child": (lambda: len(ints().demux(2, bool)[0]), TypeError, (NO_LENGTH,)),
    "len of fullsync": (lambda: len(ints().fullsync()), TypeError, (NO_LENGTH,)),
    "len of files": (lambda: len(IterableWrapper(["f"]).open_files()), TypeError, (NO_LENGTH,)),
    "len of a wrapped generator": (
        lambda: len(IterableWrapper(iter([1]), deepcopy=False)),
        TypeError,
        (NO_LENGTH,),
    ),
    "check_hash": (
        lambda: list(IterableWrapper([("f", io.BytesIO())]).check_hash({})),
        RuntimeError,
        ("Unspecified hash for file",),
    ),
    "remove_dp of a source": (remove_source, RuntimeError, ("Cannot remove the source DataPipe",)),
    "remove_dp of the last pipe": (
        remove_last,
        RuntimeError,
        ("Cannot remove the receiving DataPipe",),
    ),
}


@pytest.mark.parametrize("where", ROWS)
def test_a_message_holds_the_fragment_that_old_code_matches(where: str) -> None:
    act, kind, fragments = ROWS[where]
    if issubclass(kind, Warning):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                act()
            except BufferError:  # what a full buffer has dropped is missed later
                assert where == "zip_with_iter"
        text = "\n".join(str(warning.message) for warning in caught if issubclass(warning.category, kind))
    else:
        with pytest.raises(kind) as raised:
            act()
        assert type(raised.value) is kind
        text = str(raised.value)
    for fragment in fragments:
        assert re.search(fragment, text), f"{fragment!r} is not in {text!r}"


@contextmanager
def being_made(folder: Path) -> Iterator[None]:
    """Somebody makes the file `a` of a cached section, and does not come to its end."""
    begun, go_on = threading.Event(), threading.Event()

    def make(path: str) -> tuple[str, bytes]:
        begun.set()
        assert go_on.wait(60)
        return path, b""

    thread = threading.Thread(target=lambda: list(cached(folder, "a", make)))
    thread.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        go_on.set()
        thread.join()


def test_a_file_that_is_not_made_in_time_is_an_on_disk_cache_exception(tmp_path: Path) -> None:
    pipe = cached(tmp_path, "a", timeout=0.1)
    with being_made(tmp_path), pytest.raises(Exception, match="OnDiskCache Exception"):
        list(pipe)


def test_it_is_one_through_a_worker_of_torchs_loader_too(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data", reason="this is about torch's DataLoader")
    dataloader = data.DataLoader(cached(tmp_path, "a", timeout=0.1), batch_size=None, num_workers=1)
    with being_made(tmp_path), pytest.raises(Exception, match="OnDiskCache Exception"):
        list(dataloader)
