"""Claims on files that are about to be written, which exclude each other between threads, processes and machines.

Role: a `Claim` says that this process is going to make one file. It is two byte-range locks on the file
`.torchdata.lock` in the file's folder: *owned*, held until the claim is released, and *working*, let go while the
owner does nothing for the file. The kernel drops both when the process dies, however it dies. Runs in any thread of
any process; the table of claims and of open lock files is this process's own, and a forked child begins with an empty
one. The lock file is removed with the last lock on it.

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
import warnings
from pathlib import Path
from typing import Any, Literal

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Linux
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK_FILE", "Claim", "claim", "holder_of", "standing_of", "take_over"]

#: Name of the lock file of a folder.
LOCK_FILE = ".torchdata.lock"

#: The claim on a path: none, a process makes it, or its owner leaves it alone for now.
Standing = Literal["free", "working", "suspended"]

_HAS_OFD = hasattr(fcntl, "F_OFD_SETLK")
_FLOCK = "@hhqqi0q"  # struct flock of 64-bit Linux
_CONFLICT = (errno.EAGAIN, errno.EACCES)
#: Another user's, who lets nobody lock; a link; a folder; a socket.
_NOT_LOCKABLE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO)
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
#: How often a lock file may appear and vanish again while it is opened.
_ATTEMPTS = 1000
_WORKING, _OWNED = 0, 1  # which byte of a path's pair


class _LockFile:
    """An open lock file, and how many claims of this process have locks on it."""

    def __init__(self, folder: str, create: bool = True) -> None:
        self.path = os.path.join(folder, LOCK_FILE)
        self.claims = 0
        self.supported = self.removable = fcntl is not None
        fd = self._open(folder, create)
        if fd is None or not stat.S_ISREG(os.fstat(fd).st_mode):
            if fd is not None:
                os.close(fd)
            fd = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self.supported = self.removable = False
            _warn_unsupported(folder)
        self.fd = fd
        self.identity = os.fstat(self.fd)

    def _open(self, folder: str, create: bool) -> int | None:
        """The file, or None if another user has put something there that nobody can lock."""
        flags = os.O_RDWR | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        for _ in range(_ATTEMPTS):
            try:
                return os.open(self.path, flags)
            except FileNotFoundError:
                if not create:
                    raise
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

    def is_locked(self, start: int, length: int) -> bool:
        """Whether another process has locked some of the bytes."""
        if not self.supported:
            return False
        if _HAS_OFD:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, start, length, 0)
            try:
                found = struct.unpack(_FLOCK, fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, asked))
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                return False
            return bool(found[0] != fcntl.F_UNLCK)
        if not self.lock(start, length):  # pragma: no cover - not on Linux
            return True
        self.unlock(start, length)  # pragma: no cover - not on Linux
        return False  # pragma: no cover - not on Linux

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
    warnings.warn(
        f"{os.path.join(folder, LOCK_FILE)!r} cannot be locked, because the file system has no locks, another user "
        "owns it, or it is no regular file: processes that need the same file of an on-disk cache each make it by "
        "themselves (which does no harm to the file)",
        RuntimeWarning,
        stacklevel=2,
    )


class Claim:
    """This process's claim on a path. Made by `claim` and `take_over`.

    Attributes:
        path: the path, as it was given.
        owner: whatever made the claim; shared by all claims of one maker.
        lost: whether another one took the claim over while it was suspended.
    """

    __slots__ = ("_key", "_lock_file", "_start", "lost", "owner", "path", "suspended")

    def __init__(self, path: str, owner: Any, key: tuple[str, str], lock_file: _LockFile, start: int) -> None:
        self.path, self.owner = path, owner
        self._key, self._lock_file, self._start = key, lock_file, start
        self.lost = self.suspended = False

    def suspend(self) -> None:
        """Says that nothing is done for the file until `resume`, so that others may take it over."""
        with _mutex:
            if not self.suspended and self._is_mine():
                self.suspended = True
                self._lock_file.unlock(self._start + _WORKING, 1)

    def resume(self) -> None:
        """Says that work goes on. If another one took over meanwhile, the claim is lost."""
        with _mutex:
            if self.suspended and self._is_mine():
                self.suspended = False
                self.lost = not self._lock_file.lock(self._start + _WORKING, 1)

    def is_held(self) -> bool:
        """Whether the claim was neither released nor taken over within this process."""
        return self._is_mine()

    def release(self) -> None:
        """Gives the claim up: the file is there, or will not be made. May be called twice."""
        with _mutex:
            if not self._is_mine():
                return
            del _claims[self._key]
            self._lock_file.unlock(self._start, 2)
            _leave(self._lock_file)

    def _is_mine(self) -> bool:
        """Whether the claim stands in this process's table: not released, not lost here, not inherited by fork."""
        return _claims.get(self._key) is self


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
    """The real folder of a path, its name in it, and the first of the two bytes that stand for it."""
    import hashlib

    folder, name = os.path.split(path)
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return os.path.realpath(folder or os.curdir), name, (int.from_bytes(digest, "big") >> 3) * 2


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
    return _claim(path, owner, offset=0, length=2)


