"""HuggingFaceHubReader reads rows and splits of datasets that consist of files, and resumes at exact positions."""

import json
import os
import pickle
import subprocess
import sys

import pytest

from hub_server import COMMIT, NAME, hub
from process_checks import MULTIPROCESSING, loader
from resuming import with_state
from torchdata.datapipes.iter import HuggingFaceHubReader
from torchdata.datapipes.state import save_state

datasets = pytest.importorskip("datasets")

#: This code runs in a separate process, because `datasets` reads the Hub's address only when it is imported.
STREAMED = """
import json, sys
from torchdata.datapipes.iter import HuggingFaceHubReader
from torchdata.datapipes.state import load_state, save_state
name = sys.argv[1]
pipe, other = (HuggingFaceHubReader(name, revision="v1") for _ in range(2))
items = iter(pipe)
first = [next(items), next(items)]
load_state(other, json.loads(json.dumps(save_state(pipe))))
print(json.dumps([first, list(other), list(pipe)]))
"""

ROWS = [{"number": number, "name": f"row {number}"} for number in range(5)]


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache" / "downloads")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for number, rows in enumerate((ROWS[:3], ROWS[3:])):
        (data / f"train-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


def test_rows_equal_the_rows_of_load_dataset_and_resume(folder):
    for streaming in (True, False):
        pipe, other = (HuggingFaceHubReader(str(folder), split="train", streaming=streaming) for _ in range(2))
        items = iter(pipe)
        head = [next(items) for _ in range(4)]
        assert head + list(with_state(other, save_state(pipe))) == ROWS
    assert list(HuggingFaceHubReader(folder, split="train[:3]", streaming=False)) == ROWS[:3]
    files = str(folder / "train-1.jsonl")
    assert list(HuggingFaceHubReader("json", data_files=files, split="train")) == ROWS[3:]
    next(iter(pipe := HuggingFaceHubReader(str(folder))))
    assert list(pickle.loads(pickle.dumps(pipe))) == ROWS
    with pytest.raises(TypeError, match="dataset must be the name"):
        HuggingFaceHubReader(5)
    with pytest.raises(TypeError, match="valid length"):
        len(pipe)


def test_several_splits_are_an_error_that_names_them(folder):
    (folder / "test.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(ValueError, match=r"has the splits \['train', 'test'\]; choose one, as in split='train'"):
        list(HuggingFaceHubReader(str(folder)))
    assert list(HuggingFaceHubReader(str(folder), split="test")) == ROWS[:1]


def test_a_data_set_that_cannot_be_found_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as failure:
        list(HuggingFaceHubReader(str(tmp_path / "nowhere")))
    assert any("HuggingFaceHubReader" in note and "nowhere" in note for note in failure.value.__notes__)
    with pytest.raises(ConnectionError, match="no/such"):
        list(HuggingFaceHubReader("no/such"))


def test_damaged_rows_raise_an_error_and_the_pipe_can_continue(folder):
    good = (folder / "train-1.jsonl").read_text()
    pipe = HuggingFaceHubReader(str(folder))
    (folder / "train-1.jsonl").write_text(good + '{"number": ')
    with pytest.raises(Exception, match="train-1|JSON|parse"):
        list(pipe)
    (folder / "train-1.jsonl").write_text(good)
    assert list(pipe) == ROWS


def test_two_workers_share_the_rows(folder):
    with loader(HuggingFaceHubReader(str(folder)).sharding_filter(MULTIPROCESSING)) as workers:
        assert [list(workers), list(workers)] == [ROWS] * 2


def test_a_worker_of_torch_yields_all_rows(folder, monkeypatch):
    worker = pytest.importorskip("torch.utils.data._utils.worker")
    info = worker.WorkerInfo(id=0, num_workers=2, seed=0, dataset=None)
    monkeypatch.setattr(worker, "_worker_info", info)
    assert list(HuggingFaceHubReader(str(folder))) == ROWS, "only sharding_filter divides the rows"


def run_against_hub(name, tmp_path):
    files = {"train.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(), "README.md": b"Numbers.\n"}
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    with hub(files) as (address, asked):
        environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-c", STREAMED, name]
        run = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
        return run, asked


def test_rows_are_streamed_from_a_hub_and_resumed(tmp_path):
    run, asked = run_against_hub(NAME, tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [ROWS[:2], ROWS[2:], ROWS]
    assert f"/datasets/{NAME}/resolve/v1/README.md" in asked, "the request contains the revision"
    assert f"/datasets/{NAME}/resolve/{COMMIT}/train.jsonl" in asked


def test_a_data_set_that_the_hub_does_not_have_is_named(tmp_path):
    run, _ = run_against_hub("owner/nothing", tmp_path)
    assert run.returncode != 0
    assert "DatasetNotFoundError" in run.stderr
    assert "HuggingFaceHubReader was loading the data set 'owner/nothing'." in run.stderr
