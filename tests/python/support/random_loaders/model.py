"""Computes the expected items of a loader."""

from collections.abc import Callable, Iterator
from typing import Any

from random_loaders.epochs import Epoch, read_epoch
from random_loaders.pipelines import Bad, Differs, Odd, key
from random_loaders.plans import LoaderPlan
from torchdata.datapipes.iter import IterDataPipe


class Streamed(IterDataPipe[Any]):
    def __init__(self, stream: Callable[[], Iterator[Any]]) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        return self.stream()


class Model:
    def __init__(self, plan: LoaderPlan) -> None:
        self.plan = plan
        self._shards = plan.splits or plan.workers
        self._dispatched: list[list[Any]] = [[] for _ in range(self._shards)]
        self._source = plan.source()
        self._workers = [plan.steps(self._share(worker), plan.after) for worker in range(self._shards)]
        self._whole = plan.steps(Streamed(self._in_turn), plan.main)

    def _share(self, worker: int) -> Any:
        if self.plan.shard == "dispatch":
            return Streamed(lambda: self._yield_dispatched(worker))
        pipe = self.plan.source().sharding_filter()
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
        self.plan.arm(number, is_reference=True)
        if self.plan.shard == "dispatch":
            self._dispatch()
        epoch = read_epoch(self._whole)
        if self.plan.free:
            shares = [list(map(key, worker)) for worker in self._workers]
            every = [repr(item) for share in shares for item in share]
            epoch.shares = shares if len(set(every)) == len(every) and not self.plan.main else None
        return epoch


def is_known(plan: LoaderPlan) -> bool:
    steps = {*plan.before, *plan.after}
    is_drawn = plan.shuffles or not steps.isdisjoint({"shuffle", "drawing"})
    runs_ahead = plan.lasts and ((plan.shard == "dispatch" and "cycle" in steps) or plan.free)
    exits = "failing" in steps and plan.failure == "exit"
    return plan.kind == "workers" and not (exits or is_drawn or runs_ahead or plan.block or plan.ranks)


def compare(plan: LoaderPlan, found: list[Epoch]) -> None:
    model = Model(plan)
    for number, epoch in enumerate(found):
        expected = model.epoch(number)
        epoch.shares = expected.shares
        got, wanted = (sorted(map(repr, one)) if plan.free else one for one in (epoch, expected))
        left = epoch.until is not None and len(epoch) == epoch.until and not plan.free
        if (got != (wanted[: len(got)] if left else wanted)) or (epoch.fails != expected.fails and not left):
            raise Differs(f"epoch {number} is not what the model gives: {got!s:.300} instead of {wanted!s:.300}")
    plan.set_flag(False)
