"""The two halves of a pipe that was split: the main pipe, which reads the source, and its children.

Role: what `fork`, `unzip`, `demux` and `round_robin_demux` share. The children share one *main* pipe, which reads the
source once and owns the items that wait for children. All run in whichever process iterates them, in one thread.

The children of one main are iterated in *generations*: a generation begins when a child is iterated that has been
iterated in the current one already. It restarts the source and invalidates the iterators of all siblings; a sibling
that is iterated afterwards joins the generation.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from torchdata._native import IterationToken
from torchdata.datapipes._checks import check_int, check_source, length_of
from torchdata.datapipes._streams import close_dropped, with_own_streams, with_parked_streams
from torchdata.datapipes.datapipe import IterDataPipe, share_token, token_of
from torchdata.datapipes.state import forget_state


def restored_queues(queues: Iterable[Iterable[Any]]) -> list[deque[Any]]:
    """The queues of a loaded state, with streams of their own. An item that waits in several of them stays one item."""
    own: dict[int, Any] = {}
    restored = []
    for queue in queues:
        for item in queue:
            if id(item) not in own:
                own[id(item)] = with_own_streams(item)
        restored.append(deque(own[id(item)] for item in queue))
    return restored


class Main(IterDataPipe[Any]):
    """What the children of one split share: the iterator over the source, and the generation."""

    name = "fork"
    #: What graph drawings call it.
    drawn_as: ClassVar[str] = "Forker"
    item_attributes = frozenset({"_waiting", "_buffers", "_child_tokens"})

    def __init__(self, datapipe: Any, num_instances: int, buffer_size: int) -> None:
        datapipe = check_source(self.name, datapipe)
        self.main_datapipe = datapipe
        self.num_instances = num_instances
        self.buffer_size = check_int(self.name, "buffer_size", buffer_size)
        if self.buffer_size < 0:
            warnings.warn(
                f"Unlimited buffer size is set for `{self.name}`: where one child is read far ahead of "
                f"another, the "
                "items in between all stay in memory.",
                UserWarning,
                stacklevel=4,
            )
        self._child_tokens = [IterationToken() for _ in range(num_instances)]
        self._generation = 0
        self.reset()

    def children(self) -> list[Any]:
        """The children, one per instance."""
        return [Child(self, instance) for instance in range(self.num_instances)]

    def reset(self) -> None:
        """Empties the buffer and forgets the iterator over the source."""
        self._iterator: Iterator[Any] | None = None
        self._exhausted = False
        self._done: set[int] = set()  # children whose iterators have ended or were dropped

    def join(self, child: Child) -> None:
        """Takes a child that starts an iteration into the generation, or begins a new one for it."""
        if child.generation == self._generation:
            if self._generation:
                if not self._exhausted or len(self._done) < self.num_instances:
                    warnings.warn(
                        "Some child DataPipes are not exhausted when __iter__ is called: the buffer is "
                        "emptied and every "
                        "child reads from the start again. Exhaust all children, or iterate them together.",
                        UserWarning,
                        stacklevel=5,
                    )
                forget_state(self)
            self._generation += 1
            for instance, token in enumerate(self._child_tokens):
                if instance != child.instance_id:
                    token.invalidate()
            token_of(self).begin()
            self.abandon()
            self.reset()
        child.generation = self._generation

    def open(self) -> None:
        """Begins reading the source, once per generation."""
        if self._iterator is None:
            token = token_of(self)
            if token.armed:
                token.begin()
            self._iterator = iter(self.main_datapipe)

    def _source(self) -> Iterator[Any]:
        """What is left of the source."""
        return iter(()) if self._exhausted or self._iterator is None else self._iterator

    def read(self, instance: int) -> Iterator[Any]:
        """The items of one child."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Lets go of what waits for children, before a new generation begins. Queues may share items: nothing to do."""

    def length(self, instance: int) -> int:
        """The length of one child."""
        return length_of(self, self.main_datapipe)

    def _attributes_to_copy(self) -> dict[str, Any]:
        kept = {
            key: value for key, value in super()._attributes_to_copy().items() if key not in self._running()
        }
        return {**kept, "_iterator": None, "_generation": 0}

    def _running(self) -> tuple[str, ...]:
        """Names of the attributes that belong to the running generation."""
        return ("_iterator", "_generation", "_exhausted", "_done")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.reset()


