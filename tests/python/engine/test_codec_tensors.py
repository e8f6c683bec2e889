"""With both versions of DLPack, tensors sent without pickle equal tensors that torch creates over a buffer."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch's tensors need torch")

import random_tensors  # noqa: E402
from fresh_processes import run_program  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental", "ignore:TypedStorage")


@pytest.mark.parametrize("seed", range(2))
def test_random_items_are_received_as_unpickling_would_create_them_and_their_memory_is_freed(seed):
    random_tensors.run(seed, 15)


@pytest.mark.parametrize("seed", range(3))
def test_a_lease_lasts_exactly_as_long_as_anything_that_reaches_its_memory(seed):
    random_tensors.hold_to_the_end(seed)


BY_CAPSULES = """
import warnings
warnings.simplefilter("ignore")
from torchdata._engine.items import tensors
tensors.dlpack_functions = lambda ways=tensors.dlpack_functions: (None, *ways()[1:])
import random_tensors
random_tensors.hold_to_the_end(1)
print(random_tensors.run(1, 15))
"""


def test_with_a_torch_that_has_no_table_of_functions_the_same_tensors_arrive(tmp_path):
    # The test uses a separate process, because the codec chooses a version of DLPack only once per process.
    path = tmp_path / "program.py"
    path.write_text(BY_CAPSULES)
    run = run_program(path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == random_tensors.run(1, 15)


def shared(tensor):
    assert tensor.share_memory_() is tensor
    return tensor.is_shared(), tensor.fill_(3)


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def graded(tensor):
    leaf = tensor.requires_grad_()
    (leaf * leaf).sum().backward()
    return leaf.is_leaf, leaf.grad, leaf._version


DONE_TO_IT = {
    "nothing": lambda tensor: (tensor, tensor._version, tensor.is_leaf, tensor.is_inference(), tensor.is_pinned()),
    "a write": lambda tensor: tensor.add_(1),
    "a write to its array": lambda tensor: (tensor.numpy().fill(7), tensor),
    "a write by its storage": lambda tensor: (tensor.untyped_storage().fill_(1), tensor),
    "its storage": lambda tensor: (tensor.untyped_storage().nbytes(), sum(tensor.untyped_storage().tolist())),
    "its storage is resizable": lambda tensor: tensor.untyped_storage().resizable(),
    "its storage is resized": lambda tensor: tensor.untyped_storage().resize_(1 << 20),
    "it grows": lambda tensor: tensor.resize_(200_000),
    "it shrinks": lambda tensor: tensor.resize_(2),
    "it is set to another": lambda tensor: tensor.set_(torch.arange(3, dtype=tensor.dtype)),
    "it is set to a part": lambda tensor: tensor.set_(tensor.untyped_storage(), 2, (2, 2)),
    "its memory is shared": shared,
    "it is pickled": lambda tensor: pickle.loads(pickle.dumps(tensor)),
    "it is saved": saved,
    "it is copied": copy.deepcopy,
    "a view is saved": lambda tensor: saved(tensor.view(-1)[3:7]),
    "it requires a gradient": graded,
    "an attribute": lambda tensor: (setattr(tensor, "note", 1), tensor.__dict__),
    "its data is another's": lambda tensor: setattr(tensor, "data", torch.zeros(2, dtype=tensor.dtype)),
}


def outcome(act, tensor):
    try:
        result = act(tensor)
    except Exception as error:
        result = type(error), str(error)
    try:
        content = repr(tensor)
    except RuntimeError as error:  # raised if the tensor is larger than its storage
        content = str(error)
    return repr((result, content, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.requires_grad))


@pytest.mark.parametrize("size", [12, 30_000])
@pytest.mark.parametrize("name", DONE_TO_IT)
def test_operations_on_a_received_tensor_act_as_on_a_tensor_over_a_buffer(loopback, name, size):
    sent = torch.arange(float(size)).view(3, -1)
    received = loopback.one(sent)
    other = torch.frombuffer(bytearray(random_tensors.content(sent)), dtype=sent.dtype).view(sent.shape)
    assert outcome(DONE_TO_IT[name], received) == outcome(DONE_TO_IT[name], other)
    assert torch.equal(sent, torch.arange(float(size)).view(3, -1))


def attributed(tensor):
    tensor.note = "kept"
    return tensor


MORE = {
    "an attribute": (lambda: attributed(torch.ones(5)), lambda t: t.note == "kept"),
    "a negative": (lambda: torch.full((5,), 1 + 2j).conj().imag, lambda t: t[0].item() == -2),
    "many dimensions": (lambda: torch.arange(6.0).reshape([2, 3] + [1] * 300), lambda t: t.flatten()[5].item() == 5),
    "of inference": (lambda: inferred(torch.arange(3)), lambda t: t.tolist() == [0, 1, 2]),
    "on no device": (lambda: torch.ones(3, device="meta"), lambda t: t.device.type == "meta"),
    "pairs of small floats": (
        lambda: torch.tensor([1, 2], dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        lambda t: t.view(torch.uint8).tolist() == [1, 2],
    ),
}


def inferred(tensor):
    with torch.inference_mode():
        return tensor + 0


@pytest.mark.parametrize("name", MORE)
def test_a_tensor_with_properties_beyond_its_elements_is_received_with_these_properties(loopback, name):
    make, holds = MORE[name]
    if name == "pairs of small floats" and not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this version of torch has no 4-bit dtype")
    sent = make()
    for item in (sent, [sent, 1]):
        received = loopback.one(item)
        received = received[0] if isinstance(item, list) else received
        assert (type(received), received.dtype, received.shape) == (torch.Tensor, sent.dtype, sent.shape)
        assert holds(received)


def test_a_tensor_that_is_received_with_gradients_disabled_is_like_any_tensor_created_then(loopback):
    with torch.no_grad():
        assert loopback.one(torch.ones(3)).requires_grad_().requires_grad
    with torch.inference_mode():
        assert loopback.one(torch.ones(3)).tolist() == [1, 1, 1]


def test_a_tensor_is_sent_only_if_its_elements_are_still_inside_a_storage_that_has_shrunk(loopback):
    tensor = torch.arange(5000)
    part, cut = tensor[10:20], tensor[15:25]
    tensor.untyped_storage().resize_(8 * 20)
    assert loopback.one(part).tolist() == list(range(10, 20))
    with pytest.raises(ValueError, match="clone it first"):
        loopback.one(cut)
