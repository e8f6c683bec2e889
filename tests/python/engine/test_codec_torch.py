"""Received tensors share memory with each other in the same way as the sent tensors."""

import dataclasses
import warnings
import weakref
from collections import UserDict, namedtuple

import numpy as np
import pytest

from fresh_processes import run_program

torch = pytest.importorskip("torch", reason="torch's tensors need torch")

Pair = namedtuple("Pair", "image label")


class Marked(torch.Tensor):
    pass


TENSORS = {
    "float": lambda: torch.arange(10.0),
    "large": lambda: torch.arange(100_000),
    "bfloat16": lambda: torch.ones(5000, 3, dtype=torch.bfloat16),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.ones(4000, dtype=torch.complex64),
    "scalar": lambda: torch.tensor(3),
    "empty": lambda: torch.empty(0, 3),
    "strided": lambda: torch.arange(20000).view(100, 200).t(),
    "view": lambda: torch.arange(20000)[5:10],
    "row of a large tensor": lambda: torch.arange(2_000_000).view(100, -1)[3],
    "channels last": lambda: torch.ones(2, 3, 50, 50).to(memory_format=torch.channels_last),
    "gradient": lambda: torch.ones(3, requires_grad=True),
    "sparse": lambda: torch.eye(5).to_sparse(),
    "sparse rows": lambda: torch.eye(5).to_sparse_csr(),
    "sparse columns": lambda: torch.eye(6).to_sparse_csc(),
    "blocks of sparse rows": lambda: torch.eye(6).to_sparse_bsr((2, 3)),
    "blocks of sparse columns": lambda: torch.eye(6).to_sparse_bsc((2, 3)),
    "sparse rows of a batch": lambda: torch.eye(6).expand(3, 6, 6).to_sparse_csr(),
    "sparse and strided": lambda: torch.ones(6, 4, 3).to_sparse(1),
    "sparse, one twice": lambda: torch.sparse_coo_tensor(
        [[1, 1, 0], [2, 2, 1]], [1.0, 2.0, 3.0], (3, 4), check_invariants=True
    ),
    "sparse, empty": lambda: torch.zeros(3, 4).to_sparse(),
    "sparse with a gradient": lambda: torch.eye(5).to_sparse().requires_grad_(),
    "large and sparse": lambda: torch.eye(50_000, 3).to_sparse(),
    "float8": lambda: torch.ones(5000).to(torch.float8_e5m2),
    "uint16": lambda: torch.arange(5000).to(torch.uint16),
    "half": lambda: torch.ones(7, dtype=torch.half),
    "conjugate": lambda: torch.full((4000,), 1 + 2j).conj(),
    "expanded": lambda: torch.arange(3000).expand(4, 3000).contiguous(),
}


def plain(tensor):
    small = tensor.dtype in (torch.float8_e5m2, torch.uint16)
    return tensor.float() if small else tensor.to_dense()


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_arrive_as_tensors(loopback, name):
    tensor = TENSORS[name]()
    received = loopback.one(tensor)
    assert type(received) is torch.Tensor
    assert received.dtype == tensor.dtype
    assert received.shape == tensor.shape
    assert received.requires_grad == tensor.requires_grad
    assert received.layout == tensor.layout
    assert torch.equal(plain(received), plain(tensor))
    if tensor.layout is torch.strided:
        assert received.untyped_storage().nbytes() == tensor.nbytes, "more than the tensor itself was sent"
    if name == "channels last":
        assert received.stride() == tensor.stride()


SPARSE = {name: make for name, make in TENSORS.items() if "sparse" in name}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_tensor_keeps_its_parts_and_is_not_kept_alive(loopback, name):
    tensor = SPARSE[name]()
    noted = tensor.detach().clone()
    noted.note = "kept"
    alone, (kept, _, noted) = loopback.one(tensor), loopback.one([tensor, 1, noted])
    for received in (alone, kept, noted):
        if tensor.layout is torch.sparse_coo:
            assert received.is_coalesced() == tensor.is_coalesced()
            assert torch.equal(received._indices(), tensor._indices())
            assert torch.equal(received._values(), tensor._values())
        else:
            assert torch.equal(received.values(), tensor.values())
    assert noted.note == "kept"
    known = [weakref.ref(one) for one in (alone, kept, noted)]
    del alone, kept, noted, received
    assert [one() for one in known] == [None] * 3  # Torch's records of loaded tensors must not keep a tensor alive.


@pytest.fixture
def elsewhere():
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_tensors_are_received_on_the_cpu_with_every_default_device(loopback, elsewhere):
    whole = torch.arange(6.0, device="cpu")
    sent = [whole, whole[1:], whole[:0], Pair(whole.view(2, 3).t(), 1), whole.clone().as_subclass(Marked)]
    for item in (sent, *sent):
        for here, there in zip(tensors_in(item), tensors_in(loopback.one(item)), strict=True):
            assert there.device.type == "cpu"
            assert torch.equal(here, there)


