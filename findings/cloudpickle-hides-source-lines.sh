#!/usr/bin/env bash
# cloudpickle 3.1.3: the traceback of a lambda that was pickled by value names no file and shows no source line.
#
# A lambda of a program raises an error after it was pickled and loaded again.
# Expected: the file of the program and the line of the lambda, as with cloudpickle 3.1.2.
# Seen: File "<dynamic-code>", without a source line.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cat > "$folder/show.py" <<'EOF'
import pickle
import traceback

import cloudpickle

divide = lambda number: 1 / number  # noqa: E731
try:
    pickle.loads(cloudpickle.dumps(divide))(0)
except ZeroDivisionError as error:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    print("cloudpickle", cloudpickle.__version__, "->", frame.filename.rpartition("/")[2], repr(frame.line))
EOF
cd "$folder"
for version in 3.1.2 3.1.3; do
  venv/bin/pip install --quiet "cloudpickle==$version"
  venv/bin/python show.py | tee "$version"
done
echo "expected: show.py and the line of the lambda with both versions"
grep -q "show.py 'divide = lambda" 3.1.2 && grep -q "<dynamic-code> ''" 3.1.3 || { echo "The behavior has changed."; exit 1; }
