#!/usr/bin/env bash
# torch 2.13.0: torch.distributed.checkpoint saves one rank's state for an object that all ranks store under one key.
#
# Two ranks save {"reader": reader}. The positions of their readers differ.
# Expected: each rank loads its own position, or saving raises an error because the values differ.
# Seen: both ranks load the position of rank 0. There is no error and no warning about it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class Reader:
    def __init__(self, position):
        self.position = position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def run(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    dcp.save({"reader": Reader([10, 20][rank])}, checkpoint_id=f"{folder}/checkpoint")
    reader = Reader(0)
    dcp.load({"reader": reader}, checkpoint_id=f"{folder}/checkpoint")
    Path(folder, f"rank{rank}").write_text(str(reader.position))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (folder,), nprocs=2)
        loaded = [int(Path(folder, f"rank{rank}").read_text()) for rank in range(2)]
    print("torch", torch.__version__)
    print("expected: ranks 0 and 1 load their own positions [10, 20], or an error")
    print("seen:     ranks 0 and 1 load", loaded)
    sys.exit("The behavior has changed." if loaded != [10, 10] else 0)
EOF
cd "$folder"
venv/bin/python show.py
