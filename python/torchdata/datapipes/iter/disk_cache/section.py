"""Determines which items pass through the pipes between `on_disk_cache` and `end_caching`, which process computes them,
and their order.

Each iteration of the pipe `end_caching` has one `Section`, which reads the source. An item is *ready* if its files
exist, *missing* if this process must create its files, and *pending* if another process is creating its files. The
methods of `Section` run in the thread that iterates `end_caching`. The generator `items` runs in another thread if a
pipe after `on_disk_cache` reads ahead.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torchdata._redacting import shown
from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.checks import on_failure
from torchdata.datapipes.iter.disk_cache import locks
from torchdata.datapipes.iter.disk_cache.lists import LIST_SUFFIX, FolderSearch, dumped
from torchdata.datapipes.iter.disk_cache.record import Record
from torchdata.datapipes.iter.streams.atomic_files import write_file

#: Maximum number of items that are read ahead while another process creates the file that must be yielded next.
_AHEAD = 1000

#: Maximum number of locked items between `on_disk_cache` and `end_caching`, because each lock is an open file.
_LOCKED = 100

#: The form of the state of a `Section`.
FORM = {
    "queue": [(object, tuple, str, [str], [str], list)],
    "flying": [int],
    **dict.fromkeys(("seen", "ended"), (bool, bool, bool, bool)),
}


class Section:
    """The items that one iteration reads from the source of `on_disk_cache`, until `end_caching` has yielded their
    paths.

    Args:
        paths_of: a function from an item to the paths of its files.
        found: a function from the paths of an item to the paths to yield, or to None if a file is missing.
        folder_for: a function from the path of an item to the folder that must contain its files.
        timeout: a function that returns the number of seconds to wait for a file that another process creates.

    Attributes:
        source: the iterator over the items of the pipe before `on_disk_cache`; set by the caller before iterating.
    """

    def __init__(
        self,
        name: str,
        paths_of: Callable[[Any], tuple[str, ...]],
        found: Callable[[tuple[str, ...]], list[str] | None],
        folder_for: Callable[[str], str],
        timeout: Callable[[], float],
    ) -> None:
        self._name, self._paths_of, self._found, self._timeout = name, paths_of, found, timeout
        self._folder_for, self._warned = folder_for, False
        self.source: Iterator[Any] = iter(())
        self._reading = threading.Lock()  # held by the thread that reads the source
        self._queue: deque[Record] = deque()  # items whose paths were not all yielded, in the source's order
        self._created_elsewhere: set[Record] = set()  # records whose files another process or thread creates
        self._missing: deque[Record] = deque()  # missing items that the section's pipes have not requested yet
        self._in_pipes: list[Record] = []  # items that the section's pipes have requested and not finished
        self._one_to_one = self._one_to_many = False
        self._drops_items = False  # whether a pipe of the section seems to drop items
        self._foreign_thread = False  # whether a pipe of the section requested items in another thread
        self._thread = threading.get_ident()
        self.ended = False
        self._ended_early = False  # whether the section's pipes ended early, so that missing files stay missing
        self.chain_ended = False
        self._input_has_paused = False  # whether the section's pipes have no input until `begin_round`
        self._closed = False

    # The section's pipes --------------------------------------------------------------------------------

    def items(self) -> Iterator[Any]:
        while (record := self._next_missing()) is not None:
            yield record.item

    def _next_missing(self) -> Record | None:
        with self._reading:
            while not self._closed:
                if self._missing:
                    record = self._missing[0]
                    self._in_pipes.append(record)
                    self._missing.popleft()
                    self._foreign_thread |= threading.get_ident() != self._thread
                    return record
                if not (self._may_read and self._read()):
                    break
            self._input_has_paused = True
        return None

    @property
    def _may_read(self) -> bool:
        """Whether an item may be read from the source. The result is False if the source has ended, or if `_AHEAD`
        items are queued while another process creates a file."""
        return not self.ended and not (self._created_elsewhere and len(self._queue) >= _AHEAD)

    def read_one(self) -> None:
        with self._reading:
            if not self._missing and not self.ended:
                self._read()

    def _read(self) -> bool:
        try:
            item = next(self.source)
        except StopIteration:
            self.ended = True
            return False
        record = Record(item, self._paths_of(item))
        if not self._take_found(record, is_head=not self._queue):
            self._lock_files(record)
        self._queue.append(record)
        return True

    def _lock_files(self, record: Record) -> str | None:
        """Tries to lock the files of a pending item. Returns the path of a file that another process is creating; None
        if no other process is creating one."""
        with on_failure(record.release):
            for path in sorted(record.set_targets()):
                lock = locks.acquire(path, self._thread)
                if lock is None:
                    record.release()
                    self._created_elsewhere.add(record)
                    return path
                record.locks[path] = lock
            self._created_elsewhere.discard(record)
            if not self._take_found(record):  # another process may have created the files
                record.kind = "ready" if self._ended_early else "missing"  # ended pipes create no file
            if record.kind == "missing":
                self._missing.append(record)
            # If another thread has called `close` since the files were locked, the locks of this record must be
            # released.
            if record.kind != "missing" or self._closed or len(self._in_pipes) + len(self._missing) > _LOCKED:
                record.release()
        return None

    def _take_found(self, record: Record, *, is_head: bool = True) -> bool:
        """Makes the record ready if all files of its item exist, and returns whether they exist. If an item has more
        files than `filepath_fn` returned paths, its record becomes ready only at the front of the queue."""
        found = self._found(record.paths)
        if found is None:
            return False
        if is_head or len(found) <= len(record.paths):
            record.kind, record.ready = "ready", deque(found)
        return True

    # The end of the cache -----------------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        return bool(self._missing or self._in_pipes)

    @property
    def finished(self) -> bool:
        return self.ended and self.chain_ended and not self._queue and not self.in_flight

    def next_ready(self) -> str | None:
        """Returns the next path to yield; None if no path is ready.

        Raises:
            TimeoutError: another process took too long to create a file that this pipe waits for.
        """
        self._thread = threading.get_ident()
        locks.resume(id(self))
        queue, waiting_since = self._queue, None
        while queue:
            head = queue[0]
            if head.ready:
                # While the consumer uses the path, other processes may need the locks of this item, so these locks are
                # released now.
                head.release()
                if self.in_flight:
                    locks.pause(id(self), self._release_unwritten)
                return head.ready.popleft()
            if head.kind == "ready":
                queue.popleft()
            elif head.kind == "missing":
                return None
            elif head not in self._created_elsewhere and self._take_found(head):
                pass
            elif (path := self._lock_files(head)) is None:
                waiting_since = None
            elif self.in_flight or self._may_read:
                return None
            else:
                waiting_since = self._wait(path, waiting_since)
        return None

    def _wait(self, path: str, since: float | None) -> float:
        """Waits a fraction of a second for the file `path`. Returns the time when the wait for the file began."""
        locks.release_all_of(self._thread)  # other sections of this thread write nothing while it waits
        now, limit = time.monotonic(), self._timeout()
        if since is None:
            return now
        if now - since >= limit:
            raise TimeoutError(
                f"{self._name}: OnDiskCache Exception: {shown(path)} expected to be written by different process, "
                f"but file is not ready in {limit:g} seconds. Another process or thread holds the lock "
                f"{shown(locks.lock_file_of(path))} (`fuser` or `lsof` names the process). If that is merely slow, "
                "raise the limit (end_caching(timeout=...) or the adapter CacheTimeout); if it hangs or is stopped, "
                "end it: another process then resumes at once"
            )
        time.sleep(min(max(now - since, 0.001), 0.05))
        return since

    def owner_of(self, path: str) -> Record | None:
        """Returns the record of the item that the file `path` belongs to; None if the file belongs to no item."""
        here, in_pipes = os.path.abspath(path), self._in_pipes
        record = next((record for record in in_pipes if here in record.targets), None)
        if record is not None:
            self._one_to_one = True
        elif self._one_to_one and self._drops_items:
            return None  # the path probably belongs to a skipped item
        elif self._one_to_one or in_pipes:
            self._one_to_many = True
            if self._foreign_thread:
                raise RuntimeError(
                    f"{self._name}: the pipes between on_disk_cache and end_caching read ahead in a thread, so the "
                    f"source item of {shown(path)} is not known; use the same paths in both, or move the prefetching "
                    "pipe out of the cached section"
                )
            record = in_pipes[-1] if in_pipes else None
        if self._one_to_many and (self._one_to_one or (record is not None and len(record.paths) > 1)):
            raise RuntimeError(
                f"{self._name}: only some files have the path that on_disk_cache announced, and {shown(path)} does "
                "not; either all or none of the paths of end_caching must equal the paths of on_disk_cache"
            )
        return record

    @contextmanager
    def writing(self, path: str, record: Record | None) -> Iterator[bool]:
        """Locks `path` if possible; yields whether the lock excludes other processes."""
        here = os.path.abspath(path)
        lock = None if record is None else record.locks.pop(here, None)
        if lock is None or not lock.keep():
            if record is not None and not record.members:
                record.mark_unfinished(here)
            lock = locks.acquire(path)
        try:
            yield lock is not None and lock.excludes_processes
        finally:
            if lock is not None:
                lock.release()

    def written(self, path: str, record: Record | None) -> None:
        if record is None:  # a path without an item is yielded next
            record = Record(None, (), "ready")
            self._queue.appendleft(record)
        else:
            while (earlier := self._in_pipes[0]) is not record:
                # The file of a later item was written first, so a pipe of the section has probably dropped the item of
                # `earlier`.
                self._drops_items |= not earlier.members
                self._finish(earlier)
            here = os.path.abspath(path)
            if here not in record.targets:
                record.members.append(path)
            else:
                record.written |= {here}
                if record.written == record.targets:
                    self._finish(record)
        record.ready.append(path)

    def _finish(self, record: Record) -> None:
        if record.members:
            self._list_members(record)
        record.kind = "ready"
        self._in_pipes.remove(record)
        record.release()

    def _list_members(self, record: Record) -> None:
        """Writes a list of the record's files with paths that `filepath_fn` did not return, so that all processes find
        these files."""
        folder = self._folder_for(record.paths[0])
        is_within = FolderSearch(folder)  # a missing file is detected later
        outside = next((path for path in record.members if not is_within(path) and os.path.lexists(path)), None)
        if outside is None:
            listed = record.paths[0] + LIST_SUFFIX
            with self.writing(listed, None) as alone:
                write_file(listed, dumped(record.members), "wb", alone=alone)
        elif not self._warned:
            self._warned = True
            warn_outside(
                f"{self._name}: {outside!r} was made for {record.paths[0]!r}, but is outside of {folder!r}, and the "
                "cache trusts no files there: the files of such items are created again in each epoch; pass "
                "on_disk_cache(folder=...), a folder that contains all of them",
                RuntimeWarning,
            )
        record.unmark()

    def begin_round(self) -> None:
        """Prepares another iteration of the section's pipes, for files that must be computed after the previous
        iteration has ended."""
        self.chain_ended = self._input_has_paused = False

    def end_round(self) -> None:
        """Completes all requested items. Called when the pipes between `on_disk_cache` and `end_caching` have ended."""
        with self._reading:
            self.chain_ended = True
            for record in list(self._in_pipes):
                self._finish(record)
            if not self._input_has_paused:
                self._ended_early = True
                for record in self._missing:
                    record.kind = "ready"
                    record.release()
                self._missing.clear()

    def _release_unwritten(self) -> None:
        for record in (*self._in_pipes, *self._missing):
            record.release()

    def close(self) -> None:
        """Releases all locks. The section's state can be saved even after `close`."""
        locks.resume(id(self))
        self._closed = True
        for record in (*self._queue, *self._missing):
            record.release()

    # State ------------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        in_pipes, queue = list(self._in_pipes), list(self._queue)  # in this order: a thread may append to both
        indices = {record: index for index, record in enumerate(queue)}
        return {
            "queue": [record.dump() for record in queue],
            "flying": [indices[record] for record in in_pipes],
            "seen": (self._one_to_one, self._one_to_many, self._drops_items, self._foreign_thread),
            "ended": (self.ended, self._ended_early, self.chain_ended, self._input_has_paused),
        }

    def load(self, dumped: dict[str, Any]) -> None:
        """Restores a saved state. Checks again whether the files of an item exist, unless a pipe has begun to process
        the item."""
        saved, in_pipes, seen, ended = map(dumped.__getitem__, FORM)
        queue = [*map(Record.restored, saved)]
        self._queue, self._in_pipes = deque(queue), [queue[index] for index in in_pipes]
        self._one_to_one, self._one_to_many, self._drops_items, self._foreign_thread = seen
        self.ended, self._ended_early, self.chain_ended, self._input_has_paused = ended
        for record in set(queue).difference(self._in_pipes):
            vanished = tuple(record.ready) == record.paths and not all(map(os.path.exists, record.ready))
            if record.kind == "missing" or vanished:
                record.kind, record.ready, record.written = "pending", deque(), frozenset()
