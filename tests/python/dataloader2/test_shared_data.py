"""A loader copies a graph's pipes, but not their data."""

import errno
import functools
import gc
import itertools
import operator
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resuming import resumed
from torchdata._stateful import raise_error
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper

torch = pytest.importorskip("torch")

SIZE = 4


class Views:
    def __init__(self) -> None:
        self.written = torch.zeros(SIZE)
        self.read = self.written[:]

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < SIZE:
            raise IndexError(index)
        return self.item(index)

    def item(self, index: int) -> Any:
        self.written[index] = 100.0
        return self.read[index].item()


class Forgetful(Views):
    def __init__(self, value: int = 100) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return type(self), (0,)

    def item(self, index: int) -> Any:
        return self.value


class Named(np.ndarray):
    value: int | None

    def __array_finalize__(self, other: Any) -> None:
        self.value = getattr(other, "value", None)


class HoldsArray(Views):
    def __init__(self) -> None:
        self.array = np.zeros(2).view(Named)
        self.array.value = 100

    def item(self, index: int) -> Any:
        return self.array.value


class HoldsHandles(Views):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generator = (100 for _ in itertools.count())

    def item(self, index: int) -> Any:
        with self.lock:
            return next(self.generator)


class Source(IterDataPipe):
    def __init__(self, data: Any) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        yield from map(self._data.__getitem__, range(SIZE))


KINDS = [Views, Forgetful, HoldsArray, HoldsHandles]
WAYS: dict[str, Callable[[Any], Any]] = {
    "IterableWrapper": lambda data: IterableWrapper(data, deepcopy=False).sharding_filter(),
    "SequenceWrapper": lambda data: SequenceWrapper(data, deepcopy=False).to_iter_datapipe().sharding_filter(),
    "a user's own pipe": lambda data: Source(data).sharding_filter(),
    "a closure": lambda data: IterableWrapper(range(SIZE)).sharding_filter().map(lambda index: data[index]),
    "a method": lambda data: IterableWrapper(range(SIZE)).sharding_filter().map(data.item),
    "a partial": lambda data: (
        IterableWrapper(range(SIZE)).sharding_filter().map(functools.partial(type(data).item, data))
    ),
}


@pytest.mark.parametrize(
    ("way", "dataset", "workers"),
    [*zip([*WAYS, "from_dataset"] * 2, itertools.cycle(KINDS), [0] * 7 + [2] * 7, strict=False)],
)
def test_data_that_does_not_survive_pickle_is_read_as_it_is(way: str, dataset: type, workers: int) -> None:
    service = MultiProcessingReadingService(workers, "fork") if workers else None
    if way == "from_dataset":
        loader = DataLoader2.from_dataset(dataset(), reading_service=service)
    else:
        loader = DataLoader2(WAYS[way](dataset()), reading_service=service)
    with loader:
        assert [list(loader) for _ in range(2)] == [[100] * SIZE] * 2


class InSharedMemory(Views):
    def __init__(self) -> None:
        super().__init__()
        self.written.share_memory_()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_tensor_in_shared_memory_is_shared_with_the_workers(method: str) -> None:
    dataset = InSharedMemory()
    with DataLoader2.from_dataset(dataset, reading_service=MultiProcessingReadingService(1, method)) as loader:
        assert list(loader) == [100] * SIZE
    assert dataset.written.tolist() == [100] * SIZE


def test_a_tensor_in_shared_memory_is_copied_with_a_warning_if_workers_cannot_import_the_functions() -> None:
    dataset = InSharedMemory()
    pipe = Source(dataset).sharding_filter().map(lambda item: item)
    with (
        DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "spawn")) as loader,
        pytest.warns(RuntimeWarning, match="its own copy of the tensors in shared memory, because .*lambda"),
    ):
        assert list(loader) == [100] * SIZE
    assert dataset.written.tolist() == [0] * SIZE


def test_items_without_workers_are_the_objects_of_the_dataset() -> None:
    items = [object() for _ in range(3)]
    assert all(map(operator.is_, DataLoader2.from_dataset(items), items))
    items.append(object())
    assert len(list(DataLoader2.from_dataset(items))) == 4


def test_changes_that_a_program_makes_to_its_dataset_reach_the_loader() -> None:
    class Epochs:
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            return iter([self.epoch, self.epoch])

    dataset = Epochs()
    loader = DataLoader2.from_dataset(dataset)
    for dataset.epoch in range(3):
        assert list(loader) == [dataset.epoch] * 2


