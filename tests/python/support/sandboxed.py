"""Runs a program and makes some of its system calls fail, as in a sandbox or on an old kernel.

`python -m sandboxed EPERM memfd_create,pidfd_open PROGRAM…`"""

import ctypes
import errno
import os
import platform
import struct
import sys

__all__ = ["forbid"]

_NUMBERS = {"x86_64": {"memfd_create": 319, "pidfd_open": 434}, "aarch64": {"memfd_create": 279, "pidfd_open": 434}}
#: See seccomp(2) and linux/filter.h.
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_FAIL, _ALLOW = 0x00050000, 0x7FFF0000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid(calls: list[str], code: int) -> None:
    numbers = [_NUMBERS[platform.machine()][call] for call in calls]
    steps = [(_LOAD, 0, 0, 0)]
    steps += [(_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL | code)]
    packed = b"".join(struct.pack("<HBBI", *step) for step in steps)
    program = _Program(len(steps), packed)
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    for arguments in (
        (_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), zero, zero, zero),
        (_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(program), zero, zero),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid(sys.argv[2].split(","), getattr(errno, sys.argv[1]))
    os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
