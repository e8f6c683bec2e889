"""Computes the expected items of a loader."""

from collections.abc import Callable, Iterator
from typing import Any

from lives.epochs import Epoch, read_epoch
from lives.pipelines import Bad, Differs, Odd, key
from lives.plans import Life
from torchdata.datapipes.iter import IterDataPipe


class Streamed(IterDataPipe[Any]):
    def __init__(self, stream: Callable[[], Iterator[Any]]) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        return self.stream()


class Model:
    def __init__(self, life: Life) -> None:
        self.life = life
        self._shards = life.splits or life.workers
        self._dispatched: list[list[Any]] = [[] for _ in range(self._shards)]
        self._source = life.source()
        self._workers = [life.steps(self._share(worker), life.after) for worker in range(self._shards)]
        self._whole = life.steps(Streamed(self._in_turn), life.main)

    def _share(self, worker: int) -> Any:
        if self.life.shard == "dispatch":
            return Streamed(lambda: self._yield_dispatched(worker))
        pipe = self.life.source().sharding_filter()
        pipe.apply_sharding(self._shards, worker)
        return pipe

    def _yield_dispatched(self, worker: int) -> Iterator[Any]:
        for item in self._dispatched[worker]:
            if isinstance(item, (Bad, Odd)):  # the error is raised at the failed item's position
                raise item
            yield item

    def _dispatch(self) -> None:
        for share in self._dispatched:
            share.clear()
        turn = 0
        try:
            for turn, item in enumerate(self._source):
                self._dispatched[turn % len(self._dispatched)].append(item)
            return
        except (Bad, Odd) as error:
            count = sum(map(len, self._dispatched))
            self._dispatched[count % len(self._dispatched)].append(error)

    def _in_turn(self) -> Iterator[Any]:
        live = list(map(iter, self._workers))
        while live:
            for one in list(live):
                try:
                    yield next(one)
                except StopIteration:
                    live.remove(one)

    def epoch(self, number: int) -> Epoch:
        self.life.arm(number, is_reference=True)
        if self.life.shard == "dispatch":
            self._dispatch()
        epoch = read_epoch(self._whole)
        if self.life.free:
            shares = [list(map(key, worker)) for worker in self._workers]
            every = [repr(item) for share in shares for item in share]
            epoch.shares = shares if len(set(every)) == len(every) and not self.life.main else None
        return epoch


def is_known(life: Life) -> bool:
    steps = {*life.before, *life.after}
    is_drawn = life.shuffles or not steps.isdisjoint({"shuffle", "drawing"})
    runs_ahead = life.lasts and ((life.shard == "dispatch" and "cycle" in steps) or life.free)
    exits = "failing" in steps and life.failure == "exit"
    return life.kind == "workers" and not (exits or is_drawn or runs_ahead or life.block or life.ranks)


def compare(life: Life, found: list[Epoch]) -> None:
    model = Model(life)
    for number, epoch in enumerate(found):
        expected = model.epoch(number)
        epoch.shares = expected.shares
        got, wanted = (sorted(map(repr, one)) if life.free else one for one in (epoch, expected))
        left = epoch.until is not None and len(epoch) == epoch.until and not life.free
        if (got != (wanted[: len(got)] if left else wanted)) or (epoch.fails != expected.fails and not left):
            raise Differs(f"epoch {number} is not what the model gives: {got!s:.300} instead of {wanted!s:.300}")
    life.set_flag(False)
