#!/usr/bin/env bash
# litdata 0.2.76 with torch 2.13.0: behind torch's DataLoader with workers, every epoch has the same order.
#
# The workers of DataLoader are new in each epoch (persistent_workers=False is the default). The count of epochs, from
# which StreamingDataset(shuffle=True) derives the order, is kept in the workers and starts again with them.
# Expected: another order in each epoch, as without workers and with persistent_workers=True.
# Seen: the same order in all epochs. There is no warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 litdata==0.2.76 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import contextlib
import io
import sys
from importlib.metadata import version

import litdata
import torch
from torch.utils.data import DataLoader


def same(number):
    return number


def orders(**options):
    data = litdata.StreamingDataset("data", shuffle=True, seed=42)
    loader = DataLoader(data, batch_size=None, **options)
    return [[int(item) for item in loader] for _ in range(2)]


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()):
        litdata.optimize(same, list(range(40)), "data", chunk_size=5, num_workers=1, verbose=False)
    alone, new, lasting = orders(), orders(num_workers=2), orders(num_workers=2, persistent_workers=True)
    print("litdata", version("litdata"), "and torch", torch.__version__)
    for name, (first, second) in {"no workers": alone, "lasting workers": lasting, "new workers": new}.items():
        print(f"with {name}: the epochs begin with {first[:6]} and {second[:6]}")
    print("expected: two orders in each line")
    print("seen:     one order with new workers" if new[0] == new[1] else "seen:     two orders with new workers")
    is_as_described = new[0] == new[1] and alone[0] != alone[1] and lasting[0] != lasting[1]
    sys.exit(0 if is_as_described else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
