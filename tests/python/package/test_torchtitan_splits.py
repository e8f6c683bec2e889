"""The example loader for torchtitan passes torchtitan's own tests, and can resume with another number of ranks."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torchtitan trains with PyTorch")

from process_checks import nothing_is_left  # noqa: E402, F401 - a fixture for all tests here
from ranks import gloo_job  # noqa: E402

CLIENTS = Path(__file__).resolve().parents[3] / "examples" / "clients"
sys.path.insert(0, str(CLIENTS))

from torchtitan_splits import SplitsDataLoader  # noqa: E402

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings(
        "ignore:.*num_workers=0 runs in the main process", "ignore:torch.distributed is disabled"
    ),
]

TOKENS, ROWS, SPLITS = 16, 2, 12


class Characters:
    BEGIN, END = 1, 2

    def encode(self, text: str, add_bos: bool = False, add_eos: bool = False) -> list[int]:
        return [self.BEGIN] * add_bos + [ord(character) for character in text] + [self.END] * add_eos


@pytest.fixture
def documents(tmp_path: Path) -> str:
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcdefghij", k=rng.randrange(1, 50))) for _ in range(100)]
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(texts))
    return str(path)


@contextmanager
def loader(path: str, degree: int = 1, rank: int = 0, **settings: Any) -> Iterator[Any]:
    config = SplitsDataLoader.Config(dataset_path=path, **{"num_workers": 2, "splits": SPLITS, **settings})
    made = SplitsDataLoader(
        config, dp_world_size=degree, dp_rank=rank, tokenizer=Characters(), seq_len=TOKENS, local_batch_size=ROWS
    )
    try:
        yield made
    finally:
        made.loader.shutdown()


def plain(batch: Any) -> list[Any]:
    columns, labels = batch
    return [columns["input"].tolist(), columns["positions"].tolist(), labels.tolist()]


def read(reading: Any, count: int | None = None) -> list[Any]:
    return [plain(batch) for batch in islice(iter(reading), count)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_has_tokens_positions_within_documents_and_next_tokens(documents: str, workers: int) -> None:
    with loader(documents, num_workers=workers, infinite=False) as made:
        batches = list(made)
    assert len(batches) > 50
    for columns, labels in batches:
        assert set(columns) == {"input", "positions"}
        for tensor in (*columns.values(), labels):
            assert (tensor.shape, tensor.dtype) == ((ROWS, TOKENS), torch.int64)
        for tokens, positions, following in zip(columns["input"], columns["positions"], labels, strict=True):
            assert positions[0] == 0
            for index in range(1, TOKENS):
                is_next = following[index - 1] != Characters.END
                assert positions[index] == (positions[index - 1] + 1 if is_next else 0)
                assert (tokens[index] == following[index - 1]) if is_next else (tokens[index] == Characters.BEGIN)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_state_resumes_exactly_after_a_repetition(documents: str, workers: int) -> None:
    with loader(documents) as made:
        whole = read(made, 250)
    assert whole[:80] != whole[80:160], "each repetition has its own order"
    with loader(documents) as made:
        read(made, 200)
        state = made.state_dict()
    with loader(documents, num_workers=workers) as made:
        made.load_state_dict(state)
        assert read(made, 50) == whole[200:]
        made.load_state_dict({})


def test_a_checkpoint_of_torch_has_one_entry_at_any_position(documents: str, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp  # 47 MB, which would slow down each fork of earlier tests

    with loader(documents) as made:
        whole = read(made, 60)
    with loader(documents) as made:
        read(made, 3)
        dcp.save({"dataloader": made}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert [*dcp.FileSystemReader(tmp_path / "saved").read_metadata().state_dict_metadata] == ["dataloader.ranks"]
    with loader(documents) as other:
        read(other, 40)
        into = {"dataloader": other.state_dict()}
    dcp.load(into, checkpoint_id=tmp_path / "saved", no_dist=True)
    with loader(documents) as made:
        made.load_state_dict(into["dataloader"])
        assert read(made, 57) == whole[3:]


JOB = """
import sys
sys.path[:0] = {folders!r}
from test_torchtitan_splits import *

def main(rank):
    found, state = [], {state!r}
    for degree, number, count, infinite in {loaders}:
        with loader({documents!r}, degree, number, infinite=infinite) as made:
            made.load_state_dict(state if infinite else {{}})
            found.append((read(made, count), made.state_dict()))
    return found
"""


def job(folder: Path, documents: str, ranks: int, loaders: str, state: dict[str, Any]) -> list[Any]:
    folder.mkdir()
    body = JOB.format(folders=sys.path, state=state, documents=documents, loaders=loaders)
    with gloo_job(folder, body, ranks) as running:
        by_rank = running.outcomes()
    for outcome in by_rank:
        if isinstance(outcome, BaseException):
            raise outcome
    return [*zip(*by_rank, strict=True)]


def in_steps(by_rank: Any) -> list[Any]:
    return [batch for step in zip(*(batches for batches, _ in by_rank), strict=True) for batch in step]


def test_an_epoch_begun_at_degree_2_resumes_at_4_and_at_1(documents: str, tmp_path: Path) -> None:
    loaders = "[(2, rank, 60, True), (2, rank, 28, True), (2, rank, None, False)]"
    run, begun, ended = job(tmp_path / "2", documents, 2, loaders, {})
    whole, before = in_steps(run), in_steps(begun)
    assert before == whole[:56]
    (first, state), (second, same) = begun
    assert not {str(row) for row in first} & {str(row) for row in second}
    assert state == same, "each rank has the states of all"
    lengths = {len(batches) for batches, _ in ended}
    assert len(lengths) == 1, "ranks end an epoch together"

    loaders = "[(4, rank, 16, True), (2, rank // 2, 32, True)]"
    at_4, with_replicas = job(tmp_path / "4", documents, 4, loaders, state)
    assert before + in_steps(at_4) == whole
    assert with_replicas[0][0] == with_replicas[1][0], "ranks that share a model's tensors have the same batches"
    assert before + in_steps(with_replicas[::2]) == whole
    with loader(documents) as made:
        made.load_state_dict(state)
        assert before + read(made, 64) == whole