class DealMain(Main):
    """Main pipe of `demux` and `round_robin_demux`: a buffer per child, of its items that another child met."""

    def reset(self) -> None:
        """Empties the buffers."""
        super().reset()
        self._buffers: list[deque[Any]] = [deque() for _ in range(self.num_instances)]
        self._buffered = 0

    def abandon(self) -> None:
        """Closes the streams in the items that wait: each belongs to one child, which will not get it."""
        for buffer in self._buffers:
            for item in buffer:
                close_dropped(item)

    def read(self, instance: int) -> Iterator[Any]:
        """The items of one child."""
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
                        if own:  # a sibling was read meanwhile and met items of this child
                            break
                    elif destination is not None:
                        self._keep(item, destination)
                else:
                    self._exhausted = True
                    return
        except BaseException:
            # Left half-way or broken: what waits is part of the state still, but no file stays open for it.
            if self._buffers[instance] is own:
                self._park()
            raise
        finally:  # also where the iterator is dropped half-way
            done.add(instance)

    def _park(self) -> None:
        for buffer in self._buffers:
            items = list(map(with_parked_streams, buffer))
            buffer.clear()
            buffer.extend(items)

    def _destination(self, item: Any) -> int | None:
        """The child that an item belongs to, or None where it is dropped."""
        raise NotImplementedError

    def _keep(self, item: Any, destination: int) -> None:
        self._buffers[destination].append(item)
        self._buffered += 1
        if self._buffered > self.buffer_size >= 0:
            raise BufferError(
                f"{self.name}: buffer overflow, buffer size {self.buffer_size} is insufficient: the children have "
                f"{list(map(len, self._buffers))} items waiting; enlarge buffer_size, or read the children together"
            )

    def _running(self) -> tuple[str, ...]:
        return (*super()._running(), "_buffers", "_buffered")

    def state_dict(self) -> dict[str, Any]:
        """The items that wait for each child."""
        return {
            "buffers": [list(buffer) for buffer in self._buffers],
            "exhausted": self._exhausted,
            "done": set(self._done),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the waiting items over; the children go on in a generation of their own."""
        self.reset()
        self._generation += 1
        self._buffers = restored_queues(state_dict["buffers"])
        self._buffered = sum(map(len, self._buffers))
        self._exhausted, self._done = state_dict["exhausted"], set(state_dict["done"])


class Child(IterDataPipe[Any]):
    """One reader of a split."""

    _is_child_datapipe = True
    #: What graph drawings call it, where they show it.
    drawn_as: ClassVar[str] = "Child"

    def __init__(self, main_datapipe: Main, instance_id: int) -> None:
        self.main_datapipe = main_datapipe
        self.instance_id = instance_id
        self.generation = 0
        share_token(self, main_datapipe._child_tokens[instance_id])

    def reset(self) -> None:
        """Joins the others' generation, or begins the next one."""
        self.main_datapipe.join(self)

    def __iter__(self) -> Iterator[Any]:
        self.main_datapipe.open()
        return self.main_datapipe.read(self.instance_id)

    def __len__(self) -> int:
        return self.main_datapipe.length(self.instance_id)

    def state_dict(self) -> dict[str, Any]:
        """Whether the child has been iterated in this generation. The main pipe keeps the place of every child."""
        return {"joined": 0 < self.generation == self.main_datapipe._generation}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Counts the child as one that reads in the restored generation, or as one that is still to join it."""
        generation = self.main_datapipe._generation
        self.generation = generation if state_dict["joined"] else generation - 1
        if not state_dict["joined"]:
            token_of(self).disarm()

    def _attributes_to_copy(self) -> dict[str, Any]:
        return {**super()._attributes_to_copy(), "generation": 0}
