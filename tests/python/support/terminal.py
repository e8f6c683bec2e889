"""Runs programs in a pseudo terminal, reads its screen, and presses keys such as Ctrl-C."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

from watchdog import end_session, session

CTRL_C = b"\x03"


class Terminal:
    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO  # the terminal must not print "^C" into the output
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
        """Returns the next line, which is empty at the end of the output or after the timeout."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                return ""
            try:
                data = os.read(self.master, 65536)
            except OSError:  # no process has the terminal open any more
                data = b""
            if not data:
                return ""
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def press_ctrl_c(self):
        os.write(self.master, CTRL_C)

    def processes(self):
        return session(self.process.pid)

    def close(self):
        end_session(self.process)
        os.close(self.master)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


#: Makes the pseudo terminal control the program's session, because a terminal sends signals only to this session.
_OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-W", "error", *sys.argv[1:]])
"""


class Screen:
    def __init__(self, *arguments, rows=40, columns=140):
        import pyte

        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            # LINES and COLUMNS, which readline sets when pytest imports it, would override the terminal's size.
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
            assert time.monotonic() < deadline, f"the program did not end:\n{self.read()}"
        size = -1
        while size < len(self.written):  # the program may have written more between the last read and its exit
            size = len(self.written)
            self.read(0.0)
        return self.status

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)
