#!/usr/bin/env bash
# torchdata 0.11.0 (with torch 2.13.0): StatefulDataLoader shuffles in another order than torch's DataLoader.
#
# Its README calls StatefulDataLoader a drop-in replacement for torch.utils.data.DataLoader.
# Expected: shuffle=True with the same generator, or after the same torch.manual_seed, gives the same order.
# Seen: the orders differ in both cases, so a run is not reproduced when its loader is replaced.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchdata==0.11.0
cat > "$folder/show.py" <<'EOF'
import sys
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader


def order(loader_class, has_generator):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0) if has_generator else None
    return list(loader_class(range(8), batch_size=None, shuffle=True, generator=generator))


print("torchdata", version("torchdata"), "and torch", torch.__version__)
is_equal = []
for has_generator in (True, False):
    expected, seen = order(DataLoader, has_generator), order(StatefulDataLoader, has_generator)
    assert order(DataLoader, has_generator) == expected and order(StatefulDataLoader, has_generator) == seen
    is_equal.append(expected == seen)
    print("with the same", "generator:" if has_generator else "torch.manual_seed:")
    print("  expected, as torch's DataLoader:", expected)
    print("  seen with StatefulDataLoader:   ", seen)
sys.exit("The behavior has changed." if any(is_equal) else 0)
EOF
cd "$folder"
venv/bin/python show.py