class Window(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source
        self.kept: deque[Any] = deque([0])
        self.counts: dict[str, list[int]] = {"items": [0]}
        self.generator = random.Random(3)
        self.handlers = {"add": self._add}

    def _add(self, item: Any) -> Any:
        self.kept.append(item)
        self.counts["items"][0] += 1
        return sum(self.kept), self.counts["items"][0], self.generator.random()

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield self.handlers["add"](item)


def test_loaders_over_one_pipe_share_no_iteration_state() -> None:
    pipe = Window(IterableWrapper(range(5)))
    one, other = DataLoader2(pipe), DataLoader2(pipe)
    pairs = list(zip(one, other, strict=True))
    assert [mine for mine, _ in pairs] == [its for _, its in pairs] == list(pipe)


def test_a_loaded_state_begins_with_the_iteration_state_that_the_pipe_had() -> None:
    loader = DataLoader2(Window(IterableWrapper(range(5))))
    state, items = loader.state_dict(), list(loader)
    assert resumed(DataLoader2(Window(IterableWrapper(range(5)))), state) == [items]


class Reader:
    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe


class Indirect(IterDataPipe):
    def __init__(self, pipe: Any) -> None:
        self.pipe, self.reader, self.call = pipe, Reader(pipe), functools.partial(iter, pipe)

    def __iter__(self) -> Iterator[Any]:
        yield self.pipe is self.reader.pipe is self.call.args[0]
        yield from self.reader.pipe


def test_an_object_that_refers_to_a_pipe_refers_to_its_copy_in_a_loader() -> None:
    pipe = Indirect(IterableWrapper([5]))
    loader = DataLoader2(pipe)
    assert list(loader) == [True, 5]
    assert loader.datapipe.pipe is not pipe.pipe
    assert loader.datapipe.reader is not pipe.reader


def test_a_large_container_of_a_pipe_is_copied_and_its_members_are_shared() -> None:
    class Holder(IterDataPipe):
        def __init__(self) -> None:
            self.rows = [[n] for n in range(10_000)]

        def __iter__(self) -> Iterator[Any]:
            return iter(self.rows)

    pipe = Holder()
    loader = DataLoader2(pipe)
    assert loader.datapipe.rows is not pipe.rows
    assert loader.datapipe.rows[7] is pipe.rows[7]


def test_states_of_a_loader_over_unpicklable_data_leave_out_its_pipe() -> None:
    one = DataLoader2.from_dataset(HoldsHandles())
    next(iter(one))
    state = one.state_dict()
    assert state["serialized_datapipe"] is None
    assert resumed(DataLoader2.from_dataset(HoldsHandles()), state) == [[100] * (SIZE - 1)]
    with pytest.raises(
        TypeError, match=r"SequenceWrapper cannot be pickled: its attribute 'sequence' .*with_pipe=False"
    ):
        one.state_dict(with_pipe=True)


class Heavy:
    pickled = 0

    def __getstate__(self) -> bytes:
        type(self).pickled += 1
        return os.urandom(10_000)

    def __setstate__(self, state: bytes) -> None: ...


def test_a_state_pickles_only_the_data_that_it_may_contain() -> None:
    loader = DataLoader2.from_dataset([Heavy() for _ in range(1000)])
    assert Heavy.pickled == 0
    assert loader.state_dict()["serialized_datapipe"] is None
    assert 0 < Heavy.pickled < 200
    assert len(loader.state_dict(with_pipe=True)["serialized_datapipe"]) > 10_000_000


class ExitsOnce(Views):
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        raise AssertionError("pickled")

    def item(self, index: int) -> Any:
        if index == 2 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_forked_replacement_process_inherits_the_data(tmp_path: Path) -> None:
    service = MultiProcessingReadingService(1, "fork", on_worker_exit="restart")
    with DataLoader2.from_dataset(ExitsOnce(tmp_path / "exited"), reading_service=service) as loader:
        with pytest.warns(RuntimeWarning, match="SIGKILL"):
            assert list(loader) == list(range(SIZE))
        assert list(loader) == list(range(SIZE))


class Shared(Views):
    def __init__(self) -> None:
        super().__init__()
        self.array, self.constant = np.zeros(1000), np.zeros(1000)
        self.constant.flags.writeable = False
        self.tensor = torch.zeros(1000)
        self.same = [self.array, self.array]

    def item(self, index: int) -> Any:
        self.array[0] += 1
        self.tensor[0] += 1
        values = self.array[0], self.same[1][0], self.tensor[0].item(), bool(self.constant.flags.writeable)
        return super().item(index), *map(float, values)


def test_spawned_workers_get_views_of_one_storage_and_write_to_memory_of_their_own() -> None:
    dataset = Shared()
    with DataLoader2.from_dataset(dataset, reading_service=MultiProcessingReadingService(2, "forkserver")) as loader:
        assert list(loader) == [(100.0, n, n, n, 0.0) for n in (1, 1, 2, 2)]
    assert dataset.array[0] == dataset.tensor[0] == 0


class Kinds(Views):
    def __init__(self) -> None:
        tensor, array = torch.arange(4000.0), np.arange(4000.0)
        constant = array.copy()
        constant.flags.writeable = False
        quantized = torch.quantize_per_tensor(tensor, scale=0.5, zero_point=3, dtype=torch.qint8)
        sparse = torch.eye(60).to_sparse(), torch.eye(60).to_sparse_csr()
        self.kinds: list[Any] = [
            tensor[::3], tensor.view(80, 50).t(), torch.ones(1).expand(5000), tensor.bfloat16(), quantized,
            *sparse, torch.nn.Parameter(tensor.clone()), torch.arange(4000.0, requires_grad=True),
            torch.complex(tensor, tensor).conj(), torch.empty(0, 3), array[::3], array.reshape(80, 50).T, constant,
            constant[100:], array.view(Named), array.astype(">f8"), np.arange("2020", "2030", dtype="M8[D]"),
            np.zeros(4000, [("a", "i4"), ("b", "f8")]), np.array([1, "a", None], object), bytearray(4000),
            bytes(70_000),
        ]  # fmt: skip

    def __len__(self) -> int:
        return len(self.kinds)

    def item(self, index: int) -> Any:
        return self.kinds[index], described(self.kinds[index])

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.layout, value.shape, value.requires_grad, value.is_conj()
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape, value.flags.writeable
    return type(value)


def elements_of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value.tolist() if isinstance(value, np.ndarray) else value
    value = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
    return (value.int_repr() if value.is_quantized else value.resolve_conj()).tolist()


@pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor",
    "ignore:TypedStorage is deprecated",
    "ignore:Sparse .* tensor support is in beta",
)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_read_the_same_data_of_all_kinds_with_each_start_method(method: str) -> None:
    dataset = Kinds()
    with DataLoader2.from_dataset(dataset, reading_service=MultiProcessingReadingService(1, method)) as loader:
        items = list(loader)
    assert [kind for _, kind in items] == list(map(described, dataset.kinds))
    for (received, _), value in zip(items, dataset.kinds, strict=True):
        assert elements_of(received) == elements_of(value)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_do_not_see_what_the_main_process_writes_after_their_start(method: str) -> None:
    dataset = Shared()
    with DataLoader2.from_dataset(dataset, reading_service=MultiProcessingReadingService(1, method)) as loader:
        writes = [item[1:4] for item in loader]  # for each item, the worker adds one to its arrays
        dataset.array[:], dataset.tensor[:] = 7, 7
        later = [item[1:4] for item in loader]
    count = len(dataset)
    assert writes + later == [(number, number, number) for number in range(1, 2 * count + 1)]


