"""Claims on files that are about to be written, which exclude each other between threads, processes and machines.

Role: a `Claim` says that this process is going to make one file. It is a lock on one byte of the file
`.torchdata.lock` in the file's folder. The kernel drops it when the process dies, however it dies. Runs in any thread
of any process; the table of claims and of open lock files is this process's own, and a forked child begins with an
empty one. The lock file is removed with the last lock on it.

The locks are Linux's open file description locks, which other readers of the lock file in the same process cannot
drop by accident; elsewhere POSIX's record locks. If there are neither, claims only exclude threads.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import stat
import struct
import threading
from pathlib import Path
from typing import Any

from torchdata._reporting import warn_outside

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Linux
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK_FILE", "Claim", "claim", "holder_of", "owner_of"]

#: Name of the lock file of a folder.
LOCK_FILE = ".torchdata.lock"

_HAS_OFD = hasattr(fcntl, "F_OFD_SETLK")
_FLOCK = "@hhqqi0q"  # struct flock of 64-bit Linux
_CONFLICT = (errno.EAGAIN, errno.EACCES)
#: Another user's, who lets nobody lock; a link; a folder; a socket.
_NOT_LOCKABLE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO)
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
#: How often a lock file may appear and vanish again while it is opened.
_ATTEMPTS = 1000


class _LockFile:
    """An open lock file, and how many claims of this process have locks on it."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, LOCK_FILE)
        self.claims = 0
        self.supported = self.removable = fcntl is not None
        fd = self._open(folder)
        if fd is None or not stat.S_ISREG(os.fstat(fd).st_mode):
            if fd is not None:
                os.close(fd)
            fd = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self.supported = self.removable = False
            _warn_unsupported(folder)
        self.fd = fd
        self.identity = os.fstat(self.fd)

    def _open(self, folder: str) -> int | None:
        """The file, or None if another user has put something there that nobody can lock."""
        flags = os.O_RDWR | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        for _ in range(_ATTEMPTS):
            try:
                return os.open(self.path, flags)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in _NOT_LOCKABLE:
                    return None
                raise
            try:
                fd = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:  # somebody else's, made meanwhile
                continue
            with contextlib.suppress(OSError):
                # All who may write into the folder must be able to lock, whatever this process's umask is.
                os.fchmod(fd, os.stat(folder).st_mode & 0o666)
            return fd
        return None

    def lock(self, start: int, length: int) -> bool:
        """Locks bytes for writing, unless somebody else has locked some of them."""
        return self._set(fcntl.F_WRLCK if fcntl else 0, start, length)

    def unlock(self, start: int, length: int) -> None:
        """Drops the locks on bytes."""
        self._set(fcntl.F_UNLCK if fcntl else 0, start, length)

    def _set(self, kind: int, start: int, length: int) -> bool:
        if not self.supported:
            return True
        try:
            if _HAS_OFD:
                fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, 0, start, length, 0))
            else:  # pragma: no cover - not on Linux
                operation = fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
                fcntl.lockf(self.fd, operation, length, start)
        except OSError as error:
            if error.errno in _CONFLICT:
                return False
            if error.errno not in _UNSUPPORTED:
                raise
            self.supported = False
            _warn_unsupported(os.path.dirname(self.path))
        return True

    def is_current(self) -> bool:
        """Whether the path still leads to the open file: locks on a removed one exclude nobody."""
        if not self.supported:
            return True
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), self.identity)
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Closes the file, and removes it if no process has a lock on it."""
        try:
            if self.removable and self.lock(0, 0) and self.is_current():  # all bytes: nobody can begin meanwhile
                os.unlink(self.path)
        except OSError:
            pass  # somebody else's folder, or it is gone: the file is empty and does no harm
        finally:
            os.close(self.fd)


def _warn_unsupported(folder: str) -> None:
    warn_outside(
        f"{os.path.join(folder, LOCK_FILE)!r} cannot be locked, because the file system has no locks, another user "
        "owns it, or it is no regular file: processes that need the same file of an on-disk cache each make it by "
        "themselves (which does no harm to the file)",
        RuntimeWarning,
    )


class Claim:
    """This process's claim on a path. Made by `claim`.

    Attributes:
        path: the path, as it was given.
        owner: whatever made the claim; shared by all claims of one maker.
    """

    __slots__ = ("_key", "_lock_file", "_place", "owner", "path")

    def __init__(self, path: str, owner: Any, key: tuple[str, str], lock_file: _LockFile, place: int) -> None:
        self.path, self.owner = path, owner
        self._key, self._lock_file, self._place = key, lock_file, place

    def release(self) -> None:
        """Gives the claim up: the file is there, or will not be made. May be called twice."""
        with _mutex:
            if _claims.get(self._key) is self:  # not released before, and not inherited by fork
                del _claims[self._key]
                self._lock_file.unlock(self._place, 1)
                _leave(self._lock_file)


#: Reentrant, as the garbage collector may drop an iterator, and with it claims, while this thread is in here. So a lock
#: file is counted as in use before anything else is done with it.
_mutex = threading.RLock()
_claims: dict[tuple[str, str], Claim] = {}
_lock_files: dict[str, _LockFile] = {}


def _before_fork() -> None:
    _mutex.acquire()  # a thread that is opening a lock file comes to its end, so that the child knows of all of them


def _after_fork() -> None:
    _mutex.release()


def _forget_inherited() -> None:
    """Closes a forked child's copies of the lock files, or they would keep the parent's locks beyond its death."""
    global _mutex
    _mutex = threading.RLock()
    inherited = {id(claim._lock_file): claim._lock_file for claim in _claims.values()}
    inherited.update((id(lock_file), lock_file) for lock_file in _lock_files.values())
    _claims.clear()
    _lock_files.clear()
    for lock_file in inherited.values():
        os.close(lock_file.fd)  # no unlocking, which would drop the parent's locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget_inherited)


def _release_all() -> None:
    for left in list(_claims.values()):
        left.release()


atexit.register(_release_all)  # the kernel would drop the locks, but the lock files would stay


def _located(path: str) -> tuple[str, str, int]:
    """The real folder of a path, its name in it, and the byte that stands for it."""
    import hashlib

    folder, name = os.path.split(path)
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return os.path.realpath(folder or os.curdir), name, int.from_bytes(digest, "big") >> 2


def _opened(folder: str) -> _LockFile:
    """The open lock file of a folder, counted as used once more."""
    lock_file = _lock_files.get(folder)
    if lock_file is None:
        lock_file = _lock_files[folder] = _LockFile(folder)
    lock_file.claims += 1
    return lock_file


def _leave(lock_file: _LockFile) -> None:
    """Counts one use less, and closes the file with the last one."""
    lock_file.claims -= 1
    if lock_file.claims == 0:
        folder = os.path.dirname(lock_file.path)
        if _lock_files.get(folder) is lock_file:
            del _lock_files[folder]
        lock_file.close()


def claim(path: str, owner: Any) -> Claim | None:
    """A claim on `path`, whose folder exists, or None if somebody has one already. Never waits.

    Raises:
        OSError: the folder cannot be written into.
    """
    folder, name, place = _located(path)
    key = (folder, name)
    with _mutex:
        if key in _claims:
            return None
        while True:
            lock_file = _opened(folder)
            locked = lock_file.lock(place, 1)
            if lock_file.is_current():
                break
            # It was removed by its last user while it was opened here.
            if _lock_files.get(folder) is lock_file:
                del _lock_files[folder]
            _leave(lock_file)
        if not locked:
            _leave(lock_file)
            return None
        made = _claims[key] = Claim(path, owner, key, lock_file, place)
        return made


def owner_of(path: str) -> Any:
    """The owner of the claim on `path` if it is in this process, else None."""
    folder, name, _ = _located(path)
    claimed = _claims.get((folder, name))
    return None if claimed is None else claimed.owner


def holder_of(path: str) -> str:
    """The holder of the claim on `path`, in words. For messages: it looks through all processes."""
    folder, name, place = _located(path)
    if (folder, name) in _claims:
        return f"this process (number {os.getpid()}), elsewhere in its pipelines"
    try:
        inode = os.stat(os.path.join(folder, LOCK_FILE)).st_ino
    except OSError:
        return "a process that has ended since"
    for info in Path("/proc").glob("[0-9]*/fdinfo/*"):
        try:
            if any(_covers(line, inode, place) for line in info.read_text().splitlines()):
                return f"process {info.parts[2]} of this machine"
        except OSError:
            continue  # ended meanwhile, or another user's
    return "a process of another user, container or machine"


def _covers(line: str, inode: int, place: int) -> bool:
    """Whether a line of fdinfo (`lock: 1: OFDLCK ADVISORY WRITE -1 8:1:inode from to`) is a lock on a path's byte."""
    fields = line.split()
    if len(fields) != 9 or fields[0] != "lock:" or fields[6].rpartition(":")[2] != str(inode):
        return False
    first, last = int(fields[7]), fields[8]
    return first <= place and (last == "EOF" or int(last) >= place)
