#!/usr/bin/env bash
# webdataset 1.0.2: the seed of a WebDataset does not reach its .shuffle().
#
# WebDataset(seed=...) is documented as "Random seed for shuffling".
# Expected: WebDataset(..., seed=42).shuffle(20) gives one order in all runs, at least after random.seed(0).
# Seen: each run has its own order. The generator of .shuffle() is seeded with the time and the number of the process,
# unless .shuffle(20, seed=42) has a seed of its own, and then the order is the same in every epoch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet webdataset==1.0.2
cat > "$folder/show.py" <<'EOF'
import random
import sys
from importlib.metadata import version

import webdataset

with webdataset.TarWriter("shard.tar") as writer:
    for number in range(20):
        writer.write({"__key__": f"{number:02}", "txt": str(number)})


def run(**options):
    random.seed(0)
    dataset = webdataset.WebDataset("shard.tar", shardshuffle=False, seed=42).shuffle(20, **options).decode()
    return [[int(sample["txt"]) for sample in dataset] for _ in range(2)]


first, second = run(), run()
own, again = run(seed=42), run(seed=42)
print("webdataset", version("webdataset"), "shuffles 20 samples, two runs of two epochs")
print("expected: both runs have the same order of the first epoch")
print("seen:    ", first[0][:8], "and", second[0][:8])
print("          with .shuffle(20, seed=42) the epochs begin with", own[0][:4], "and", own[1][:4])
is_as_described = first[0] != second[0] and own == again and own[0] == own[1]
sys.exit(0 if is_as_described else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
