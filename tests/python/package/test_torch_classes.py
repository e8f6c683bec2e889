"""Pipes of this package are instances of torch's pipe classes, and vice versa, in any order of imports."""

import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest

from fresh_processes import run_program, run_python
from pipes_of_users import plus_one
from torchdata.dataloader2.graph import find_dps, replace_dp, traverse_dps
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Mapper, Shuffler
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.utils import StreamWrapper, janitor
from torchdata.datapipes.utils._streams import detached

torch = pytest.importorskip("torch", reason="the tests use torch beside this package")
data = torch.utils.data


#: Two parts of a program: the first part imports this package, and the second part imports torch.
WHO_COMES_FIRST = (
    """
from torchdata.datapipes.map import *  # all, because other modules wait for an import
from torchdata.datapipes.iter import *
from torchdata.dataloader2 import DataLoader2
pipe, by_index = IterableWrapper(range(3)).map(str), SequenceWrapper([1])
""",
    """
import torch.utils.data as data
assert isinstance(pipe, data.IterDataPipe) and isinstance(pipe, data.IterableDataset) and isinstance(pipe, data.Dataset)
assert issubclass(Mapper, data.IterDataPipe) and not isinstance(pipe, data.MapDataPipe)
assert isinstance(by_index, data.Dataset) and not isinstance(by_index, data.IterableDataset)
assert issubclass(Mapper, data.Dataset) and not isinstance([1], data.Dataset)
assert isinstance(by_index, data.MapDataPipe) and not isinstance(by_index, data.IterDataPipe)
theirs = data.datapipes.iter.IterableWrapper(range(3)).map(str)
assert isinstance(theirs, IterDataPipe) and not isinstance(theirs, MapDataPipe)
assert isinstance(theirs, Mapper) and not isinstance(theirs, IterableWrapper)
assert isinstance(pipe, data.datapipes.iter.Mapper) and not isinstance(pipe, data.datapipes.iter.IterableWrapper)
assert isinstance(by_index, data.datapipes.map.SequenceWrapper)
assert isinstance(data.datapipes.map.SequenceWrapper([1]), MapDataPipe)
assert not isinstance([1], (IterDataPipe, data.IterDataPipe))
assert not isinstance(data.TensorDataset(__import__("torch").ones(2)), (IterDataPipe, MapDataPipe))
print(list(DataLoader2(theirs.prefetch(2))), list(pipe) == list(theirs))
""",
)


@pytest.mark.parametrize("kind", ["iter", "map"])
def test_classes_of_torch_and_our_classes_of_the_same_name_are_subclasses_of_each_other(kind: str) -> None:
    theirs = importlib.import_module(f"torch.utils.data.datapipes.{kind}")
    ours = importlib.import_module(f"torchdata.datapipes.{kind}")
    assert {"Mapper", "Shuffler", "Zipper"} < set(theirs.__all__)
    for name in theirs.__all__:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert issubclass(one, other), name
        assert issubclass(other, one), name
        assert issubclass(type("Derived", (other,), {}), one), name
        assert issubclass(type("Derived", (one,), {}), other), name
    assert not issubclass(ours.Mapper, theirs.Shuffler)
    assert not issubclass(theirs.Mapper, ours.Shuffler)


def test_pipes_are_found_and_replaced_by_the_classes_of_torch() -> None:
    from torch.utils.data.datapipes.iter.combinatorics import ShufflerIterDataPipe

    theirs = torch.utils.data.datapipes.iter
    shuffled = IterableWrapper(range(4)).shuffle()
    last = theirs.Mapper(shuffled.map(plus_one), plus_one)
    graph = traverse_dps(last)
    assert find_dps(graph, ShufflerIterDataPipe) == find_dps(graph, Shuffler) == [shuffled]
    assert len(find_dps(graph, theirs.Mapper)) == len(find_dps(graph, Mapper)) == 2
    assert find_dps(graph, theirs.Batcher) == []

    class Derived(ShufflerIterDataPipe):
        pass

    assert find_dps(graph, Derived) == []
    assert find_dps(traverse_dps(Derived(shuffled.map(plus_one))), Shuffler) == [shuffled]
    (found,) = find_dps(graph, ShufflerIterDataPipe)
    graph = replace_dp(graph, found, IterableWrapper([5]))
    assert find_dps(graph, ShufflerIterDataPipe) == []
    assert list(last) == [7]