def test_a_program_for_spawned_workers_holds_each_storage_once() -> None:
    from torchdata._engine.workers.group import pickled_program

    rows = list(torch.arange(100_000.0).view(200, -1))
    pickled, buffers = pickled_program([rows, rows, torch.stack(rows)[:, 0]])
    assert sum(map(len, buffers)) == 400_000 + 800
    assert len(pickled) < 100_000


class Mapped(Views):
    def __init__(self, path: Path) -> None:
        whole = np.load(path, mmap_mode="r")
        self.arrays = [whole, whole[3:], whole[:, ::2], np.load(path, mmap_mode="c"), np.load(path, mmap_mode="r+")]
        self.arrays[3][0] = 7

    def item(self, index: int) -> Any:
        mapped = [index for index, array in enumerate(self.arrays) if array.filename is not None]
        for array in self.arrays[3:]:
            array[1] += 1
        return mapped, [float(array.sum()) for array in self.arrays], [array.shape for array in self.arrays]


def test_spawned_workers_map_the_files_of_read_only_arrays_and_change_no_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(4000.0).reshape(4, 1000))
    content, dataset = path.read_bytes(), Mapped(path)
    with DataLoader2.from_dataset(dataset, reading_service=MultiProcessingReadingService(1, "forkserver")) as loader:
        mapped, sums, shapes = next(iter(loader))
    expected = [float(array.sum()) for array in dataset.arrays]
    assert mapped == [0, 1]
    assert sums == [*expected[:3], expected[3] + 1000, expected[4] + 1000]
    assert shapes == [array.shape for array in dataset.arrays]
    assert path.read_bytes() == content


def test_a_mapped_file_that_was_replaced_is_sent_with_the_contents_that_the_main_process_sees(tmp_path: Path) -> None:
    from torchdata._engine.items.codec import loads
    from torchdata._engine.workers.group import pickled_program

    path = tmp_path / "rows.npy"
    np.save(path, np.zeros(10_000))
    array = np.load(path, mmap_mode="r")
    np.save(tmp_path / "new.npy", np.ones(10_000))
    (tmp_path / "new.npy").replace(path)
    assert loads(*pickled_program(array)).sum() == 0
    path.unlink()
    assert loads(*pickled_program(array)).sum() == 0


