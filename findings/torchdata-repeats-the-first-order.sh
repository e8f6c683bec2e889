#!/usr/bin/env bash
# torchdata 0.11.0 (with torch 2.13.0): StatefulDataLoader resumes the second epoch in the order of the first one.
#
# The sampler is torch's RandomSampler with a generator of its own. A new program builds the same loader and loads the
# state that was saved in the second epoch.
# Expected: the rest of the second epoch, as in the run that was not stopped, or an error.
# Seen: samples in the order of the first epoch, so that some samples come twice in the epoch and others not at all.
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
from torch.utils.data import RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader


def build():
    data = list("abcdef")
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    return StatefulDataLoader(data, sampler=sampler, batch_size=None)


loader = build()
first = list(loader)
second = []
for item in loader:
    second.append(item)
    if len(second) == 2:
        state = loader.state_dict()

resumed = build()
resumed.load_state_dict(state)
rest = list(resumed)
print("torchdata", version("torchdata"), "and torch", torch.__version__)
print("the first epoch:", *first, "  the second epoch:", *second, "  the state is that after:", *second[:2])
print("expected:", *second[2:])
print("seen:    ", *rest, " which is the order of the first epoch from the third sample on")
sys.exit("The behavior has changed." if rest != first[2:] or rest == second[2:] else 0)
EOF
cd "$folder"
venv/bin/python show.py