CLASSES_THAT_WERE_THERE_BEFORE_TORCH = (
    """
import copy, dataclasses, pickle
from typing import Generic, TypeVar
from torchdata.datapipes.iter import IterDataPipe
from torchdata.datapipes.map import MapDataPipe, SequenceWrapper
T = TypeVar("T")
class Words(IterDataPipe[T]):
    def __init__(self, words): self.words = words
    def __iter__(self): yield from self.words
class Loud: pass
class LoudWords(Loud, Words[str], Generic[T]): pass
@dataclasses.dataclass
class Count(IterDataPipe[int]):
    stop: int
    def __iter__(self): yield from range(self.stop)
class Slots(IterDataPipe):
    __slots__ = ("stop",)
    def __iter__(self): yield 1
class Listed(list, MapDataPipe): pass
pipes = [LoudWords("ab"), Count(2), Slots(), Listed([7]), SequenceWrapper([8])]
running = iter(pipes[0].map(str.upper))
saved = pickle.dumps(pipes[1])
seen = [next(running)]
""",
    """
import torch.utils.data as data
for pipe in pipes:
    assert isinstance(pipe, data.Dataset) and issubclass(type(pipe), data.Dataset), pipe
seen += running
class Both(IterDataPipe, data.Dataset):
    def __iter__(self): yield 5
print(seen, list(pickle.loads(saved)), list(copy.deepcopy(pipes[1])), pipes[3][0], list(Both() + Both()))
print(list(pipes[4] + Listed([9])))
""",
)


def test_torch_is_imported_even_if_its_dataset_class_cannot_be_a_base() -> None:
    done = run_python(
        "-W",
        "error",
        "-c",
        "import abc, sys, types, warnings\n"
        "class Theirs(abc.ABC): functions = {}\n"
        "module = sys.modules['torch.utils.data'] = types.ModuleType('torch.utils.data')\n"
        "module.DataLoader, module.Dataset, module.IterDataPipe = object, int, Theirs\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    from torchdata.datapipes.iter import IterableWrapper\n"
        "print([str(warning.message)[:65] for warning in caught])\n"
        "print(isinstance(IterableWrapper([1]), Theirs), list(IterableWrapper([1])))\n",
    )
    assert done.stdout == ("['IterDataPipe could not be made a subclass of builtins.int, so isi']\nTrue [1]\n"), (
        done.stderr
    )


def test_a_loader_reads_without_torch() -> None:
    code = "import sys\n" + WHO_COMES_FIRST[0] + "print(list(DataLoader2(pipe)), 'torch' in sys.modules)\n"
    done = run_python("-W", "error", "-c", code)
    assert (done.stdout, done.stderr) == ("['0', '1', '2'] False\n", "")


class TorchStream(data.IterableDataset):
    def __iter__(self) -> Any:
        yield from range(3)


def test_pipes_and_datasets_of_torch_are_added_in_either_order() -> None:
    tensors, pipe = data.TensorDataset(torch.arange(2)), SequenceWrapper([7])
    assert isinstance(pipe + tensors, data.ConcatDataset)
    assert list(pipe + tensors) == [7, (torch.tensor(0),), (torch.tensor(1),)]
    assert list(tensors + pipe) == [(torch.tensor(0),), (torch.tensor(1),), 7]
    assert list(pipe + data.Subset(tensors, [1])) == [7, (torch.tensor(1),)]
    stream = IterableWrapper([7])
    assert list(stream + TorchStream()) == [7, 0, 1, 2]
    assert list(TorchStream() + stream) == [0, 1, 2, 7]
    for both in (stream + IterableWrapper([8]), stream + data.datapipes.iter.IterableWrapper([8])):
        assert isinstance(both, IterDataPipe), "pipes stay pipes"
        assert list(both) == [7, 8]
    with pytest.raises(TypeError, match="Concater"):
        stream + [8]


WRAPPERS_OF_STREAMS = (
    """
import io
from torchdata.datapipes.utils import StreamWrapper
class Mine(StreamWrapper): pass
stream = StreamWrapper(io.BytesIO(b"abc"), name="before")
assert not isinstance(3, StreamWrapper)
""",
    """
from torch.utils.data.datapipes.utils.common import StreamWrapper as Theirs, validate_pathname_binary_tuple
for ours in (stream, Mine(io.BytesIO())):
    assert isinstance(ours, Theirs)
    validate_pathname_binary_tuple(("path", ours))
theirs = Theirs(io.BytesIO(b"def"))
assert isinstance(theirs, StreamWrapper) and not isinstance(theirs, Mine) and issubclass(Theirs, StreamWrapper)
child = StreamWrapper(io.BytesIO(), theirs)
theirs.autoclose()
assert not theirs.closed
child.close()
assert theirs.closed
print(repr(stream)[:20], stream.read(), len(dir(stream)) > 40)
""",
)

