#!/usr/bin/env bash
# torch 2.13.0: an item of `.shuffle(buffer_size=n)` costs more, the larger n is, when the buffer holds the whole dataset.
#
# A buffer as large as the dataset is the way to shuffle completely. When the source has ended, the pipe removes each
# item from the middle of a list, which moves all later items.
# Expected: about the same time per item for 20,000 and 400,000 items.
# Seen: about 5 times as much time per item for 400,000 items. The time grows with the size of the buffer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import sys
import time

import torch
from torch.utils.data.datapipes.iter import IterableWrapper


def microseconds_per_item(items):
    pipe = IterableWrapper(range(items), deepcopy=False).shuffle(buffer_size=items).set_seed(0)
    begin = time.process_time()
    count = sum(1 for _ in pipe)
    assert count == items
    return (time.process_time() - begin) / items * 1e6


few, many = microseconds_per_item(20_000), microseconds_per_item(400_000)
print("torch", torch.__version__)
print("expected: about the same time per item in both epochs")
print(f"seen:     {few:.1f} µs per item for 20,000 items, {many:.1f} µs per item for 400,000 items")
sys.exit("The behavior has changed." if many < 3 * few else 0)
EOF
cd "$folder"
venv/bin/python show.py
