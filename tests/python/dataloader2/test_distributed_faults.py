"""If a rank raises, exits, hangs or is disconnected, the remaining ranks fail within the timeout and name that rank."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import gloo_job
from torchdata.dataloader2.error import PrefetchTimeoutError, RanksLostError

pytest.importorskip("torch", reason="ranks on gloo need torch")


def test_if_a_rank_raises_the_other_ranks_fail_at_once_with_its_name(tmp_path: Path) -> None:
    body = """
    class Failing(IterDataPipe):
        def __init__(self, error, at):
            self.error, self.at = error, at
        def __iter__(self):
            if self.error is not None and self.at == 0:
                raise self.error
            return self.items()
        def items(self):
            for item in range(30):
                if self.error is not None and item == self.at:
                    raise self.error
                yield item
    def main(rank):
        errors = []
        for error, at in ((ValueError("a bad item"), 10), (FileNotFoundError("no data here"), 0)):
            pipe = Failing(error if rank == 1 else None, at)
            try:
                with DataLoader2(pipe, reading_service=DistributedReadingService(1000)) as loader:
                    list(loader)
            except Exception as error:
                errors.append(error)
        return errors
    """
    with gloo_job(tmp_path, body, 3) as job:
        first, second, third = job.outcomes()
    assert list(map(type, second)) == [ValueError, FileNotFoundError]
    for error in first + third:
        assert isinstance(error, RuntimeError)
        assert "rank 1 raised an exception" in str(error)


def test_the_item_of_an_open_vote_is_in_the_state_when_another_rank_fails(tmp_path: Path) -> None:
    body = """
    from torchdata.datapipes.state import load_state, save_state

    def build(fails):
        def check(item):
            if fails and item == 3:
                raise ValueError("a bad item")
            return item
        return FullSync(IterableWrapper(range(8)).map(check), timeout=20)

    def main(rank):
        pipe, seen = build(rank == 1), []
        try:
            seen.extend(pipe)
        except (RuntimeError, ValueError):
            state = save_state(pipe)
        again = build(False)
        if rank == 0:
            load_state(again, state)
        return seen, list(again)
    """
    with gloo_job(tmp_path, body) as job:
        first, second = job.outcomes()
    assert first == ([0, 1, 2], [3, 4, 5, 6, 7])
    assert second == ([0, 1, 2], [0, 1, 2, 3, 4])


WAIT_AT = """
def slow(rank):
    def wait(item):
        if rank == 1 and item >= {at}:
            {waits}
        return item
    return wait

def main(rank):
    pipe = IterableWrapper(range(60)).sharding_filter().map(slow(rank))
    loader = DataLoader2(pipe, reading_service=DistributedReadingService(3))
    begin = time.monotonic()
    try:
        list(loader)
    except Exception as error:
        error.add_note(f"{{time.monotonic() - begin}}")
        raise
    finally:
        loader.shutdown()
"""


def test_errors_about_other_ranks_are_runtime_errors_and_also_timeout_or_connection_errors() -> None:
    late, lost = PrefetchTimeoutError(2.5, "rank 1 is late"), RanksLostError("rank 1 is gone")
    assert isinstance(late, TimeoutError)
    assert isinstance(lost, ConnectionError)
    for error in (late, lost):
        error.add_note("in the third epoch")
        assert isinstance(error, RuntimeError)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        assert again.__notes__ == ["in the third epoch"]
    assert pickle.loads(pickle.dumps(late)).timeout == late.timeout == 2.5
    assert str(PrefetchTimeoutError(30)) == "no data within 30 s"


@pytest.mark.parametrize("at", [0, 12], ids=["first item", "later item"])
def test_a_rank_that_arrives_after_the_other_ranks_gave_up_gets_their_reason(at: int, tmp_path: Path) -> None:
    gave_up = """while not all(os.path.exists(os.path.join(os.environ["OUTCOMES"], rank)) for rank in "02"):
                time.sleep(0.01)"""
    with gloo_job(tmp_path, WAIT_AT.format(at=at, waits=gave_up), 3) as job:
        first, late, third = (job.outcome(rank)[0] for rank in range(3))
    for error in (first, late, third):
        assert isinstance(error, PrefetchTimeoutError), error
        assert "rank 1 of 3 did not reach this step" in str(error)
    for error in (first, third):
        assert 3 <= float(error.__notes__[-1]) < 5 + 30, "the timeout, and 32 seconds on a busy machine"
    assert re.search("rank [02] of 3 has stopped waiting: rank 1 of 3 did not reach this step", str(late)), late


def test_the_error_names_the_rank_that_arrives_just_too_late(tmp_path: Path) -> None:
    with gloo_job(tmp_path, WAIT_AT.format(at=12, waits="time.sleep(3.05)"), 3) as job:
        for rank in range(3):
            assert "rank 1 of 3 did not reach this step" in str(job.outcome(rank)[0])


def test_a_rank_that_begins_after_the_other_ranks_gave_up_gets_their_reason_at_once(tmp_path: Path) -> None:
    """Rank 0 must run until rank 1 has ended, because rank 0 hosts torch's key-value store."""
    body = """
    from torchdata.datapipes.iter.threads import synchronizing
    synchronizing._SHUTDOWN_WAIT = 0.2  # rank 0 does not wait long for rank 1 when it shuts down

    def wait_for(name):
        while not os.path.exists(os.path.join(os.environ["OUTCOMES"], name)):
            time.sleep(0.01)

    def main(rank):
        if rank == 1:
            wait_for("given up")
        service = DistributedReadingService(timeout=1000 if rank else 2)
        try:
            with DataLoader2(Counting(3), reading_service=service) as loader:
                return list(loader)
        finally:
            if rank == 0:
                open(os.path.join(os.environ["OUTCOMES"], "given up"), "w").close()
                wait_for("1")
    """
    with gloo_job(tmp_path, body) as job:
        for rank in (1, 0):
            error = job.outcome(rank)[0]
            assert isinstance(error, PrefetchTimeoutError), error
            assert "rank 1 of 2 did not begin to iterate" + " within 2 s" * (rank == 0) in str(error)
            assert ("rank 0 of 2 has stopped waiting" in str(error)) == (rank == 1)