BIG = torch.arange(1_000_000.0).view(1000, 1000)

VIEWS = {
    "rows": lambda: [BIG[3], BIG[900]],
    "rows in named tuples": lambda: [Pair(BIG[3], 1), Pair(BIG[900], 2)],
    "neighbours": lambda: (BIG[0, :64], BIG[0, 64:65]),
    "a column": lambda: BIG[:, 3],
    "a column in a named tuple": lambda: Pair(BIG[:, 3], 1),
    "a transposed part": lambda: {"part": BIG[:2].t()},
    "nothing": lambda: [BIG[0:0], Pair(BIG[:, 0:0], 1)],
    "another type": lambda: [BIG[2].view(torch.int32), Pair(BIG[7], 1)],
    "a subclass": lambda: [BIG[2].as_subclass(Marked), BIG[7], Pair(BIG[20:, 9].as_subclass(Marked), 1)],
}


class StorageOf:
    def __init__(self, tensor):
        self.untyped = tensor.untyped_storage()


class Handed:
    def __init__(self):
        whole = torch.arange(10.0)
        self.tensors, self.times = [whole, whole[2:]], 0

    def __getstate__(self):
        self.times += 1
        state, self.tensors = dict(vars(self)), []
        return state


def test_an_item_with_tensors_is_pickled_once(loopback):
    held_elsewhere = torch.ones(3)
    for item in (Handed(), [Handed(), 1], {"a": Handed(), "b": torch.ones(3)}, [Handed(), held_elsewhere]):
        received = loopback.one(item)
        handed = (
            received
            if isinstance(received, Handed)
            else next(iter(received if isinstance(received, list) else received.values()))
        )
        assert handed.times == 1
        first, second = handed.tensors
        first[3] = 7
        assert second[1] == 7


def test_nested_tensors_and_storages_arrive(loopback):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)])
        received = loopback.one((nested, 1))[0]
        assert [part.tolist() for part in received.unbind()] == [part.tolist() for part in nested.unbind()]
    tensor = torch.arange(5000.0)
    assert loopback.one(tensor.untyped_storage()).tolist() == tensor.untyped_storage().tolist()
    shared, storage = loopback.one((tensor, tensor.untyped_storage()))
    storage.fill_(0)
    assert shared.sum() == 0


def test_large_pickles_refer_to_tensors_too(loopback):
    words = [f"word {number}" for number in range(20_000)]
    received = loopback.one(Pair(torch.arange(3), Sample(torch.arange(40_000), words)))
    assert torch.equal(received.label.image, torch.arange(40_000))
    assert received.label.label == words


def tensors_in(item):
    if isinstance(item, torch.Tensor):
        return [item]
    if isinstance(item, StorageOf):
        return [torch.empty(0).set_(item.untyped)]
    if isinstance(item, (tuple, list, dict)):
        return [found for value in (item.values() if isinstance(item, dict) else item) for found in tensors_in(value)]
    return []


@pytest.mark.parametrize("name", VIEWS)
def test_only_the_part_of_a_large_tensor_that_an_item_contains_is_sent(loopback, name):
    item = VIEWS[name]()
    received = tensors_in(loopback.one(item))
    for sent, found in zip(tensors_in(item), received, strict=True):
        assert type(found) is type(sent)
        assert (found.shape, found.dtype) == (sent.shape, sent.dtype)
        assert torch.equal(found, sent)
        assert found.untyped_storage().nbytes() == sent.nbytes


ELEMENTS = np.arange(11.0)

OVERLAPPING = {
    "windows": lambda: [BIG[0, 0:20], BIG[0, 10:30], BIG[0, 25:26]],
    "a chain": lambda: [BIG[0, 20:30], BIG[0, 0:10], BIG[0, 5:25]],
    "a part, then the whole": lambda: (BIG[0, 5:10], {"whole": BIG[0]}),
    "columns and a row": lambda: [BIG[:20, 3], BIG[:20, 4], BIG[2]],
    "every other one": lambda: (BIG[0, ::2], Pair(BIG[0, 1::2], 1)),
    "a storage": lambda: (BIG[0, 3:8].clone(), ROW[2:5], {"all": StorageOf(ROW)}),
    "in named tuples": lambda: [Pair(BIG[0, 0:20], 1), Pair(BIG[0, 10:30], 2)],
    "of other types": lambda: [BIG[0, 1:20], BIG[0, 10:30].view(torch.uint8)[1:], BIG[0, :15].view(torch.int32)],
    "of an array": lambda: [torch.from_numpy(ELEMENTS[:7]), torch.from_numpy(ELEMENTS[4:])],
    "of one memory at odd places": lambda: [
        torch.from_numpy(ELEMENTS.view(np.uint8)[3:80]),
        torch.from_numpy(ELEMENTS)[1:],
    ],
    "one twice": lambda: [BIG[5], BIG[5]],
    "of a subclass": lambda: [ROW.as_subclass(Marked)[3:7], ROW[:5]],
    "of arrays and subclasses": lambda: [
        torch.from_numpy(ELEMENTS[:7]).as_subclass(Marked),
        torch.from_numpy(ELEMENTS[4:]),
    ],
}