def take_over(path: str, owner: Any) -> Claim | None:
    """A claim on a path whose owner has suspended its own, or None if the owner works on it again."""
    return _claim(path, owner, offset=_WORKING, length=1)


def _claim(path: str, owner: Any, offset: int, length: int) -> Claim | None:
    folder, name, start = _located(path)
    key = (folder, name)
    with _mutex:
        former = _claims.get(key)
        if former is None:
            lock_file = _opened(folder)
            while not (locked := lock_file.lock(start + offset, length)) or not lock_file.is_current():
                if lock_file.is_current():
                    break
                # It was removed by its last user while it was opened here.
                if _lock_files.get(folder) is lock_file:
                    del _lock_files[folder]
                _leave(lock_file)
                lock_file = _opened(folder)
        elif length == 2 or not former.suspended:
            return None
        else:  # the claim of another owner in this process
            former.lost, lock_file = True, former._lock_file
            del _claims[key]  # and what it counted for on the lock file is the new one's
            locked = lock_file.lock(start + offset, length)
        if not locked:
            if former is not None:
                lock_file.unlock(start, 2)
            _leave(lock_file)
            return None
        made = _claims[key] = Claim(path, owner, key, lock_file, start)
        return made


def standing_of(path: str) -> tuple[Standing, Any]:
    """The standing of `path`, and the owner of the claim on it if it is in this process."""
    folder, name, start = _located(path)
    with _mutex:
        mine = _claims.get((folder, name))
        if mine is not None:
            return "suspended" if mine.suspended else "working", mine.owner
        known = _lock_files.get(folder)
        if known is not None:
            known.claims += 1
            try:
                return _standing(known, start), None
            finally:
                _leave(known)
        try:
            known = _LockFile(folder, create=False)
        except FileNotFoundError:
            return "free", None
        try:
            return _standing(known, start), None
        finally:
            os.close(known.fd)


def _standing(lock_file: _LockFile, start: int) -> Standing:
    if not lock_file.is_locked(start, 2):
        return "free"
    return "working" if lock_file.is_locked(start + _WORKING, 1) else "suspended"


def holder_of(path: str) -> str:
    """The holder of the claim on `path`, in words. For messages: it looks through all processes."""
    folder, name, start = _located(path)
    if (folder, name) in _claims:
        return f"this process (number {os.getpid()}), elsewhere in its pipelines"
    try:
        inode = os.stat(os.path.join(folder, LOCK_FILE)).st_ino
    except OSError:
        return "a process that has ended since"
    for info in Path("/proc").glob("[0-9]*/fdinfo/*"):
        try:
            if any(_covers(line, inode, start) for line in info.read_text().splitlines()):
                return f"process {info.parts[2]} of this machine"
        except OSError:
            continue  # ended meanwhile, or another user's
    return "a process of another user, container or machine"


def _covers(line: str, inode: int, start: int) -> bool:
    """Whether a line of fdinfo (`lock: 1: OFDLCK ADVISORY WRITE -1 8:1:inode from to`) is a lock on a path's bytes."""
    fields = line.split()
    if len(fields) != 9 or fields[0] != "lock:" or fields[6].rpartition(":")[2] != str(inode):
        return False
    first, last = int(fields[7]), fields[8]
    return first <= start + _OWNED and (last == "EOF" or int(last) >= start)
