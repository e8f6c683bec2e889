"""Locks files that are being created. At any time, only one thread of one process can hold the lock of a file.

To lock a file, a process calls `flock` on an empty lock file in the same folder, with a name derived from the locked
file's name. A process removes the lock file before it releases the lock. After a process has acquired a lock, it must
check whether the lock file still exists, because a removed lock file does not exclude other processes. The kernel
releases the locks of a process that is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable

from torchdata._handlers import is_of_handler, raise_if_of_handler
from torchdata._native import HeldLock
from torchdata._reporting import warn_outside
from torchdata._threads import start
from torchdata.datapipes.iter.streams.atomic_files import temporary_name

#: If the consumer requests no path for `PAUSE` seconds, the locks of items that were read ahead are released.
PAUSE = 1.0

#: The mutex is reentrant, because garbage collection may release locks while this thread holds the mutex.
_mutex = threading.RLock()
_held: dict[str, Lock] = {}
#: The sections that have yielded a path which the consumer is still using, by id: the time when the consumer received
#: the path, and a function that releases the section's locks.
_idle: dict[int, tuple[float, Callable[[], None]]] = {}
_watcher: threading.Thread | None = None


class Lock:
    """A held lock.

    Attributes:
        excludes_processes: whether the lock excludes other processes, which requires a file system with locks.
        thread: the id of a thread that must release this lock before it waits for another lock; None if no thread must
            do so.
    """

    def __init__(self, file: str, fd: int | None, thread: int | None) -> None:
        self._file, self._fd, self.thread = file, fd, thread
        self.excludes_processes = fd is not None

    def keep(self) -> bool:
        """Prevents other threads from releasing this lock. Returns False if another thread has already released the
        lock."""
        with HeldLock(_mutex):
            self.thread = None
            return _held.get(self._file) is self

    def release(self) -> None:
        """Releases the lock, unless it was released before. Does nothing in a forked child process."""
        with HeldLock(_mutex):
            if _held.get(self._file) is not self:
                return
            del _held[self._file]
            if self._fd is not None:
                with contextlib.suppress(OSError):  # the empty file remains if the folder does not allow its removal
                    if _leads_to(self._file, self._fd):
                        os.unlink(self._file)
                os.close(self._fd)


def lock_file_of(path: str) -> str:
    folder, name = os.path.split(path)
    return temporary_name(os.path.join(os.path.realpath(folder or os.curdir), name), ".lock")


def acquire(path: str, thread: int | None = None) -> Lock | None:
    """Acquires a lock without waiting. Returns None if another process or thread holds the lock."""
    os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
    file = lock_file_of(path)
    with HeldLock(_mutex):
        if file in _held:
            return None
        try:
            fd = _locked(file)
        except BlockingIOError:
            return None
        lock = _held[file] = Lock(file, fd, thread)
        return lock


def release_all_of(thread: int | None) -> None:
    """Releases the locks that `thread` must release before it waits for another lock; None means the locks of all
    threads."""
    with HeldLock(_mutex):
        for lock in [*_held.values()]:
            if lock.thread is not None and thread in (None, lock.thread):
                lock.release()


def pause(section: int, release: Callable[[], None]) -> None:
    """Makes a thread call `release` after `PAUSE` seconds, and then repeatedly until `resume` is called.

    While the consumer uses a path, the `Section` holds the locks of items that were read ahead. Holding the locks until
    the consumer continues could make the consumer and another process wait for each other forever. `release` is called
    repeatedly, because the pipes of the section may lock further items in the meantime.

    Args:
        section: the id of the `Section`.
    """
    global _watcher
    with HeldLock(_mutex):
        _idle[section] = time.monotonic(), release
        if _watcher is None:
            _watcher = threading.Thread(target=_release_of_paused, name="torchdata-disk-cache", daemon=True)
            try:
                start(_watcher)
            except RuntimeError:  # the interpreter exits, or has too many threads; then locks are released later
                _watcher = None


def resume(section: int) -> None:
    if section in _idle:
        with HeldLock(_mutex):
            _idle.pop(section, None)


def _release_of_paused() -> None:
    global _watcher
    while True:
        time.sleep(PAUSE / 4)
        with HeldLock(_mutex):
            if not _idle:
                _watcher = None
                return
            for since, release in list(_idle.values()):
                if time.monotonic() - since >= PAUSE:
                    release()


def _locked(file: str) -> int | None:
    """Locks a file and returns its descriptor. Returns None, with a warning, if the file system or the folder does not
    allow locks. Raises BlockingIOError if another process or thread holds the lock."""
    while (fd := _opened(file)) is not None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _leads_to(file, fd):
                return fd
            os.close(fd)  # the previous holder removed this lock file
        except BlockingIOError:
            os.close(fd)
            raise
        except OSError as error:  # the file system does not support locks
            if is_of_handler(error):
                os.close(fd)
                raise
            with contextlib.suppress(OSError):
                os.unlink(file)
            os.close(fd)
            break
    warn_outside(
        f"The on-disk cache cannot lock files in {os.path.dirname(file)!r}: the file system has no locks, another user "
        "owns the lock file, or its name is already in use. Each process that needs a file then creates it, which does "
        "not damage the file",
        RuntimeWarning,
    )
    return None


def _opened(file: str) -> int | None:
    """Opens a lock file and returns its descriptor; None if the path is a link, a folder or another user's file."""
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with contextlib.suppress(FileExistsError):
            fd = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
            with contextlib.suppress(OSError):
                # The umask of this process must not apply, because every user who may write into the folder must be
                # able to lock.
                os.fchmod(fd, os.stat(os.path.dirname(file)).st_mode & 0o666)
            return fd
        try:
            fd = os.open(file, flags)
        except FileNotFoundError:
            continue  # the file was removed in the meantime
        except OSError as error:  # the file belongs to another user, or is a link, a folder, or a socket
            raise_if_of_handler(error)
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None


def _leads_to(file: str, fd: int) -> bool:
    """Returns whether the opened lock file exists at its path. If the lock file was removed, a lock on it does not
    exclude other processes."""
    try:
        return os.path.samestat(os.stat(file, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _forget_inherited() -> None:
    """Closes inherited lock files in a forked child, so that the child does not keep the locks of a killed parent."""
    global _mutex, _watcher
    _mutex, _watcher = threading.RLock(), None
    _idle.clear()
    for lock in _held.values():
        if lock._fd is not None:
            os.close(lock._fd)  # the lock remains, because the parent also has the file open
    _held.clear()


def _release_all() -> None:
    for lock in list(_held.values()):
        lock.release()


# Before a fork, waits for threads that are opening a lock file, so that the list of lock files in the child is
# complete.
os.register_at_fork(
    before=lambda: _mutex.acquire(), after_in_parent=lambda: _mutex.release(), after_in_child=_forget_inherited
)
atexit.register(_release_all)  # the kernel would release the locks, but the lock files would remain
