"""Traces of workers behind carriers: complete, with their place, and in main's time whatever their clocks say."""

from __future__ import annotations

import dataclasses
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import torchdata
from hosts import LocalActor, LocallyRemote, hosts_have_ended  # noqa: F401 - one is a fixture
from process_checks import MULTIPROCESSING, nothing_is_left, wait_for  # noqa: F401 - one is a fixture
from remote_pipelines import numbered, reading
from torchdata._observe.trace import carried
from torchdata._observe.trace.carried import CarriedLog, KeptLog, Piece
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper
from trace_checks import Traced, read_trace

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:.* has taken its place"),
]

WORKERS = 2


def workers_of(found: Traced) -> list[str]:
    return sorted(name for name in found.processes() if name.startswith("worker"))


def items_of(found: Traced, name: str, process: str) -> list[int]:
    return [one.args["item"] for one in found.named(name, process) if "item" in one.args]


@pytest.mark.parametrize("place", ["numbers that come late", "more than a look brings"])
def test_items_of_workers_elsewhere_flow_to_main_and_each_names_its_node(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchdata._engine.remote.host.SEEN", 600.0 if place == "more than a look brings" else 0.01)
    with DataLoader2(numbered(60).map(reading), reading_service=LocallyRemote(WORKERS)) as loader:
        loader.seed(5)
        list(loader)
        with torchdata.trace(tmp_path / "far.json.gz") as traced:
            assert len(list(loader)) == 60
        node = loader.stats().workers[0].node
        list(loader)
    found = read_trace(tmp_path / "far.json.gz")
    workers = [f"worker process {number} on node {node}" for number in range(WORKERS)]
    assert workers_of(found) == workers
    assert found.ways() == {
        (f"{worker}: Mapper(reading)", f"{worker}: send to main", f"main: receive from {worker}") for worker in workers
    }
    assert len(found.flows) == 60
    assert [items_of(found, "Mapper(reading)", worker) for worker in workers] == [list(range(30))] * WORKERS
    assert traced.left_out == 0
    assert list(found.other["clocks"]) == [f"{worker}, Ray actor here" for worker in workers]


def test_what_is_dealt_out_here_flows_to_workers_elsewhere_and_back(tmp_path: Path) -> None:
    pipe = IterableWrapper(range(40)).sharding_round_robin_dispatch(MULTIPROCESSING).map(reading)
    loader = DataLoader2(pipe, reading_service=LocallyRemote(WORKERS))
    with loader, torchdata.trace(tmp_path / "dealt.json"):
        assert list(loader) == list(range(40))
    found = read_trace(tmp_path / "dealt.json")
    assert len(found.flows) == 80, "each item crosses twice"
    assert {way[0] for way in found.ways() if way[0].startswith("the dispatching")} == {
        "the dispatching process: ShardingRoundRobinDispatcher"
    }


class Elsewhere(LocalActor):
    """A host whose clock, and that of its worker, is far behind main's or ahead of it."""

    BEHIND = 1_000_000_000  # less than any machine has been up

    def _moved(self, piece: Piece | None) -> Piece | None:
        if piece is None:
            return None
        words = list(struct.iter_unpack("=II7Q", piece.records))
        texts = (6, 7)
        records = b"".join(
            struct.pack("=II7Q", kind, thread, begin, end, *rest)
            if kind in texts
            else struct.pack("=II7Q", kind, thread, begin - self.BEHIND, end - self.BEHIND, *rest)
            for kind, thread, begin, end, *rest in words
        )
        ahead = None if piece.ahead is None else piece.ahead + self.BEHIND
        return dataclasses.replace(piece, records=records, ahead=ahead)

    def _call(self, pool: str, function: Any, *arguments: Any) -> Any:
        def run(*arguments: Any) -> Any:
            found = function(*arguments)
            if isinstance(found, Piece):
                return self._moved(found)
            if pool.startswith("pull") and arguments:
                seen = found.seen and dataclasses.replace(found.seen, piece=self._moved(found.seen.piece))
                return dataclasses.replace(found, seen=seen, sent=found.sent - self.BEHIND)
            return found

        return super()._call(pool, run, *arguments)


def test_events_under_another_clock_stand_where_they_were_by_main_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosts.LocalActor", Elsewhere)
    loader = DataLoader2(numbered(60).map(reading), reading_service=LocallyRemote(WORKERS))
    with loader, torchdata.trace(tmp_path / "clocks.json"):
        assert len(list(loader)) == 60
    found = read_trace(tmp_path / "clocks.json")
    assert len(found.flows) == 60
    assert all(one.begin <= other.begin for one, *_, other in found.flows)
    for words in found.other["clocks"].values():
        ahead, error = map(float, re.fullmatch(r"\+([\d.]+) ms ± ([\d.]+) ms", words).groups())  # type: ignore[union-attr]
        assert abs(ahead - 1000) <= error
    spans = [one for one in found.slices if one.process == "main"]
    begin, end = min(one.begin for one in spans), max(one.end for one in spans)
    error = max(float(words.split()[-2]) for words in found.other["clocks"].values()) * 1e6
    assert all(begin - error <= one.begin and one.end <= end + error for one in found.slices)


def test_what_a_worker_has_written_before_its_machine_died_is_there_and_so_is_what_the_next_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchdata._engine.remote.host.SEEN", 0.01)
    service = LocallyRemote(WORKERS, on_worker_exit="restart")
    with DataLoader2(numbered(400).map(reading), reading_service=service) as loader:
        with torchdata.trace(tmp_path / "died.json"):
            for number, _ in enumerate(loader):
                if number == 150:
                    wait_for(lambda: loader.stats().workers[1].items > 60)
                    loader.reading_service.made.actors[1].cut()
        node = loader.stats().workers[1].node
    found = read_trace(tmp_path / "died.json")
    items = items_of(found, "Mapper(reading)", f"worker process 1 on node {node}")
    assert set(items) == set(range(200)), "the one that died has made the first ones, the other one those behind"


def test_a_log_that_is_full_says_what_it_left_out(tmp_path: Path) -> None:
    with (
        DataLoader2(numbered(100), reading_service=LocallyRemote(1)) as loader,
        pytest.warns(RuntimeWarning, match=r"lacks the last \d+ events"),
        torchdata.trace(tmp_path / "full.json", events=50),
    ):
        list(loader)
    read_trace(tmp_path / "full.json")


# -- the two halves of a log -------------------------------------------------------------------------------------------


def carried_log() -> CarriedLog:
    return CarriedLog(100, lambda: ("10.0.0.7", "abc"), lambda _: None)


def test_pieces_that_are_lost_late_or_twice_leave_each_record_once() -> None:
    dice = random.Random(4)
    for _ in range(50):
        log = carried_log()
        kept = KeptLog(log.number, 100)
        written, under_way = 0, []
        for _ in range(30):
            for _ in range(dice.randrange(3)):
                kept._log.name(written, "")
                written += 1
            if dice.random() < 0.5:
                under_way.append(kept.take(False))
            if under_way and dice.random() < 0.3:
                log.came(0, under_way.pop(0))
        log._add(kept.end(log.position))
        for late in under_way:
            log.came(0, late)
        _, left_out, records = log.read()
        numbers = [words[4] for words in struct.iter_unpack("=II7Q", records)]
        assert numbers == list(range(min(written, 100)))
        assert left_out == max(0, written - 100)


@pytest.mark.parametrize("ahead", [-(10**15), -7, 0, 123_456_789, 10**15])
def test_the_difference_of_two_clocks_lies_within_its_error_whatever_messages_take(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(ahead)
    now = 10**16  # by main's clock
    clock = {"offset": 0}
    monkeypatch.setattr(carried.time, "monotonic_ns", lambda: now - clock["offset"])
    log = carried_log()
    kept = KeptLog(log.number, 10)
    assert log.clock() == (0, None)
    for _ in range(20):
        sent, now = now, now + dice.randrange(10**6)
        clock["offset"] = ahead
        kept.hear(sent)
        then, piece = carried.time.monotonic_ns(), kept.take(False)
        clock["offset"] = 0
        now += dice.randrange(10**7)
        log.came(then, piece)
        found, error = log.clock()
        assert error is not None
        assert abs(found - ahead) <= error
    assert error < 10**7


def test_clocks_that_drift_by_more_than_messages_take_let_nothing_arrive_before_it_was_sent() -> None:
    log = carried_log()
    log._most, log._least = 100, 300
    assert log.clock() == (100, 200)
