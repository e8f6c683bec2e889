"""Runs a program in a pseudo terminal, and presses Ctrl-C in this terminal.

The terminal sends SIGINT to the main process, the workers and all other processes of the program at once.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time

from watchdog import end_session, session

CTRL_C = b"\x03"


class Terminal:
    """Runs a Python script, and reads the output of the script and its children line by line."""

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

    def processes(self):
        return session(self.process.pid)

    def close(self):
        end_session(self.process)
        os.close(self.master)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


#: Code that runs before the script, and makes the terminal the controlling terminal of the session. A terminal sends
#: signals only to the session that it controls.
_OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-W", "error", *sys.argv[1:]])
"""
