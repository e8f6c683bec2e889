"""The parts of a split: a main pipe, which reads the source, and its children, which the user reads.

In `fork`, `unzip`, `demux` and `round_robin_demux`, the main pipe reads the source once, and buffers items until all
children that receive them have read them.

In a *round*, the source is iterated once, and each child is iterated at most once. If `iter` is called on a child a
second time, a new round begins, which restarts the source and invalidates all earlier iterators.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from torchdata._native import IterationToken
from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.checks import check_int, check_source, length_of
from torchdata.datapipes._pipe.explaining import no_fault_of_an_item
from torchdata.datapipes._pipe.state.declared import DeclaredState, checked_state, state
from torchdata.datapipes._pipe.state.iteration import start_pass
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes._pipe.streams import close_dropped, with_detached_streams
from torchdata.datapipes.datapipe import IterDataPipe, share_token


class Queues(DeclaredState):
    """Declares an attribute that contains a queue of items for each child. An item that is in several queues remains a
    single object, even after a state was loaded."""

    def reset(self, datapipe: Main) -> None:
        setattr(datapipe, self.name, [deque[Any]() for _ in range(datapipe.num_instances)])

    def dump(self, datapipe: Any) -> list[list[Any]]:
        return [list(queue) for queue in getattr(datapipe, self.name)]

    def load(self, datapipe: Any, value: list[list[Any]]) -> None:
        setattr(datapipe, self.name, list(map(deque, value)))


def queues() -> Any:
    return Queues(items=True, of=lambda pipe: ([list] * pipe.num_instances,))


class SharedMain(IterDataPipe[Any]):
    """A main pipe, which reads the source of a split for all children, and has the methods that `Child` calls."""

    item_attributes = frozenset({"_child_tokens"})
    _child_tokens: list[IterationToken]

    def _begin_round(self, reader: int) -> None:
        """Begins a new round with the child `reader`, and invalidates the iterators of all other children."""
        for instance, token in enumerate(self._child_tokens):
            if instance != reader:
                token.invalidate()
        token_of(self).disarm()
        start_pass(self)


class Main(SharedMain):
    name = "fork"
    drawn_as: ClassVar[str] = "Forker"
    _iterator: Iterator[Any] | None = state(saved=False)
    _exhausted: bool = state(False)
    #: Numbers of the children that need no further items in the current round, because they have ended or were dropped.
    _done: set[int] = checked_state(lambda pipe: ([range(pipe.num_instances)],), set)
    _joined: set[int] = checked_state(lambda pipe: ([range(pipe.num_instances)],), set, lasts=True)

    def __init__(self, datapipe: Any, num_instances: int, buffer_size: int) -> None:
        self.main_datapipe = check_source(self.name, datapipe)
        self.num_instances = num_instances
        self.buffer_size = check_int(self.name, "buffer_size", buffer_size)
        if self.buffer_size < 0:
            warn_outside(
                f"Unlimited buffer size is set for `{self.name}`, please be aware of OOM at random places: where one "
                "child is read far ahead of another, the items in between all stay in memory."
            )
        self._child_tokens = [IterationToken() for _ in range(num_instances)]
        self._joined = set()
        self.reset()

    def children(self) -> list[Any]:
        return [Child(self, instance) for instance in range(self.num_instances)]

    def join(self, instance: int) -> None:
        """Adds a child to the current round. If the child has already joined the current round, begins a new round,
        which restarts the source."""
        if not self._joined or instance in self._joined:
            if self._joined and (not self._exhausted or len(self._done) < self.num_instances):
                warn_outside(
                    "Some child DataPipes are not exhausted when __iter__ is called: the buffer is emptied and every "
                    "child reads from the start again. Exhaust all children, or iterate them together."
                )
            self._begin_round(instance)
            self.abandon()
            self.reset()
            self._joined = set()
        self._joined.add(instance)

    def open(self, instance: int) -> None:
        """Called when the child `instance` begins to read. Begins an iteration of the source, unless an iteration is
        running."""
        self._joined.add(instance)
        if token_of(self).armed:
            start_pass(self)
        if self._iterator is None and not self._exhausted:
            self._iterator = iter(self.main_datapipe)

    def _source(self) -> Iterator[Any]:
        return iter(()) if self._exhausted or self._iterator is None else self._iterator

    def read(self, instance: int) -> Iterator[Any]:
        raise NotImplementedError

    def abandon(self) -> None:
        """Called before a new round drops the buffered items. Subclasses may close the streams in the buffered
        items."""

    def length(self, instance: int) -> int:
        return length_of(self, self.main_datapipe)

    def _lasting_state(self) -> dict[str, Any]:
        lasting = super()._lasting_state()
        if self._exhausted and len(self._done) == self.num_instances:
            del lasting["joined"]  # the round is finished, so the next round interrupts no child
        return lasting

    def _resumes_alone(self) -> bool:
        # If a child has not joined the current round, it may join later and read the items that are buffered for it.
        return 0 < len(self._joined) < self.num_instances

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._joined = set()
        self.reset()


class DistributingMain(Main):
    """A main pipe that gives each item to one child. While one child is read, items of other children are buffered."""

    _buffers: list[deque[Any]] = queues()
    _buffered: int = state(0)

    def abandon(self) -> None:
        """Closes the streams in buffered items, because each buffered item belongs to only one child."""
        for buffer in self._buffers:
            for item in buffer:
                close_dropped(item)

    def read(self, instance: int) -> Iterator[Any]:
        own, source, done = self._buffers[instance], self._source(), self._done
        try:
            while True:
                while own:
                    self._buffered -= 1
                    yield own.popleft()
                for item in source:
                    destination = self._destination(item)
                    if destination == instance:
                        yield item
                        if own:  # meanwhile, a sibling was read and has buffered items of this child
                            break
                    elif destination is not None:
                        self._keep(item, destination)
                else:
                    self._exhausted = True
                    return
        except BaseException:
            # If the iteration fails or is abandoned, a state may still need the buffered items, so only their files are
            # closed.
            if self._buffers[instance] is own:
                self._detach_buffered()
            raise
        finally:
            done.add(instance)

    def _detach_buffered(self) -> None:
        for buffer in self._buffers:
            items = list(map(with_detached_streams, buffer))
            buffer.clear()
            buffer.extend(items)

    def _destination(self, item: Any) -> int | None:
        """Returns the number of the child that receives an item; None for a dropped item."""
        raise NotImplementedError

    def _keep(self, item: Any, destination: int) -> None:
        self._buffers[destination].append(item)
        self._buffered += 1
        if self._buffered > self.buffer_size >= 0:
            error = BufferError(
                f"{self.name}: buffer overflow, buffer size {self.buffer_size} is insufficient: the children have "
                f"{list(map(len, self._buffers))} items waiting; enlarge buffer_size, or read the children together"
            )
            raise no_fault_of_an_item(error)


class Child(IterDataPipe[Any]):
    _is_child_datapipe = True
    iteration_state = ()
    _begins_sources = False  # the main pipe begins the source, once per round
    drawn_as: ClassVar[str] = "Child"

    def __init__(self, main_datapipe: Any, instance_id: int) -> None:
        self.main_datapipe = main_datapipe
        self.instance_id = instance_id
        share_token(self, main_datapipe._child_tokens[instance_id])

    def _reads_in_pass(self, source: Any) -> bool:
        return self.instance_id in source._joined

    def reset(self) -> None:
        """Makes the child join the current round of its main pipe, or begin a new round."""
        self.main_datapipe.join(self.instance_id)

    def __iter__(self) -> Iterator[Any]:
        self.main_datapipe.open(self.instance_id)
        return self.main_datapipe.read(self.instance_id)  # type: ignore[no-any-return]

    def _drop_broken(self) -> None:
        """After a skipped exception, marks the child as not done, so that it continues with its next item."""
        self.main_datapipe._done.discard(self.instance_id)

    def __len__(self) -> int:
        return self.main_datapipe.length(self.instance_id)  # type: ignore[no-any-return]
