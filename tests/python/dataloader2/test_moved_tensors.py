"""With "spawn" and "forkserver", large tensors of the main process move into the memory that workers map."""

import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torchdata._engine.items.codec import loads
from torchdata._engine.processes.crossing import SharedPickle
from torchdata._engine.workers.group import pickled_program
from torchdata._native import is_portable
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

torch = pytest.importorskip("torch", reason="the tests move tensors")


def large() -> Any:
    return torch.arange(float(1 << 18))


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Returns a function. The function returns a pair: whether a tensor is moved, and the object that workers get."""
    from torchdata._engine.items.moving import move_tensors

    if is_portable():
        pytest.skip("without sealed memory, tensors are copied")
    frames, others = sys._current_frames, sys._current_frames().keys()  # without the threads of the test runner
    monkeypatch.setattr(sys, "_current_frames", lambda: {k: v for k, v in frames().items() if k not in others})

    def moved(obj: Any, tensor: Any) -> Any:
        before, (pickled, buffers) = tensor.data_ptr(), pickled_program(obj)
        move_tensors(buffers)
        return tensor.data_ptr() != before, SharedPickle(pickled, buffers).load(loads)

    return moved


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_new_workers_use_a_moved_tensor_until_the_main_process_writes_to_it(method: str, moved: Any) -> None:
    rows = list(large().view(4, -1))
    before, addresses = rows[0].data_ptr(), set()
    for rows[0][0] in (0, 0, 7):
        with DataLoader2.from_dataset(rows, reading_service=MultiProcessingReadingService(1, method)) as loader:
            assert [row.tolist() for row in loader] == [row.tolist() for row in rows]
        addresses.add(rows[0].data_ptr())
    assert len(addresses - {before}) == len(addresses) == 1


MOVED: dict[str, Callable[[], list[Any]]] = {
    "views": lambda: [tensor := large(), tensor[3:], tensor.view(2, -1).t(), tensor[::2], tensor[1:2].expand(9)],
    "a leaf": lambda: [large().requires_grad_()],
    "an odd size": lambda: [torch.ones((1 << 20) + 3, dtype=torch.uint8)],
}


@pytest.mark.parametrize("kind", MOVED)
def test_moved_tensors_have_the_same_elements_and_share_their_memory(kind: str, moved: Any) -> None:
    tensors, expected = MOVED[kind](), MOVED[kind]()
    for is_first in (True, False):
        is_moved, received = moved(tensors, tensors[0])
        assert is_moved == is_first
        for one, copy, other in zip(tensors, received, expected, strict=True):
            assert one.tolist() == copy.tolist() == other.tolist()
            assert (one.stride(), one.requires_grad) == (other.stride(), other.requires_grad)
    with torch.no_grad():
        tensors[0][4] = 99
    assert moved(tensors, tensors[0])[1][0][4] == 99
    assert len(tensors) == 1 or tensors[1][1] == 99


NOT_MOVED: dict[str, Callable[[Any], Any]] = {
    "a NumPy array": lambda tensor: tensor[5:].numpy(),
    "a DLPack capsule": torch.utils.dlpack.to_dlpack,
    "a tensor by DLPack": lambda tensor: torch.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)),
    "a view": lambda tensor: tensor[:5],
    "an alias": lambda tensor: tensor.detach(),
    "a storage": lambda tensor: tensor.untyped_storage(),
    "a graph": lambda tensor: (torch.ones(1, requires_grad=True) * tensor).sum(),
    "another process": lambda tensor: tensor.share_memory_(),
    "the owner of the memory": lambda tensor: tensor.set_(torch.from_numpy(np.zeros(1 << 18, "f4"))),
}


@pytest.mark.parametrize("other", NOT_MOVED)
def test_a_tensor_whose_memory_another_object_may_use_is_not_moved(other: str, moved: Any) -> None:
    tensor = large()
    user = NOT_MOVED[other](tensor)
    assert not moved([tensor], tensor)[0]
    assert not moved([tensor, tensor[3:], user if isinstance(user, torch.UntypedStorage) else 0], tensor)[0]


def test_a_tensor_is_not_moved_while_another_thread_runs(moved: Any) -> None:
    begun, ended, tensor = threading.Event(), threading.Event(), large()
    thread = threading.Thread(target=lambda: [begun.set(), any(iter(ended.is_set, True))])
    thread.start()
    begun.wait()
    assert not moved([tensor], tensor)[0]
    ended.set()
    thread.join()
    assert moved([tensor], tensor)[0]


def test_the_memory_of_moved_tensors_is_released_with_the_tensors(moved: Any) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for tensor in (large() for _ in range(40)):  # more than `_MOST_PICKLES`
        assert moved([tensor], tensor)[0]
    del tensor
    assert len(os.listdir("/proc/self/fd")) == before
