#!/usr/bin/env bash
# webdataset 1.0.2: shardshuffle=8 gives the same order of shards in every epoch.
#
# Expected: each epoch shuffles the shards anew. With the default (detshuffle=False) no fixed order was asked for.
# Seen: all epochs have one order, with and without a seed. Only detshuffle=True, which the documentation calls
# "deterministic shuffling", changes the order from epoch to epoch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet webdataset==1.0.2
cat > "$folder/show.py" <<'EOF'
import sys
from importlib.metadata import version

import webdataset

shards = [f"{number}.tar" for number in range(8)]
for shard in shards:
    with webdataset.TarWriter(shard) as writer:
        writer.write({"__key__": shard[0], "txt": shard[0]})


def epochs(**options):
    dataset = webdataset.WebDataset(shards, shardshuffle=8, **options).decode()
    return ["".join(sample["txt"] for sample in dataset) for _ in range(4)]


default, seeded, deterministic = epochs(), epochs(seed=1), epochs(seed=1, detshuffle=True)
print("webdataset", version("webdataset"), "reads 8 shards of one sample, four times")
print("expected: several orders in each line")
print("seen:     by default         ", *default)
print("          seed=1             ", *seeded)
print("          detshuffle=True    ", *deterministic)
is_as_described = len(set(default)) == len(set(seeded)) == 1 and len(set(deterministic)) > 1
sys.exit(0 if is_as_described else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
