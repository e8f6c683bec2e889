#!/usr/bin/env bash
# datasets 5.2.0 with torch 2.13.0: take(n) and skip(n) select other examples for each number of workers.
#
# An IterableDataset with several shards, of which the first 7 examples are for validation and the rest for training.
# A validation loader often has fewer workers than the training loader. take and skip then count in each worker by
# itself.
# Expected: the two parts never share an example, and together they are the data set.
# Seen: examples are in both parts, and as many others are in none. There is no warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 datasets==5.2.0 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import sys

import datasets
import torch
from torch.utils.data import DataLoader


def examples(shards):
    for shard in shards:
        for row in range(5):
            yield {"number": 100 * shard + row}


def numbers(data, workers):
    return [int(example["number"]) for example in DataLoader(data, batch_size=None, num_workers=workers)]


if __name__ == "__main__":
    whole = datasets.IterableDataset.from_generator(examples, gen_kwargs={"shards": list(range(4))})
    everything = set(numbers(whole, 0))
    print("datasets", datasets.__version__, "and torch", torch.__version__)
    found = {}
    for validating, training in ((0, 0), (2, 2), (0, 2)):
        held_out, rest = numbers(whole.take(7), validating), numbers(whole.skip(7), training)
        both, none = sorted({*held_out} & {*rest}), sorted(everything - {*held_out, *rest})
        found[validating, training] = both, none
        print(f"take(7) with {validating} workers, skip(7) with {training}: in both {both}, in none {none}")
    print("expected: [] in each line")
    print("seen:     the third line is not empty" if found[0, 2][0] else "seen:     the parts do not overlap")
    is_as_described = all(found[0, 2]) and found[0, 0] == found[2, 2] == ([], [])
    sys.exit(0 if is_as_described else "The behavior has changed.")
EOF
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python show.py