NETWORK = """
import ctypes, os, runpy, subprocess, sys, time
from datetime import timedelta

def ip(*command, of=()):
    subprocess.run([*of, "ip", *command], check=True)

# Ranks 0 and 2 run on one machine, and rank 1 on a second machine, which a network namespace simulates. A virtual link
# connects the two machines. Each end of the link has addresses for the job's store (10.78) and the data (10.77).
ip("link", "set", "lo", "up")
machine = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
there = ["nsenter", "--net", "--target", str(machine.pid)]
while os.readlink(f"/proc/{machine.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
    time.sleep(0.01)
ip("link", "add", "here", "type", "veth", "peer", "name", "there")
ip("link", "set", "there", "netns", str(machine.pid))
ip("link", "set", "lo", "up", of=there)
for name, host, machine_of in (("here", 2, ()), ("there", 1, there)):
    ip("link", "set", name, "up", of=machine_of)
    for net in ("10.77", "10.78"):
        ip("addr", "add", f"{net}.0.{host}/24", "dev", name, "label", f"{name}:{net}", of=machine_of)
import torch.distributed as dist
job, cut = sys.argv[1], sys.argv[2].split()
ranks = []
for rank in range(3):
    ranks.append(os.fork())
    if not ranks[-1]:
        if rank == 1:
            with open(f"/proc/{machine.pid}/ns/net") as namespace:
                assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": "3", "STORE_HOST": "10.78.0.2", "STORE_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "there:10.77" if rank == 1 else "here:10.77",
        }
        runpy.run_path(job, run_name="__main__")
store = dist.TCPStore("10.78.0.2", 29500, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
while not os.path.exists(os.path.join(os.environ["OUTCOMES"], "reached")):
    time.sleep(0.01)
ip(*cut, of=there)
for process in ranks:
    os.waitpid(process, 0)
machine.kill()
machine.wait()
"""

NAMESPACE = ["unshare", "--user", "--map-root-user", "--net"]


def runs_networks() -> bool:
    try:
        probe = [*NAMESPACE, "ip", "link", "add", "here", "type", "veth", "peer", "name", "there"]
        return subprocess.run(probe, capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


NO_SIGN = "rank 1 of 3 sent no message and must have exited or been disconnected"
NO_RANK_0 = "rank 0 of 3 sent no message and must have exited or been disconnected"


@pytest.mark.parametrize(
    "cut",
    ["link set there down", "addr del 10.77.0.1/24 dev there"],
    ids=["from everything", "from the data of the others"],
)
def test_when_a_rank_is_cut_off_all_fail_within_the_time_out(cut: str, tmp_path: Path) -> None:
    if not runs_networks():
        pytest.skip("this machine does not allow network namespaces, or lacks iproute2")
    body = """
    def pace(item):
        if item >= 12:
            open(os.path.join(os.environ["OUTCOMES"], "reached"), "w").close()
            time.sleep(0.05)
        return item

    def main(rank):
        pipe = IterableWrapper(range(100_000)).sharding_filter().map(pace)
        with DataLoader2(pipe, reading_service=DistributedReadingService(3)) as loader:
            last = time.monotonic()
            try:
                for _ in loader:
                    last = time.monotonic()
            except Exception as error:
                error.add_note(str(time.monotonic() - last))
                raise
    """
    with gloo_job(tmp_path, body, 0) as job:
        job.start_in_network([*NAMESPACE, sys.executable, "-c", NETWORK], cut)
        for rank in range(3):
            error = job.outcome(rank)[0]
            assert isinstance(error, RanksLostError), error
            assert (NO_RANK_0 if rank == 1 else NO_SIGN) in str(error)
            assert float(error.__notes__[-1]) < 3 + 2 + 30, "the timeout, and 32 seconds on a busy machine"
