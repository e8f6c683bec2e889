#!/usr/bin/env bash
# CPython 3.14.10: if a signal handler raises an exception at the beginning of `with lock:`, the lock can stay locked.
#
# A timer interrupts a loop that only acquires and releases a lock. The handler of the timer raises an exception.
# Expected: after each exception, the lock is released, as on CPython 3.13 and 3.15.2.
# Seen: "3.14.10: interrupted, and the lock was still locked", after about half of the exceptions.
# A loader that is interrupted by Ctrl-C and then used again would wait for such a lock.
set -euo pipefail
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 14))' || { echo "Set PYTHON to Python 3.14."; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/show.py" <<'END'
import platform
import signal
import threading
import time


class Interrupted(Exception):
    pass


def handler(number, frame):
    raise Interrupted


signal.signal(signal.SIGALRM, handler)
lock = threading.Lock()
interrupted = locked = 0
end = time.monotonic() + 5
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while True:
            with lock:
                pass
    except Interrupted:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    if lock.locked():
        locked += 1
        lock.release()
state = "still locked" if locked else "released"
print(f"{platform.python_version()}: {'interrupted' if interrupted else 'not interrupted'}, and the lock was {state}")
END
"$python" "$folder/show.py" | tee "$folder/output"
echo "expected: the lock is released"
grep -q "interrupted, and the lock was still locked" "$folder/output" || { echo "The behavior has changed."; exit 1; }