def test_slices_of_an_arrow_table_reach_spawned_workers_in_one_buffer() -> None:
    from torchdata._engine.items.codec import loads
    from torchdata._engine.processes.crossing import SharedPickle
    from torchdata._engine.workers.group import pickled_program

    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"x": np.arange(100_000)})
    constant, written = np.arange(100_000), np.arange(100_000)
    constant.flags.writeable = False
    program = [table.slice(n * 5000, 5000) for n in range(20)], [constant, constant[:]], [written, written[:]]
    shared = SharedPickle(*pickled_program(program))
    assert os.fstat(shared.fileno()).st_size < 4.1 * table.nbytes
    slices, constants, arrays = shared.load(loads)
    arrays[0][0] = 5
    assert arrays[1][0] == 0
    assert not constants[1].flags.writeable
    assert pyarrow.concat_tables(slices).equals(table)


class Contents(bytes):
    """A subclass of `bytes`."""


class Large(Views):
    def __init__(self) -> None:
        self.contents = bytes([1]) * 100_000
        self.found = {self.contents: self.contents}

    def item(self, index: int) -> Any:
        ((key, value),) = self.found.items()
        is_same = key is self.contents is value is self.found[bytes([1]) * 100_000]
        return is_same, hash(key) == hash(bytes([1]) * 100_000), is_in_file(np.frombuffer(key, "u1"))


def is_in_file(array: Any) -> bool:
    middle = array.ctypes.data + array.nbytes // 2
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= middle < end:
            return inode != "0"
    raise AssertionError("the memory is not mapped")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the memory mappings of a process are read from /proc")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_share_the_memory_of_large_bytes_objects(method: str) -> None:
    with DataLoader2.from_dataset(Large(), reading_service=MultiProcessingReadingService(2, method)) as loader:
        assert list(loader) == [(True, True, True)] * SIZE


@pytest.mark.parametrize("permanent", [False, True])
@pytest.mark.parametrize("by_value", [False, True])
def test_large_bytes_objects_with_any_contents_survive_pickling(permanent: bool, by_value: bool) -> None:
    from torchdata._engine.items.codec import loads
    from torchdata._engine.processes.crossing import SharedPickle
    from torchdata._engine.workers.group import pickled_program

    size = 70_000
    like_a_frame = b"\x95" + (size - 9).to_bytes(8, "little") + bytes(size - 9)
    like_a_long_frame = b"\x95" + b"\xff" * size
    like_a_header = bytes(size - 5) + b"B" + size.to_bytes(4, "little")
    out_of_band = [like_a_header, like_a_long_frame, bytes(size), bytes(size), b"<" * 65_536, b"=" * 65_537]
    # The text ends with bytes that look like the beginning of a pickled `bytes` object.
    before_frame = ["x" * (size - 5) + "B" + size.to_bytes(4, "little").decode(), "a" * 64_000, "b" * 5978]
    texts = [[f"{n:08}" for n in range(20_000)], "x" * size, "ä" * size, *before_frame]
    others = [like_a_frame, b";" * 65_535, like_a_header, *texts, bytearray(size), bytearray(like_a_header), b""]
    program = [*out_of_band, *others, {b"?" * size: [b"!" * size, bytes(5)]}, {b"#" * size}, Contents(b"@" * size)]
    array = np.array([like_a_header, None], object)
    pickled, buffers = pickled_program([*program, array, *([lambda: None] if by_value else [])])
    assert sum(type(one) is bytes for one in buffers) == len(out_of_band) + 4
    back = SharedPickle(pickled, buffers).load(loads, is_permanent=permanent)[: len(program) + 1]
    kept = back[len(out_of_band) + 2]
    assert back[0] is kept is back[-1][0]
    gc.collect()
    assert back[:-1] == program
    assert list(map(type, back)) == list(map(type, [*program, array]))
    assert kept + b"!" == like_a_header + b"!"


def test_no_process_can_change_the_memory_that_spawned_workers_load_from(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchdata._engine.processes.crossing import SharedPickle, fcntl
    from torchdata._native import is_portable

    if is_portable():
        pytest.skip("a temporary file cannot be sealed")
    busy, sealed = [OSError(errno.EBUSY, "the pages are in use")] * 3, fcntl.fcntl
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", lambda *call: raise_error(busy.pop()) if busy else sealed(*call))
        shared = SharedPickle(b"pickle")
    assert not busy
    for change in (lambda: os.pwrite(shared.fileno(), b"x", 0), lambda: os.ftruncate(shared.fileno(), 0)):
        with pytest.raises(PermissionError):
            change()
