"""Tensors arrive as tensors, with the memory that they share."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch's tensors need torch")

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
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_arrive_as_tensors(loopback, name):
    tensor = TENSORS[name]()
    received = loopback.one(tensor)
    assert type(received) is torch.Tensor
    assert received.dtype == tensor.dtype
    assert received.shape == tensor.shape
    assert received.requires_grad == tensor.requires_grad
    assert received.layout == tensor.layout
    assert torch.equal(received.to_dense(), tensor.to_dense())
    if tensor.layout is torch.strided:
        assert received.untyped_storage().nbytes() == tensor.nbytes, "more than the tensor itself was sent"
    if name == "channels last":
        assert received.stride() == tensor.stride()


def test_tensors_that_share_storage_in_an_item_share_it_on_arrival(loopback):
    base = torch.zeros(10)
    for item in ((base[:5], base[:5].view(5)), {"all": base, "part": base[:3]}):
        received = loopback.one(item)
        first, second = received.values() if isinstance(received, dict) else received
        first[0] = 1
        assert second[0] == 1
