"""The section between `on_disk_cache` and `end_caching`: which items pass it, who makes them, in what order they come.

Role: one `Section` per iteration of an `EndOnDiskCacheHolder`. It reads the source, finds out for each item whether
its files are there (*ready*), are to be made here (*missing*, with claims on the paths) or are made elsewhere
(*pending*), hands the missing ones to the pipes in between, and knows which paths may be yielded next. It runs in the
thread that iterates the end of the cache; if a pipe in between reads ahead in a thread, `items` runs there.
The section owns the claims; `claims` says what a claim is, and docs/internals/disk-cache.md who waits for whom.
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
from torchdata.datapipes.iter.disk_cache import claims
from torchdata.datapipes.iter.disk_cache.lists import LIST_SUFFIX, Within, dumped
from torchdata.datapipes.iter.disk_cache.record import Record
from torchdata.datapipes.iter.streams.atomic_files import write_file

__all__ = ["Section"]

#: How many items may follow one that is waited for, before nothing else is done than waiting.
_WINDOW = 1000

#: How many items at most are in the pipes in between with claims. Further ones pass without: the kernel has to look
#: through all locks on a file with every call.
_CLAIMED = 256


class Section:
    """The state of one iteration between `on_disk_cache` and `end_caching`.

    Args:
        name: how the pipe is called in messages.
        paths_of: from an item to its paths.
        found: from the paths of an item to the paths to yield if all is cached, else None.
        folder_for: from the path of an item to the folder under which files that are made of it are listed.
        timeout: a function that returns the seconds to wait for somebody else's file.
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
        self._within: dict[str, Within] = {}
        self._source: Iterator[Any] = iter(())
        self._reading = threading.Lock()  # the thread that needs an item reads the source
        self._queue: deque[Record] = deque()  # what may still be yielded or is waited for, as in the source
        self._handoff: deque[Record] = deque()  # missing ones that the pipes in between may take
        self._flying: dict[int, Record] = {}  # handed out, and nothing of a later one came yet
        #: The records that fly, by path. Of several with one path (one has no claim) the first is due.
        self._by_path: dict[str, list[Record]] = {}
        self._books = threading.Lock()  # of `_by_path`, which threads change
        self._handed = 0
        self._last: Record | None = None  # handed out last
        self._one_to_one = self._one_to_many = False
        self._forgetful = False  # whether nothing came of an item before something of a later one came
        self.foreign_thread = False  # whether a thread of a pipe in between took items
        self.thread = threading.get_ident()
        self.ended = False  # the source has
        self.over = False  # the pipes in between ended though there was more: what is missing stays missing
        self.chain_ended = False
        self._dry = False  # the pipes in between were told that there is nothing more
        self._closed = False

    # The pipes in between -------------------------------------------------------------------------------

    def items(self) -> Iterator[Any]:
        """The items whose files are missing."""
        while (record := self._next_missing()) is not None:
            yield record.item

    def _next_missing(self) -> Record | None:
        with self._reading:
            while not self._closed:
                if self._handoff:
                    record = self._handoff.popleft()
                    self._flying[self._handed] = record
                    self._expect(record)
                    record.number = self._handed  # last: a record with a number that does not fly is done with
                    self._handed += 1
                    self._last = record
                    self.foreign_thread |= threading.get_ident() != self.thread
                    if self._closed:
                        record.release()
                    return record
                if self.ended or not self._read():
                    break
            self._dry = True
        return None

    def _expect(self, record: Record) -> None:
        with self._books:
            for path in set(map(os.path.abspath, record.paths)):
                self._by_path.setdefault(path, []).append(record)

    def read_one(self) -> None:
        """Reads one item of the source, and finds out about its files."""
        with self._reading:
            if not self._handoff and not self.ended:
                self._read()

    def _read(self) -> bool:
        try:
            item = next(self._source)
        except StopIteration:
            self.ended = True
            return False
        record = Record(item, self._paths_of(item), "pending")
        self._resolve(record)
        self._queue.append(record)
        return True

    # Making a file -------------------------------------------------------------------------------------------

    def _resolve(self, record: Record) -> str | None:
        """Finds out what becomes of a pending record. Returns the path that another one makes, which is waited for."""
        if self._take_found(record):
            return None
        for path in record.paths:
            os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
        taken = self._claim(record)
        if taken is not None:
            return taken
        try:
            found = self._take_found(record)  # it may have been made before it was claimed
        except BaseException:
            record.release()
            raise
        if found:
            record.release()
        else:
            self._hand_out(record)
        return None

    def _hand_out(self, record: Record) -> None:
        """Leaves a record to the pipes in between, if these have not ended."""
        if self.over:
            record.kind = "ready"  # nobody makes it: there is nothing to yield
        else:
            record.kind = "missing"
            self._handoff.append(record)
        # It may have been closed meanwhile, by the thread that gave the iteration up.
        if self.over or self._closed or len(self._flying) + len(self._handoff) > _CLAIMED:
            record.release()

    def _take_found(self, record: Record) -> bool:
        """Whether all files are there; then it is ready, unless its turn comes later and its list may be long."""
        # The first look is the only one for most items; from the second on it is worth while to see whether anything
        # has changed since, as a look may mean to compute checksums.
        looks = record.looks() if record.rejected is not None else []
        if looks and record.rejected == looks:
            return False
        found = self._found(record.paths)
        if found is None:
            record.rejected = looks
            return False
        if len(found) <= len(record.paths) or not self._queue or self._queue[0] is record:
            record.kind, record.ready = "ready", deque(found)
        return True

    def _claim(self, record: Record) -> str | None:
        """Claims all paths of a record, or none. Returns one that somebody else has claimed."""
        for path in sorted(set(record.paths)):
            claim = claims.claim(path, self)
            if claim is None:
                record.release()
                return path
            record.claims.append(claim)
        return None

    # The end of the cache -----------------------------------------------------------------------------

    def open(self, source: Iterator[Any]) -> None:
        """Begins, or goes on after `load`."""
        self._source = source
        for record in list(self._flying.values())[:_CLAIMED]:
            self._claim(record)  # if somebody else has it, the file is made twice

    @property
    def in_flight(self) -> bool:
        """Whether the pipes in between have, or may have, something to give."""
        return bool(self._handoff or self._flying)

    def next_ready(self) -> str | None:
        """The path to yield next, or None if something must be done before."""
        self.thread = threading.get_ident()
        queue = self._queue
        while queue:
            head = queue[0]
            if head.ready:
                # Its consumer may take its time, or wait for others who want the rest: they make it themselves.
                head.release()
                return head.ready.popleft()
            if head.kind == "pending":
                taken = self._resolve(head)
                if taken is None:
                    continue
                if len(queue) <= _WINDOW and not (self.chain_ended and not self.in_flight):
                    return None
                self._wait_for(head)
            elif head.kind == "missing" and not self._is_behind(head):
                return None
            else:
                queue.popleft()
        return None

    def _is_behind(self, record: Record) -> bool:
        """Whether nothing is waited for from a missing record any more."""
        return record.number is not None and record.number not in self._flying

    @property
    def finished(self) -> bool:
        """Whether all was yielded and nothing more can come."""
        return self.ended and self.chain_ended and not self._queue and not self.in_flight

    def owner_of(self, path: str) -> Record | None:
        """The record that a path was made for.

        Raises:
            RuntimeError: it cannot be told.
        """
        expecting = self._by_path.get(os.path.abspath(path))
        record: Record | None = None
        if expecting:
            self._one_to_one, record = True, expecting[0]
        elif self._one_to_one and self._forgetful:
            return None  # probably of an item that was passed over
        elif self._last is not None:
            self._one_to_many = True
            record = self._last
            if self.foreign_thread:
                raise RuntimeError(
                    f"{self._name}: the pipes between on_disk_cache and end_caching read ahead in a thread, so it "
                    f"cannot be told of which item {shown(path)} was made; make the paths of both the same, or move "
                    "the pipe that prefetches out of the cached section"
                )
        if (self._one_to_one and self._one_to_many) or (record and not expecting and len(record.paths) > 1):
            raise RuntimeError(
                f"{self._name}: some files have the path that on_disk_cache announced and others have not: "
                f"{shown(path)} came for the item of {self._last and self._last.paths}; let either all or none of the "
                "paths of end_caching equal those of on_disk_cache"
            )
        return record

    @contextmanager
    def writing(self, path: str, record: Record | None) -> Iterator[bool]:
        """A context in which `path` is claimed, unless somebody else has it; whether it is, is the context's value."""
        here = os.path.abspath(path)
        if record is not None and any(os.path.abspath(claim.path) == here for claim in record.claims):
            yield True
            return
        if record is not None and not record.members:
            record.mark_unfinished(here)
        os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
        own = claims.claim(path, self)
        try:
            yield own is not None
        finally:
            if own is not None:
                own.release()

    def written(self, path: str, record: Record | None) -> None:
        """Takes in that a path was written."""
        if record is None:
            self._announce(path)
            return
        self._pass_all_before(record)
        own = {mine for mine in record.unwritten if os.path.abspath(mine) == os.path.abspath(path)}
        if own:
            record.unwritten -= own
            if not record.unwritten:
                self._forget(record)
        else:
            record.members.append(path)
        record.ready.append(path)

    def _announce(self, path: str) -> None:
        """Makes a path that has no place in the order the next one to be yielded."""
        record = Record(None, (), "ready")
        record.ready.append(path)
        self._queue.appendleft(record)

    def _pass_all_before(self, record: Record) -> None:
        for number, earlier in list(self._flying.items()):
            if number < (record.number or 0):
                if earlier.members:
                    self._complete(earlier)
                else:  # dropped, or it comes later, and its path is yielded as soon as it does
                    self._forgetful = True
                    self._forget(earlier)

    def _complete(self, record: Record) -> None:
        """Lists the files that were made of a record, which makes it a cached one for everybody."""
        folder = self._folder_for(record.paths[0])
        outside = next((member for member in record.members if not self._lies_within(folder, member)), None)
        if outside is None:
            listed = record.paths[0] + LIST_SUFFIX
            with self.writing(listed, None) as alone:
                write_file(listed, dumped(record.members), "wb", alone=alone)
        elif not self._warned:
            self._warned = True
            warn_outside(
                f"{self._name}: {outside!r} was made for {record.paths[0]!r}, but lies outside of {folder!r}, and what "
                "lies there is not believed to be the cache's own: the files of such items are made anew in each "
                "epoch; pass on_disk_cache(folder=...), a folder that holds all of them",
                RuntimeWarning,
            )
        record.unmark()
        self._forget(record)

    def _lies_within(self, folder: str, member: str) -> bool:
        """Whether a file that was made lies under a folder; one that vanished meanwhile will be found missing."""
        within = self._within.get(folder)
        if within is None:
            within = self._within[folder] = Within(folder)
        return within(member) is not None or not os.path.lexists(member)

    def _forget(self, record: Record) -> None:
        """Nothing more is expected of a record."""
        if record.number is not None:
            self._flying.pop(record.number, None)
        with self._books:
            for path in set(map(os.path.abspath, record.paths)):
                expecting = self._by_path.get(path, [])
                if record in expecting:
                    expecting.remove(record)
                if not expecting:
                    self._by_path.pop(path, None)
        record.release()

    def begin_round(self) -> None:
        """The pipes in between begin anew, as something is to be made after all that somebody else had begun."""
        self.chain_ended = self._dry = False

    def end_round(self) -> None:
        """The pipes in between have ended: what they gave nothing for, they gave nothing for."""
        with self._reading:
            self.chain_ended = True
            for record in list(self._flying.values()):
                if record.members:
                    self._complete(record)
                else:
                    self._forget(record)
            self._last = None
            if not self._dry:
                self.over = True
                for record in self._handoff:
                    record.release()
                    self._queue.remove(record)
                self._handoff.clear()

    # Waiting ----------------------------------------------------------------------------------------------------

    def _wait_for(self, record: Record) -> None:
        """Waits until a pending record is not pending any more: its files are there, or to be made here after all.

        Raises:
            TimeoutError: somebody else took too long for one of them.
        """
        limit, began, pause = self._timeout(), time.monotonic(), 0.001
        while (taken := self._resolve(record)) is not None:
            for other in (*self._flying.values(), *self._handoff):
                other.release()  # nobody waits with claims that another one may wait for
            owner = claims.owner_of(taken)
            if owner is not None and owner.thread == threading.get_ident():
                self._hand_out(record)  # without a claim: the other branch cannot go on as long as this thread waits
                return
            waited = time.monotonic() - began
            if waited >= limit:
                raise TimeoutError(
                    f"{self._name}: OnDiskCache Exception: {shown(taken)} expected to be written by different process, "
                    f"but file is not ready in {limit:g} seconds. It is being written by {claims.holder_of(taken)}; if "
                    "that is merely slow, raise the limit (end_caching(timeout=...) or the adapter CacheTimeout); if "
                    "it hangs or rests, end it: another process then goes on at once"
                )
            time.sleep(min(pause, limit - waited))
            pause = min(2 * pause, 0.05)

    def close(self) -> None:
        """Gives up all claims. The state can still be saved."""
        self._closed = True
        for record in (*self._flying.values(), *self._handoff, *self._queue):
            record.release()

    # State ------------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """All that is known, without the claims."""
        records = {id(r): r for r in (*self._flying.values(), *self._queue, *self._handoff)}
        if self._last is not None:
            records.setdefault(id(self._last), self._last)
        places = {key: place for place, key in enumerate(records)}
        return {
            "records": [record.dump() for record in records.values()],
            "queue": [places[id(record)] for record in self._queue],
            "flying": [places[id(record)] for record in self._flying.values()],
            "last": None if self._last is None else places[id(self._last)],
            "handed": self._handed,
            "seen": (self._one_to_one, self._one_to_many, self._forgetful, self.foreign_thread),
            "ended": (self.ended, self.over, self.chain_ended, self._dry),
        }

    def load(self, dumped: dict[str, Any]) -> None:
        """Takes over what `dump()` returned. Records that nobody works on yet are looked at anew."""
        records = [Record.restored(record) for record in dumped["records"]]
        self._queue = deque(records[place] for place in dumped["queue"])
        self._flying = {r.number: r for r in map(records.__getitem__, dumped["flying"]) if r.number is not None}
        for record in self._flying.values():
            self._expect(record)
        self._last = None if dumped["last"] is None else records[dumped["last"]]
        self._handed = dumped["handed"]
        self._one_to_one, self._one_to_many, self._forgetful, self.foreign_thread = dumped["seen"]
        self.ended, self.over, self.chain_ended, self._dry = dumped["ended"]
        for record in self._queue:
            if record.kind == "missing" and record.number is None:
                record.kind = "pending"
            elif tuple(record.ready) == record.paths and not all(map(os.path.exists, record.ready)):
                record.kind, record.ready, record.number = "pending", deque(), None  # to be made once more
