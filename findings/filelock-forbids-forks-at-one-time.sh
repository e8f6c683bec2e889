#!/usr/bin/env bash
# filelock 4.3.1, Python 3.12 and later: importing it makes os.fork raise an error while another thread forks.
#
# Two threads fork processes that exit at once. Another library has registered a function that runs before each fork.
# Expected: all forks succeed, as with filelock 3.20.0.
# Seen: RuntimeError "os.fork is unsafe while filelock is changing descriptor ownership", although no lock exists.
set -euo pipefail
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { echo "Set PYTHON to Python 3.12 or later."; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
cat > "$folder/show.py" <<'EOF'
import os
import threading
import time
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks in programs with threads
os.register_at_fork(before=lambda: time.sleep(0.001))

import filelock  # noqa: E402

errors = []


def fork_often():
    for _ in range(100):
        try:
            pid = os.fork()
        except RuntimeError as error:
            errors.append(str(error))
            continue
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


threads = [threading.Thread(target=fork_often) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("filelock", filelock.__version__, "->", "errors:" if errors else "no error", *set(errors))
EOF
cd "$folder"
for version in 3.20.0 4.3.1; do
  venv/bin/pip install --quiet "filelock==$version"
  venv/bin/python show.py | tee "$version"
done
echo "expected: no error with both versions"
grep -q "no error" 3.20.0 && grep -q "os.fork is unsafe" 4.3.1 || { echo "The behavior has changed."; exit 1; }
