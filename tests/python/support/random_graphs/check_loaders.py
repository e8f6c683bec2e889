"""Holds a loader against its run without a stop: states of every position, chains of saving and loading.

One run gives the states of all positions. From each, other loaders go on, with workers started by any method, in this
process or in a fresh one.
"""

from __future__ import annotations

import pickle
import random
import warnings
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

from random_graphs.check import Different, NotComparable
from random_graphs.elsewhere import elsewhere
from random_graphs.loaders import METHODS, Loader
from torchdata._engine import snapshots

#: The state of each position, pickled, by epoch and how many items of it were given. The beginning of the first epoch
#: has two: -1 is before `iter`.
States = dict[tuple[int, int], bytes]


@dataclass(frozen=True)
class Link:
    """One loader of a chain, but for the last one.

    Args:
        count: how many items it reads before its state is saved; -1: not even `iter`. More than are left reach the end.
        ago: as of how many items ago the state is saved.
        method: how its workers are started.
        way: how it is loaded, see `Loader.made`.
    """

    count: int
    ago: int
    method: str
    way: str


@dataclass(frozen=True)
class Way:
    """From where to go on, and by which loaders; the last one reads the rest and the next epoch."""

    epoch: int
    position: int
    chain: tuple[Link, ...]


def key(item: Any) -> Any:
    """An item in a form that can be compared and kept without its memory."""
    return ("array", *sorted(set(item.tolist())), item.size) if hasattr(item, "tolist") else item


class _Reading:
    """Reads a loader and keeps some of its items, so that its memory stays full. Those must not change."""

    def __init__(self, keeps: int) -> None:
        self.kept = deque[Any](maxlen=keeps)

    def read(self, iterator: Any, count: int | None = None) -> list[Any]:
        keys = []
        for item in islice(iterator, count):
            keys.append(key(item))
            self.kept.append((item, keys[-1]))
        return keys

    def compare_kept(self) -> None:
        _same([key(item) for item, _ in self.kept], [before for _, before in self.kept], "items that were kept")


def recorded(plan: Loader) -> tuple[list[list[Any]], States]:
    """The items of each epoch of a run without a stop, and the states of all positions.

    Raises:
        Different: taking states changed what came.
        NotComparable: the loader fails, or does not repeat itself.
    """
    try:
        runs = [_run(plan, None) for _ in range(2)]
    except Exception as error:
        *_, last = str(error).strip().splitlines() or [repr(error)]
        raise NotComparable(last) from error
    if runs[0] != runs[1]:
        raise NotComparable("runs differ")
    states: States = {}
    looked_at = _run(plan, states)
    # Threads that draw from one generator beside each other do so in the same order more often than not.
    if looked_at != runs[0] and any(_run(plan, None) != runs[0] for _ in range(8)):
        raise NotComparable("runs differ")
    _same(looked_at, runs[0], "a run whose states are taken")
    return runs[0], states


def _run(plan: Loader, states: States | None) -> list[list[Any]]:
    epochs: list[list[Any]] = []
    with plan.made() as loader:

        def save(position: int) -> None:
            if states is not None:
                states[len(epochs), position] = pickle.dumps(loader.state_dict())

        save(-1)
        for _ in range(plan.graph.epochs + 2):
            reading, items = _Reading(plan.keeps), list[Any]()
            iterator = iter(loader)
            save(0)
            for item in iterator:
                items.append(key(item))
                reading.kept.append((item, items[-1]))
                save(len(items))
            save(len(items) + 1)
            reading.compare_kept()
            epochs.append(items)
    return epochs


def go_on(plan: Loader, expected: list[list[Any]], state: bytes, way: Way) -> None:
    """Goes on from a state by a chain of loaders, and compares all that comes.

    Raises:
        Different: it is not what comes in a run without a stop.
    """
    epoch, at = _passed(way.epoch, max(way.position, 0), expected)
    for link in way.chain:
        with plan.made(link.method, pickle.loads(state), link.way) as loader:
            ago = 0
            if link.count >= 0:
                # Epochs end where there are two more to compare.
                left = len(expected[epoch]) - at
                count = link.count if epoch < plan.graph.epochs else min(link.count, left)
                reading = _Reading(plan.keeps)
                items = reading.read(iter(loader), count)
                _same(items, expected[epoch][at : at + count], f"the items of epoch {epoch} before the next stop")
                reading.compare_kept()
                ago = link.ago if link.ago <= len(items) == count else 0
                epoch, at = _passed(epoch, at + count - ago, expected)
            state = pickle.dumps(loader.state_dict(items_ago=ago))
    last = way.chain[-1]
    with plan.made(last.method, pickle.loads(state), last.way) as loader:
        reading = _Reading(plan.keeps)
        _same(reading.read(iter(loader)), expected[epoch][at:], f"the rest of epoch {epoch} from item {at} on")
        _same(reading.read(iter(loader)), expected[epoch + 1], f"epoch {epoch + 1}, after a rest")
        reading.compare_kept()


def _passed(epoch: int, position: int, expected: list[list[Any]]) -> tuple[int, int]:
    """The epoch and how many of its items were given, where a position may be behind the end."""
    return (epoch, position) if position <= len(expected[epoch]) else (epoch + 1, 0)


def _same(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        raise Different(f"{what}: {found} instead of {expected}")


def ways(plan: Loader, states: States, most: int, methods: dict[str, int]) -> list[Way]:
    """Ways of going on: from all positions where these are few."""
    dice = random.Random(f"ways of loader {plan.number}")
    positions = [place for place in states if place[0] < plan.graph.epochs]
    if len(positions) > most:
        positions = dice.sample(positions, most)

    def link() -> Link:
        (method,) = dice.choices(list(methods), list(methods.values()))
        return Link(
            dice.choice([-1, 0, 1, 2, 5, 50]),
            dice.choice([0, 0, 0, 1, 2]),
            method,
            dice.choice(["new", "new", "new", "after iter", "from state"]),
        )

    return [Way(*place, tuple(link() for _ in range(dice.choice([1, 1, 2])))) for place in positions]


def check_loader(plan: Loader, most: int = 8, methods: dict[str, int] | None = None, away: float = 0.0) -> int:
    """Checks some ways through a loader; returns how many.

    Args:
        plan: which.
        most: how many ways at most.
        methods: how often each start method is drawn.
        away: on which share of the ways a fresh interpreter goes on.

    Raises:
        Different: one is wrong; the message says which.
        NotComparable: as by `recorded`.
    """
    usual = snapshots.SECONDS, snapshots.FACTOR
    snapshots.SECONDS, snapshots.FACTOR = plan.cadence
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected, states = recorded(plan)
            chosen = ways(plan, states, most, methods or METHODS)
            dice = random.Random(f"away {plan.number}")
            for way in chosen:
                arguments = (plan, expected, states[way.epoch, way.position], way)
                try:
                    if dice.random() < away:
                        elsewhere(__name__, "go_on", *arguments)
                    else:
                        go_on(*arguments)
                except Exception as error:
                    error.add_note(f"{way}")
                    raise
        except NotComparable:
            raise
        except Exception as error:
            error.add_note(f"{plan}")
            raise
        finally:
            snapshots.SECONDS, snapshots.FACTOR = usual
    return len(chosen)