ROW = torch.arange(10.0)


@pytest.mark.parametrize("name", OVERLAPPING)
def test_writing_to_one_tensor_of_an_item_changes_overlapping_tensors(loopback, name):
    def written(tensors):
        before = [tensor.clone() for tensor in tensors]
        for number, tensor in enumerate(tensors):
            tensor.fill_(number + 1)
        after = [tensor.clone() for tensor in tensors]
        for tensor, values in zip(tensors, before, strict=True):
            tensor.copy_(values)
        return before, after

    item = OVERLAPPING[name]()
    received = tensors_in(loopback.one(item))
    expected, found = written(tensors_in(item)), written(received)
    for sent, arrived in zip([*expected[0], *expected[1]], [*found[0], *found[1]], strict=True):
        assert type(arrived) is type(sent)
        assert torch.equal(arrived, sent)
    assert sum(tensor.untyped_storage().nbytes() for tensor in received) < BIG.nbytes


def freed(size):
    tensor = torch.ones(5000)
    tensor.untyped_storage().resize_(size)
    return tensor


@pytest.mark.parametrize("make", [lambda: freed(0), lambda: freed(400), lambda: torch._efficientzerotensor(5000)])
@pytest.mark.parametrize("inside", [lambda tensor: tensor, lambda tensor: Pair(tensor, 1)])
def test_tensors_without_memory_are_refused_and_nothing_is_read_beyond_their_storage(loopback, make, inside):
    with pytest.raises(ValueError, match=r"of shape \(5000,\) cannot be sent.*clone it first"):
        loopback.one(inside(make()))
    assert torch.equal(loopback.one(torch.ones(3)), torch.ones(3))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:TypedStorage is deprecated")
def test_quantised_tensors_arrive_with_their_scale(loopback):
    tensor = torch.quantize_per_tensor(torch.arange(4000.0), scale=0.5, zero_point=3, dtype=torch.qint8)
    received = loopback.one(tensor)
    assert received.is_quantized
    assert (received.q_scale(), received.q_zero_point()) == (0.5, 3)
    assert torch.equal(received.int_repr(), tensor.int_repr())


@pytest.mark.parametrize("size", [3, 50_000])
def test_subclasses_and_attributes_of_tensors_arrive(loopback, size):
    parameter = loopback.one(torch.nn.Parameter(torch.ones(size)))
    assert type(parameter) is torch.nn.Parameter
    assert parameter.requires_grad
    marked = loopback.one(torch.arange(size).as_subclass(Marked))
    assert type(marked) is Marked
    assert torch.equal(marked.as_subclass(torch.Tensor), torch.arange(size))
    tensor = torch.arange(size)
    tensor.note = "kept"
    assert loopback.one(tensor).note == "kept"


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    label: int


class Batch(UserDict):
    """A user-defined mapping, like TensorDict."""


@pytest.mark.parametrize("make", [Pair, Sample, lambda image, label: Batch(image=image, label=label)])
def test_tensors_in_named_tuples_dataclasses_and_mappings_are_sent_out_of_band(loopback, make):
    image = torch.arange(40_000).view(200, 200)
    item = make(image, 7)
    received = loopback.one(item)
    assert type(received) is type(item)
    found = received["image"] if isinstance(received, Batch) else received.image
    assert torch.equal(found, image)
    assert found.untyped_storage().nbytes() == image.nbytes


REDUCERS = """
import copyreg, sys
import numpy as np
import torch
from multiprocessing.reduction import ForkingPickler
from loopback import Loopback

class Marked(torch.Tensor):
    pass

def rebuilt(*parts):
    return parts

def by_name(obj):
    return rebuilt, (type(obj).__name__, np.asarray(obj).tolist())

register = {"ForkingPickler": ForkingPickler.register, "copyreg": copyreg.pickle}[sys.argv[1]]
items = {"array": np.arange(3), "tensor": torch.arange(3), "subclass": torch.arange(3).as_subclass(Marked)}
item = items[sys.argv[2]]
register(type(item), by_name)
expected = (type(item).__name__, [0, 1, 2])
assert Loopback().one(item) == expected
first, nested = Loopback().one([item, {"again": item + 0}])
assert (first, nested["again"]) == (expected, expected)
"""


@pytest.mark.parametrize("way", ["ForkingPickler", "copyreg"])
@pytest.mark.parametrize("kind", ["array", "tensor", "subclass"])
def test_reducers_that_users_registered_are_honoured(way, kind, tmp_path):
    # The test uses a separate process, because the codec decides only once per process how it encodes a type.
    path = tmp_path / "program.py"
    path.write_text(REDUCERS)
    run = run_program(path, way, kind)
    assert run.returncode == 0, run.stderr
