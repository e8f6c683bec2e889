#!/usr/bin/env bash
# torch 2.13.0: torch.distributed.checkpoint drops saved keys that the new object does not have yet.
#
# The saved state has one entry for each file that the reader has opened. A new reader has opened none.
# Expected: load_state_dict receives the state that was saved, or loading raises an error, as it does for a key that
# the checkpoint lacks.
# Seen: load_state_dict receives the state without these entries. There is no error and no warning about them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp


class Reader:
    def __init__(self, files):
        self.files = files

    def state_dict(self):
        return {"files": dict(self.files)}

    def load_state_dict(self, state):
        self.files = state["files"]


warnings.filterwarnings("ignore", message="torch.distributed is")  # one process is enough here
saved = {"a.txt": 3, "b.txt": 7}
with tempfile.TemporaryDirectory() as folder:
    dcp.save({"reader": Reader(saved)}, checkpoint_id=folder)
    none_open, one_open = Reader({}), Reader({"a.txt": 0})
    dcp.load({"reader": none_open}, checkpoint_id=folder)
    dcp.load({"reader": one_open}, checkpoint_id=folder)
print("torch", torch.__version__)
print("expected: both readers load", saved)
print("seen:     a reader without open files loads", none_open.files)
print("          a reader that has opened a.txt loads", one_open.files)
sys.exit("The behavior has changed." if (none_open.files, one_open.files) != ({}, {"a.txt": 3}) else 0)
EOF
cd "$folder"
venv/bin/python show.py