PROGRAMS = {
    CLASSES_THAT_WERE_THERE_BEFORE_TORCH: "['A', 'B'] [0, 1] [0, 1] 7 [5, 5]\n[8, 9]\n",
    WRAPPERS_OF_STREAMS: "StreamWrapper<before b'abc' True\n",
    WHO_COMES_FIRST: "['0', '1', '2'] True\n",
}


def test_earlier_pipes_and_streams_are_instances_of_torch_s_classes_once_it_is_imported() -> None:
    code = (
        "import sys, types\n"
        f"programs = {list(PROGRAMS)!r}\n"
        "names = [f'program_{number}' for number in range(len(programs))]\n"
        "sys.modules.update((name, types.ModuleType(name)) for name in names)\n"
        "spaces = [vars(sys.modules[name]) for name in names]\n"
        "for (before, _), space in zip(programs, spaces):\n"
        "    exec(before, space)\n"
        "assert 'torch' not in sys.modules\n"
        "finders = len(sys.meta_path)\n"
        "import torch.utils.data, numpy.random\n"
        "assert len(sys.meta_path) == finders - 1\n"
        "for (_, behind), space in zip(programs, spaces):\n"
        "    exec(behind, space)\n"
    )
    done = run_python("-W", "error", "-c", code)
    assert (done.stdout, done.stderr) == ("".join(PROGRAMS.values()), "")


@pytest.mark.parametrize("program", [WHO_COMES_FIRST, WRAPPERS_OF_STREAMS], ids=["classes", "streams"])
def test_classes_recognize_each_other_if_torch_is_imported_first(program: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nassert 'torch' in sys.modules\n" + "".join(program))
    done = run_program(tmp_path / "program.py")
    assert (done.stdout, done.stderr) == (PROGRAMS[program], "")


def test_streams_in_torch_s_wrappers_are_closed_and_detached_as_in_our_wrapper(tmp_path: Any) -> None:
    theirs = data.datapipes.utils.common.StreamWrapper
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    opened = theirs(path.open("rb"))
    opened.read(2)
    placeholder = detached(opened)
    assert (type(placeholder), placeholder.read()) == (StreamWrapper, b"cdef")
    janitor({"a": [opened]})
    assert opened.closed
    assert opened.file_obj.closed


def test_snapshots_of_torch_restore_our_pipes_by_the_number_of_yielded_items() -> None:
    from torch.utils.data.datapipes.utils.snapshot import _simple_graph_snapshot_restoration as restore

    def pipeline() -> Any:
        return IterableWrapper(range(20)).shuffle().map(plus_one).batch(2)

    pipe = pipeline()
    assert pipe._number_of_samples_yielded == 0
    restore(pipe, 0, torch.Generator().manual_seed(1))
    iterator = iter(pipe)
    for _ in range(4):
        next(iterator)
    assert pipe._number_of_samples_yielded == 4
    fresh = pipeline()
    restore(fresh, pipe._number_of_samples_yielded, torch.Generator().manual_seed(1))
    with pytest.raises(RuntimeError, match="has not been restored"):
        restore(fresh, 1)
    assert list(fresh) == list(iterator)
    assert fresh._number_of_samples_yielded == 10
    assert len(list(fresh)) == 10, "the next iteration begins at the first item"


def test_a_pickled_batch_shuffler_that_torch_marks_as_restored_continues_in_the_same_order() -> None:
    from torch.utils.data.datapipes._hook_iterator import _SnapshotState
    from torch.utils.data.datapipes.utils.snapshot import _simple_graph_snapshot_restoration as restore

    pipe = IterableWrapper(range(23)).batch(3).in_batch_shuffle()
    for shuffle in (True, False):
        pipe.set_shuffle(shuffle)
        iterator = iter(pipe)
        for _ in range(2):
            next(iterator)
        pickled: Any = pickle.loads(pickle.dumps(pipe))
        restore(pickled.datapipe, pipe.datapipe._number_of_samples_yielded)  # type: ignore[attr-defined]
        pickled._snapshot_state = _SnapshotState.Restored
        rest = list(iterator)
        assert list(pickled) == rest
        assert len(list(pickled)) == 8, "the next iteration begins at the first item"
