"""Runs a program in its own pseudo terminal, and presses Ctrl-C there.

The terminal sends SIGINT to the main process, to the workers and to whatever else the program has started, all at once.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

CTRL_C = b"\x03"


class Terminal:
    """Runs a Python script; its output and that of all its children is read line by line."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO  # "^C" is no output of the program
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _OWN_TERMINAL, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._read = b""

    def line(self, seconds=60.0):
        """The next line of output; an empty one where the program has ended or says nothing for so long."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                return ""
            try:
                data = os.read(self.master, 65536)
            except OSError:  # what Linux says where nobody has the terminal open any more
                data = b""
            if not data:
                return ""
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def press_ctrl_c(self):
        os.write(self.master, CTRL_C)

    def processes(self):
        """Numbers of the processes of this terminal, ended ones left out."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def close(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        os.close(self.master)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


#: Makes the terminal the session's own before the script runs: only then it sends signals.
_OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-W", "error", *sys.argv[1:]])
"""
