"""Starts ranks as processes of one job, which communicate by gloo on the local machine."""

import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import rank_forkserver
from rank_forkserver import ForkedProgram

HEADER = """
import os, pickle, signal, sys, time, warnings
from datetime import timedelta
from torchdata.dataloader2 import (
    DataLoader2, DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
)
from torchdata.datapipes.iter import FullSync, IterableWrapper, IterDataPipe

def join_gloo():
    import torch.distributed as dist
    store = dist.TCPStore(os.environ["STORE_HOST"], int(os.environ["STORE_PORT"]), is_master=False,
                          timeout=timedelta(seconds=120))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=120))
    # A rank must not exit before all ranks are connected, because the other ranks would fail.
    store.set(f"joined {rank}", "")
    store.wait([f"joined {other}" for other in range(world_size)])
    return rank

def identity(item):
    return item

class Counting(IterDataPipe):
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        yield from range(self.count)
"""

FOOTER = """
if __name__ == "__main__":
    rank = join_gloo()
    begin = time.monotonic()
    try:
        outcome = main(rank)
    except BaseException as error:
        outcome = error
    outcome = (outcome, time.monotonic() - begin)
    with open(os.path.join(os.environ["OUTCOMES"], f"{rank}.tmp"), "wb") as file:
        pickle.dump(outcome, file)
    os.rename(file.name, file.name[:-4])
    sys.stdout.flush()
    os._exit(0)
"""


class Job:
    def __init__(self, folder: Path, processes: list[subprocess.Popen[str] | ForkedProgram], ranks: int) -> None:
        self.folder, self.processes, self.ranks = folder, processes, ranks

    def kill(self, rank: int, number: int) -> None:
        self.processes[rank].send_signal(number)

    def start_in_network(self, command: list[str], cut: str) -> None:
        self.processes.append(_start([*command, str(self.folder / "job.py"), cut], _environment(self.folder)))

    def outcome(self, rank: int, seconds: float = 200) -> Any:
        until = time.monotonic() + seconds
        path = self.folder / str(rank)
        while not path.exists():
            if time.monotonic() > until or all(process.poll() is not None for process in self.processes):
                if path.exists():
                    break
                output = [
                    process.communicate(timeout=5)[0][-2000:]
                    for process in self.processes
                    if process.poll() is not None
                ]
                raise AssertionError(f"rank {rank} has no outcome: {output}")
            time.sleep(0.01)
        return pickle.loads(path.read_bytes())

    def outcomes(self, seconds: float = 200) -> list[Any]:
        return [self.outcome(rank, seconds)[0] for rank in range(self.ranks)]


@contextmanager
def gloo_job(
    tmp_path: Path, body: str, ranks: int = 2, prefixes: dict[int, list[str]] | None = None, host: str = "127.0.0.1"
) -> Iterator[Job]:
    import torch.distributed as dist

    store = dist.TCPStore(
        "127.0.0.1" if host == "127.0.0.1" else host,
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=120),
    )
    script = _write(tmp_path, body)
    processes: list[subprocess.Popen[str] | ForkedProgram] = []
    try:
        for rank in range(ranks):
            environment = _environment(tmp_path) | {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "STORE_HOST": host,
                "STORE_PORT": str(store.port),
            }
            if prefix := (prefixes or {}).get(rank):
                processes.append(_start([*prefix, sys.executable, str(script)], environment))
            else:
                processes.append(ForkedProgram([str(script)], environment))
        yield Job(tmp_path, processes, ranks)
    finally:
        _end(processes)


def torchrun(program: Path, ranks: int = 2) -> list[str]:
    import torch.distributed as dist

    rank_forkserver.imports("torch._dynamo")  # required by DistributedDataParallel in each rank
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=120))
    environment = environment_of_ranks() | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    processes: list[subprocess.Popen[str] | ForkedProgram] = []
    try:
        for rank in range(ranks):
            one = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(ForkedProgram([str(program)], one))
        printed = [process.communicate(timeout=250)[0] for process in processes]
        assert [process.poll() for process in processes] == [0] * ranks, printed
    finally:
        _end(processes)
    return printed


def mpirun() -> str:
    candidate = Path(sys.executable).parent / "mpiexec"
    found = str(candidate) if candidate.exists() else shutil.which("mpiexec")
    assert found is not None, "mpiexec is not installed: pip install mpich"
    return found


def _write(tmp_path: Path, body: str) -> Path:
    script = tmp_path / "job.py"
    script.write_text(HEADER + textwrap.dedent(body) + FOOTER, encoding="utf-8")
    return script


def environment_of_ranks() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "MPI"))}
    return inherited | {"PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}


def _environment(tmp_path: Path) -> dict[str, str]:
    return environment_of_ranks() | {"OUTCOMES": str(tmp_path)}


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def _end(processes: list[subprocess.Popen[str] | ForkedProgram]) -> None:
    for process in processes:
        if isinstance(process, ForkedProgram):
            process.end()
            continue
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()
