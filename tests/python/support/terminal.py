"""Runs programs in a pseudo terminal, reads its screen, and presses keys such as Ctrl-C.

At Ctrl-C, the terminal sends SIGINT to the main process, the workers and all other processes of the program at once.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

CTRL_C = b"\x03"


class Terminal:
    """Runs a Python script, and reads the output of the script and its children line by line."""

    def __init__(self, *arguments):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            attributes = termios.tcgetattr(0)
            attributes[3] &= ~termios.ECHO  # the terminal must not print "^C" into the output
            attributes[1] &= ~termios.OPOST
            termios.tcsetattr(0, termios.TCSANOW, attributes)
            os.execv(sys.executable, [sys.executable, "-W", "error", *arguments])
        self.status = None
        self._read = b""

    def line(self, seconds=60.0):
        """Returns the next line of output.

        Returns an empty string if the program has ended, or has printed nothing for `seconds`.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                return ""
            try:
                data = os.read(self.master, 65536)
            except OSError:  # Linux raises OSError if no process has the terminal open any more
                data = b""
            if not data:
                return ""
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def press_ctrl_c(self):
        os.write(self.master, CTRL_C)

    def end(self, seconds=120.0):
        """Waits until the script has ended, and returns its exit code."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, "it did not end"
            time.sleep(0.005)
        return self.status

    def processes(self):
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def close(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.end()
        os.close(self.master)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Screen:
    """Runs Python in a pseudo terminal of a given size, and reads the contents of its screen."""

    def __init__(self, *arguments, rows=40, columns=140):
        import pyte

        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            # `execve` passes an explicit environment, because pytest imports readline, which sets LINES and COLUMNS
            # without Python's knowledge.
            environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
            os.execve(sys.executable, [sys.executable, *arguments], {**environment, "TERM": "xterm-256color"})
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.status, self.written = None, b""

    def read(self, seconds=0.05):
        if select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                data = b""
            self.written += data
            self.stream.feed(data)
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait(self, *words, seconds=120.0):
        deadline = time.monotonic() + seconds
        while not all(word in self.read() for word in words):
            assert time.monotonic() < deadline, f"the screen does not show {words}:\n{self.read()}"

    def press(self, key):
        os.write(self.master, key.encode())

    def end(self, seconds=120.0):
        deadline = time.monotonic() + seconds
        while self.status is None:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"it did not end:\n{self.read()}"
        return self.status

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)
